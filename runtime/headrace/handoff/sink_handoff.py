"""The terminal stage: routes rows to shards, seals their chunks and hands them to the shards' queues, without waiting.

A record is never refused. What a queue does not take is parked, shard by shard, and a chunk that is sealed later goes
behind it (HR-7); a full shard holds up nobody else's. Bytes are charged to the budget at the seal (HR-17).
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from headrace.checkpoint.ack import AckRef, AckSet
from headrace.codec.frame import GROUP_HEADER
from headrace.codec.isolation import BAD_ROW
from headrace.errors import BrokenEncoderError, HeadraceError
from headrace.handoff.budget import Budget
from headrace.handoff.chunk import EncodedChunk, Segment
from headrace.handoff.grouping import Group, GroupEncoder, RowEncoder
from headrace.record import BadRecord, BatchOrigin, ChunkId, Flow, OnError, PartitionId
from headrace.shm.slot import FRAME_AT, span_bytes, trailer_bytes


class RowRouter(Protocol):
    """Says which shard each of ``n`` rows of a partition goes to; ``keys`` is None where they are keyless."""

    def shards_of(self, keys: list[object] | None, n: int, partition: PartitionId) -> list[int]: ...


class ChunkQueue(Protocol):
    """Takes a shard's chunks, or does not. Never waits."""

    def try_send(self, chunk: EncodedChunk, now: float) -> bool: ...


class HandoffSettings(msgspec.Struct, frozen=True, kw_only=True):
    """``chunk.target_bytes``, ``chunk.linger`` and ``shm.slot_bytes``: bytes and seconds."""

    target_bytes: int
    linger: float
    slot_bytes: int


class HandoffCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Totals since the start: rows, bad rows and seconds of the batches that ended; chunks and frame bytes sealed;
    chunks that had to be parked."""

    batches: int
    rows: int
    bad: int
    seconds: float
    chunks: int
    bytes: int
    parked: int


class _OpenChunk:
    """A shard's chunk that is not sealed."""

    __slots__ = ("acks", "frame_bytes", "partitions", "parts", "room", "segments", "since")

    def __init__(self, since: float, slot_bytes: int) -> None:
        self.since = since
        self.parts: list[bytes] = []
        self.frame_bytes = 0
        self.segments: list[Segment] = []
        self.acks = AckSet()
        self.partitions: set[PartitionId] = set()
        self.room = slot_bytes - FRAME_AT - trailer_bytes(())

    def takes(self, group: Group) -> bool:
        return self._cost(group) <= self.room

    def add(self, group: Group, ack: AckRef) -> None:
        body, segment = group
        self.room -= self._cost(group)
        self.partitions.add(segment.origin.partition)
        self.parts += (GROUP_HEADER.pack(len(body), len(segment.records)), body)
        self.frame_bytes += GROUP_HEADER.size + len(body)
        self.segments.append(segment)
        self.acks.add(ack)

    def _cost(self, group: Group) -> int:
        partition = group.segment.origin.partition
        span = 0 if partition in self.partitions else span_bytes(partition)
        return GROUP_HEADER.size + len(group.body) + span


class SinkHandoff:
    """The terminal stage of one sink."""

    def __init__(
        self,
        sink: int,
        shards: int,
        encoder: RowEncoder,
        router: RowRouter,
        queues: Sequence[ChunkQueue],
        budget: Budget,
        settings: HandoffSettings,
        policy: OnError,
        next_chunk_id: Callable[[], ChunkId],
    ) -> None:
        self.sink = sink
        self.shards = shards
        self._router = router
        self._queues = queues
        self._budget = budget
        self._settings = settings
        self._policy = policy
        self._next_chunk_id = next_chunk_id
        self._groups = GroupEncoder(encoder, settings.slot_bytes, policy)
        self._open: dict[int, _OpenChunk] = {}  # the oldest first: a chunk opens at the end
        self._parked: dict[int, deque[EncodedChunk]] = {}  # only shards that have some
        self._fatal: BadRecord | HeadraceError | None = None
        self._has_failed = False
        self._closed = False
        self._bad: list[BadRecord] = []
        self._batch_rows = self._batch_bad = 0
        self._batches = self._rows = self._bad_rows = self._chunks = self._bytes = self._parkings = 0
        self._seconds = 0.0

    def push(self, row: object, key: object, record: int, origin: BatchOrigin, ack: AckRef, now: float) -> Flow:
        """One row of the batch's ``record``-th record. Rows of a record that has several go through `push_batch`."""
        return self.push_batch([row], [key], array("I", (record,)), origin, ack, now)

    def push_batch(
        self,
        rows: list[object],
        keys: list[object] | None,
        index: array[int] | None,
        origin: BatchOrigin,
        ack: AckRef,
        now: float,
    ) -> Flow:
        """Take a batch's rows: ``index`` is each one's record, never falling; None: row i is record i.

        ``BLOCKED``: taken, and something is parked or fatal. The caller holds its share of ``ack`` until it has taken
        shares for what `take_bad` gives (HR-15). A fatal row fails the batch here already (HR-1).
        """
        if self._closed:
            raise HeadraceError(f"rows are pushed to sink {self.sink} after its hand-off was closed")
        self._batch_rows += len(rows)
        try:
            for shard, its_rows, segment in self._by_shard(rows, keys, index, origin):
                for group in self._groups.encode(its_rows, segment):
                    self._add(shard, group, ack, now)
        except BrokenEncoderError as error:
            self._fail(error, str(error), ack)
        self._judge(ack)
        return self._flow()

    def relieve(self, now: float) -> Flow:
        """Offer each shard's parked chunks again, oldest first, up to the first that its queue refuses."""
        for shard in sorted(self._parked, key=lambda shard: self._parked[shard][0].id):
            parked = self._parked[shard]
            while parked and self._queues[shard].try_send(parked[0], now):
                parked.popleft()
            if not parked:
                del self._parked[shard]
        return self._flow()

    def seal_due(self, now: float) -> None:
        """Seal the chunks that have been open for the linger."""
        while (due := self.next_due()) is not None and due <= now:
            self._seal(next(iter(self._open)), now)

    def next_due(self) -> float | None:
        """When `seal_due` has something to seal; None: nothing is open."""
        oldest = next(iter(self._open.values()), None)
        return None if oldest is None else oldest.since + self._settings.linger

    def flush_terminal(self, now: float) -> Flow:
        """Seal every open chunk, then relieve. ``BLOCKED``: something is still parked."""
        for shard in list(self._open):
            self._seal(shard, now)
        return self.relieve(now)

    def on_batch_end(self, elapsed: float) -> None:
        """The batch's rows are through the chain, which took ``elapsed`` seconds: its counts are published."""
        self._batches += 1
        self._seconds += elapsed
        self._rows += self._batch_rows
        self._bad_rows += self._batch_bad
        self._batch_rows = self._batch_bad = 0

    def statistics(self) -> HandoffCounts:
        return HandoffCounts(
            batches=self._batches,
            rows=self._rows,
            bad=self._bad_rows,
            seconds=self._seconds,
            chunks=self._chunks,
            bytes=self._bytes,
            parked=self._parkings,
        )

    def take_fatal(self) -> BadRecord | HeadraceError | None:
        """The first row that its policy makes fatal, or the encoder's end; once."""
        fatal, self._fatal = self._fatal, None
        return fatal

    def take_bad(self) -> list[BadRecord]:
        """The rows that were left out by policy since the last call, in the order in which they were found.

        ``raw`` is the row where rows are bytes; else it is empty, and the record's bytes are the caller's to add.
        """
        bad, self._bad = self._bad, []
        return bad

    def close(self, cause: str = "the run ended before it was sent") -> None:
        """Fail what is open or parked, so that its records replay, and give its bytes back to the budget."""
        self._closed = True
        for unsealed in self._open.values():
            unsealed.acks.close(cause)
        self._open.clear()
        for parked in self._parked.values():
            while parked:
                chunk = parked.popleft()
                self._budget.release(chunk.size)
                chunk.acks.close(cause)
        self._parked.clear()

    def parked(self, shard: int) -> int:
        """How many chunks of the shard are parked."""
        return len(self._parked.get(shard, ()))

    def parked_bytes_of(self, shard: int) -> int:
        return sum(chunk.size for chunk in self._parked.get(shard, ()))

    @property
    def parked_bytes(self) -> int:
        """What all parked chunks are charged at in the budget."""
        return sum(map(self.parked_bytes_of, self._parked))

    def open_since(self, shard: int) -> float | None:
        """Since when the shard has an open chunk; None: it has none."""
        chunk = self._open.get(shard)
        return None if chunk is None else chunk.since

    def _by_shard(
        self, rows: list[object], keys: list[object] | None, index: array[int] | None, origin: BatchOrigin
    ) -> list[tuple[int, list[object], Segment]]:
        """Each shard that got rows, with its rows and where they came from, in order."""
        children: array[int] | None = None
        try:
            shards = self._router.shards_of(keys, len(rows), origin.partition)
        except BAD_ROW:
            rows, segment, shards = self._route_singly(rows, keys, Segment(origin, _records(index, rows)))
            index, children = segment.records, segment.children
        if not rows or shards.count(shards[0]) == len(rows):
            return [(shards[0], rows, Segment(origin, _records(index, rows), children))] if rows else []
        if index is not None and children is None:
            children = _children(index)
        places: list[list[int]] = [[] for _ in range(self.shards)]
        for at, shard in enumerate(shards):  # measured: faster than a chain of maps, and than gathering rows here
            places[shard].append(at)
        return [
            (shard, [rows[at] for at in its], _segment(origin, index, children, its))
            for shard, its in enumerate(places)
            if its
        ]

    def _route_singly(
        self, rows: list[object], keys: list[object] | None, segment: Segment
    ) -> tuple[list[object], Segment, list[int]]:
        """The rows whose keys can be routed; the others are left out."""
        partition = segment.origin.partition
        good: list[int] = []
        shards: list[int] = []
        for at, row in enumerate(rows):
            try:
                shards += self._router.shards_of(None if keys is None else [keys[at]], 1, partition)
            except BAD_ROW as error:
                self._groups.leave_out(row, segment, at, "shard_by", f"{type(error).__name__}: {error}")
            else:
                good.append(at)
        return [rows[at] for at in good], segment.pick(good), shards

    def _add(self, shard: int, group: Group, ack: AckRef, now: float) -> None:
        chunk = self._open.get(shard)
        if chunk is not None and not chunk.takes(group):
            self._seal(shard, now)
            chunk = None
        if chunk is None:
            chunk = self._open[shard] = _OpenChunk(now, self._settings.slot_bytes)
        chunk.add(group, ack)
        if chunk.frame_bytes >= self._settings.target_bytes:
            self._seal(shard, now)

    def _seal(self, shard: int, now: float) -> None:
        sealing = self._open.pop(shard)
        chunk = EncodedChunk(
            id=self._next_chunk_id(),
            sink=self.sink,
            shard=shard,
            frame=b"".join(sealing.parts),
            segments=tuple(sealing.segments),
            acks=sealing.acks,
            sealed_at=now,
        )
        self._budget.charge(chunk.size)
        self._chunks += 1
        self._bytes += len(chunk.frame)
        self._send_or_park(chunk, now)

    def _send_or_park(self, chunk: EncodedChunk, now: float) -> None:
        parked = self._parked.get(chunk.shard)
        sent = False
        try:
            sent = parked is None and self._queues[chunk.shard].try_send(chunk, now)
        finally:  # whatever the queue raises, the chunk is somewhere
            if not sent:
                self._parked.setdefault(chunk.shard, deque()).append(chunk)
                self._parkings += 1

    def _judge(self, ack: AckRef) -> None:
        bad, self._groups.bad = self._groups.bad, []
        self._batch_bad += len(bad)
        for row in bad:
            if row.policy is OnError.FAIL:
                self._fail(row, f"{row.stage}: {row.cause}", ack)
            else:
                self._bad.append(row)

    def _fail(self, fatal: BadRecord | HeadraceError, cause: str, ack: AckRef) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._fatal = fatal
        ack.share()
        ack.fail(cause)

    def _flow(self) -> Flow:
        return Flow.BLOCKED if self._parked or self._has_failed else Flow.CONTINUE


def _records(index: array[int] | None, rows: list[object]) -> array[int]:
    """Each row's record; without an index row i is record i."""
    return array("I", range(len(rows))) if index is None else index


def _children(index: array[int]) -> array[int] | None:
    """Each row's place among its record's rows; None: no record has two."""
    if len(set(index)) == len(index):
        return None
    children, first = array("I"), 0
    for at, record in enumerate(index):
        if record != index[first]:
            first = at
        children.append(at - first)
    return children


def _segment(origin: BatchOrigin, index: array[int] | None, children: array[int] | None, rows: list[int]) -> Segment:
    """The rows of the batch at these places."""
    records = array("I", rows if index is None else [index[at] for at in rows])
    return Segment(origin, records, None if children is None else array("I", [children[at] for at in rows]))
