"""The loop's time: monotonic seconds in which the loop was turning.

A limit counts only time in which the supervisor could see what it limits. When a turn, or the wait between two, took
over a second longer than planned (the process was stopped, or user code took that long), all deadlines move by it.
"""

from __future__ import annotations

GRACE = 1.0


class TurningClock:
    """Told of every turn; answers with the loop's time, which never runs backwards."""

    def __init__(self, monotonic: float) -> None:
        self._last = monotonic
        self._skipped = 0.0

    @property
    def skipped(self) -> float:
        """Seconds that do not count, so far."""
        return self._skipped

    def turn(self, monotonic: float, planned: float) -> float:
        """The loop's time at the begin of a turn before which a wait of ``planned`` seconds was meant."""
        excess = monotonic - self._last - planned
        if excess > GRACE:
            self._skipped += excess
        self._last = monotonic
        return monotonic - self._skipped

    def at(self, monotonic: float) -> float:
        """The loop's time at another moment of the same turn."""
        return monotonic - self._skipped
