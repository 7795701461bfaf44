"""Decides which partition's content a file holds, by comparing what is known of each with the file's bytes."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from headrace.sources.identity import SPAN, Known, digest
from headrace.sources.reading import Content, OpenFile


class Verdict(enum.Enum):
    """What a comparison says of a file and a partition."""

    SAME = "same"
    """The file holds all that was read of the partition."""
    SHORT = "short"
    """The file ends before the partition's position."""
    DIFFERENT = "different"
    UNKNOWN = "unknown"
    """Not all bytes that are needed were looked at yet."""


class Candidate:
    """A file that no lane reads, while it is being recognised."""

    def __init__(self, file: OpenFile, *, beside: bool, keep_open: bool, now: float) -> None:
        self.file = file
        self._keep_open = keep_open
        self.beside = beside
        """Not named by the source's paths: only the rest of a known partition is read of it."""
        self.head = b""
        self.same: list[Known] = []
        self.short: list[Known] = []
        self.different: list[Known] = []
        self.unknown = False
        self.changed_at = now
        self._size = -1
        self._content: Content = file.content()
        self._verdicts: dict[tuple[str, int, int], Verdict] = {}
        self._tails: dict[tuple[str, int], bool] = {}

    def look(self, now: float) -> None:
        """See how the file begins, and whether it changed."""
        size = self.file.size()
        if size == self._size:
            return
        self._size = size
        self.changed_at = now
        self._verdicts.clear()
        if not self.head:
            self.file.detect_again()
            self._content = self.file.content()
        if len(self.head) < SPAN:
            self._rewind_to(0)
            self.head = self._content.peek(SPAN)

    def is_named(self) -> bool:
        """Its name is still there."""
        return self.file.fd < 0 or self.file.status().st_nlink > 0

    @property
    def size(self) -> int:
        """As stored."""
        return self._size

    @property
    def whole(self) -> bool:
        """The file can be read to its end as it is."""
        return self._content.whole

    def compare(self, contenders: Iterable[Known], budget: int) -> int:
        """Judge the file against each contender. Returns how many bytes were unpacked, not far over ``budget``."""
        self.same, self.short, self.different, self.unknown = [], [], [], False
        work = 0
        if budget > 0 or not self.file.packed:
            self.file.open_again()
        for known in sorted(contenders, key=lambda one: one.position):
            key = (known.partition, known.position, known.identity.tail_end)
            verdict = self._verdicts.get(key)
            if verdict is None:
                verdict, done = self._judge(known, budget - work)
                work += done
                if verdict is not Verdict.UNKNOWN:
                    self._verdicts[key] = verdict
            if verdict is Verdict.SAME:
                self.same.append(known)
            elif verdict is Verdict.SHORT:
                self.short.append(known)
            elif verdict is Verdict.DIFFERENT:
                self.different.append(known)
            self.unknown = self.unknown or verdict is Verdict.UNKNOWN
        self.spare()
        return work

    def spare(self) -> None:
        """Give the descriptor back where files are many and stay what they are."""
        if not self._keep_open:
            self.file.close()

    def _judge(self, known: Known, budget: int) -> tuple[Verdict, int]:
        if not self.file.packed:
            return self._judge_plain(known), 0
        if budget <= 0:
            return Verdict.UNKNOWN, 0
        work = 0
        tail_key = (known.partition, known.identity.tail_end)
        if known.identity.tail_length and tail_key not in self._tails:
            work = self._go_to(known.identity.tail_start, budget)
            if self._content.position < known.identity.tail_start:
                return self._missing(work, budget), work
            tail = self._content.peek(known.identity.tail_length)
            if len(tail) < known.identity.tail_length:
                return Verdict.SHORT, work
            self._tails[tail_key] = digest(tail) == known.identity.tail_digest
        if not self._tails.get(tail_key, True):
            return Verdict.DIFFERENT, work
        goal = _content_needed(known)
        work += self._go_to(goal, budget - work) if self._content.position < goal else 0
        return (Verdict.SAME if self._content.position >= goal else self._missing(work, budget)), work

    def _judge_plain(self, known: Known) -> Verdict:
        identity = known.identity
        if self._size < _content_needed(known):
            return Verdict.SHORT
        tail = self.file.read(identity.tail_length, identity.tail_start) if identity.tail_length else b""
        if identity.tail_length and digest(tail) != identity.tail_digest:
            return Verdict.DIFFERENT
        return Verdict.SAME

    def _go_to(self, position: int, budget: int) -> int:
        self._rewind_to(position)
        return self._content.skip_to(position, max(budget, 1))

    def _rewind_to(self, position: int) -> None:
        if self._content.position > position:
            self._content = self.file.content()

    @staticmethod
    def _missing(work: int, budget: int) -> Verdict:
        return Verdict.UNKNOWN if work >= budget else Verdict.SHORT


def _content_needed(known: Known) -> int:
    # A torn file's end was handed out as one position past all bytes.
    return known.position - (known.position == known.identity.torn_end + 1)


def is_beginning_of(candidate: Candidate, head: bytes, other: OpenFile) -> bool:
    """The candidate's bytes, so far, are those that the other file begins with."""
    shared = min(len(candidate.head), len(head))
    if not shared or candidate.head[:shared] != head[:shared]:
        return False
    if candidate.file.packed or other.packed:
        return True
    size = candidate.size
    if size > other.size():
        return False
    start = max(0, size - SPAN)
    return candidate.file.read(size - start, start) == other.read(size - start, start)
