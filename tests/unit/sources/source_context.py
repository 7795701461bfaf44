"""A supervisor's side of a source, in memory: positions, identities, warnings, and a clock that tests move."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from headrace.record import (
    BadRecord,
    Drained,
    Idle,
    Lane,
    LaneId,
    LanesAssigned,
    LanesRevoked,
    PartitionId,
    PartitionIdentity,
    PayloadBatch,
    Source,
)


class FakeContext:
    """What a source is given at open; what it remembers is kept for the next run by `restarted`."""

    def __init__(self, *, block_bytes: int = 65536, max_record_bytes: int = 131072) -> None:
        self.positions: dict[PartitionId, int] = {}
        self.block_bytes = block_bytes
        self.max_record_bytes = max_record_bytes
        self.follow_interval = 0.2
        self.kept: dict[PartitionId, PartitionIdentity] = {}
        self.warnings: list[tuple[str, dict[str, object]]] = []
        self.time = 100.0
        self.woken = threading.Event()

    @property
    def identities(self) -> Sequence[PartitionIdentity]:
        return tuple(self.kept.values())

    def remember(self, identity: PartitionIdentity) -> None:
        self.kept[identity.partition] = identity

    def wake(self) -> None:
        self.woken.set()

    def warn(self, event: str, /, **values: object) -> None:
        self.warnings.append((event, values))

    def now(self) -> float:
        return self.time

    def restarted(self, positions: Mapping[PartitionId, int] | None = None) -> FakeContext:
        """The state directory as the next run finds it."""
        after = FakeContext(block_bytes=self.block_bytes, max_record_bytes=self.max_record_bytes)
        after.positions = dict(self.positions if positions is None else positions)
        after.kept = dict(self.kept)
        after.time = self.time + 5.0
        return after


class Run:
    """Opens a source and takes what it has, as the supervisor's loop does."""

    def __init__(self, source: Source, ctx: FakeContext, *, max_records: int = 4096, commit: bool = True) -> None:
        self.source = source
        self.ctx = ctx
        self.lanes: dict[LaneId, Lane] = {}
        self.batches: list[PayloadBatch] = []
        self.revoked: list[LaneId] = []
        self.drained = False
        self._max_records = max_records
        self._commit = commit
        source.open(ctx)

    def turn(self) -> bool:
        """One turn of the loop; whether anything came of it."""
        moved = self._take_events()
        for lane in list(self.lanes.values()):
            batch = lane.poll(self._max_records)
            if batch is not None:
                moved = True
                self.batches.append(batch)
                if self._commit:
                    self.commit(batch.partition, batch.end)
        return moved

    def commit(self, partition: PartitionId, position: int) -> None:
        self.ctx.positions[partition] = max(position, self.ctx.positions.get(partition, 0))
        self.source.commit({partition: position})

    def _take_events(self) -> bool:
        moved = False
        while True:
            match self.source.poll_events():
                case LanesAssigned(lanes=lanes):
                    assert not any(lane.id in self.lanes for lane in lanes)
                    self.lanes |= {lane.id: lane for lane in lanes}
                    moved = True
                case LanesRevoked(lanes=ids):
                    for lane_id in ids:
                        del self.lanes[lane_id]
                        self.revoked.append(lane_id)
                    moved = True
                case Drained():
                    self.drained = True
                    return moved
                case Idle():
                    return moved

    def settle(self, limit: int = 100_000) -> Run:
        """Turn until the source is drained or has nothing now."""
        for _ in range(limit):
            moved = self.turn()
            if self.drained:
                return self
            due = self.source.next_due()
            if not moved and (due is None or due > self.ctx.time):
                return self
        raise AssertionError("the source never came to rest")

    def wait(self, seconds: float = 0.2) -> Run:
        """Let the clock move on, then settle."""
        self.ctx.time += seconds
        return self.settle()

    def wait_until_drained(self, limit: float = 10.0) -> Run:
        """For sources that wake the loop."""
        while not self.settle().drained:
            assert self.ctx.woken.wait(limit), "the source did not wake the loop"
            self.ctx.woken.clear()
        return self

    def close(self) -> Run:
        self.source.close()
        return self

    @property
    def lines(self) -> list[bytes]:
        """All records handed out, without their newlines, in the order they came."""
        return [line for batch in self.batches for line in lines_of(batch)]

    @property
    def rejects(self) -> list[BadRecord]:
        return [reject for batch in self.batches for reject in batch.rejects]

    @property
    def content(self) -> bytes:
        return b"".join(batch.block or b"" for batch in self.batches)


def lines_of(batch: PayloadBatch) -> list[bytes]:
    if batch.payloads is not None:
        return list(batch.payloads)
    block = batch.block or b""
    lines = block.split(b"\n")
    return lines[:-1] if not lines[-1] else lines


def run_to_end(source: Source, ctx: FakeContext, *, max_records: int = 4096, commit: bool = True) -> Run:
    """A whole bounded run."""
    run = Run(source, ctx, max_records=max_records, commit=commit)
    try:
        run.settle()
        assert run.drained
    finally:
        run.close()
    return run
