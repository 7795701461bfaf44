"""Shares of one batch, and the sets that hold them."""

import gc
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.checkpoint.ack import AckRef, AckSet, BatchId
from headrace.errors import HeadraceError
from headrace.record import PartitionId

seqs = st.integers(0, 2)


class Resolved(list[AckRef]):
    """What was resolved, in order; makes the references."""

    def ref(self, seq: int = 0) -> AckRef:
        return AckRef(BatchId(PartitionId("p"), 1, seq), 10 * (seq + 1), self.append)


@pytest.fixture
def resolved() -> Resolved:
    return Resolved()


def test_a_batch_is_resolved_with_its_last_share_and_once(resolved: Resolved) -> None:
    ref = resolved.ref()
    ref.share()

    ref.deliver()
    assert resolved == []
    ref.deliver()

    assert resolved == [ref]
    assert not ref.failed


def test_one_failed_share_fails_the_batch_whatever_the_others_do(resolved: Resolved) -> None:
    ref = resolved.ref()
    ref.share()
    ref.share()

    ref.deliver()
    ref.fail("the first cause")
    assert resolved == []
    ref.fail("another cause")

    assert resolved == [ref]
    assert ref.cause == "the first cause"


@pytest.mark.parametrize("misuse", [AckRef.share, AckRef.deliver, lambda ref: ref.fail("late")])
def test_a_resolved_batch_cannot_be_shared_or_ended_again(resolved: Resolved, misuse: Callable[[AckRef], None]) -> None:
    ref = resolved.ref()
    ref.deliver()

    with pytest.raises(HeadraceError, match="resolved"):
        misuse(ref)

    assert resolved == [ref]
    assert not ref.failed


def test_a_set_takes_one_share_a_batch(resolved: Resolved) -> None:
    first, second = resolved.ref(0), resolved.ref(1)
    acks = AckSet()

    for ref in (first, first, second, first):
        acks.add(ref)

    assert len(acks) == 2
    assert (first.shares, second.shares) == (2, 2)


def test_delivering_a_set_resolves_every_batch_in_it(resolved: Resolved) -> None:
    refs = [resolved.ref(seq) for seq in range(3)]
    acks = AckSet()
    for ref in refs:
        acks.add(ref)
        ref.deliver()

    acks.deliver()

    assert sorted(ref.batch_id.seq for ref in resolved) == [0, 1, 2]
    assert not any(ref.failed for ref in resolved)


def test_failing_a_set_fails_every_batch_in_it(resolved: Resolved) -> None:
    refs = [resolved.ref(seq) for seq in range(3)]
    acks = AckSet()
    for ref in refs:
        acks.add(ref)
        ref.deliver()

    acks.fail("the disk is full")

    assert [ref.cause for ref in resolved] == ["the disk is full"] * 3


def test_closing_a_set_fails_what_it_holds_and_a_second_close_is_nothing(resolved: Resolved) -> None:
    ref = resolved.ref()
    acks = AckSet()
    acks.add(ref)
    ref.deliver()

    acks.close("closed early")
    acks.close()

    assert ref.cause == "closed early"
    assert len(resolved) == 1


def test_dropping_a_set_fails_what_it_holds(resolved: Resolved) -> None:
    """(HR-1)"""
    ref = resolved.ref()
    acks = AckSet()
    acks.add(ref)
    ref.deliver()

    del acks
    gc.collect()

    assert ref.failed
    assert resolved == [ref]


def test_dropping_a_delivered_set_fails_nothing(resolved: Resolved) -> None:
    ref = resolved.ref()
    acks = AckSet()
    acks.add(ref)
    acks.deliver()

    del acks
    gc.collect()

    assert ref.shares == 1
    assert not ref.failed


@pytest.mark.parametrize("end", [AckSet.deliver, AckSet.close, lambda acks: acks.fail("x")])
def test_an_ended_set_cannot_be_used(resolved: Resolved, end: Callable[[AckSet], None]) -> None:
    acks = AckSet()
    end(acks)

    uses: list[Callable[[], None]] = [
        lambda: acks.add(resolved.ref()),
        acks.deliver,
        lambda: acks.fail("x"),
        lambda: acks.absorb(AckSet()),
    ]
    for use in uses:
        with pytest.raises(HeadraceError, match="after its end"):
            use()


def test_absorbing_moves_batches_and_resolves_none(resolved: Resolved) -> None:
    only_here, both, only_there = (resolved.ref(seq) for seq in range(3))
    here, there = AckSet(), AckSet()
    for acks, refs in ((here, (only_here, both)), (there, (both, only_there))):
        for ref in refs:
            acks.add(ref)

    here.absorb(there)

    assert (len(here), len(there)) == (3, 0)
    assert [ref.shares for ref in (only_here, both, only_there)] == [2, 2, 2]
    there.close()
    assert not both.failed


def test_a_resolution_that_raises_leaves_the_rest_held(resolved: Resolved) -> None:
    def broken(ref: AckRef) -> None:
        raise ValueError(ref.batch_id.seq)

    good, bad = resolved.ref(0), AckRef(BatchId(PartitionId("p"), 1, 1), 9, broken)
    acks = AckSet()
    for ref in (good, bad):
        acks.add(ref)
        ref.deliver()

    with pytest.raises(ValueError, match="1"):
        acks.deliver()
    assert good in acks
    acks.close()

    assert good.failed


class SharesModel(RuleBasedStateMachine):
    """Shares of three batches, held loose or by sets, against counts kept by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.resolved = Resolved()
        self.refs = [self.resolved.ref(seq) for seq in range(3)]
        self.loose = [1, 1, 1]
        self.failed = [False] * 3
        self.sets: list[AckSet] = []
        self.held: list[set[int]] = []

    def shares(self, seq: int) -> int:
        return self.loose[seq] + sum(seq in held for held in self.held)

    @rule(seq=seqs)
    def share(self, seq: int) -> None:
        if self.shares(seq):
            self.refs[seq].share()
            self.loose[seq] += 1

    @rule(seq=seqs, ok=st.booleans())
    def end(self, seq: int, ok: bool) -> None:
        if self.loose[seq]:
            self.loose[seq] -= 1
            self.failed[seq] |= not ok
            if ok:
                self.refs[seq].deliver()
            else:
                self.refs[seq].fail("x")

    @rule()
    def make_set(self) -> None:
        self.sets.append(AckSet())
        self.held.append(set())

    @precondition(lambda self: self.sets)
    @rule(data=st.data(), seq=seqs)
    def add(self, data: st.DataObject, seq: int) -> None:
        at = data.draw(st.integers(0, len(self.sets) - 1))
        if self.shares(seq):
            self.sets[at].add(self.refs[seq])
            self.held[at].add(seq)

    @precondition(lambda self: len(self.sets) > 1)
    @rule()
    def absorb(self) -> None:
        self.sets[0].absorb(self.sets.pop())
        self.held[0] |= self.held.pop()

    @precondition(lambda self: self.sets)
    @rule(how=st.sampled_from(["deliver", "fail", "close", "drop"]))
    def end_set(self, how: str) -> None:
        acks, held = self.sets.pop(), self.held.pop()
        for seq in held:
            self.failed[seq] |= how != "deliver"
        if how == "deliver":
            acks.deliver()
        elif how == "fail":
            acks.fail("x")
        elif how == "close":
            acks.close()

    @invariant()
    def each_batch_is_resolved_at_its_last_share_with_the_worst_status(self) -> None:
        assert [ref.shares for ref in self.refs] == [self.shares(seq) for seq in range(3)]
        assert [ref.failed for ref in self.refs] == self.failed
        assert sorted(ref.batch_id.seq for ref in self.resolved) == [seq for seq in range(3) if not self.shares(seq)]


SharesModel.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestSharesAgainstCounts = SharesModel.TestCase
