"""The worker's voice: acknowledgements on the ack pipe, whole records, in order, from any thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from headrace.shm.pipes import PipeWriter
from headrace.shm.records import (
    RECORD_MAX,
    Ack,
    Beat,
    Broken,
    Busy,
    ColumnsAre,
    Done,
    Failed,
    Filtered,
    Held,
    Outcome,
    Ready,
    Released,
    RowOutcome,
    Stage,
    encode,
    encode_all,
)
from headrace.shm.token import CompletionToken

_FOREVER = 365 * 86_400.0


class AckPipe:
    """Writes records of at most one pipe's atomic size. All but `beat` wait for room, which the supervisor makes.

    The wait has no limit of its own: a supervisor that is stopped is waited for, and one that is dead ends this
    process through the life pipe.
    """

    def __init__(self, fd: int) -> None:
        self._pipe = PipeWriter(fd)
        self._lock = threading.Lock()

    def _say(self, *records: Ack) -> None:
        whole = [part for record in records for part in encode_all(record)]
        with self._lock:
            for batch in _packed(whole):
                self._pipe.write_when_room(batch, time.monotonic() + _FOREVER)

    def ready(self, pid: int, start_ticks: int, digest: bytes) -> None:
        self._say(Ready(pid, start_ticks, digest))

    def columns(self, sink: int, columns: bytes) -> None:
        self._say(ColumnsAre(sink, columns))

    def held(self, token: CompletionToken) -> None:
        self._say(Held(token))

    def busy(self, tokens: Iterable[CompletionToken], stage: Stage) -> None:
        self._say(*(Busy(token, stage) for token in tokens))

    def failed(self, token: CompletionToken, rows: list[RowOutcome]) -> None:
        self._say(Failed(token, tuple(rows)))

    def filtered(self, token: CompletionToken, rows: list[int]) -> None:
        """Which rows the operators filtered: bit ``i`` of byte ``i // 8`` of the bitmap is row ``i``."""
        bits = bytearray(max(rows) // 8 + 1)
        for row in rows:
            bits[row // 8] |= 1 << (row % 8)
        self._say(Filtered(token, 0, bytes(bits)))

    def done(
        self,
        token: CompletionToken,
        outcome: Outcome,
        *,
        written: int = 0,
        filtered: int = 0,
        skipped: int = 0,
        dead_lettered: int = 0,
        spool_end: int = 0,
    ) -> None:
        self._say(
            Done(
                token=token,
                outcome=outcome,
                written=written,
                filtered=filtered,
                skipped=skipped,
                dead_lettered=dead_lettered,
                spool_end=spool_end,
            )
        )

    def released(self, token: CompletionToken) -> None:
        self._say(Released(token))

    def beat(self, body: bytes) -> None:
        """A sign of life; dropped when there is no room, or when another record is being written."""
        if self._lock.acquire(blocking=False):
            try:
                self._pipe.try_write(encode(Beat(body)))
            finally:
                self._lock.release()

    def broken(self, text: str) -> None:
        self._say(Broken(text))


def _packed(records: list[bytes]) -> Iterable[bytes]:
    """Whole records, as many to a write as one atomic write holds."""
    batch = b""
    for record in records:
        if len(batch) + len(record) > RECORD_MAX:
            yield batch
            batch = b""
        batch += record
    if batch:
        yield batch
