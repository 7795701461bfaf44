"""Which positions may be committed, over partitions and epochs."""

import threading

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.checkpoint.ack import AckRef, AckSet
from headrace.checkpoint.checkpointer import Checkpointer
from headrace.errors import HeadraceError
from headrace.record import PartitionId

A, B = PartitionId("a"), PartitionId("b")


@pytest.fixture
def checkpointer() -> Checkpointer:
    made = Checkpointer()
    made.begin(A, 1, 0)
    made.begin(B, 1, 100)
    return made


def test_a_delivered_batch_is_harvested_once(checkpointer: Checkpointer) -> None:
    ref = checkpointer.issue(A, 10, 0.0)
    assert checkpointer.harvest() == {}

    ref.deliver()

    assert checkpointer.harvest() == {A: 10}
    assert checkpointer.harvest() == {}
    assert checkpointer.watermarks == {A: 10, B: 100}


def test_batches_are_numbered_by_partition_and_carry_epoch_and_end(checkpointer: Checkpointer) -> None:
    refs = [checkpointer.issue(A, 10, 0.0), checkpointer.issue(A, 20, 0.0), checkpointer.issue(B, 110, 0.0)]

    assert [(ref.batch_id.partition, ref.batch_id.epoch, ref.batch_id.seq, ref.end) for ref in refs] == [
        (A, 1, 0, 10),
        (A, 1, 1, 20),
        (B, 1, 0, 110),
    ]


def test_partitions_advance_independently(checkpointer: Checkpointer) -> None:
    slow, _, fast = checkpointer.issue(A, 10, 0.0), checkpointer.issue(A, 20, 0.0), checkpointer.issue(B, 110, 0.0)

    fast.deliver()

    assert checkpointer.harvest() == {B: 110}
    slow.deliver()
    assert checkpointer.harvest() == {A: 10}


def test_a_failed_head_stalls_its_partition_alone_and_is_named(checkpointer: Checkpointer) -> None:
    checkpointer.issue(A, 10, 0.0).fail("the row is refused")
    checkpointer.issue(A, 20, 0.0).deliver()
    checkpointer.issue(B, 110, 0.0).deliver()

    assert checkpointer.harvest() == {B: 110}
    assert checkpointer.failed_heads() == {A: "the row is refused"}
    assert checkpointer.pending(A) == 2


def test_resolutions_of_an_epoch_that_is_over_are_counted_and_dropped(checkpointer: Checkpointer) -> None:
    """C02, C08"""
    old = checkpointer.issue(A, 10, 0.0)
    checkpointer.begin(A, 2, 0)
    new = checkpointer.issue(A, 10, 0.0)

    old.deliver()

    assert checkpointer.harvest() == {}
    assert checkpointer.stale_dropped == 1
    new.deliver()
    assert checkpointer.harvest() == {A: 10}


def test_resolutions_of_a_revoked_partition_are_counted_and_dropped(checkpointer: Checkpointer) -> None:
    ref = checkpointer.issue(A, 10, 0.0)
    checkpointer.revoke(A)

    ref.fail("x")

    assert checkpointer.harvest() == {}
    assert checkpointer.failed_heads() == {}
    assert checkpointer.stale_dropped == 1
    assert checkpointer.watermarks == {B: 100}


def test_an_advance_that_was_not_harvested_goes_with_its_partition(checkpointer: Checkpointer) -> None:
    """C09"""
    checkpointer.issue(A, 10, 0.0).deliver()

    checkpointer.revoke(A)

    assert checkpointer.harvest() == {}
    assert checkpointer.stale_dropped == 1


@pytest.mark.parametrize("epoch", [0, 1])
def test_an_epoch_that_does_not_grow_is_an_error(checkpointer: Checkpointer, epoch: int) -> None:
    checkpointer.revoke(A)

    with pytest.raises(HeadraceError, match=f"partition a: epoch {epoch} begins after epoch 1"):
        checkpointer.begin(A, epoch, 0)


def test_a_partition_that_is_not_ours_gets_no_batches(checkpointer: Checkpointer) -> None:
    checkpointer.revoke(A)

    with pytest.raises(HeadraceError, match="not ours"):
        checkpointer.issue(A, 10, 0.0)
    assert checkpointer.pending(A) == 0


def test_another_partition_that_begins_leaves_the_rest_alone(checkpointer: Checkpointer) -> None:
    ref = checkpointer.issue(A, 10, 0.0)

    checkpointer.begin(PartitionId("c"), 1, 7)
    ref.deliver()

    assert checkpointer.harvest() == {A: 10}


def test_the_oldest_unacknowledged_batch_is_found_over_all_partitions(checkpointer: Checkpointer) -> None:
    assert checkpointer.oldest_unacked(50.0) == 0.0
    old = checkpointer.issue(A, 10, 10.0)
    checkpointer.issue(B, 110, 30.0)

    assert checkpointer.oldest_unacked(50.0) == 40.0
    old.deliver()
    assert checkpointer.oldest_unacked(50.0) == 20.0


def test_it_is_quiet_when_nothing_is_outstanding(checkpointer: Checkpointer) -> None:
    quiet = [checkpointer.quiet]

    ref = checkpointer.issue(A, 10, 0.0)
    quiet.append(checkpointer.quiet)
    ref.deliver()
    quiet.append(checkpointer.quiet)

    assert quiet == [True, False, True]


def test_a_set_that_is_dropped_stalls_the_watermarks_of_its_batches(checkpointer: Checkpointer) -> None:
    """(HR-1)"""
    acks = AckSet()
    ref = checkpointer.issue(A, 10, 0.0)
    acks.add(ref)
    ref.deliver()

    del acks

    assert checkpointer.harvest() == {}
    assert A in checkpointer.failed_heads()


def test_a_batch_may_be_resolved_on_another_thread(checkpointer: Checkpointer) -> None:
    ref = checkpointer.issue(A, 10, 0.0)

    thread = threading.Thread(target=ref.deliver)
    thread.start()
    thread.join()

    assert checkpointer.harvest() == {A: 10}


class CheckpointerModel(RuleBasedStateMachine):
    """Epochs, revocations and late acknowledgements in any order, against the batches' fates."""

    def __init__(self) -> None:
        super().__init__()
        self.checkpointer = Checkpointer()
        self.epochs = {A: 0, B: 0}
        self.issued: list[AckRef] = []
        self.batches: dict[PartitionId, list[AckRef]] = {}
        self.committed: dict[PartitionId, int] = {}

    @rule(partition=st.sampled_from([A, B]))
    def begin(self, partition: PartitionId) -> None:
        self.epochs[partition] += 1
        self.checkpointer.begin(partition, self.epochs[partition], self.committed.get(partition, 0))
        self.batches[partition] = []

    @rule(partition=st.sampled_from([A, B]))
    def revoke(self, partition: PartitionId) -> None:
        self.checkpointer.revoke(partition)
        self.batches.pop(partition, None)

    @rule(partition=st.sampled_from([A, B]))
    def issue(self, partition: PartitionId) -> None:
        if partition in self.batches:
            batches = self.batches[partition]
            end = (batches[-1].end if batches else self.committed.get(partition, 0)) + 10
            ref = self.checkpointer.issue(partition, end, 0.0)
            batches.append(ref)
            self.issued.append(ref)

    @rule(data=st.data(), ok=st.integers(0, 5))
    def resolve(self, data: st.DataObject, ok: int) -> None:
        open_refs = [ref for ref in self.issued if ref.shares]
        if open_refs:
            ref = data.draw(st.sampled_from(open_refs))
            if ok:
                ref.deliver()
            else:
                ref.fail("x")

    @rule()
    def harvest(self) -> None:
        for partition, watermark in self.checkpointer.harvest().items():
            assert watermark > self.committed.get(partition, 0)
            assert watermark == self.prefix_end(partition)
            self.committed[partition] = watermark

    def prefix_end(self, partition: PartitionId) -> int:
        end = -1
        for ref in self.batches[partition]:
            if ref.shares or ref.failed:
                break
            end = ref.end
        return end

    @invariant()
    def no_watermark_passes_a_batch_that_is_not_delivered(self) -> None:
        for partition, watermark in self.checkpointer.watermarks.items():
            for ref in self.batches[partition]:
                assert ref.end > watermark or not (ref.shares or ref.failed)


CheckpointerModel.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestCheckpointerAgainstTheModel = CheckpointerModel.TestCase
