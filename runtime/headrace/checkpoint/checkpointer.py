"""Which positions may be committed, over all partitions and their epochs.

Resolutions come from whoever ends a batch's last share, even while a set is being dropped; they are only noted then
and applied at the next question. What comes from an epoch that is over is counted and dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from headrace.checkpoint.ack import AckRef, BatchId
from headrace.checkpoint.tracker import PartitionTracker, Resolution
from headrace.errors import HeadraceError
from headrace.record import PartitionId


class Checkpointer:
    """The trackers of the partitions that are ours. ``on_resolved`` is told of each batch that is resolved."""

    def __init__(self, on_resolved: Callable[[AckRef], None] | None = None) -> None:
        self.stale_dropped = 0
        self._on_resolved = on_resolved
        self._trackers: dict[PartitionId, PartitionTracker] = {}
        self._epochs: dict[PartitionId, int] = {}
        self._resolved: deque[AckRef] = deque()
        self._touched: set[PartitionId] = set()
        self._failed: set[PartitionId] = set()

    def begin(self, partition: PartitionId, epoch: int, watermark: int) -> None:
        """The partition is ours from ``watermark`` on; what an earlier epoch of it left is stale.

        Raises `HeadraceError` when ``epoch`` is not larger than the partition's last.
        """
        last = self._epochs.get(partition)
        if last is not None and epoch <= last:
            raise HeadraceError(f"partition {partition}: epoch {epoch} begins after epoch {last}")
        self.revoke(partition)
        self._epochs[partition] = epoch
        self._trackers[partition] = PartitionTracker(partition, epoch, watermark)

    def revoke(self, partition: PartitionId) -> None:
        """The partition is not ours any more. An advance that was not harvested is dropped and counted."""
        self._apply()
        tracker = self._trackers.pop(partition, None)
        if tracker is not None and tracker.advance() is not None:
            self.stale_dropped += 1
        self._touched.discard(partition)
        self._failed.discard(partition)

    def issue(self, partition: PartitionId, end: int, now: float) -> AckRef:
        """Register the partition's next batch and make its acknowledgement, held by one share."""
        tracker = self._tracker(partition)
        seq = tracker.next_seq
        tracker.register(seq, end, now)
        return AckRef(BatchId(partition, tracker.epoch, seq), end, self._resolved.append)

    def harvest(self) -> dict[PartitionId, int]:
        """The watermarks that moved since the last harvest."""
        self._apply()
        moved = {partition: self._trackers[partition].advance() for partition in self._touched}
        self._touched.clear()
        return {partition: watermark for partition, watermark in moved.items() if watermark is not None}

    @property
    def watermarks(self) -> dict[PartitionId, int]:
        """The watermark of each partition that is ours, harvested or not."""
        self._apply()
        return {partition: tracker.watermark for partition, tracker in self._trackers.items()}

    def epoch(self, partition: PartitionId) -> int:
        return self._tracker(partition).epoch

    def pending(self, partition: PartitionId) -> int:
        """Batches of the partition that its watermark has not passed; 0 for one that is not ours."""
        self._apply()
        tracker = self._trackers.get(partition)
        return 0 if tracker is None else tracker.pending

    @property
    def quiet(self) -> bool:
        """Whether nothing is outstanding in any partition."""
        self._apply()
        return not any(tracker.pending for tracker in self._trackers.values())

    def oldest_unacked(self, now: float) -> float:
        """The age of the oldest unacknowledged batch of all partitions, failed or not; 0.0 without one."""
        self._apply()
        return max((tracker.oldest(now) for tracker in self._trackers.values()), default=0.0)

    def failed_heads(self) -> dict[PartitionId, str]:
        """The partitions that are stalled for good, each with the cause."""
        self._apply()
        causes = {partition: self._trackers[partition].failed_head for partition in self._failed}
        return {partition: cause for partition, cause in causes.items() if cause is not None}

    def _tracker(self, partition: PartitionId) -> PartitionTracker:
        tracker = self._trackers.get(partition)
        if tracker is None:
            raise HeadraceError(f"partition {partition} is not ours")
        return tracker

    def _apply(self) -> None:
        while self._resolved:
            self._apply_one(self._resolved.popleft())

    def _apply_one(self, ref: AckRef) -> None:
        batch = ref.batch_id
        tracker = self._trackers.get(batch.partition)
        if tracker is None or tracker.epoch != batch.epoch:
            self.stale_dropped += 1
            return
        resolution = tracker.resolve(batch.seq, not ref.failed, ref.cause)
        if resolution is not Resolution.APPLIED:
            raise HeadraceError(f"batch {batch} was resolved and is {resolution.value}")
        if self._on_resolved is not None:
            self._on_resolved(ref)
        self._touched.add(batch.partition)
        if ref.failed:
            self._failed.add(batch.partition)
