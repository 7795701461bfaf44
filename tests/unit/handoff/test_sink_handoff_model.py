"""The hand-off with queues that take and refuse at random: order per shard, nothing lost, the budget back to zero."""

from __future__ import annotations

from array import array

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.checkpoint.ack import AckRef
from headrace.handoff.budget import Budget
from headrace.handoff.sink_handoff import HandoffSettings, SinkHandoff
from headrace.record import Flow, OnError
from headrace.shm.slot import FRAME_AT, trailer_bytes
from tests.unit.handoff.parts import (
    PARTITION,
    KeyIsShard,
    MsgpackEncoder,
    ScriptedQueue,
    ack,
    chunk_ids,
    origin,
    rows_of,
)

SHARDS = 3
SLOT_BYTES = 400


class HandoffModel(RuleBasedStateMachine):
    """Rows are (batch, record, child); sizes vary so that chunks fill, split and overflow."""

    def __init__(self) -> None:
        super().__init__()
        self.queues = [ScriptedQueue(room=0) for _ in range(SHARDS)]
        self.budget = Budget(1)
        self.handoff = SinkHandoff(
            0,
            SHARDS,
            MsgpackEncoder(),
            KeyIsShard(),
            self.queues,
            self.budget,
            HandoffSettings(target_bytes=150, linger=1.0, slot_bytes=SLOT_BYTES),
            OnError.DEAD_LETTER,
            chunk_ids(),
        )
        self.now = 0.0
        self.routed: list[list[object]] = [[] for _ in range(SHARDS)]
        self.refs: list[AckRef] = []
        self.resolved: list[AckRef] = []
        self.settled = [0] * SHARDS

    @rule(
        records=st.lists(
            st.lists(st.tuples(st.integers(0, SHARDS - 1), st.sampled_from([1, 20, 60, 120, 400])), max_size=4),
            max_size=6,
        )
    )
    def push(self, records: list[list[tuple[int, int]]]) -> None:
        batch = len(self.refs)
        ref = ack(self.resolved.append, seq=batch)
        self.refs.append(ref)
        rows: list[object] = []
        keys: list[object] = []
        index = array("I")
        for record, children in enumerate(records):
            for child, (shard, size) in enumerate(children):
                rows.append([batch, record, child, "x" * size])
                keys.append(shard)
                index.append(record)
        self.handoff.push_batch(rows, keys, index, origin(len(records), seq=batch, start=1000 * batch), ref, self.now)
        left_out = {bad.position for bad in self.handoff.take_bad()}
        oversize = self.too_large(rows, keys, index)
        assert left_out == {1000 * batch + 10 * record + 9 for record, _ in oversize}
        for row, key, record in zip(rows, keys, index, strict=True):
            assert isinstance(key, int)
            if (record, key) not in oversize:
                self.routed[key].append(row)
        ref.deliver()

    @staticmethod
    def too_large(rows: list[object], keys: list[object], index: array[int]) -> set[tuple[int, object]]:
        """The records whose children for one shard do not fit a slot together, with that shard."""
        together: dict[tuple[int, object], list[object]] = {}
        for row, shard, record in zip(rows, keys, index, strict=True):
            together.setdefault((record, shard), []).append(row)
        room = SLOT_BYTES - FRAME_AT - trailer_bytes([PARTITION]) - 8
        return {place for place, its in together.items() if len(msgspec.msgpack.encode(its)) > room}

    @rule(shard=st.integers(0, SHARDS - 1), room=st.integers(0, 3))
    def queue_has_room(self, shard: int, room: int) -> None:
        self.queues[shard].room = room

    @rule()
    def relieve(self) -> None:
        flow = self.handoff.relieve(self.now)
        assert (flow is Flow.BLOCKED) is any(self.handoff.parked(shard) for shard in range(SHARDS))
        for shard, queue in enumerate(self.queues):
            assert queue.room == 0 or not self.handoff.parked(shard)

    @rule()
    def time_passes(self) -> None:
        self.now += 0.4
        self.handoff.seal_due(self.now)
        due = self.handoff.next_due()
        assert due is None or due > self.now

    @rule()
    def flush(self) -> None:
        self.handoff.flush_terminal(self.now)
        assert self.handoff.next_due() is None

    @precondition(lambda self: any(len(q.taken) > at for q, at in zip(self.queues, self.settled, strict=True)))
    @rule()
    def settle_one_of_each_shard(self) -> None:
        for shard, queue in enumerate(self.queues):
            if len(queue.taken) > self.settled[shard]:
                chunk = queue.taken[self.settled[shard]]
                self.settled[shard] += 1
                self.budget.release(chunk.size)
                chunk.acks.deliver()

    @invariant()
    def each_shard_got_a_prefix_of_what_was_routed_to_it_in_order(self) -> None:
        """(HR-7)"""
        for shard, queue in enumerate(self.queues):
            got = [row for chunk in queue.taken for row in rows_of(chunk)]
            assert got == self.routed[shard][: len(got)]
            ids = [chunk.id for chunk in queue.taken]
            assert ids == sorted(ids)

    @invariant()
    def children_of_one_record_stay_in_one_chunk_and_rows_know_where_they_came_from(self) -> None:
        for queue in self.queues:
            seen: dict[tuple[int, int], int] = {}
            for chunk in queue.taken:
                for at, row in enumerate(rows_of(chunk)):
                    batch, record, child, _ = msgspec.convert(row, tuple[int, int, int, str])
                    assert chunk.locate(at) == (PARTITION, 1000 * batch + 10 * record + 9, child)
                    assert seen.setdefault((batch, record), chunk.id) == chunk.id

    @invariant()
    def the_budget_is_what_is_sealed_and_not_settled(self) -> None:
        """(HR-17)"""
        sent = sum(
            chunk.size for queue, at in zip(self.queues, self.settled, strict=True) for chunk in queue.taken[at:]
        )
        assert self.budget.used == sent + self.handoff.parked_bytes

    def teardown(self) -> None:
        """What was sent is delivered; the rest fails at the close; every batch is resolved, and the budget is empty."""
        whole = [
            shard
            for shard in range(SHARDS)
            if not self.handoff.parked(shard) and self.handoff.open_since(shard) is None
        ]
        for shard in whole:
            assert sum(chunk.rows for chunk in self.queues[shard].taken) == len(self.routed[shard])
        self.handoff.close()
        for queue, at in zip(self.queues, self.settled, strict=True):
            for chunk in queue.taken[at:]:
                self.budget.release(chunk.size)
                chunk.acks.deliver()
        assert self.budget.used == 0
        assert len(self.resolved) == len(self.refs)


HandoffModel.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestHandoffAgainstTheModel = HandoffModel.TestCase
