"""When the source is paused and when it may go on: hysteresis over the budget and over each shard's share of it."""

from __future__ import annotations

from headrace.config.settings import BackpressureSettings


class Hysteresis:
    """Pauses at ``high`` of the budget, or when one shard has its share of it; goes on below ``low`` of both.

    A pause lasts at least ``min_pause`` seconds. Pause and resume alternate.
    """

    def __init__(self, settings: BackpressureSettings) -> None:
        limit = settings.max_inflight_bytes
        self._high = settings.high * limit
        self._low = settings.low * limit
        self._share_high = settings.shard_share * limit
        self._share_low = self._share_high * settings.low / settings.high
        self._min_pause = settings.min_pause
        self._paused_at: float | None = None
        self.pauses = 0

    @property
    def paused(self) -> bool:
        return self._paused_at is not None

    def update(self, used: int, fullest_shard: int, now: float) -> bool:
        """Whether the source is paused now, given the bytes in flight, of all and of the fullest shard."""
        if self._paused_at is None:
            if used >= self._high or fullest_shard >= self._share_high:
                self._paused_at = now
                self.pauses += 1
        elif self._may_resume(used, fullest_shard, now):
            self._paused_at = None
        return self.paused

    def _may_resume(self, used: int, fullest_shard: int, now: float) -> bool:
        assert self._paused_at is not None
        rested = now >= self._paused_at + self._min_pause
        return rested and used < self._low and fullest_shard < self._share_low

    def next_due(self) -> float | None:
        """When ``min_pause`` is over."""
        return None if self._paused_at is None else self._paused_at + self._min_pause
