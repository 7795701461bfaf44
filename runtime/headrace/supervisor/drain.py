"""How a run ends: which step it is in and what its deadlines are.

A run that has read all of a bounded source is *finishing*: everything is sealed, sent and flushed, and it takes as
long as the sinks take. A run that is told to stop, or has failed, is *draining*: the same, but bounded, writing by
``drain.timeout`` less five seconds and the whole by ``drain.timeout``. Then the workers are told to *stop*, and what
is left is killed and proved gone.
"""

from __future__ import annotations

import enum

RESERVE = 5.0
"""Seconds of ``drain.timeout`` that are kept for the kill and the final commit."""


class Step(enum.Enum):
    """Where a run is."""

    STARTING = "starting"
    RUNNING = "running"
    FINISHING = "finishing"
    DRAINING = "draining"
    STOPPING = "stopping"
    KILLING = "killing"
    ENDED = "ended"


class Ending:
    """The steps of a run, in order. Times are real monotonic seconds: an end that was promised is kept."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self.step = Step.STARTING
        self.requested = False
        self.forced = False
        self._deadline: float | None = None

    def started(self) -> None:
        """The source is open."""
        if self.step is Step.STARTING:
            self.step = Step.RUNNING

    def source_drained(self) -> None:
        """Nothing more will be read."""
        if self.step is Step.RUNNING:
            self.step = Step.FINISHING

    def request(self, now: float) -> None:
        """Begin to end: a signal, a verb, or a failure."""
        if self.step in (Step.STARTING, Step.RUNNING, Step.FINISHING):
            self.step = Step.DRAINING
        if self._deadline is None:
            self._deadline = now + self._timeout
        self.requested = True

    def force(self) -> None:
        """A second signal: no more waiting."""
        self.forced = True
        self.step = Step.KILLING if self.step is not Step.ENDED else self.step

    def quiet(self, now: float) -> None:
        """Nothing is left to write: the workers are told to stop."""
        if self.step in (Step.FINISHING, Step.DRAINING):
            self.step = Step.STOPPING
            if self._deadline is None:
                self._deadline = now + self._timeout

    def tick(self, now: float) -> None:
        """Move on where a deadline has passed."""
        if self._deadline is None:
            return
        if (self.step is Step.DRAINING and now >= self._deadline - self.reserve) or (
            self.step is Step.STOPPING and now >= self._deadline - self.reserve / 2
        ):
            self.step = Step.KILLING

    def gone(self) -> None:
        """Every worker is gone."""
        if self.step in (Step.STOPPING, Step.KILLING):
            self.step = Step.ENDED

    @property
    def reserve(self) -> float:
        """Seconds kept for the kill and the final commit: five, or a third of a timeout that is shorter than that."""
        return min(RESERVE, self._timeout / 3)

    def overdue(self, now: float) -> bool:
        """Whether the whole has taken as long as it may."""
        return self._deadline is not None and now >= self._deadline

    def next_due(self) -> float | None:
        """The next moment at which `tick` or `overdue` may change its mind."""
        if self._deadline is None:
            return None
        if self.step is Step.DRAINING:
            return self._deadline - self.reserve
        if self.step is Step.STOPPING:
            return self._deadline - self.reserve / 2
        return self._deadline
