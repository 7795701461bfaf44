"""How long a worker waits before it tries a write again: growing, capped, and never in step with other workers."""

from __future__ import annotations

import random
from typing import Final

from headrace.config.settings import RetrySettings

SHORTEST: Final = 0.001


class Backoff:
    """The waits of one write. The first is ``initial``; each next is ``multiplier`` times longer, at most ``max``.

    Jitter only shortens a wait, by up to its share of it, and never to nothing.
    """

    def __init__(self, settings: RetrySettings, seed: int) -> None:
        self._settings = settings
        self._random = random.Random(seed)  # noqa: S311 - spreads waits, guards nothing
        self._wait = min(settings.initial, settings.max)

    def next(self) -> float:
        """Seconds until the next attempt."""
        wait = self._wait
        self._wait = min(self._settings.max, wait * self._settings.multiplier)
        return max(SHORTEST, wait * (1.0 - self._settings.jitter * self._random.random()))
