"""A chunk ends once: slot, budget and acknowledgement in one step."""

from collections.abc import Callable

import pytest

from headrace.checkpoint.ack import AckRef
from headrace.errors import HeadraceError
from headrace.handoff.budget import Budget
from headrace.handoff.settlement import Settlement
from headrace.record import ChunkId
from tests.unit.handoff.parts import ack
from tests.unit.shm.parts import W0, W1, Bench, chunk

ONE = ChunkId(1)


class InSlot:
    """One chunk of one batch, in a slot, charged, and held by a worker whose completion was accepted."""

    def __init__(self) -> None:
        self.resolved: list[AckRef] = []
        self.bench = Bench(2).opened()
        self.chunk = chunk(1)
        ref = ack(self.resolved.append)
        self.chunk.acks.add(ref)
        ref.deliver()
        self.budget = Budget(1000)
        self.budget.charge(self.chunk.size)
        self.settlement = Settlement(self.budget)
        self.bench.queue.try_send(self.chunk, 0.0)

    def completed(self) -> "InSlot":
        self.bench.queue.hold(ONE, 0.0)
        self.bench.fences.accept(self.bench.queue.in_flight[ONE].token)
        return self


def deliver(it: InSlot) -> object:
    return it.settlement.deliver(it.bench.queue, ONE)


def fail(it: InSlot) -> object:
    return it.settlement.fail(it.bench.queue, ONE, "the table is gone")


@pytest.mark.parametrize(("end", "cause"), [(deliver, None), (fail, "the table is gone")])
def test_slot_budget_and_batch_end_together(end: Callable[[InSlot], object], cause: str | None) -> None:
    """(HR-4)"""
    it = InSlot().completed()

    end(it)

    assert it.bench.queue.table.used == 0
    assert it.budget.used == 0
    assert [ref.cause for ref in it.resolved] == [cause]


@pytest.mark.parametrize("first", [deliver, fail])
@pytest.mark.parametrize("second", [deliver, fail])
def test_a_second_end_raises_and_changes_nothing(
    first: Callable[[InSlot], object], second: Callable[[InSlot], object]
) -> None:
    """(HR-4), C02"""
    it = InSlot().completed()
    first(it)

    with pytest.raises(HeadraceError, match="in no slot"):
        second(it)

    assert it.budget.used == 0
    assert len(it.resolved) == 1


def test_a_chunk_that_a_worker_may_still_complete_is_not_ended_in_any_part() -> None:
    it = InSlot()

    with pytest.raises(HeadraceError, match="may complete it"):
        deliver(it)

    assert it.bench.queue.table.used == 1
    assert it.budget.used == it.chunk.size
    assert it.resolved == []


def test_a_budget_that_does_not_hold_the_chunk_stops_the_settlement_before_the_slot() -> None:
    it = InSlot().completed()
    it.budget.release(1)

    with pytest.raises(HeadraceError, match="given back"):
        deliver(it)

    assert it.bench.queue.table.used == 1
    assert it.resolved == []


def test_a_chunk_of_a_lost_worker_can_be_failed_from_its_slot() -> None:
    it = InSlot()
    it.bench.queue.lose(W0)

    fail(it)

    assert it.budget.used == 0
    assert it.resolved[0].failed


def test_a_chunk_that_was_sent_again_is_settled_by_its_new_holder_alone() -> None:
    it = InSlot()
    old = it.bench.queue.in_flight[ONE].token
    it.bench.queue.lose(W0)
    it.bench.opened(W1).queue.redispatch(1.0)

    it.bench.fences.accept(old)
    with pytest.raises(HeadraceError, match="w1 may complete it"):
        deliver(it)
    deliver(it.completed())

    assert [ref.failed for ref in it.resolved] == [False]
