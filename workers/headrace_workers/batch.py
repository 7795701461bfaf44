"""Which prepared chunks of a shard are written together, and when: rows, bytes, linger, a flush, or no free slot."""

from __future__ import annotations

import enum
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

import msgspec

from headrace.codec.spool import SpoolEntry
from headrace.config.settings import BatchSettings
from headrace.shm.records import ChunkBell, RowOutcome


class SealReason(enum.Enum):
    """Why a write batch was sealed."""

    ROWS = "rows"
    BYTES = "bytes"
    LINGER = "linger"
    FLUSH = "flush"
    SLOTS = "slots"


class Prepared(msgspec.Struct, kw_only=True):
    """A chunk after its operators: what is to be written of it, and what was left out.

    ``rows`` for sinks that take rows, ``blocks`` (whole lines, maybe views into the slot) for those that take lines;
    ``index`` maps a row to its row in the chunk, never falling, None where they are the same; ``children`` is each
    row's place among those that its row in the chunk became, None where ``index`` still holds them all.
    """

    bell: ChunkBell
    chunk: int
    rows: list[object] | None = None
    blocks: list[bytes | memoryview] | None = None
    count: int = 0
    nbytes: int = 0
    index: array[int] | None = None
    children: array[int] | None = None
    filtered: int = 0
    filtered_rows: list[int] | None = None
    skipped: list[RowOutcome] = msgspec.field(default_factory=list[RowOutcome])
    letters: list[SpoolEntry] = msgspec.field(default_factory=list[SpoolEntry])
    fatal: RowOutcome | None = None
    spooled: bool = False
    spool_end: int = 0

    def chunk_row(self, row: int) -> int:
        """The chunk's row that became this row."""
        return row if self.index is None else self.index[row]

    def child(self, row: int) -> int:
        """The row's place among those that its row in the chunk became."""
        if self.children is not None:
            return self.children[row]
        return 0 if self.index is None else place_among_children(self.index, row)

    def keep(self, kept: list[int], rows: list[object]) -> None:
        """Only these of its rows are left; ``rows`` are all of them, lines included."""
        if self.index is not None or self.children is not None:
            self.children = array("I", [self.child(row) for row in kept])
        self.index = array("I", [self.chunk_row(row) for row in kept])
        left = [rows[row] for row in kept]
        if self.rows is not None:
            self.rows = left
        else:
            self.blocks = [b"".join(line for line in left if isinstance(line, bytes))]
        self.count = len(kept)


def place_among_children(index: Sequence[int], row: int) -> int:
    """A row's place among those with the same index, which never falls."""
    return row - bisect_left(index, index[row])


class Batcher:
    """The open write batch of one shard."""

    def __init__(self, settings: BatchSettings) -> None:
        self._settings = settings
        self._open: deque[Prepared] = deque()
        self._rows = 0
        self._bytes = 0
        self._since = 0.0
        self._out_of_slots = False

    def __len__(self) -> int:
        return len(self._open)

    def add(self, prepared: Prepared, now: float) -> None:
        """Take the next chunk, in shard order."""
        if not self._open:
            self._since = now
        self._open.append(prepared)
        self._rows += prepared.count
        self._bytes += prepared.nbytes
        self._out_of_slots |= prepared.bell.free_slots == 0

    def due(self, now: float, *, flushing: bool, more: bool) -> SealReason | None:
        """Why the open batch must be sealed now, or None. ``more``: chunks of it are claimed, not yet prepared."""
        if not self._open:
            return None
        if self._rows >= self._settings.max_rows:
            return SealReason.ROWS
        if self._bytes >= self._settings.max_bytes:
            return SealReason.BYTES
        if more:
            return None
        if flushing:
            return SealReason.FLUSH
        if self._out_of_slots:
            return SealReason.SLOTS
        return SealReason.LINGER if now >= self._since + self._settings.linger else None

    def next_due(self) -> float | None:
        """When linger seals the open batch."""
        return self._since + self._settings.linger if self._open else None

    def take(self) -> list[Prepared]:
        """Seal: the chunks of one write, in order."""
        taken = list(self._open)
        self._open.clear()
        self._rows = self._bytes = 0
        self._out_of_slots = False
        return taken
