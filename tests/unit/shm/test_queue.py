"""One shard's queue: sending, sending again, and settling."""

import pytest

from headrace.errors import HeadraceError
from headrace.lease.fences import Accepted, RefusalReason, Refused
from headrace.lease.handoff import LeaseState
from headrace.record import ChunkId
from headrace.shm.queue import SlotState
from headrace.shm.records import Stage
from tests.unit.shm.parts import W0, W1, Bench, chunk

ONE, TWO, THREE = ChunkId(1), ChunkId(2), ChunkId(3)


@pytest.fixture
def bench() -> Bench:
    return Bench(3).opened()


def as_it_was(bench: Bench) -> bool:
    """Whether nothing is in a slot, no token lives and no gate is closed."""
    return (
        not bench.queue.in_flight
        and bench.queue.in_flight_bytes == 0
        and bench.queue.table.used == 0
        and bench.fences.outstanding == 0
        and not bench.fences._gates
    )


def test_a_sent_chunk_is_in_the_lowest_slot_and_its_bell_says_all(bench: Bench) -> None:
    sent = chunk(1, rows=5)

    assert bench.queue.try_send(sent, 7.0)

    ((worker, bell),) = bench.port.bells
    flight = bench.queue.in_flight[ONE]
    assert worker == W0
    assert (bell.sink, bell.shard, bell.slot, bell.length) == (0, 3, 0, sent.length)
    assert (bell.first_row, bell.rows, bell.attempt, bell.free_slots) == (0, 5, 1, 2)
    assert bell.token == flight.token
    assert (bench.port.slots[0], sent.frame) == (b"chunk 1", b"")
    assert (flight.state, flight.worker, flight.published_at, flight.held_at) == (SlotState.PUBLISHED, W0, 7.0, None)
    assert bench.queue.in_flight_bytes == sent.size


def test_a_full_queue_refuses_and_all_is_as_before(bench: Bench) -> None:
    assert [bench.queue.try_send(chunk(number), 0.0) for number in (1, 2, 3, 4)] == [True, True, True, False]

    assert list(bench.queue.in_flight) == [1, 2, 3]
    assert bench.fences.outstanding == 3


def test_a_closed_queue_refuses() -> None:
    bench = Bench(3)
    assert not bench.queue.try_send(chunk(1), 0.0)

    bench.queue.assign(W0)
    assert not bench.queue.try_send(chunk(1), 0.0)
    bench.queue.open()
    bench.queue.close()
    assert not bench.queue.try_send(chunk(1), 0.0)

    assert as_it_was(bench)
    assert bench.port.bells == []


def test_a_queue_without_an_owner_cannot_open() -> None:
    with pytest.raises(HeadraceError, match="no owner"):
        Bench(1).queue.open()


def test_a_doorbell_that_would_block_leaves_all_as_it_was(bench: Bench) -> None:
    """D02"""
    bench.port.room = 0

    assert not bench.queue.try_send(chunk(1), 0.0)

    assert as_it_was(bench)
    bench.port.room = 1
    assert bench.queue.try_send(chunk(1), 0.0)
    assert bench.queue.in_flight[ONE].slot == 0


def test_a_port_that_raises_leaves_all_as_it_was(bench: Bench) -> None:
    bench.port.error = OSError("no memory")

    with pytest.raises(OSError, match="no memory"):
        bench.queue.try_send(chunk(1), 0.0)

    assert as_it_was(bench)


def test_the_lease_is_recorded_when_the_worker_holds_the_chunk_and_its_clock_starts_there(bench: Bench) -> None:
    """(HR-5)"""
    bench.queue.try_send(chunk(1), 1.0)
    flight = bench.queue.in_flight[ONE]
    assert not bench.fences.gate_is_open(flight.token)

    assert bench.queue.hold(ONE, 2.5)
    assert not bench.queue.hold(ONE, 9.0)

    assert flight.state is SlotState.HELD
    assert flight.held_at == 2.5
    assert len(bench.ledger.leases) == 1
    assert bench.fences.gate_is_open(flight.token)


def test_a_settled_chunk_frees_its_slot_and_cannot_be_settled_again(bench: Bench) -> None:
    """(HR-4)"""
    bench.queue.try_send(chunk(1), 0.0)

    bench.complete(ONE)

    assert as_it_was(bench)
    with pytest.raises(HeadraceError, match="in no slot"):
        bench.queue.settle(ONE)


@pytest.mark.parametrize("held", [False, True])
def test_a_chunk_that_a_worker_may_still_complete_is_not_settled(bench: Bench, held: bool) -> None:
    """(HR-13)"""
    bench.queue.try_send(chunk(1), 0.0)
    if held:
        bench.queue.hold(ONE, 0.0)

    with pytest.raises(HeadraceError, match="w0 may complete it"):
        bench.queue.settle(ONE)

    assert bench.queue.table.used == 1


def test_a_lost_workers_chunks_are_sent_again_in_seal_order_with_new_tokens_before_anything_else(bench: Bench) -> None:
    """(HR-7)"""
    for number in (1, 2):
        bench.queue.try_send(chunk(number), 0.0)
    bench.queue.hold(ONE, 0.0)
    before = [flight.token for flight in bench.queue.in_flight.values()]
    slots = list(bench.port.slots)

    lost = bench.queue.lose(W0)
    assert [flight.chunk.id for flight in lost] == [1, 2]
    assert [flight.state for flight in lost] == [SlotState.ARMED] * 2
    assert not bench.queue.try_send(chunk(3), 1.0)
    bench.opened(W1)
    assert not bench.queue.try_send(chunk(3), 1.0)

    assert bench.queue.redispatch(2.0) == 2
    assert bench.queue.try_send(chunk(3), 2.0)

    assert bench.rung == [1, 2, 1, 2, 3]
    assert [worker for worker, _ in bench.port.bells] == [W0, W0, W1, W1, W1]
    assert bench.port.slots[:2] == slots[:2]
    assert [bench.fences.accept(token) for token in before] == [Refused(RefusalReason.REVOKED)] * 2
    assert [flight.attempt for flight in bench.queue.in_flight.values()] == [1, 1, 1]


def test_a_loss_touches_only_what_that_process_was_told_of(bench: Bench) -> None:
    bench.queue.try_send(chunk(1), 0.0)

    assert bench.queue.lose(W1) == []

    assert bench.queue.owner == W0
    assert not bench.queue.closed


def test_a_loss_says_what_the_worker_was_busy_with(bench: Bench) -> None:
    bench.queue.try_send(chunk(1), 0.0)
    bench.queue.try_send(chunk(2), 0.0)
    bench.queue.hold(ONE, 1.0)
    bench.queue.busy(ONE, Stage.WRITE, 2.0)

    busy, merely_held = bench.queue.lose(W0)

    assert (busy.busy_stage, busy.busy_since, busy.held_at) == (Stage.WRITE, 2.0, 1.0)
    assert merely_held.busy_stage is None
    bench.opened(W1).queue.redispatch(3.0)
    assert bench.queue.in_flight[ONE].busy_stage is None


def test_a_loss_opens_the_gate_of_a_chunk_that_was_never_held(bench: Bench) -> None:
    """(HR-5)"""
    bench.queue.try_send(chunk(1), 0.0)
    flight = bench.queue.in_flight[ONE]

    bench.queue.lose(W0)

    assert flight.lease.state is LeaseState.ABANDONED
    assert bench.ledger.leases == []
    assert not bench.fences._gates


def test_a_chunk_given_back_for_a_retry_is_a_later_attempt_and_one_given_back_unstarted_is_not(bench: Bench) -> None:
    for number in (1, 2):
        bench.queue.try_send(chunk(number), 0.0)
        bench.queue.hold(ChunkId(number), 0.0)
        assert isinstance(bench.fences.accept(bench.queue.in_flight[ChunkId(number)].token), Accepted)

    assert bench.queue.give_back(ONE, retry=True).attempt == 2
    assert bench.queue.give_back(TWO).attempt == 1

    assert bench.queue.redispatch(1.0) == 2
    assert [bell.attempt for _, bell in bench.port.bells] == [1, 1, 2, 1]


def test_a_chunk_given_back_waits_while_one_that_was_sealed_later_is_out(bench: Bench) -> None:
    """(HR-7)"""
    for number in (1, 2):
        bench.queue.try_send(chunk(number), 0.0)
        bench.queue.hold(ChunkId(number), 0.0)
    bench.queue.give_back(ONE)
    assert bench.queue.redispatch(1.0) == 0

    bench.queue.give_back(TWO)

    assert bench.queue.redispatch(2.0) == 2
    assert bench.rung == [1, 2, 1, 2]


def test_an_abandoned_write_keeps_its_slot_until_the_worker_is_gone_and_then_counts_as_a_retry(bench: Bench) -> None:
    bench.queue.try_send(chunk(1), 0.0)
    bench.queue.try_send(chunk(2), 0.0)
    bench.queue.hold(ONE, 0.0)
    bench.fences.accept(bench.queue.in_flight[ONE].token)

    bench.queue.abandon(ONE)
    assert bench.queue.redispatch(1.0) == 0
    assert not bench.queue.try_send(chunk(3), 1.0)
    assert bench.queue.in_flight[ONE].state is SlotState.HELD

    assert [flight.attempt for flight in bench.queue.lose(W0)] == [2, 1]


def test_a_redispatch_that_blocks_goes_on_where_it_stopped(bench: Bench) -> None:
    for number in (1, 2, 3):
        bench.queue.try_send(chunk(number), 0.0)
    bench.queue.lose(W0)
    bench.opened(W1)
    bench.port.room = 1

    assert bench.queue.redispatch(1.0) == 1
    assert bench.queue.waiting == 2
    bench.port.room = 2

    assert bench.queue.redispatch(2.0) == 2
    assert bench.rung[3:] == [1, 2, 3]
    assert bench.fences.outstanding == 3


def test_a_closed_queue_sends_nothing_again(bench: Bench) -> None:
    bench.queue.try_send(chunk(1), 0.0)
    bench.queue.lose(W0)

    assert bench.queue.redispatch(1.0) == 0


def test_a_chunk_that_waits_in_its_slot_can_be_settled_as_failed(bench: Bench) -> None:
    bench.queue.try_send(chunk(1), 0.0)
    bench.queue.lose(W0)

    bench.queue.settle(ONE)

    assert as_it_was(bench)


def test_a_shard_moves_only_when_it_is_quiet(bench: Bench) -> None:
    """(HR-12)"""
    bench.queue.try_send(chunk(1), 0.0)
    bench.queue.close()

    with pytest.raises(HeadraceError, match="given to w1 while w0 may write"):
        bench.queue.assign(W1)
    bench.queue.give_back(ONE)
    assert bench.queue.quiet
    bench.queue.assign(W1)

    assert bench.queue.owner == W1
    assert bench.queue.closed


def test_a_chunk_cannot_be_sent_twice(bench: Bench) -> None:
    bench.queue.try_send(chunk(1), 0.0)

    with pytest.raises(HeadraceError, match="in a slot already"):
        bench.queue.try_send(chunk(1), 0.0)


def test_a_completed_chunk_that_was_restored_is_lost_like_any_other(bench: Bench) -> None:
    bench.queue.try_send(chunk(1), 0.0)
    bench.queue.hold(ONE, 0.0)
    token = bench.queue.in_flight[ONE].token
    accepted = bench.fences.accept(token)
    assert isinstance(accepted, Accepted)
    assert bench.fences.restore(accepted)

    assert [flight.chunk.id for flight in bench.queue.lose(W0)] == [ONE]
    assert bench.fences.accept(token) == Refused(RefusalReason.REVOKED)
