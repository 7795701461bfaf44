"""How far one partition is delivered without a gap: its watermark.

Batches are registered in order and resolved in any. The watermark is one past the delivered prefix; a failed batch at
the head stalls it for good (HR-1).
"""

from __future__ import annotations

import enum

from headrace.errors import HeadraceError
from headrace.record import PartitionId


class Resolution(enum.Enum):
    """What a resolution did. All but ``APPLIED`` changed nothing."""

    APPLIED = "applied"
    DUPLICATE = "duplicate"
    ALREADY_ADVANCED = "already_advanced"
    UNREGISTERED = "unregistered"


class _Batch:
    __slots__ = ("cause", "delivered", "end", "since")

    def __init__(self, end: int, since: float) -> None:
        self.end = end
        self.since = since
        self.delivered = False
        self.cause: str | None = None

    @property
    def resolved(self) -> bool:
        return self.delivered or self.cause is not None


class PartitionTracker:
    """The outstanding batches of a partition in one epoch. ``watermark`` is where its reading began."""

    def __init__(self, partition: PartitionId, epoch: int, watermark: int = 0) -> None:
        self.partition = partition
        self.epoch = epoch
        self.watermark = watermark
        self._reported = watermark
        self._end = watermark
        self._head = 0
        self._next = 0
        self._batches: dict[int, _Batch] = {}

    @property
    def next_seq(self) -> int:
        """The number that the next batch must have."""
        return self._next

    @property
    def pending(self) -> int:
        """Batches that the watermark has not passed."""
        return len(self._batches)

    @property
    def failed_head(self) -> str | None:
        """Why the watermark is stalled for good; None: it is not."""
        head = self._batches.get(self._head)
        return None if head is None else head.cause

    def register(self, seq: int, end: int, now: float) -> None:
        """A batch is under way; ``end`` is where reading resumes after it. Raises on a gap or a step back."""
        if seq != self._next:
            raise HeadraceError(f"partition {self.partition}: batch {seq} registered, {self._next} was due")
        if end < self._end:
            raise HeadraceError(f"partition {self.partition}: batch {seq} ends at {end}, before {self._end}")
        self._batches[seq] = _Batch(end, now)
        self._end = end
        self._next = seq + 1

    def resolve(self, seq: int, ok: bool, cause: str | None = None) -> Resolution:
        """A batch is delivered, or failed for ``cause``."""
        if seq >= self._next or seq < 0:
            return Resolution.UNREGISTERED
        batch = self._batches.get(seq)
        if batch is None:
            return Resolution.ALREADY_ADVANCED
        if batch.resolved:
            return Resolution.DUPLICATE
        if ok:
            batch.delivered = True
        else:
            batch.cause = cause or "failed"
        self._pass_delivered()
        return Resolution.APPLIED

    def advance(self) -> int | None:
        """The watermark, if it moved since the last call."""
        if self.watermark == self._reported:
            return None
        self._reported = self.watermark
        return self.watermark

    def oldest(self, now: float) -> float:
        """The age of the oldest batch that is not acknowledged, failed or not; 0.0 without one."""
        head = self._batches.get(self._head)
        return 0.0 if head is None else now - head.since

    def _pass_delivered(self) -> None:
        while (head := self._batches.get(self._head)) is not None and head.delivered:
            del self._batches[self._head]
            self._head += 1
            self.watermark = head.end
