"""The commit tick: watermarks that moved become durable, then the source is told. There is no other way to commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.checkpoint.checkpointer import Checkpointer
from headrace.record import PartitionId, Source
from headrace.supervisor.journal import Journal, JournalFailure


class Commits:
    """Harvests on the tick; at most one commit is under way, and what it could not write goes with the next."""

    def __init__(
        self,
        checkpointer: Checkpointer,
        journal: Journal,
        watermarks: dict[PartitionId, int],
        interval: float,
        fail: Callable[[str], None],
        log: Any,
    ) -> None:
        self._checkpointer = checkpointer
        self._journal = journal
        self._interval = interval
        self._fail = fail
        self._log = log
        self._waiting: dict[PartitionId, int] = {}
        self._under_way: dict[PartitionId, int] = {}
        self._next = 0.0
        self._resting = False
        self.source: Source | None = None
        self.watermarks = watermarks
        self.last_failure = ""

    @property
    def settled(self) -> bool:
        """Whether every watermark that moved is durable."""
        return not self._waiting and not self._under_way

    def next_due(self) -> float:
        return self._next

    def tick(self, now: float) -> None:
        """Harvest and commit, when it is time."""
        if now >= self._next:
            self._next = now + self._interval
            self._resting = False
            self.harvest()

    def harvest(self) -> None:
        """Harvest and commit now; after a failure not before the next tick."""
        self._waiting.update(self._checkpointer.harvest())
        if not self._waiting or self._under_way or self._resting:
            return
        self._under_way, self._waiting = self._waiting, {}
        self._journal.commit(self._under_way, self._done, self._failed)

    def _done(self) -> None:
        done, self._under_way = self._under_way, {}
        self.watermarks.update(done)
        if self.last_failure:
            self._log.warning("positions are durable again")
            self.last_failure = ""
        if self.source is not None:
            self.source.commit(done)

    def _failed(self, failure: JournalFailure) -> None:
        self._waiting = {**self._under_way, **self._waiting}
        self._under_way = {}
        self._resting = True
        failed = f"{failure.path}: {failure.reason}"
        if failure.lost:
            self._fail(failed)
            return
        if failed != self.last_failure:
            self._log.error("positions could not be written and will be tried again", path=str(failure.path),
                            cause=failure.reason)  # fmt: skip
        self.last_failure = failed
