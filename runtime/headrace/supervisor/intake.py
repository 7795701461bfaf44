"""The way in: polls lanes in turn, runs the chain over each batch, and pushes what comes of it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Protocol

import msgspec

from headrace.chain.build import ChainOutput, SupervisorChain
from headrace.checkpoint.ack import AckRef
from headrace.checkpoint.checkpointer import Checkpointer
from headrace.errors import HeadraceError, SourceError
from headrace.handoff.sink_handoff import SinkHandoff
from headrace.record import (
    BadRecord,
    BatchOrigin,
    Drained,
    Lane,
    LaneId,
    LanesAssigned,
    LanesRevoked,
    OnError,
    PartitionId,
    PayloadBatch,
    Source,
)
from headrace.supervisor.accounts import Accounts, Batch
from headrace.supervisor.acknowledgements import Acknowledgements
from headrace.supervisor.journal import Letter

_PAUSE_AFTER_FAULT = 1.0


class IntakeHost(Protocol):
    """What the intake tells the loop."""

    def fail(self, reason: str) -> None: ...
    def source_fault(self, reason: str, now: float) -> None: ...


class Intake:
    """Lanes, and what is done with a batch. Never waits."""

    def __init__(
        self,
        host: IntakeHost,
        source: Source,
        chain: SupervisorChain,
        handoffs: list[SinkHandoff],
        sink_names: list[str],
        checkpointer: Checkpointer,
        accounts: Accounts,
        acknowledgements: Acknowledgements,
        watermarks: Mapping[PartitionId, int],
        *,
        max_records: int,
        max_pending: int,
    ) -> None:
        self._host = host
        self._source = source
        self._bounded = bool(getattr(source, "bounded", False))
        self._chain = chain
        self._handoffs = handoffs
        self._sinks = sink_names
        self._checkpointer = checkpointer
        self._accounts = accounts
        self._acknowledgements = acknowledgements
        self._watermarks = watermarks
        self._max_records = max_records
        self._max_pending = max_pending
        self._lanes: dict[LaneId, Lane] = {}
        self._epochs: dict[PartitionId, int] = {}
        self._ready: list[LaneId] = []
        self._empty: set[LaneId] = set()
        self._paused = False
        self._ask_again_at = 0.0
        self.drained = False

    @property
    def lanes(self) -> int:
        return len(self._lanes)

    def look(self) -> None:
        """The source may have something new: ask it, and every lane that had nothing."""
        self._empty.clear()

    def events(self, now: float) -> None:
        """Take what the source has to tell; after a failure not before a pause."""
        if now < self._ask_again_at:
            return
        try:
            self._take_events()
        except SourceError as error:
            self._ask_again_at = now + _PAUSE_AFTER_FAULT
            if error.retryable:
                self._host.source_fault(str(error), now)
            else:
                self._host.fail(f"source: {error}")

    def _take_events(self) -> None:
        while True:
            match self._source.poll_events():
                case LanesAssigned(lanes=lanes):
                    for lane in lanes:
                        self._assign(lane)
                case LanesRevoked(lanes=lanes):
                    for lane_id in lanes:
                        self._revoke(lane_id)
                case Drained():
                    self.drained = True
                    return
                case _:
                    return

    def _assign(self, lane: Lane) -> None:
        self._lanes[lane.id] = lane
        epoch = self._epochs[lane.partition] = self._epochs.get(lane.partition, 0) + 1
        self._checkpointer.begin(lane.partition, epoch, self._watermarks.get(lane.partition, 0))
        if lane.id not in self._ready:
            self._ready.append(lane.id)
        if self._paused:
            self._source.pause([lane.id])

    def _revoke(self, lane_id: LaneId) -> None:
        lane = self._lanes.pop(lane_id, None)
        if lane is not None:
            if lane_id in self._ready:
                self._ready.remove(lane_id)
            self._empty.discard(lane_id)
            self._checkpointer.revoke(lane.partition)

    def set_paused(self, paused: bool) -> None:
        """Tell the source once at each edge."""
        if paused == self._paused:
            return
        self._paused = paused
        lanes = list(self._lanes)
        if paused:
            self._source.pause(lanes)
        else:
            self._source.resume(lanes)

    def has_work(self) -> bool:
        """Whether a lane may have a batch now."""
        return not self._paused and any(self._may_poll(lane) for lane in self._ready)

    def _may_poll(self, lane_id: LaneId) -> bool:
        if lane_id in self._empty:
            return False
        return self._checkpointer.pending(self._lanes[lane_id].partition) < self._max_pending

    def poll(self, now: float) -> bool:
        """One batch of the next lane in turn that has one; whether there was one."""
        if self._paused:
            return False
        for _ in range(len(self._ready)):
            if not self._ready:
                break
            lane_id = self._ready.pop(0)
            self._ready.append(lane_id)
            if not self._may_poll(lane_id):
                continue
            try:
                batch = self._lanes[lane_id].poll(self._max_records)
            except SourceError as error:
                self._empty.add(lane_id)
                if error.retryable:
                    self._host.source_fault(str(error), now)
                else:
                    self._host.fail(f"source: {error}")
                return False
            if batch is not None:
                self._process(batch, now)
                return True
            self._empty.add(lane_id)
            if self._bounded and getattr(self._lanes[lane_id], "exhausted", False):
                self._ready.remove(lane_id)  # of ten thousand files most are read: they are not looked at in each turn
        return False

    def _process(self, batch: PayloadBatch, now: float) -> None:
        output = self._chain.run(batch)
        if output.fatal is not None:
            bad = output.fatal
            self._host.fail(f"partition {bad.partition}, position {bad.position}, stage {bad.stage}: {bad.cause}")
            return
        ack = self._checkpointer.issue(batch.partition, batch.end, now)
        key: Batch = (ack.batch_id.partition, ack.batch_id.epoch, ack.batch_id.seq)
        self._read(key, output, ack)
        origin = BatchOrigin(batch.partition, ack.batch_id.epoch, ack.batch_id.seq, output.ends)
        for emission in output.emissions:
            handoff = self._handoffs[emission.sink]
            handoff.push_batch(emission.rows, emission.keys, emission.index, origin, ack, now)
            self._left_out(emission.sink, key, batch, origin, ack)
        ack.deliver()

    def _read(self, key: Batch, output: ChainOutput, ack: AckRef) -> None:
        dead = [bad for bad in output.bad if bad.policy is OnError.DEAD_LETTER]
        self._accounts.left_out_at.update(bad.stage for bad in output.bad)
        self._accounts.read(
            key,
            records=output.records,
            decoded=len(output.ends),
            filtered=output.filtered,
            skipped=len(output.bad) - len(dead),
            dead=len(dead),
        )
        if dead:
            ack.share()
            self._acknowledgements.write_letters([Letter("", -1, bad) for bad in dead], ack.deliver)

    def _left_out(self, sink: int, key: Batch, batch: PayloadBatch, origin: BatchOrigin, ack: AckRef) -> None:
        """Rows that did not survive encoding."""
        handoff = self._handoffs[sink]
        if (fatal := handoff.take_fatal()) is not None:
            self._host.fail(_fatal_words(self._sinks[sink], fatal))
        letters: list[Letter] = []
        for one in handoff.take_bad():
            record = bisect_left(origin.ends, one.position + 1)
            self._accounts.left_out(key, record, one.policy)
            self._accounts.left_out_at[one.stage] += 1
            if one.policy is OnError.DEAD_LETTER:
                raw = one.raw or _raw(batch, origin, record)
                letters.append(Letter(self._sinks[sink], -1, msgspec.structs.replace(one, raw=raw)))
        if letters:
            ack.share()
            self._acknowledgements.write_letters(letters, ack.deliver)


def _raw(batch: PayloadBatch, origin: BatchOrigin, record: int) -> bytes:
    """The bytes of a record as the source had them."""
    if batch.payloads is not None and len(batch.payloads) == len(origin.ends):
        return bytes(batch.payloads[record])
    if batch.block is None:
        return b""
    first = origin.ends[record - 1] if record else batch.start
    return batch.block[first - batch.start : origin.ends[record] - batch.start].strip(b"\r\n")


def _fatal_words(sink: str, fatal: BadRecord | HeadraceError) -> str:
    if isinstance(fatal, BadRecord):
        return (
            f"sink {sink}: partition {fatal.partition}, position {fatal.position}, stage {fatal.stage}: {fatal.cause}"
        )
    return f"sink {sink}: {fatal}"
