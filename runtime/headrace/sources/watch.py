"""Finds files by name and sees whether those that are read still hold what was read of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from headrace.errors import SourceError
from headrace.record import (
    Drained,
    Idle,
    LaneId,
    LanesAssigned,
    LanesRevoked,
    PartitionId,
    SourceContext,
    SourceEvent,
)
from headrace.sources.claims import Claims
from headrace.sources.compression import Compression
from headrace.sources.discovery import check_paths, find_files, find_rotated
from headrace.sources.file_lane import FileLane, Reading
from headrace.sources.identity import Known, decode_identity
from headrace.sources.lane_table import Key, LaneTable
from headrace.sources.reading import OpenFile

_QUIET = 60.0  # seconds without growth after which a file that was rotated away is closed


class FileWatch:
    """The files of one source, from open to close. One look is: are the files that are read intact; what is new."""

    def __init__(
        self, ctx: SourceContext, paths: Sequence[str], reading: Reading, compression: Compression | None
    ) -> None:
        self._ctx = ctx
        self._paths = paths
        self._reading = reading
        self._compression = compression
        self._table = LaneTable(follow=reading.follow)
        self._claims = Claims(ctx, self._table, reading)
        self._unreadable: set[Path] = set()
        self._due = 0.0
        self._drained = False

    def open(self) -> None:
        """Find the files. Raises `SourceError` for what was named and cannot be read."""
        check_paths(self._paths)
        for identity in self._ctx.identities:
            details = decode_identity(identity)
            if details is None:
                self._ctx.warn("an identity that is no file's is ignored", partition=identity.partition)
                continue
            position = self._ctx.positions.get(identity.partition, 0)
            self._table.known[identity.partition] = Known(identity.partition, details, position)
        self._look(self._ctx.now())
        if not self._claims and not self._reading.follow:
            raise SourceError(f"{', '.join(self._paths)}: no file matches; correct the path")
        self._claims.decide()
        self._claims.opened = True

    def events(self) -> SourceEvent:
        try:
            self._go_on()
        except OSError as error:
            raise SourceError(f"{', '.join(self._paths)}: looking for files failed: {error}", retryable=True) from error
        if revoked := self._table.take_revoked():
            return LanesRevoked(revoked)
        if lanes := self._table.take_assigned():
            return LanesAssigned(lanes)
        if self._is_drained():
            self._drained = True
            return Drained()
        return Idle()

    def _go_on(self) -> None:
        now = self._ctx.now()
        if self._reading.follow and now >= self._due:
            self._look(now)
            self._claims.decide()
        elif self._claims.work_is_left:
            self._claims.decide()

    def _is_drained(self) -> bool:
        return not self._reading.follow and not self._claims and self._table.is_exhausted

    def next_due(self) -> float | None:
        now = self._ctx.now()
        if self._table.has_news or self._claims.work_is_left:
            return now
        if any(lane.wants_poll for lane in self._table.lanes.values()):
            return now
        if self._reading.follow:
            return self._due
        return now if self._is_drained() and not self._drained else None

    def lanes_of(self, ids: Iterable[LaneId]) -> list[FileLane]:
        return self._table.of_ids(ids)

    def progress(self) -> tuple[int, int]:
        """Bytes as stored: read, and in all."""
        done = [lane.progress() for lane in self._table.lanes.values()]
        return sum(read for read, _ in done), sum(size for _, size in done)

    def commit(self, positions: Mapping[PartitionId, int]) -> None:
        self._table.commit(positions)

    def close(self) -> None:
        self._table.close()
        self._claims.close()

    def _look(self, now: float) -> None:
        self._due = now + self._ctx.follow_interval
        for lane in list(self._table.followed.values()):
            self._look_at(lane, now)
        seen = self._look_at_names(now)
        if not self._claims.opened:
            self._claims.compare(budget=0)
        for lane in list(self._table.followed.values()):
            self._look_after(lane, lane.file.key in seen, now)
        self._look_for_rotated(now)
        if self._reading.follow:
            self._claims.look(now)

    def _look_at(self, lane: FileLane, now: float) -> None:
        if lane.exhausted:
            self._table.read_to_end[lane.file.key] = lane.size_read()
            self._table.finish(lane)
        elif not lane.look(now):
            self._displace(lane)

    def _look_at_names(self, now: float) -> set[Key]:
        seen: set[Key] = set()
        for path in find_files(self._paths):
            try:
                status = path.stat()
            except OSError:
                continue
            key = (status.st_dev, status.st_ino)
            if key in seen:
                continue
            seen.add(key)
            lane = self._table.followed.get(key)
            candidate = self._claims.get(key)
            if lane is not None:
                self._table.hold(path, lane)
            elif candidate is not None:
                candidate.beside = False
                candidate.file.path = path
            elif self._table.read_to_end.get(key) != status.st_size:
                self._open(path, beside=False, now=now)
        return seen

    def _open(self, path: Path, *, beside: bool, now: float) -> None:
        try:
            file = OpenFile(path, self._compression, bounded=not self._reading.follow)
        except OSError as error:
            if not self._claims.opened and not beside:
                raise SourceError(f"{path}: cannot be read ({error.strerror or error})") from error
            if path not in self._unreadable:
                self._unreadable.add(path)
                self._ctx.warn("a file cannot be read; it is tried again", path=str(path), error=str(error))
            return
        self._unreadable.discard(path)
        if file.key in self._table.followed or self._claims.get(file.key) is not None:
            file.close()
        else:
            self._claims.add(file, beside=beside, now=now)

    def _displace(self, lane: FileLane) -> None:
        size = lane.file.size()
        self._ctx.warn(
            "a file was truncated or rewritten; it is read from its start as a new partition",
            path=lane.name,
            partition=lane.partition,
            position=lane.known.position,
            size=size,
        )
        del self._table.followed[lane.file.key]
        lane.known.identity = lane.latest()
        lane.lose_file()

    def _look_after(self, lane: FileLane, is_named: bool, now: float) -> None:
        """Close what is read to its end and will not grow."""
        if is_named:
            lane.unseen_since = None
            if lane.waits_since(now) >= _QUIET and lane.warn_once("unfinished"):
                self._ctx.warn("a packed file ends in the middle; the rest is waited for", path=lane.name)
        elif lane.unseen_since is None:
            lane.unseen_since = now
            lane.at_end = False
        elif lane.at_end and now - max(lane.unseen_since, lane.grown_at) >= _QUIET:
            if lane.unread():
                self._ctx.warn(
                    "a file that was rotated away ends in an unfinished line, which is not read",
                    path=lane.name,
                    position=lane.known.position,
                    bytes=lane.unread(),
                )
            lane.forget_path()
            self._table.finish(lane)

    def _look_for_rotated(self, now: float) -> None:
        """The rest of a partition that has no file under its name may lie beside it under another."""
        orphans = [known for known in self._table.known.values() if self._is_orphan(known)]
        by_path: dict[Path, set[Key]] = {}
        for known in orphans:
            by_path.setdefault(known.path, set()).add(known.key)
        for path, keys in by_path.items():
            for beside in find_rotated(path, keys):
                self._open(beside, beside=True, now=now)

    def _is_orphan(self, known: Known) -> bool:
        lane = self._table.of(known)
        if lane is not None:
            return lane.lost and not lane.finished
        if not known.identity.path or known.partition in self._table.settled:
            return False
        candidate = self._claims.get(known.key)
        return not self._claims.opened and (candidate is None or not (known in candidate.same or candidate.unknown))
