"""The watermark of one partition."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.checkpoint.tracker import PartitionTracker, Resolution
from headrace.errors import HeadraceError
from headrace.record import PartitionId

P = PartitionId("p#1")


def tracker(batches: int) -> PartitionTracker:
    made = PartitionTracker(P, 1)
    for seq in range(batches):
        made.register(seq, 10 * (seq + 1), float(seq))
    return made


def test_resolutions_in_order_move_the_watermark_step_by_step() -> None:
    tracked = tracker(3)

    steps: list[int | None] = []
    for seq in range(3):
        tracked.resolve(seq, True)
        steps.append(tracked.advance())

    assert steps == [10, 20, 30]
    assert tracked.pending == 0


def test_an_advance_is_told_once() -> None:
    tracked = tracker(1)
    tracked.resolve(0, True)

    assert tracked.advance() == 10
    assert tracked.advance() is None


@given(st.permutations(range(8)))
def test_the_watermark_is_one_past_the_contiguous_prefix_whatever_the_order(order: list[int]) -> None:
    """C01"""
    tracked = tracker(8)
    done: set[int] = set()

    for seq in order:
        tracked.resolve(seq, True)
        done.add(seq)

        assert tracked.watermark == 10 * next(at for at in itertools.count() if at not in done)


@given(st.permutations(range(8)), st.integers(0, 7))
def test_a_failed_batch_stalls_the_watermark_for_good(order: list[int], failing: int) -> None:
    """C01"""
    tracked = tracker(8)

    for seq in order:
        tracked.resolve(seq, seq != failing, "the disk is full")
        assert tracked.watermark <= 10 * failing

    assert tracked.watermark == 10 * failing
    assert tracked.failed_head == "the disk is full"
    assert tracked.pending == 8 - failing


def test_a_failure_behind_a_pending_head_shows_once_it_is_reached() -> None:
    tracked = tracker(2)

    tracked.resolve(1, False, "x")
    before = tracked.failed_head
    tracked.resolve(0, True)

    assert (before, tracked.failed_head) == (None, "x")
    assert tracked.watermark == 10


def test_what_was_resolved_before_is_reported_and_changes_nothing() -> None:
    """C02"""
    tracked = tracker(3)

    assert tracked.resolve(1, True) is Resolution.APPLIED
    assert tracked.resolve(1, False, "late") is Resolution.DUPLICATE
    assert tracked.resolve(0, True) is Resolution.APPLIED
    assert tracked.resolve(0, False, "late") is Resolution.ALREADY_ADVANCED
    assert tracked.resolve(3, True) is Resolution.UNREGISTERED
    assert tracked.resolve(-1, True) is Resolution.UNREGISTERED
    assert tracked.resolve(2, True) is Resolution.APPLIED

    assert tracked.watermark == 30


@pytest.mark.parametrize("seq", [0, 2, -1])
def test_a_gap_in_registration_is_an_error(seq: int) -> None:
    tracked = tracker(1)

    with pytest.raises(HeadraceError, match=r"p#1: batch"):
        tracked.register(seq, 20, 0.0)


def test_a_batch_that_ends_before_its_predecessor_is_an_error() -> None:
    """C08"""
    tracked = tracker(2)

    with pytest.raises(HeadraceError, match="ends at 19, before 20"):
        tracked.register(2, 19, 0.0)
    with pytest.raises(HeadraceError, match="before 100"):
        PartitionTracker(P, 1, watermark=100).register(0, 99, 0.0)


def test_reading_begins_at_the_stored_watermark() -> None:
    tracked = PartitionTracker(P, 2, watermark=100)

    assert tracked.watermark == 100
    assert tracked.advance() is None


def test_a_batch_without_progress_moves_nothing() -> None:
    tracked = PartitionTracker(P, 1, watermark=100)
    tracked.register(0, 100, 0.0)

    tracked.resolve(0, True)

    assert tracked.advance() is None
    assert tracked.pending == 0


def test_the_oldest_batch_is_the_first_that_is_not_acknowledged_failed_or_not() -> None:
    tracked = tracker(3)
    assert tracked.oldest(10.0) == 10.0

    tracked.resolve(1, True)
    assert tracked.oldest(10.0) == 10.0
    tracked.resolve(0, True)
    assert tracked.oldest(10.0) == 8.0
    tracked.resolve(2, False, "x")
    assert tracked.oldest(10.0) == 8.0

    assert tracker(0).oldest(10.0) == 0.0


class TrackerModel(RuleBasedStateMachine):
    """Against a list of fates."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = PartitionTracker(P, 1, watermark=5)
        self.ends: list[int] = []
        self.fates: list[str] = []
        self.told = 5

    def prefix(self) -> int:
        return next((at for at, fate in enumerate(self.fates) if fate != "ok"), len(self.fates))

    @rule(step=st.integers(0, 9))
    def register(self, step: int) -> None:
        end = (self.ends[-1] if self.ends else 5) + step
        self.tracker.register(len(self.ends), end, float(len(self.ends)))
        self.ends.append(end)
        self.fates.append("pending")

    @rule(seq=st.integers(-1, 30), ok=st.booleans())
    def resolve(self, seq: int, ok: bool) -> None:
        if not 0 <= seq < len(self.fates):
            expected = Resolution.UNREGISTERED
        elif seq < self.prefix():
            expected = Resolution.ALREADY_ADVANCED
        elif self.fates[seq] != "pending":
            expected = Resolution.DUPLICATE
        else:
            expected = Resolution.APPLIED
            self.fates[seq] = "ok" if ok else "failed"
        assert self.tracker.resolve(seq, ok, "x") is expected

    @rule()
    def advance(self) -> None:
        moved = self.tracker.advance()
        assert moved == (self.tracker.watermark if self.tracker.watermark != self.told else None)
        self.told = self.tracker.watermark

    @invariant()
    def the_watermark_is_one_past_the_delivered_prefix(self) -> None:
        prefix = self.prefix()
        assert self.tracker.watermark == (self.ends[prefix - 1] if prefix else 5)
        assert self.tracker.pending == len(self.fates) - prefix
        failed = prefix < len(self.fates) and self.fates[prefix] == "failed"
        assert self.tracker.failed_head == ("x" if failed else None)
        assert self.tracker.oldest(100.0) == (100.0 - prefix if prefix < len(self.fates) else 0.0)


TrackerModel.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestTrackerAgainstTheModel = TrackerModel.TestCase
