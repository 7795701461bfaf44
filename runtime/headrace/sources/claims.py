"""Decides what each file that no lane reads is: a known partition's content, a copy in the making, or a new partition.

A candidate that holds all that was read of a partition without a file gives the partition its file. One that may be
the copy of a file that is being read waits: should the original be truncated or deleted, the copy goes on in its
place; should the two part, or nothing happen for a while, it is a partition of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import msgspec

from headrace.record import PartitionId, SourceContext
from headrace.sources.discovery import names_are_related
from headrace.sources.file_lane import FileLane, Reading
from headrace.sources.identity import SPAN, FileIdentity, HeadIndex, Known, digest, new_partition
from headrace.sources.lane_table import Key, LaneTable
from headrace.sources.reading import OpenFile
from headrace.sources.recognition import Candidate, is_beginning_of

_STEP_BYTES = 8 * 1024 * 1024  # unpacked in one call to recognise files
_COPY_QUIET = 10.0  # seconds after which what looks like a copy in the making is a file of its own


class Claims:
    """The candidates of one source."""

    def __init__(self, ctx: SourceContext, table: LaneTable, reading: Reading) -> None:
        self._ctx = ctx
        self._table = table
        self._reading = reading
        self._candidates: dict[Key, Candidate] = {}
        self.opened = False
        """The files that were there at start are decided."""

    def __len__(self) -> int:
        return len(self._candidates)

    def get(self, key: Key) -> Candidate | None:
        return self._candidates.get(key)

    def add(self, file: OpenFile, *, beside: bool, now: float) -> None:
        candidate = Candidate(file, beside=beside, keep_open=self._reading.follow, now=now)
        self._candidates[file.key] = candidate
        candidate.look(now)
        candidate.spare()

    def look(self, now: float) -> None:
        """See which of those that wait have changed."""
        for candidate in self._candidates.values():
            candidate.look(now)

    def close(self) -> None:
        for candidate in self._candidates.values():
            candidate.file.close()
        self._candidates.clear()

    @property
    def work_is_left(self) -> bool:
        """Not all candidates could be compared in one call."""
        return any(candidate.unknown for candidate in self._candidates.values())

    def compare(self, budget: int) -> None:
        self._table.refresh()
        index = HeadIndex(self._table.known.values())
        for candidate in self._candidates.values():
            budget -= candidate.compare(index.matching(candidate.head, candidate.file.key), budget)

    def decide(self) -> None:
        """Give each candidate to the partition that it holds, make it a new one, or let it wait."""
        self.compare(_STEP_BYTES)
        self._give_to_known(sure_only=self.work_is_left)
        for candidate in sorted(self._candidates.values(), key=Candidate.is_named):
            self._decide_alone(candidate)
        if not self.work_is_left:
            self._table.finish_lost()

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
        lane = self._table.of(known)
        if lane is not None and lane.lost and not lane.finished:
            return True
        if candidate.beside and known.partition in self._table.settled:
            return False
        if self._replaces(candidate, known):
            return False
        if lane is None or lane.finished:
            return True
        return self._reading.follow and lane.at_end and lane.unlinked()

    def _replaces(self, candidate: Candidate, known: Known) -> bool:
        """A new file under a name that the old one had is not the old one, though it may begin alike."""
        had_its_name = candidate.file.path in known.names or (self.opened and not known.identity.path)
        return had_its_name and not candidate.file.packed and candidate.file.key != known.key

    def _give(self, candidate: Candidate, known: Known) -> None:
        file = candidate.file
        del self._candidates[file.key]
        self._table.settled.add(known.partition)
        former = known.path
        lane = self._table.of(known)
        if lane is None and candidate.beside and not file.packed and candidate.size <= known.position:
            self._found_read(known, file)
            return
        if lane is None:
            lane = FileLane(self._ctx, known, file, candidate.head, self._reading)
            self._table.add(lane)
        else:
            lane.attach(file)
            self._table.move(lane)
        self._table.succeed(former, lane)

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
            if self.work_is_left:
                return
        elif self._was_read(candidate):
            self._table.read_to_end[candidate.file.key] = candidate.size
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
        lanes = (self._table.of(known) for known in candidate.short)
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
        return any(self._may_be_copy(candidate, lane) for lane in self._table.followed.values())

    def _is_being_read(self, known: Known) -> bool:
        """Under no name any more, but not read to its end."""
        lane = self._table.of(known)
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
        known = self._table.known[partition] = Known(partition, identity, 0)
        lane = FileLane(self._ctx, known, file, candidate.head, self._reading)
        self._table.add(lane)

    def _warn_of_changed(self, candidate: Candidate) -> None:
        file = candidate.file
        for known in self._table.known.values():
            if self._table.of(known) is not None or known.partition in self._table.settled or not known.position:
                continue
            if known.identity.nothing_was_in_it:
                continue
            if known.key == file.key or known.path == file.path:
                self._table.settled.add(known.partition)
                known.identity = msgspec.structs.replace(known.identity, path=b"")
                self._ctx.remember(known.identity.encoded(known.partition))
                self._ctx.warn(
                    "a file was truncated, rewritten or replaced; it is read from its start as a new partition",
                    path=str(file.path),
                    partition=known.partition,
                    position=known.position,
                    size=candidate.size,
                )
