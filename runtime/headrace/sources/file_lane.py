"""One file as a lane: what is handed out of it, from where, and by what it will be recognised."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from headrace.errors import SourceError
from headrace.record import BadRecord, LaneId, PartitionId, PayloadBatch, SourceContext
from headrace.sources.identity import SPAN, FileIdentity, Known, digest, name_bytes
from headrace.sources.reading import CompressedContent, Content, OpenFile
from headrace.sources.resuming import Resuming
from headrace.sources.splitting import BlockCutter, Piece, RecordRule

_REMEMBERED_TAILS = 8192
_HISTORY = 256


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """How the files of one source are read."""

    rule: RecordRule
    with_header: bool
    follow: bool


class _Tail(NamedTuple):
    end: int
    length: int
    digest: bytes


def _mark(file: OpenFile) -> tuple[int, int]:
    status = file.status()
    return status.st_size, status.st_mtime_ns


def _stored_size(file: OpenFile) -> int:
    """For showing progress only: 0 for a file that is gone."""
    try:
        return file.path.stat().st_size
    except OSError:
        return 0


class FileLane:
    """Hands out the rest of one file's content, once. The watch tells it when its file has grown or is another."""

    def __init__(self, ctx: SourceContext, known: Known, file: OpenFile, head: bytes, reading: Reading) -> None:
        self._ctx = ctx
        self._reading = reading
        self.known = known
        self._size = _stored_size(file)
        self.path: Path | None = file.path
        self.file: OpenFile = file
        self.head = head
        self.committed = known.position
        self.paused = False
        self.at_end = False
        """Followed: nothing more until the file grows."""
        self.exhausted = False
        """Nothing more ever: the end of a bounded file, of a packed one, or of a corrupt one."""
        self.lost = False
        """The file does not hold any more what was read of it."""
        self.finished = False
        """Followed: given up; the lane is revoked when what it handed out is committed."""
        self.assigned = False
        self.predecessor: FileLane | None = None
        self.grown_at = ctx.now()
        self.unseen_since: float | None = None
        self._busy = False
        self._remembered = bool(known.identity.head_length)
        self._history: deque[_Tail] = deque(maxlen=_HISTORY)
        self._tails: deque[_Tail] = deque(maxlen=_REMEMBERED_TAILS)
        self._tail = _Tail(known.identity.tail_end, known.identity.tail_length, known.identity.tail_digest)
        self._torn = (known.identity.torn_start, known.identity.torn_end)
        self._recent = b""
        self._recent_end = -1
        self._warned: set[str] = set()
        self._mark: tuple[int, int] | None = None
        self._begin()
        if reading.follow:
            self._refresh_recent()
            self._mark = _mark(file)
        if self._remembered and (known.key != file.key or known.path != file.path):
            self.remember()

    @property
    def id(self) -> LaneId:
        return LaneId(self.known.partition)

    @property
    def partition(self) -> PartitionId:
        return self.known.partition

    @property
    def name(self) -> str:
        return str(self.file.path)

    @property
    def wants_poll(self) -> bool:
        """The last poll gave nothing, but another one would go on."""
        return self._busy and not self._rests() and not self._must_wait()

    def _rests(self) -> bool:
        return self.paused or self.at_end or self.exhausted or self.lost or self.finished

    def _begin(self) -> None:
        self._content: Content | None = None
        self._cutter = BlockCutter(
            self._reading.rule, block_bytes=self._ctx.block_bytes, max_record_bytes=self._ctx.max_record_bytes
        )
        self._resuming: Resuming | None = None
        self._steps: Iterator[None] | None = None
        self.header: bytes | None = None

    def attach(self, file: OpenFile) -> None:
        """Go on in another file that holds the same content."""
        self.file.close()
        self.file = file
        self.path = file.path
        self.lost = self.finished = self.exhausted = self.at_end = False
        self.unseen_since = None
        self._mark = _mark(file)
        self._begin()
        if self._remembered:
            self.remember()

    def poll(self, max_records: int) -> PayloadBatch | None:
        self._busy = False
        if self._rests():
            return None
        if self._must_wait():
            self._busy = True
            return None
        try:
            return self._next(max_records)
        except OSError as error:
            raise SourceError(
                f"{self.name}: reading at position {self.known.position} failed: {error}; the run can be started"
                " again when the file can be read"
            ) from error

    def _must_wait(self) -> bool:
        before = self.predecessor
        if before is not None and (before.at_end or before.exhausted or before.lost or before.finished):
            self.predecessor = before = None
        return before is not None

    def _next(self, max_records: int) -> PayloadBatch | None:
        content = self._content
        if content is None:
            self.file.open_again()
            content = self._content = self.file.content()
            self._resuming = Resuming(self._ctx, self.file, content, self._cutter, self.known, self._reading.rule)
            self._steps = self._resuming.steps(with_header=self._reading.with_header)
        if self._steps is not None and not self._resume():
            return None
        piece = self._cutter.next(content, max_records)
        if piece is not None:
            return self._hand_out(piece)
        if self._cutter.working:
            self._busy = True
        elif content.torn is not None:
            return self._tear(content, content.torn)
        else:
            self._reach_end(content)
        return None

    def _resume(self) -> bool:
        """Whether the content now stands where its next record begins."""
        assert self._resuming is not None
        assert self._steps is not None
        for _ in self._steps:
            match self._resuming.needs:
                case "work":
                    self._busy = True
                case "bytes":
                    self.at_end = True
                case _:
                    self._end()
            return False
        self._steps = None
        self.header = self._resuming.header
        for start, data in self._resuming.passed:
            self._note(start, data)
        if self.known.position > self._recent_end:
            self._recent_end = -1
            self._refresh_recent()
        return True

    def _reach_end(self, content: Content) -> None:
        self.at_end = not content.final
        if content.final:
            self._see_whether_it_shrank(content)
            self._end()
        elif self.file.packed and content.whole:
            self.exhausted = True
        if isinstance(content, CompressedContent) and content.trailing and self.warn_once("trailing"):
            self._ctx.warn("bytes after the end of the packed data are ignored", path=self.name)

    def _see_whether_it_shrank(self, content: Content) -> None:
        size = self.file.size()
        if not self.file.packed and size < content.position:
            self._ctx.warn(
                "a file was truncated while it was read", path=self.name, position=content.position, size=size
            )

    def warn_once(self, what: str) -> bool:
        """Whether this is the first time."""
        first = what not in self._warned
        self._warned.add(what)
        return first

    def waits_since(self, now: float) -> float:
        """For how many seconds a packed file that ends in the middle has not grown."""
        return now - self.grown_at if self.at_end and self.file.packed else 0.0

    def _end(self) -> None:
        self.exhausted = True
        self.file.close()

    def _hand_out(self, piece: Piece) -> PayloadBatch:
        rejects: list[BadRecord] = []
        if piece.left_out is not None:
            rejects.append(self._reject(piece))
            self._recent, self._recent_end = b"", piece.end
        else:
            self._note(piece.start, piece.block)
        return self._batch(piece.start, piece.end, piece.block, rejects)

    def _batch(self, start: int, end: int, block: bytes, rejects: list[BadRecord]) -> PayloadBatch:
        if not self._remembered:
            self._see_head()
            self.remember()
        tail = _Tail(self._recent_end, len(self._recent), digest(self._recent))
        self._tails.append(tail)
        self._history.append(tail)
        self.known.position = end
        return PayloadBatch(
            partition=self.partition, start=start, end=end, block=block, header=self.header, rejects=rejects
        )

    def _reject(self, piece: Piece) -> BadRecord:
        assert piece.left_out is not None
        if self._resuming is not None and piece.start == self._resuming.fragment_at:
            stage = "read"
            cause = (
                f"{self.name}: the rest of a line; its beginning was read as the file's last line before the file grew"
            )
        else:
            stage = "oversize"
            cause = (
                f"{self.name}: the record at {piece.start} is {piece.end - piece.start} bytes long, more than the"
                f" {self._ctx.max_record_bytes} that a slot takes; raise shm.slot_bytes"
            )
        return self._bad(piece.end - 1, stage, cause, piece.left_out)

    def _bad(self, position: int, stage: str, cause: str, raw: bytes) -> BadRecord:
        return BadRecord(partition=self.partition, position=position, stage=stage, cause=cause, raw=raw)

    def _tear(self, content: Content, why: str) -> PayloadBatch | None:
        # The loss has a position of its own, one past all bytes, so that a second run knows that it was told.
        start = content.position if self._cutter.left_out is None else self._cutter.record_start
        rest = content.peek(self._ctx.max_record_bytes + 1)
        raw = rest if self._cutter.left_out is None else self._cutter.left_out
        end = content.position + len(rest)
        told = self.known.position == end + 1
        self._end()
        if told:
            return None
        self._torn = (start, end)
        if rest and start == content.position:
            self._note(start, rest)
        self.remember()
        cause = f"{self.name}: {why}; the line that begins at {start} is lost, lines before it were read"
        return self._batch(start, end + 1, b"", [self._bad(end, "read", cause, raw[:1024])])

    def _note(self, start: int, data: bytes) -> None:
        """These bytes are behind us: what the file is recognised by moves on."""
        known = len(self.head)
        if known < SPAN and start <= known < start + len(data):
            self.head += data[known - start : SPAN - start]
        if start != self._recent_end:
            self._recent = b""
        self._recent = data[-SPAN:] if len(data) >= SPAN else (self._recent + data)[-SPAN:]
        self._recent_end = start + len(data)

    def _see_head(self) -> None:
        if not self.head and not self.file.packed:
            self.head = self.file.read(SPAN, 0)

    def latest(self) -> FileIdentity:
        """By what the content that was handed out is recognised now."""
        return self._identity(_Tail(max(self._recent_end, 0), len(self._recent), digest(self._recent)))

    def _refresh_recent(self) -> None:
        if self._recent_end < 0 and not self.file.packed and not self.lost and self.file.fd >= 0:
            start = max(0, self.known.position - SPAN)
            self._recent = self.file.read(self.known.position - start, start)
            self._recent_end = start + len(self._recent)

    def _identity(self, tail: _Tail) -> FileIdentity:
        return FileIdentity(
            path=name_bytes(self.path) if self.path is not None else b"",
            device=self.file.device,
            inode=self.file.inode,
            head_length=len(self.head),
            head_digest=digest(self.head),
            tail_end=tail.end,
            tail_length=tail.length,
            tail_digest=tail.digest,
            torn_start=self._torn[0],
            torn_end=self._torn[1],
        )

    def remember(self) -> None:
        """Write down by what the file is recognised, with the tail at its committed position."""
        self._remembered = True
        self.known.identity = self._identity(self._tail)
        self._ctx.remember(self.known.identity.encoded(self.partition))

    def has_read(self, copy: OpenFile) -> bool:
        """All of this plain file was read, as part of the lane's content. Told by the last batch that ends in it."""
        size = copy.size()
        if copy.packed or size > self.known.position:
            return False
        within = [tail for tail in self._history if tail.end <= size]
        return (
            bool(within)
            and digest(copy.read(within[-1].length, within[-1].end - within[-1].length)) == within[-1].digest
        )

    def commit(self, position: int) -> None:
        """All up to ``position`` is durable: from now on it is recognised by the bytes before it."""
        self.committed = max(self.committed, position)
        moved = False
        while self._tails and self._tails[0].end <= position:
            self._tail = self._tails.popleft()
            moved = True
        if moved:
            self.remember()

    def look(self, now: float) -> bool:
        """Whether the file still holds what was read of it. If it has grown, polls read on."""
        mark = _mark(self.file)
        if mark == self._mark:
            return True
        self._mark = mark
        if not self._still_holds(mark[0]):
            return False
        if self._content is None or not self.exhausted:
            self.at_end = False
        self.grown_at = now
        return True

    def _still_holds(self, size: int) -> bool:
        if self.file.packed:
            return not isinstance(self._content, CompressedContent) or size >= self._content.taken
        reached = self._content.position if self._content is not None else 0
        if size < max(self.known.position, reached):
            return False
        return self.file.read(len(self._recent), self._recent_end - len(self._recent)) == self._recent

    def lose_file(self) -> None:
        self.lost = True
        self.file.close()

    def unread(self) -> int:
        """Bytes past what was handed out, of a plain file."""
        if self.file.packed or self.file.fd < 0:
            return 0
        return max(0, self.file.size() - self.known.position)

    def size_read(self) -> int:
        """The size as stored up to which a packed file was read."""
        if isinstance(self._content, CompressedContent) and self._content.whole:
            return self._content.taken
        return self._mark[0] if self._mark is not None else 0

    def progress(self) -> tuple[int, int]:
        """Bytes as stored: read, and in all when the lane was made."""
        if self.exhausted:
            return self._size, self._size
        if isinstance(self._content, CompressedContent):
            return min(self._content.taken, self._size), self._size
        return (0 if self.file.packed else min(self.known.position, self._size)), self._size

    def forget_path(self) -> None:
        """The file is under no name that is known."""
        self.path = None
        if self._remembered:
            self.remember()

    def unlinked(self) -> bool:
        return self.file.fd >= 0 and self.file.status().st_nlink == 0

    def close(self) -> None:
        self.file.close()
