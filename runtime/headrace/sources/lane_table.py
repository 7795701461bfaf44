"""The lanes of one source's files: which there are, which file each of them reads, which name was whose."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path

from headrace.record import LaneId, PartitionId
from headrace.sources.file_lane import FileLane
from headrace.sources.identity import Known

_OPEN_LANES = 64  # of a bounded source, so that the number of its files is not bounded by that of descriptors

Key = tuple[int, int]
"""A file's device and inode."""


class LaneTable:
    """Lanes from the moment that they are made until they are let go, and what is known of every partition."""

    def __init__(self, *, follow: bool) -> None:
        self._follow = follow
        self.known: dict[PartitionId, Known] = {}
        self.lanes: dict[PartitionId, FileLane] = {}
        self.followed: dict[Key, FileLane] = {}
        """The lanes that hold their file open, by file."""
        self.settled: set[PartitionId] = set()
        """Partitions whose content was found in this run, or is known to be gone."""
        self.read_to_end: dict[Key, int] = {}
        """Files of which nothing is to be read while their size is this."""
        self._holders: dict[Path, FileLane] = {}
        self._assign: deque[FileLane] = deque()
        self._revoke: list[FileLane] = []

    def of(self, known: Known) -> FileLane | None:
        return self.lanes.get(known.partition)

    def of_ids(self, ids: Iterable[LaneId]) -> list[FileLane]:
        wanted = set(ids)
        return [lane for lane in self.lanes.values() if lane.id in wanted]

    def refresh(self) -> None:
        """Bring what partitions are recognised by up to what was handed out of them."""
        for lane in self.followed.values():
            if lane.head:
                lane.known.identity = lane.latest()

    def add(self, lane: FileLane) -> None:
        """A new lane. It waits for the one that had its name, until that is read to its end."""
        before = self._holders.get(lane.file.path)
        if before is not None and before is not lane and not (before.finished or before.exhausted or before.lost):
            before.at_end = False
            lane.predecessor = before
        self.lanes[lane.partition] = lane
        self.hold(lane.file.path, lane)
        if self._follow:
            self.followed[lane.file.key] = lane
        else:
            lane.file.close()
        self._assign.append(lane)

    def move(self, lane: FileLane) -> None:
        """The lane was given another file."""
        for key in [key for key, other in self.followed.items() if other is lane]:
            del self.followed[key]
        self.followed[lane.file.key] = lane
        self.hold(lane.file.path, lane)

    def hold(self, path: Path, lane: FileLane) -> None:
        """The lane's file is seen under this name."""
        lane.path = path
        lane.known.names.add(path)
        self._holders[path] = lane

    def succeed(self, path: Path, lane: FileLane) -> None:
        """The lane's content was under this name in an earlier run."""
        self._holders.setdefault(path, lane)

    def finish(self, lane: FileLane) -> None:
        """Followed: nothing more is to come of this lane's file."""
        if lane.finished:
            return
        if self.followed.get(lane.file.key) is lane:
            del self.followed[lane.file.key]
        self.settled.add(lane.partition)
        lane.finished = True
        lane.close()
        self._let_go(lane)

    def finish_lost(self) -> None:
        for lane in [lane for lane in self.lanes.values() if lane.lost]:
            self.finish(lane)

    def _let_go(self, lane: FileLane) -> None:
        if not lane.finished or lane.committed < lane.known.position or lane.partition not in self.lanes:
            return
        del self.lanes[lane.partition]
        for path in [path for path, holder in self._holders.items() if holder is lane]:
            del self._holders[path]
        if lane.assigned:
            self._revoke.append(lane)
        elif lane in self._assign:
            self._assign.remove(lane)

    def commit(self, positions: Mapping[PartitionId, int]) -> None:
        for partition, position in positions.items():
            lane = self.lanes.get(partition)
            if lane is not None:
                lane.commit(position)
                self._let_go(lane)

    @property
    def has_news(self) -> bool:
        return bool(self._revoke) or (bool(self._assign) and self._room() > 0)

    def take_revoked(self) -> tuple[LaneId, ...]:
        revoked = tuple(lane.id for lane in self._revoke)
        self._revoke.clear()
        return revoked

    def take_assigned(self) -> tuple[FileLane, ...]:
        count = min(len(self._assign), self._room())
        lanes = tuple(self._assign.popleft() for _ in range(count))
        for lane in lanes:
            lane.assigned = True
        return lanes

    def _room(self) -> int:
        if self._follow:
            return len(self._assign)
        return _OPEN_LANES - sum(lane.assigned and not lane.exhausted for lane in self.lanes.values())

    @property
    def is_exhausted(self) -> bool:
        return not self._assign and all(lane.exhausted for lane in self.lanes.values())

    def close(self) -> None:
        for lane in self.lanes.values():
            lane.close()
