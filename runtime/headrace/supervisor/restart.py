"""When a dead worker is replaced, and when its deaths end the run."""

from __future__ import annotations

from collections import deque

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 5.0


class RestartPolicy:
    """The deaths of one worker number.

    A worker that settled a chunk since its `READY` is replaced at once and clears the record. One that did not waits,
    twice as long each time, from 50 ms to 5 s; more than ``max_restarts`` such deaths within ``window`` seconds are
    too many.
    """

    def __init__(self, max_restarts: int, window: float) -> None:
        self._max_restarts = max_restarts
        self._window = window
        self._deaths: deque[float] = deque()
        self._pause = 0.0

    def settled(self) -> None:
        """The worker settled a chunk."""
        self._deaths.clear()
        self._pause = 0.0

    def died(self, now: float) -> float | None:
        """The seconds until the replacement may start; None: that was one death too many."""
        if not self._deaths and self._pause == 0.0:
            self._pause = FIRST_PAUSE / 2
        while self._deaths and self._deaths[0] < now - self._window:
            self._deaths.popleft()
        self._deaths.append(now)
        if len(self._deaths) > self._max_restarts:
            return None
        self._pause = min(self._pause * 2, LONGEST_PAUSE)
        return self._pause

    @property
    def recent(self) -> int:
        """Deaths without a settled chunk that still count."""
        return len(self._deaths)
