"""Which files there are, which partition each of them holds, and which lanes come and go because of it.

A look finds files by name and sees whether those that are read still hold what was read of them. A file that no lane
reads is a candidate until it is decided: it holds a partition that lost its file (then that partition goes on in it),
it is a copy in the making of a file that is being read (then it waits), or it is a new partition.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

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
from headrace.sources.compression import Compression
from headrace.sources.discovery import check_paths, find_files, find_rotated, names_are_related
from headrace.sources.file_lane import FileLane, Reading
from headrace.sources.identity import SPAN, FileIdentity, HeadIndex, Known, decode_identity, digest, new_partition
from headrace.sources.reading import OpenFile
from headrace.sources.recognition import Candidate, is_beginning_of

_OPEN_LANES = 64  # of a bounded source, so that the number of its files is not bounded by that of descriptors
_STEP_BYTES = 8 * 1024 * 1024  # unpacked in one call to recognise files
_COPY_QUIET = 10.0  # seconds after which what looks like a copy in the making is a file of its own
_ROTATED_QUIET = 60.0  # seconds without growth after which a file that was rotated away is closed

Key = tuple[int, int]


class FileWatch:
    """The files of one source, from open to close."""

    def __init__(
        self, ctx: SourceContext, paths: Sequence[str], reading: Reading, compression: Compression | None
    ) -> None:
        self._ctx = ctx
        self._paths = paths
        self._reading = reading
        self._compression = compression
        self._known: dict[PartitionId, Known] = {}
        self._lanes: dict[PartitionId, FileLane] = {}
        self._by_key: dict[Key, FileLane] = {}
        self._holders: dict[Path, FileLane] = {}
        self._candidates: dict[Key, Candidate] = {}
        self._read_to_end: dict[Key, int] = {}
        self._elsewhere: set[PartitionId] = set()
        self._unreadable: set[Path] = set()
        self._assign: deque[FileLane] = deque()
        self._revoke: list[FileLane] = []
        self._due = 0.0
        self._drained = False
        self._opened = False

    def open(self) -> None:
        """Find the files. Raises `SourceError` for what was named and cannot be read."""
        check_paths(self._paths)
        for identity in self._ctx.identities:
            details = decode_identity(identity)
            if details is None:
                self._ctx.warn("an identity that is no file's is ignored", partition=identity.partition)
                continue
            position = self._ctx.positions.get(identity.partition, 0)
            self._known[identity.partition] = Known(identity.partition, details, position)
        self._look(self._ctx.now())
        if not self._candidates and not self._reading.follow:
            raise SourceError(f"{', '.join(self._paths)}: no file matches; correct the path")
        self._decide()
        self._opened = True

    def events(self) -> SourceEvent:
        now = self._ctx.now()
        if self._reading.follow and now >= self._due:
            self._look(now)
            self._decide()
        elif self._work_is_left():
            self._decide()
        if self._revoke:
            revoked, self._revoke = self._revoke, []
            return LanesRevoked(tuple(lane.id for lane in revoked))
        if lanes := self._next_lanes():
            return LanesAssigned(lanes)
        if self._is_drained():
            self._drained = True
            return Drained()
        return Idle()

    def next_due(self) -> float | None:
        now = self._ctx.now()
        if self._revoke or self._work_is_left() or (self._assign and self._room() > 0):
            return now
        if any(lane.wants_poll for lane in self._lanes.values()):
            return now
        if self._reading.follow:
            return self._due
        return now if self._is_drained() and not self._drained else None

    def lanes_of(self, ids: Iterable[LaneId]) -> list[FileLane]:
        wanted = set(ids)
        return [lane for lane in self._lanes.values() if lane.id in wanted]

    def commit(self, positions: Mapping[PartitionId, int]) -> None:
        for partition, position in positions.items():
            lane = self._lanes.get(partition)
            if lane is not None:
                lane.commit(position)
                self._let_go(lane)

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.close()
        for candidate in self._candidates.values():
            candidate.file.close()
        self._candidates.clear()

    # Lanes

    def _next_lanes(self) -> tuple[FileLane, ...]:
        lanes: list[FileLane] = []
        room = self._room()
        while self._assign and len(lanes) < room:
            lane = self._assign.popleft()
            lane.assigned = True
            lanes.append(lane)
        return tuple(lanes)

    def _room(self) -> int:
        if self._reading.follow:
            return len(self._assign) + 1
        return _OPEN_LANES - sum(lane.assigned and not lane.exhausted for lane in self._lanes.values())

    def _is_drained(self) -> bool:
        if self._reading.follow or self._assign or self._candidates:
            return False
        return all(lane.exhausted for lane in self._lanes.values())

    def _finish(self, lane: FileLane) -> None:
        """Followed: nothing more is to come of this lane's file."""
        if lane.finished:
            return
        if self._by_key.get(lane.file.key) is lane:
            del self._by_key[lane.file.key]
        self._elsewhere.add(lane.partition)
        lane.finished = True
        lane.close()
        self._let_go(lane)

    def _let_go(self, lane: FileLane) -> None:
        if lane.finished and lane.committed >= lane.known.position and lane.partition in self._lanes:
            del self._lanes[lane.partition]
            for path in [path for path, holder in self._holders.items() if holder is lane]:
                del self._holders[path]
            if lane.assigned:
                self._revoke.append(lane)
            elif lane in self._assign:
                self._assign.remove(lane)

    # Looking

    def _look(self, now: float) -> None:
        self._due = now + self._ctx.follow_interval
        for lane in list(self._by_key.values()) if self._reading.follow else ():
            if lane.exhausted:
                self._read_to_end[lane.file.key] = lane.size_read()
                self._finish(lane)
            elif not lane.look(now):
                self._displace(lane)
        seen = self._look_at_names(now)
        if not self._opened:
            self._compare(budget=0)
        if self._reading.follow:
            for lane in list(self._by_key.values()):
                self._look_after(lane, lane.file.key in seen, now)
        self._look_for_rotated(now)
        if self._reading.follow:
            for candidate in self._candidates.values():
                candidate.look(now)

    def _hold(self, path: Path, lane: FileLane) -> None:
        lane.path = path
        lane.known.names.add(path)
        self._holders[path] = lane

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
            lane = self._by_key.get(key)
            if lane is not None:
                self._hold(path, lane)
            elif key in self._candidates:
                self._candidates[key].beside = False
                self._candidates[key].file.path = path
            elif self._read_to_end.get(key) != status.st_size:
                self._open(path, beside=False, now=now)
        return seen

    def _open(self, path: Path, *, beside: bool, now: float) -> None:
        try:
            file = OpenFile(path, self._compression, bounded=not self._reading.follow)
        except OSError as error:
            if not self._opened and not beside:
                raise SourceError(f"{path}: cannot be read ({error.strerror or error})") from error
            if path not in self._unreadable:
                self._unreadable.add(path)
                self._ctx.warn("a file cannot be read; it is tried again", path=str(path), error=str(error))
            return
        self._unreadable.discard(path)
        if file.key in self._by_key or file.key in self._candidates:
            file.close()
            return
        candidate = Candidate(file, beside=beside, keep_open=self._reading.follow, now=now)
        self._candidates[file.key] = candidate
        candidate.look(now)
        candidate.spare()

    def _displace(self, lane: FileLane) -> None:
        size = lane.file.size()
        self._ctx.warn(
            "a file was truncated or rewritten; it is read from its start as a new partition",
            path=lane.name,
            partition=lane.partition,
            position=lane.known.position,
            size=size,
        )
        del self._by_key[lane.file.key]
        lane.known.identity = lane.latest()
        lane.lose_file()

    def _look_after(self, lane: FileLane, is_named: bool, now: float) -> None:
        """Close what is read to its end and will not grow."""
        if is_named:
            lane.unseen_since = None
        elif lane.unseen_since is None:
            lane.unseen_since = now
            lane.at_end = False
        elif lane.at_end and now - max(lane.unseen_since, lane.grown_at) >= _ROTATED_QUIET:
            if lane.unread():
                self._ctx.warn(
                    "a file that was rotated away ends in an unfinished line, which is not read",
                    path=lane.name,
                    position=lane.known.position,
                    bytes=lane.unread(),
                )
            lane.forget_path()
            self._finish(lane)

    def _look_for_rotated(self, now: float) -> None:
        """The rest of a partition that has no file under its name may lie beside it under another."""
        orphans = [known for known in self._known.values() if self._is_orphan(known)]
        by_path: dict[Path, set[Key]] = {}
        for known in orphans:
            by_path.setdefault(known.path, set()).add(known.key)
        for path, keys in by_path.items():
            for beside in find_rotated(path, keys):
                self._open(beside, beside=True, now=now)

    def _is_orphan(self, known: Known) -> bool:
        lane = self._lanes.get(known.partition)
        if lane is not None:
            return lane.lost and not lane.finished
        if not known.identity.path or known.partition in self._elsewhere:
            return False
        candidate = self._candidates.get(known.key)
        return not self._opened and (candidate is None or not (known in candidate.same or candidate.unknown))

    # Deciding

    def _work_is_left(self) -> bool:
        return any(candidate.unknown for candidate in self._candidates.values())

    def _compare(self, budget: int) -> None:
        for lane in self._by_key.values():
            if lane.head:
                lane.known.identity = lane.latest()
        index = HeadIndex(self._known.values())
        for candidate in self._candidates.values():
            budget -= candidate.compare(index.matching(candidate.head, candidate.file.key), budget)

    def _decide(self) -> None:
        """Give each candidate to the partition that it holds, make it a new one, or let it wait."""
        if not self._candidates:
            self._give_up_lost()
            return
        self._compare(_STEP_BYTES)
        self._give_to_known(sure_only=self._work_is_left())
        for candidate in sorted(self._candidates.values(), key=Candidate.is_named):
            self._decide_alone(candidate)
        self._give_up_lost()

    def _give_to_known(self, *, sure_only: bool) -> None:
        pairs = [
            (known.key != candidate.file.key, known.path != candidate.file.path, -known.position, order)
            for order, (candidate, known) in enumerate(self._pairs())
        ]
        ordered = list(self._pairs())
        taken: set[PartitionId] = set()
        for other_inode, _, _, order in sorted(pairs):
            candidate, known = ordered[order]
            if candidate.file.key not in self._candidates or known.partition in taken or (sure_only and other_inode):
                continue
            taken.add(known.partition)
            self._give(candidate, known)

    def _pairs(self) -> Iterable[tuple[Candidate, Known]]:
        for candidate in self._candidates.values():
            for known in candidate.same:
                if self._is_free(known, candidate):
                    yield candidate, known

    def _is_free(self, known: Known, candidate: Candidate) -> bool:
        lane = self._lanes.get(known.partition)
        if lane is not None and lane.lost and not lane.finished:
            return True
        if candidate.beside and known.partition in self._elsewhere:
            return False
        if self._replaces(candidate, known):
            return False
        if lane is None or lane.finished:
            return True
        return self._reading.follow and lane.at_end and lane.unlinked()

    def _replaces(self, candidate: Candidate, known: Known) -> bool:
        """A new file under a name that the old one had is not the old one, though it may begin alike."""
        had_its_name = candidate.file.path in known.names or (self._opened and not known.identity.path)
        return had_its_name and not candidate.file.packed and candidate.file.key != known.key

    def _give(self, candidate: Candidate, known: Known) -> None:
        file = candidate.file
        del self._candidates[file.key]
        self._elsewhere.add(known.partition)
        former = known.path
        lane = self._lanes.get(known.partition)
        if lane is None and candidate.beside and not file.packed and candidate.size <= known.position:
            self._found_read(known, file)
            return
        if lane is None:
            lane = FileLane(self._ctx, known, file, candidate.head, self._reading)
            self._add(lane)
        else:
            if self._by_key.get(lane.file.key) is lane:
                del self._by_key[lane.file.key]
            lane.attach(file)
            self._by_key[file.key] = lane
            self._hold(file.path, lane)
        self._holders.setdefault(former, lane)

    def _found_read(self, known: Known, file: OpenFile) -> None:
        """A rotated file of which nothing is left to read: where it lies now is all that is new."""
        file.close()
        known.identity = msgspec.structs.replace(
            known.identity, path=os.fsencode(file.path), device=file.device, inode=file.inode
        )
        self._ctx.remember(known.identity.encoded(known.partition))

    def _decide_alone(self, candidate: Candidate) -> None:
        if candidate.unknown:
            return
        if any(self._is_free(known, candidate) for known in candidate.same):
            if self._work_is_left():
                return
        elif self._was_read(candidate):
            self._read_to_end[candidate.file.key] = candidate.size
            candidate.beside = True
        elif not candidate.beside and self._waits(candidate):
            return
        del self._candidates[candidate.file.key]
        if candidate.beside:
            candidate.file.close()
        else:
            self._begin(candidate)

    def _was_read(self, candidate: Candidate) -> bool:
        """A copy of a file that is gone since, made before the last of it was read."""
        lanes = (self._lanes.get(known.partition) for known in candidate.short)
        return any(lane is not None and lane.lost and lane.has_read(candidate.file) for lane in lanes)

    def _waits(self, candidate: Candidate) -> bool:
        if not self._reading.follow:
            return False
        if not candidate.head:
            return True
        if any(self._is_being_read(known) and not self._replaces(candidate, known) for known in candidate.same):
            return True
        if self._ctx.now() - candidate.changed_at >= _COPY_QUIET:
            return False
        if candidate.file.packed and not candidate.whole and any(self._is_free(k, candidate) for k in candidate.short):
            return True
        return any(self._may_be_copy(candidate, lane) for lane in self._by_key.values())

    def _is_being_read(self, known: Known) -> bool:
        """Under no name any more, but not read to its end."""
        lane = self._lanes.get(known.partition)
        return lane is not None and not lane.at_end and lane.unlinked()

    def _may_be_copy(self, candidate: Candidate, lane: FileLane) -> bool:
        if lane.path is None or candidate.file.path in lane.known.names:
            return False
        if lane.known.position == 0 and not lane.unlinked():
            return False
        alike = min(len(candidate.head), len(lane.head)) >= SPAN or names_are_related(candidate.file.path, lane.path)
        if not alike or not is_beginning_of(candidate, lane.head, lane.file):
            return False
        if lane.known in candidate.different:
            return False
        return lane.known not in candidate.short or not (candidate.file.packed and candidate.whole)

    def _begin(self, candidate: Candidate) -> None:
        file = candidate.file
        partition = new_partition(file.path, os.urandom(4))
        identity = FileIdentity(
            path=os.fsencode(file.path),
            device=file.device,
            inode=file.inode,
            head_length=0,
            head_digest=digest(b""),
            tail_end=0,
            tail_length=0,
            tail_digest=digest(b""),
        )
        self._warn_of_changed(candidate)
        known = self._known[partition] = Known(partition, identity, 0)
        lane = FileLane(self._ctx, known, file, candidate.head, self._reading)
        self._add(lane)

    def _warn_of_changed(self, candidate: Candidate) -> None:
        file = candidate.file
        for known in self._known.values():
            if known.partition in self._lanes or known.partition in self._elsewhere or not known.position:
                continue
            if known.identity.nothing_was_in_it:
                continue
            if known.key == file.key or known.path == file.path:
                self._elsewhere.add(known.partition)
                known.identity = msgspec.structs.replace(known.identity, path=b"")
                self._ctx.remember(known.identity.encoded(known.partition))
                self._ctx.warn(
                    "a file was truncated, rewritten or replaced; it is read from its start as a new partition",
                    path=str(file.path),
                    partition=known.partition,
                    position=known.position,
                    size=candidate.size,
                )

    def _add(self, lane: FileLane) -> None:
        before = self._holders.get(lane.file.path)
        if before is not None and before is not lane and not (before.finished or before.exhausted or before.lost):
            before.at_end = False
            lane.predecessor = before
        self._lanes[lane.partition] = lane
        self._hold(lane.file.path, lane)
        if self._reading.follow:
            self._by_key[lane.file.key] = lane
        else:
            lane.file.close()
        self._assign.append(lane)

    def _give_up_lost(self) -> None:
        if self._work_is_left():
            return
        for lane in list(self._lanes.values()):
            if lane.lost and not lane.finished:
                self._finish(lane)
