"""A sealed chunk: the encoded rows of one shard, where each came from, and the batches that wait for it."""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_left
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from headrace.checkpoint.ack import AckSet
from headrace.record import BatchOrigin, ChunkId, PartitionId
from headrace.shm.slot import Span

ROW_POSITION_BYTES: Final = 8
"""What a row's position is counted at, beside the frame."""


class RowOrigin(NamedTuple):
    """Where one row came from; ``child`` counts the rows that its record became, over all shards, from 0."""

    partition: PartitionId
    position: int
    child: int


class Segment(msgspec.Struct, frozen=True):
    """The rows that one source batch had for the shard, in order.

    ``records`` is each row's record in the batch, never falling; ``children`` is each row's place among all rows of
    its record, or None where ``records`` holds them all.
    """

    origin: BatchOrigin
    records: array[int]
    children: array[int] | None = None

    def slice(self, rows: slice) -> Segment:
        """A range of the rows that begins and ends between records."""
        children = None if self.children is None else self.children[rows]
        return Segment(self.origin, self.records[rows], children)

    def pick(self, rows: list[int]) -> Segment:
        """Only these rows; each keeps its place among its record's rows."""
        records = array("I", [self.records[row] for row in rows])
        return Segment(self.origin, records, array("I", [self.locate(row).child for row in rows]))

    def locate(self, row: int) -> RowOrigin:
        record = self.records[row]
        child = row - bisect_left(self.records, record) if self.children is None else self.children[row]
        return RowOrigin(self.origin.partition, self.origin.position(record), child)


class EncodedChunk:
    """The unit of hand-over and of leasing.

    ``frame`` is groups of `headrace.codec.frame`, ``length`` bytes of them; it is empty once the bytes lie in a slot.
    """

    __slots__ = (
        "_starts",
        "acks",
        "frame",
        "id",
        "length",
        "rows",
        "sealed_at",
        "segments",
        "shard",
        "sink",
        "size",
        "spans",
    )

    def __init__(
        self,
        *,
        id: ChunkId,  # noqa: A002 (the word for it; a chunk has no use for the builtin)
        sink: int,
        shard: int,
        frame: bytes,
        segments: tuple[Segment, ...],
        acks: AckSet,
        sealed_at: float,
    ) -> None:
        self.id = id
        self.sink = sink
        self.shard = shard
        self.frame = frame
        self.length = len(frame)
        self.segments = segments
        self.acks = acks
        self.sealed_at = sealed_at
        self._starts = list(itertools.accumulate((len(segment.records) for segment in segments), initial=0))
        self.rows = self._starts.pop()
        self.spans = _spans(segments)
        self.size = self.length + ROW_POSITION_BYTES * self.rows

    def let_go_of_frame(self) -> None:
        """The bytes lie in a slot, and stay there until the chunk is settled."""
        self.frame = b""

    def locate(self, row: int) -> RowOrigin:
        """Where the chunk's ``row``-th row came from. Raises IndexError."""
        if not 0 <= row < self.rows:
            raise IndexError(f"chunk {self.id} has {self.rows} rows, not one numbered {row}")
        at = bisect_left(self._starts, row + 1) - 1
        return self.segments[at].locate(row - self._starts[at])


def _spans(segments: Iterable[Segment]) -> tuple[Span, ...]:
    positions: dict[PartitionId, list[int]] = {}
    for segment in segments:
        origin, records = segment.origin, segment.records
        its = positions.setdefault(origin.partition, [])
        its += (origin.position(records[0]), origin.position(records[-1]))
    return tuple(Span(partition, min(its), max(its)) for partition, its in positions.items())
