"""Counts rows and drops them."""

from __future__ import annotations

import threading

from headrace_workers.writers.base import BlockingWriter, SealedBatch, WriterContext


class BlackholeWriter(BlockingWriter):
    """``rows`` and ``nbytes`` are the totals."""

    def __init__(self) -> None:
        self.rows = 0
        self.nbytes = 0
        self._lock = threading.Lock()

    def open(self, context: WriterContext) -> None:
        """Nothing to make ready."""

    def write(self, batch: SealedBatch) -> None:
        with self._lock:
            self.rows += batch.count
            self.nbytes += batch.nbytes

    def close(self) -> None:
        """Nothing to finish."""
