"""One write attempt: when it is at work, and when it only waits its turn, which is nobody's fault (HR-16).

A blocking writer that must wait for others wraps that wait in `waiting_for_a_turn`: the attempt's clock stands still
meanwhile, and its chunks are not busy.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager

from headrace.shm.records import Stage
from headrace.shm.token import CompletionToken
from headrace_workers.acks import AckPipe

_thread = threading.local()


class Attempt:
    """Begun when it is made. ``since`` is when the work began that goes on now; times are monotonic seconds."""

    name = "write"

    def __init__(self, acks: AckPipe, tokens: Sequence[CompletionToken]) -> None:
        self._acks = acks
        self._tokens = tokens
        self.at_work = True
        self.since = time.monotonic()
        acks.busy(tokens, Stage.WRITE)

    def run(self, call: Callable[[], None]) -> None:
        """Make the blocking call, on its thread."""
        _thread.attempt = self
        try:
            call()
        finally:
            _thread.attempt = None

    def left(self, limit: float) -> float:
        """Seconds until the work takes longer than ``limit``; while it waits its turn, the whole limit."""
        return self.since + limit - time.monotonic() if self.at_work else limit

    def failed(self) -> None:
        """Until the next attempt nothing is done about these chunks."""
        self._acks.busy(self._tokens, Stage.NONE)

    @contextlib.contextmanager
    def waiting(self) -> Generator[None]:
        self.at_work = False
        self._acks.busy(self._tokens, Stage.NONE)
        try:
            yield
        finally:
            self._acks.busy(self._tokens, Stage.WRITE)
            self.since = time.monotonic()
            self.at_work = True


def waiting_for_a_turn() -> AbstractContextManager[None]:
    """Around a wait of the calling thread's write attempt for others; nothing outside of one."""
    attempt: Attempt | None = getattr(_thread, "attempt", None)
    return contextlib.nullcontext() if attempt is None else attempt.waiting()
