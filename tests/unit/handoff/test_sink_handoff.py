"""The terminal stage, row by row of its contract."""

from array import array
from collections.abc import Callable

import msgspec
import pytest

from headrace.checkpoint.ack import AckRef
from headrace.errors import BrokenEncoderError, HeadraceError
from headrace.handoff.budget import Budget
from headrace.handoff.chunk import EncodedChunk
from headrace.handoff.grouping import RowEncoder
from headrace.handoff.sink_handoff import HandoffSettings, SinkHandoff
from headrace.record import BadRecord, BatchOrigin, Flow, OnError, PartitionId
from headrace.shm.slot import FRAME_AT, SlotHeader, trailer_bytes, write_slot
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


class Bench:
    """A hand-off of two shards whose queues are scripted."""

    def __init__(
        self,
        *,
        target: int = 1000,
        slot: int = 2000,
        policy: OnError = OnError.FAIL,
        encoder: RowEncoder | None = None,
    ) -> None:
        self.offered: list[EncodedChunk] = []
        self.queues = [ScriptedQueue(offered=self.offered), ScriptedQueue(offered=self.offered)]
        self.budget = Budget(10_000)
        self.encoder = MsgpackEncoder()
        self.handoff = SinkHandoff(
            0,
            2,
            encoder or self.encoder,
            KeyIsShard(),
            self.queues,
            self.budget,
            HandoffSettings(target_bytes=target, linger=0.05, slot_bytes=slot),
            policy,
            chunk_ids(),
        )
        self.resolved: list[AckRef] = []

    def push(
        self,
        rows: list[object],
        keys: list[object] | None = None,
        index: list[int] | None = None,
        *,
        now: float = 0.0,
        ref: AckRef | None = None,
        batch: BatchOrigin | None = None,
    ) -> Flow:
        """Push a batch and end the chain's share of it."""
        ref = ref or ack(self.resolved.append)
        records = None if index is None else array("I", index)
        flow = self.handoff.push_batch(rows, keys, records, batch or origin(len(rows)), ref, now)
        ref.deliver()
        return flow

    def sent(self, shard: int) -> list[list[object]]:
        return [rows_of(chunk) for chunk in self.queues[shard].taken]


class TestSealing:
    """When a chunk is sealed, and what it holds."""

    def test_rows_go_to_their_shards_in_order_with_where_they_came_from(self) -> None:
        bench = Bench()

        assert bench.push(["a", "b", "c", "d"], [1, 0, 1, 1]) is Flow.CONTINUE
        bench.handoff.flush_terminal(1.0)

        assert bench.sent(0) == [["b"]]
        assert bench.sent(1) == [["a", "c", "d"]]
        located = [bench.queues[1].taken[0].locate(row).position for row in range(3)]
        assert located == [9, 29, 39]

    def test_the_rows_of_one_batch_for_one_shard_are_one_encode_call(self) -> None:
        bench = Bench()

        bench.push([f"row {at}" for at in range(50)], [at % 2 for at in range(50)])

        assert bench.encoder.calls == 2

    def test_a_chunk_is_sealed_when_it_reaches_its_target(self) -> None:
        bench = Bench(target=100)

        bench.push(["x" * 60])
        assert bench.queues[0].taken == []
        bench.push(["y" * 60], now=2.5)

        assert bench.sent(0) == [["x" * 60, "y" * 60]]
        assert bench.queues[0].taken[0].sealed_at == 2.5
        assert bench.handoff.open_since(0) is None

    def test_a_chunk_is_sealed_when_it_has_been_open_for_the_linger_and_not_before(self) -> None:
        bench = Bench()
        bench.push(["a"], [0], now=1.0)
        bench.push(["b"], [1], now=1.02)
        bench.push(["c"], [0], now=1.04)
        assert bench.handoff.open_since(0) == 1.0
        assert bench.handoff.open_since(1) == 1.02

        due = bench.handoff.next_due()
        assert due == pytest.approx(1.05)
        assert due is not None
        bench.handoff.seal_due(due - 0.001)
        assert bench.sent(0) == []
        bench.handoff.seal_due(due)

        assert bench.sent(0) == [["a", "c"]]
        assert bench.sent(1) == []
        assert bench.handoff.next_due() == pytest.approx(1.07)

    def test_nothing_is_due_when_nothing_is_open(self) -> None:
        bench = Bench()

        bench.handoff.seal_due(100.0)

        assert bench.handoff.next_due() is None
        assert bench.handoff.flush_terminal(100.0) is Flow.CONTINUE
        assert bench.budget.used == 0

    def test_the_budget_is_charged_at_the_seal_with_frame_and_positions(self) -> None:
        """(HR-17)"""
        bench = Bench()
        bench.push(["a", "b"])
        assert bench.budget.used == 0

        bench.handoff.flush_terminal(0.0)

        (chunk,) = bench.queues[0].taken
        assert bench.budget.used == chunk.size == len(chunk.frame) + 16

    def test_chunks_are_numbered_in_seal_order_over_all_shards(self) -> None:
        bench = Bench(target=1)

        for shard in (1, 0, 1):
            bench.push(["a"], [shard])

        assert [chunk.id for chunk in bench.queues[1].taken] == [1, 3]
        assert [chunk.id for chunk in bench.queues[0].taken] == [2]

    def test_a_group_that_does_not_fit_the_space_left_seals_the_chunk_and_begins_the_next(self) -> None:
        bench = Bench(target=1900, slot=2000)

        bench.push(["x" * 1000])
        bench.push(["y" * 1000])
        bench.handoff.flush_terminal(0.0)

        assert bench.sent(0) == [["x" * 1000], ["y" * 1000]]

    def test_every_sealed_chunk_fits_its_slot_with_the_spans_of_all_its_partitions(self) -> None:
        bench = Bench(target=10_000, slot=700)

        for at in range(20):
            batch = origin(1, partition=PartitionId(f"partition {at % 7} with a long name"))
            bench.push(["x" * 30], batch=batch)
        bench.handoff.flush_terminal(0.0)

        for chunk in bench.queues[0].taken:
            header = SlotHeader(sink=0, shard=0, chunk=chunk.id, incarnation=1, rows=chunk.rows)
            write_slot(memoryview(bytearray(700)), header, chunk.frame, chunk.spans)
        assert sum(chunk.rows for chunk in bench.queues[0].taken) == 20

    def test_a_batch_without_rows_changes_nothing(self) -> None:
        bench = Bench()

        assert bench.push([]) is Flow.CONTINUE

        assert bench.encoder.calls == 0
        assert bench.handoff.next_due() is None

    def test_a_single_row_is_pushed_like_a_batch_of_one(self) -> None:
        bench = Bench()
        ref = ack()

        bench.handoff.push("a", 1, 4, origin(5), ref, 0.0)
        bench.handoff.flush_terminal(0.0)

        assert bench.sent(1) == [["a"]]
        assert bench.queues[1].taken[0].locate(0).position == 49


class TestParking:
    """What a queue does not take."""

    def test_a_refused_chunk_is_parked_and_said_to_block(self) -> None:
        bench = Bench(target=1)
        bench.queues[0].room = 0

        assert bench.push(["a"]) is Flow.BLOCKED

        assert bench.handoff.parked(0) == 1
        assert bench.handoff.parked_bytes == bench.handoff.parked_bytes_of(0) == bench.budget.used > 0
        assert bench.handoff.relieve(0.0) is Flow.BLOCKED

    def test_a_later_chunk_goes_behind_the_parked_ones_of_its_shard_though_there_is_room_again(self) -> None:
        """(HR-7)"""
        bench = Bench(target=1)
        bench.queues[0].room = 0
        bench.push(["a"])
        bench.queues[0].room = 10

        assert bench.push(["b"]) is Flow.BLOCKED
        assert bench.sent(0) == []
        assert bench.handoff.relieve(0.0) is Flow.CONTINUE

        assert bench.sent(0) == [["a"], ["b"]]
        assert bench.handoff.parked(0) == 0

    def test_a_full_shard_holds_up_no_other(self) -> None:
        bench = Bench(target=1)
        bench.queues[0].room = bench.queues[1].room = 0
        for at in range(3):
            bench.push([f"a{at}", f"b{at}"], [0, 1])
        bench.queues[1].room = 2

        assert bench.handoff.relieve(0.0) is Flow.BLOCKED
        assert bench.sent(1) == [["b0"], ["b1"]]
        assert (bench.handoff.parked(0), bench.handoff.parked(1)) == (3, 1)
        bench.queues[1].room = 10
        bench.handoff.relieve(0.0)

        assert bench.sent(1) == [["b0"], ["b1"], ["b2"]]
        assert bench.sent(0) == []

    def test_relieving_asks_a_full_shard_once(self) -> None:
        bench = Bench(target=1)
        bench.queues[0].room = 0
        for _ in range(5):
            bench.push(["a"])
        bench.offered.clear()

        bench.handoff.relieve(0.0)

        assert len(bench.offered) == 1

    def test_the_shard_with_the_oldest_parked_chunk_is_relieved_first(self) -> None:
        bench = Bench(target=1)
        bench.queues[0].room = bench.queues[1].room = 0
        bench.push(["b"], [1])
        bench.push(["a"], [0])
        bench.offered.clear()

        bench.handoff.relieve(0.0)

        assert [chunk.shard for chunk in bench.offered] == [1, 0]

    def test_a_flush_seals_partial_chunks_and_relieves(self) -> None:
        bench = Bench(target=1)
        bench.queues[0].room = 0
        bench.push(["a"])
        bench.queues[0].room = 1

        assert bench.handoff.flush_terminal(0.0) is Flow.CONTINUE

        assert bench.sent(0) == [["a"]]

    def test_a_queue_that_raises_leaves_the_chunk_parked(self) -> None:
        bench = Bench(target=1)
        bench.queues[0].error = HeadraceError("the fences failed")

        with pytest.raises(HeadraceError, match="fences"):
            bench.handoff.push_batch(["a"], None, None, origin(1), ack(), 0.0)

        assert bench.handoff.parked(0) == 1
        bench.handoff.close()
        assert bench.budget.used == 0


class TestAcknowledgement:
    """Which batches wait for which chunks."""

    def test_a_batch_takes_one_share_for_each_chunk_with_rows_of_it(self) -> None:
        bench = Bench(target=10_000)
        ref = ack(bench.resolved.append)
        ref.share()

        bench.push(["a", "b", "c"], [0, 1, 0], ref=ref)
        ref.share()
        bench.push(["d"], [0], ref=ref)

        assert ref.shares == 1 + 2
        bench.handoff.flush_terminal(0.0)
        ref.deliver()
        bench.queues[0].taken[0].acks.deliver()
        assert bench.resolved == []
        bench.queues[1].taken[0].acks.deliver()
        assert bench.resolved == [ref]
        assert not ref.failed

    def test_closing_fails_what_is_open_or_parked_and_gives_back_its_bytes_alone(self) -> None:
        """(HR-1)"""
        bench = Bench(target=100)
        bench.queues[1].room = 0
        refs = [ack(bench.resolved.append, seq=seq) for seq in range(3)]
        bench.push(["sent" * 40], [0], ref=refs[0])
        bench.push(["parked" * 40], [1], ref=refs[1])
        bench.push(["open"], [0], ref=refs[2])
        (sent,) = bench.queues[0].taken

        bench.handoff.close("stopped")
        bench.handoff.close()

        assert bench.resolved == [refs[2], refs[1]]
        assert [ref.cause for ref in bench.resolved] == ["stopped", "stopped"]
        assert bench.budget.used == sent.size
        assert bench.handoff.next_due() is None
        assert bench.handoff.parked_bytes == 0
        with pytest.raises(HeadraceError, match="closed"):
            bench.push(["late"])

    def test_a_batch_whose_rows_all_failed_under_skip_is_delivered(self) -> None:
        bench = Bench(policy=OnError.SKIP)

        bench.push(["refused", "refused"])

        assert [ref.failed for ref in bench.resolved] == [False]


class TestBadRows:
    """Rows that cannot be encoded, routed or carried."""

    @pytest.mark.parametrize("policy", [OnError.SKIP, OnError.DEAD_LETTER])
    def test_a_bad_row_is_left_out_and_its_neighbours_are_not(self, policy: OnError) -> None:
        bench = Bench(policy=policy)

        bench.push(["a", "refused", {"b"}, object(), b"ok", "z"])
        bench.handoff.flush_terminal(0.0)

        assert bench.sent(0) == [["a", ["b"], b"ok", "z"]]
        bad = bench.handoff.take_bad()
        assert [(row.position, row.stage, row.policy) for row in bad] == [
            (19, "encode", policy),
            (39, "encode", policy),
        ]
        assert bad[0].cause == "RecordError: this row is refused"
        assert bench.handoff.take_bad() == []
        assert bench.handoff.take_fatal() is None
        positions = [bench.queues[0].taken[0].locate(row).position for row in range(4)]
        assert positions == [9, 29, 49, 59]

    def test_a_bad_row_under_fail_is_fatal_once_and_fails_its_batch(self) -> None:
        """(HR-1)"""
        bench = Bench()

        assert bench.push(["a", "refused", "refused"]) is Flow.BLOCKED

        fatal = bench.handoff.take_fatal()
        assert isinstance(fatal, BadRecord)
        assert fatal.position == 19
        assert bench.handoff.take_fatal() is None
        bench.handoff.flush_terminal(0.0)
        bench.queues[0].taken[0].acks.deliver()
        assert [ref.cause for ref in bench.resolved] == ["encode: RecordError: this row is refused"]

    @pytest.mark.parametrize("policy", list(OnError))
    def test_a_broken_encoder_is_fatal_whatever_the_policy(self, policy: OnError) -> None:
        class Broken:
            def encode(self, rows: list[object]) -> bytes:
                raise BrokenEncoderError("the schema is gone")

        bench = Bench(policy=policy, encoder=Broken())

        assert bench.push(["a"]) is Flow.BLOCKED

        assert str(bench.handoff.take_fatal()) == "the schema is gone"
        assert [ref.failed for ref in bench.resolved] == [True]

    def test_an_encoder_that_contradicts_itself_is_broken(self) -> None:
        class TwoFaced:
            def encode(self, rows: list[object]) -> bytes:
                if len(rows) > 1:
                    raise ValueError("not together")
                return b"x"

        bench = Bench(policy=OnError.SKIP, encoder=TwoFaced())

        bench.push(["a", "b"])

        assert isinstance(bench.handoff.take_fatal(), BrokenEncoderError)

    def test_a_row_that_fits_no_slot_names_the_setting(self) -> None:
        bench = Bench(policy=OnError.SKIP, slot=500)

        bench.push(["a", "x" * 500, "b"])
        bench.handoff.flush_terminal(0.0)

        (bad,) = bench.handoff.take_bad()
        assert (bad.position, bad.stage) == (19, "oversize")
        assert bad.cause.endswith("raise shm.slot_bytes (now 500)")
        assert [row for rows in bench.sent(0) for row in rows] == ["a", "b"]

    def test_a_row_fits_a_slot_to_the_byte(self) -> None:
        slot = 500
        room = slot - FRAME_AT - trailer_bytes([PARTITION]) - 8
        overhead = len(msgspec.msgpack.encode(["x" * 300])) - 300
        bench = Bench(policy=OnError.SKIP, slot=slot)

        bench.push(["x" * (room - overhead), "y" * (room - overhead + 1)])

        assert [bad.position for bad in bench.handoff.take_bad()] == [19]

    def test_a_group_too_large_for_a_slot_is_halved_between_records_and_nothing_is_lost(self) -> None:
        bench = Bench(slot=500, target=450)
        rows: list[object] = [f"{at:03d}" + "x" * 60 for at in range(40)]

        bench.push(rows, index=[at // 3 for at in range(40)])
        bench.handoff.flush_terminal(0.0)

        assert [row for chunk in bench.sent(0) for row in chunk] == rows
        for chunk in bench.queues[0].taken:
            assert len(chunk.frame) <= 500
            assert chunk.locate(0).child == 0

    def test_rows_of_one_record_that_do_not_fit_one_slot_are_bad_together(self) -> None:
        bench = Bench(policy=OnError.SKIP, slot=500)

        bench.push(["a", *["x" * 200] * 3, "b"], index=[0, 1, 1, 1, 2])
        bench.handoff.flush_terminal(0.0)

        (bad,) = bench.handoff.take_bad()
        assert bad.position == 19
        assert "its 3 rows, which must stay together" in bad.cause
        assert [row for chunk in bench.sent(0) for row in chunk] == ["a", "b"]

    def test_a_bad_child_is_named_and_its_siblings_keep_their_numbers(self) -> None:
        bench = Bench(policy=OnError.DEAD_LETTER)

        bench.push(["a", "b", "refused", "c"], index=[0, 1, 1, 1])
        bench.handoff.flush_terminal(0.0)

        (bad,) = bench.handoff.take_bad()
        assert (bad.position, bad.child) == (19, 1)
        located = [bench.queues[0].taken[0].locate(row) for row in range(3)]
        assert [(at.position, at.child) for at in located] == [(9, 0), (19, 0), (19, 2)]

    def test_bad_children_of_one_record_have_numbers_of_their_own_though_they_go_to_different_shards(self) -> None:
        """(HR-15)"""
        bench = Bench(policy=OnError.DEAD_LETTER)

        bench.push(["refused", "a", "refused"], [0, 1, 1], [0, 0, 0])
        bench.handoff.flush_terminal(0.0)

        assert [(bad.position, bad.child) for bad in bench.handoff.take_bad()] == [(9, 0), (9, 2)]
        assert bench.queues[1].taken[0].locate(0).child == 1

    def test_a_key_that_cannot_be_routed_leaves_its_row_out_alone(self) -> None:
        bench = Bench(policy=OnError.SKIP)

        bench.push(["a", "b", "c"], [1, "no shard", 1])
        bench.handoff.flush_terminal(0.0)

        (bad,) = bench.handoff.take_bad()
        assert (bad.position, bad.stage) == (19, "shard_by")
        assert bench.sent(1) == [["a", "c"]]

    def test_a_bad_key_does_not_renumber_its_rows_siblings(self) -> None:
        bench = Bench(policy=OnError.SKIP)

        bench.push(["a", "b", "c"], ["no shard", 1, 0], [0, 0, 0])
        bench.handoff.flush_terminal(0.0)

        assert [bad.child for bad in bench.handoff.take_bad()] == [0]
        assert bench.queues[1].taken[0].locate(0).child == 1
        assert bench.queues[0].taken[0].locate(0).child == 2

    def test_a_bad_row_of_bytes_is_kept_as_it_is(self) -> None:
        class Lines:
            def encode(self, rows: list[object]) -> bytes:
                if b"bad" in rows:
                    raise ValueError("newline inside")
                return b"".join(row for row in rows if isinstance(row, bytes))

        bench = Bench(policy=OnError.DEAD_LETTER, encoder=Lines())

        bench.push([b"good", b"bad"])

        assert [bad.raw for bad in bench.handoff.take_bad()] == [b"bad"]

    @pytest.mark.parametrize(
        "error", [UnicodeEncodeError("utf-8", "x", 0, 1, "r"), OverflowError("x"), RecursionError()]
    )
    def test_whatever_an_encoder_raises_for_a_row_is_that_rows_fault(self, error: Exception) -> None:
        class Raising:
            def encode(self, rows: list[object]) -> bytes:
                if "bad" in rows:
                    raise error
                return msgspec.msgpack.encode(rows)

        bench = Bench(policy=OnError.SKIP, encoder=Raising())

        bench.push(["a", "bad"])

        assert [bad.position for bad in bench.handoff.take_bad()] == [19]


class TestCounts:
    """What is counted, and when."""

    def test_a_batchs_rows_are_published_at_its_end_and_chunks_when_they_are_sealed(self) -> None:
        bench = Bench(target=1, policy=OnError.SKIP)
        bench.queues[0].room = 0
        bench.push(["a", "refused", "b"])

        before = bench.handoff.statistics()
        assert (before.batches, before.rows, before.bad) == (0, 0, 0)
        assert (before.chunks, before.parked) == (1, 1)
        assert before.bytes > 0
        bench.handoff.on_batch_end(0.25)

        after = bench.handoff.statistics()
        assert (after.batches, after.rows, after.bad, after.seconds) == (1, 3, 1, 0.25)


@pytest.mark.parametrize("call", [SinkHandoff.relieve, SinkHandoff.flush_terminal])
def test_with_nothing_parked_the_flow_goes_on(call: Callable[[SinkHandoff, float], Flow]) -> None:
    assert call(Bench().handoff, 0.0) is Flow.CONTINUE
