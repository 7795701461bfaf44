"""A source in memory: given records, a script of events and faults, and a memory of what it was told."""

from __future__ import annotations

import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from headrace.errors import SourceError
from headrace.record import (
    BadRecord,
    Drained,
    Idle,
    LaneId,
    LanesAssigned,
    LanesRevoked,
    OnError,
    PartitionId,
    PayloadBatch,
    SourceContext,
    SourceEvent,
)

Item = bytes | BadRecord | Exception
"""A record; a record that the source could not make; or what one poll raises."""

Pace = Callable[["MemoryLane"], int | None]
"""How many records the next batch of a lane may hold; 0: none now; None: as many as there are."""


class Told(msgspec.Struct, frozen=True):
    """One call of the supervisor."""

    call: str
    lanes: tuple[LaneId, ...] = ()
    positions: Mapping[PartitionId, int] = {}


class MemoryLane:
    """One partition. A record's position is its index."""

    def __init__(self, source: MemorySource, partition: PartitionId, items: Iterable[Item], start: int) -> None:
        self._source = source
        self._items: list[Item] = list(items)
        self._position = start
        self.partition = partition
        self.paused = False

    @property
    def id(self) -> LaneId:
        return LaneId(self.partition)

    @property
    def position(self) -> int:
        """Of the next record."""
        return self._position

    @property
    def left(self) -> int:
        return max(0, len(self._items) - self._position)

    def add(self, items: Iterable[Item]) -> None:
        self._items.extend(items)

    def poll(self, max_records: int) -> PayloadBatch | None:
        if self.paused or not self.left:
            return None
        allowed = self._source.pace(self) if self._source.pace is not None else None
        count = min(max_records, self.left, self.left if allowed is None else allowed)
        return self._next(count) if count > 0 else None

    def _next(self, count: int) -> PayloadBatch:
        start = self._position
        payloads: list[bytes] = []
        ends: array[int] = array("q")
        rejects: list[BadRecord] = []
        for item in self._items[start : start + count]:
            if isinstance(item, Exception):
                if self._position == start:
                    del self._items[start]
                    raise item
                break
            if isinstance(item, BadRecord):
                rejects.append(msgspec.structs.replace(item, partition=self.partition, position=self._position))
            else:
                payloads.append(item)
                ends.append(self._position + 1)
            self._position += 1
        return PayloadBatch(
            partition=self.partition,
            start=start,
            end=self._position,
            payloads=payloads,
            ends=ends,
            keys=self._source.keys_of(self.partition, ends),
            rejects=rejects,
        )


class MemorySource:
    """Records in memory, one partition or several.

    ``payloads``: records of the partition ``memory``, or of partitions by name. An item may be a `BadRecord`, handed
    out as a reject, or an exception, raised once by the poll that reaches it. ``keys``: for each partition one key a
    record. ``bounded=False``: open-ended until `finish`; `feed` adds records from any thread.

    ``pace`` bounds each batch. ``events`` are told first, one a call, before the source's own.

    ``told`` lists the calls of `pause`, `resume`, `commit`, `flush_commits` and `close`; ``paused`` the lanes paused.
    """

    def __init__(
        self,
        payloads: Mapping[str, Sequence[Item]] | Sequence[Item] = (),
        *,
        decode: type = dict,
        format: str = "ndjson",  # noqa: A002 - the word that users know
        bounded: bool = True,
        keys: Mapping[str, Sequence[bytes | str | None]] | None = None,
        pace: Pace | None = None,
        events: Iterable[SourceEvent] = (),
        replayable: bool = True,
        on_error: OnError | None = None,
    ) -> None:
        given = payloads if isinstance(payloads, Mapping) else {"memory": payloads}
        self._payloads = {PartitionId(name): list(items) for name, items in given.items()}
        self._keys = keys
        self._events = deque(events)
        self._lanes: dict[PartitionId, MemoryLane] = {}
        self._new: list[MemoryLane] = []
        self._lock = threading.Lock()
        self._finished = bounded
        self._ctx: SourceContext | None = None
        self.decode = decode
        self.format = format
        self.bounded = bounded
        self.replayable = replayable
        self.on_error = on_error
        self.pace = pace
        self.told: list[Told] = []

    @property
    def paused(self) -> set[LaneId]:
        return {lane.id for lane in self._lanes.values() if lane.paused}

    def resolve(self, cwd: str | Path) -> MemorySource:  # noqa: ARG002 - nothing here has a path
        return self

    def keys_of(self, partition: PartitionId, ends: Iterable[int]) -> Sequence[bytes | str | None] | None:
        """The keys of the records that end there."""
        if self._keys is None or partition not in self._keys:
            return None
        keys = self._keys[partition]
        return [keys[end - 1] for end in ends]

    def open(self, ctx: SourceContext) -> None:
        with self._lock:
            self._ctx = ctx
            self._lanes.clear()
            for partition, items in self._payloads.items():
                self._add_lane(partition, items)

    def _add_lane(self, partition: PartitionId, items: Iterable[Item]) -> None:
        assert self._ctx is not None
        lane = MemoryLane(self, partition, items, self._ctx.positions.get(partition, 0))
        self._lanes[partition] = lane
        self._new.append(lane)

    def feed(self, items: Iterable[Item], partition: str = "memory") -> None:
        """More records, from any thread; a partition that is new gets a lane."""
        added = list(items)
        name = PartitionId(partition)
        with self._lock:
            self._payloads.setdefault(name, []).extend(added)
            if self._ctx is not None and name in self._lanes:
                self._lanes[name].add(added)
            elif self._ctx is not None:
                self._add_lane(name, added)
        self._wake()

    def tell(self, event: SourceEvent) -> None:
        """The next event, from any thread."""
        with self._lock:
            self._events.append(event)
        self._wake()

    def finish(self) -> None:
        """Nothing more is fed: the source ends when all is handed out."""
        self._finished = True
        self._wake()

    def _wake(self) -> None:
        if self._ctx is not None:
            self._ctx.wake()

    def poll_events(self) -> SourceEvent:
        if self._ctx is None:
            raise SourceError("MemorySource is not open")
        with self._lock:
            if self._events:
                return self._apply(self._events.popleft())
            if self._new:
                lanes, self._new = tuple(self._new), []
                return LanesAssigned(lanes)
            if self._finished and not any(lane.left for lane in self._lanes.values()):
                return Drained()
            return Idle()

    def _apply(self, event: SourceEvent) -> SourceEvent:
        if isinstance(event, LanesRevoked):
            for lane in event.lanes:
                self._lanes.pop(PartitionId(lane), None)
        return event

    def next_due(self) -> float | None:
        return None

    def pause(self, lanes: Sequence[LaneId]) -> None:
        self._set_paused("pause", lanes, paused=True)

    def resume(self, lanes: Sequence[LaneId]) -> None:
        self._set_paused("resume", lanes, paused=False)

    def _set_paused(self, call: str, lanes: Sequence[LaneId], *, paused: bool) -> None:
        self.told.append(Told(call, lanes=tuple(lanes)))
        for lane in self._lanes.values():
            if lane.id in lanes:
                lane.paused = paused

    def commit(self, positions: Mapping[PartitionId, int]) -> None:
        self.told.append(Told("commit", positions=dict(positions)))

    def flush_commits(self) -> None:
        self.told.append(Told("flush_commits"))

    def close(self) -> None:
        self.told.append(Told("close"))
        self._ctx = None
