"""How a file's content is brought to where its next record begins: past holes, its header, and what was read before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from headrace.errors import SourceError
from headrace.record import SourceContext
from headrace.sources.identity import Known
from headrace.sources.reading import Content, OpenFile
from headrace.sources.splitting import RAW_BYTES, BlockCutter, RecordRule

_STEP_BYTES = 8 * 1024 * 1024
_HOLE_BYTES = 1024 * 1024
_HOLE_READS = 64


class Resuming:
    """The steps from a file's start to its next record. A step yields when it cannot go on now; `needs` says why.

    A file whose first bytes are NUL was truncated under a writer that kept its place: the zeros before the first
    byte of data are no record. A line of nothing but zeros is a line.
    """

    def __init__(
        self,
        ctx: SourceContext,
        file: OpenFile,
        content: Content,
        cutter: BlockCutter,
        known: Known,
        rule: RecordRule,
    ) -> None:
        self._ctx = ctx
        self._file = file
        self._content = content
        self._cutter = cutter
        self._known = known
        self._rule = rule
        self.needs: Literal["work", "bytes", "nothing"] = "nothing"
        self.header: bytes | None = None
        self.passed: list[tuple[int, bytes]] = []
        """Bytes that are no record, by position."""
        self.fragment_at = -1
        """Where the rest of a line begins whose beginning is already behind us."""

    def steps(self, *, with_header: bool) -> Iterator[None]:
        position = self._known.position
        if position == 0 or with_header:
            yield from self._pass_hole(with_header=with_header)
        if with_header:
            yield from self._read_header()
        if position <= self._content.position:
            return
        if position == self._known.identity.torn_end + 1:
            yield from self._resume_torn()
            return
        yield from self._skip_to(position - 1)
        last = self._content.peek(1)
        self._content.advance(len(last))
        if last != b"\n":
            yield from self._pass_line_end()

    def _wait_for_bytes(self) -> Iterator[None]:
        self.needs = "nothing" if self._content.final or self._content.torn else "bytes"
        yield

    def _skip_to(self, position: int) -> Iterator[None]:
        while self._content.position < position:
            work = self._content.skip_to(position, _STEP_BYTES)
            if self._content.position >= position:
                return
            if work < _STEP_BYTES:
                yield from self._wait_for_bytes()
            else:
                self.needs = "work"
                yield

    def _pass_line_end(self) -> Iterator[None]:
        while True:
            data = self._content.peek(2)
            if data.startswith(b"\n") or data == b"\r\n":
                return
            ended = self._content.final or self._content.torn is not None
            if len(data) < 2 and not ended and data in {b"", b"\r"}:
                yield from self._wait_for_bytes()
                continue
            if data:
                self.fragment_at = self._content.position
                self._cutter.leave_out_next(self._content)
            return

    def _resume_torn(self) -> Iterator[None]:
        """Where a truncated file was made whole since, its last line is read again from its beginning."""
        torn = self._known.identity
        length = torn.torn_end - torn.torn_start
        if length > self._ctx.max_record_bytes:
            yield from self._skip_to(torn.torn_end)
            self._cutter.leave_out_next(self._content)
            return
        yield from self._skip_to(torn.torn_start)
        while len(self._content.peek(length + 1)) <= length:
            yield from self._wait_for_bytes()

    def _read_header(self) -> Iterator[None]:
        while True:
            data = self._content.peek(self._ctx.max_record_bytes + 1)
            end = self._rule.first_end(data)
            if not end and len(data) > self._ctx.max_record_bytes:
                raise SourceError(
                    f"{self._file.path}: the CSV header is longer than {self._ctx.max_record_bytes} bytes; is this a"
                    " CSV file? If so, raise shm.slot_bytes"
                )
            if not end and self._content.torn:
                return
            if not end and not self._content.final:
                yield from self._wait_for_bytes()
                continue
            line = data[: end or len(data)]
            self.passed.append((self._content.position, line))
            self._content.advance(len(line))
            if line.strip():
                self.header = line
                return
            if not end:
                return

    def _pass_hole(self, *, with_header: bool) -> Iterator[None]:
        if self._file.packed:
            return
        while not (first := self._content.peek(1)) and not self._content.final:
            yield from self._wait_for_bytes()
        if first != b"\0":
            return
        end = 0
        reads = 0
        while True:
            start = self._file.next_data(end)
            data = b"" if start is None else self._file.read(_HOLE_BYTES, start)
            end = self._file.size() if start is None else start + len(data) - len(data.lstrip(b"\0"))
            following = self._file.read(1, end)
            if following.strip(b"\0") or (not following and self._content.final):
                break
            reads += 1
            if not following:
                yield from self._wait_for_bytes()
            elif reads % _HOLE_READS == 0:
                self.needs = "work"
                yield
        if following in {b"", b"\n"} and not with_header:
            self._settle_zeros(end)
        else:
            self._settle_hole(end)

    def _settle_zeros(self, end: int) -> None:
        """Nothing but zeros up to the line's end: a line, left out at once where it is too long."""
        if end > self._ctx.max_record_bytes:
            self._content.skip_to(end, end)
            self._cutter.leave_out_from(0, bytes(RAW_BYTES))

    def _settle_hole(self, end: int) -> None:
        self._content.skip_to(end, end)
        if self._known.position < end:
            self._ctx.warn(
                "skipped zero bytes at the start of a file that was truncated under its writer",
                path=str(self._file.path),
                bytes=end,
            )
