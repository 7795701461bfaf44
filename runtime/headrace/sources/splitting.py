"""Where records end in a stream of bytes, and how the stream is cut into blocks of whole records."""

from __future__ import annotations

import enum
import re
from typing import Protocol

import msgspec

RAW_BYTES = 1024
"""How much of a record that is left out is kept as evidence."""

_SAMPLE_BYTES = 4096
_SKIP_BYTES = 8 * 1024 * 1024  # of a record over the limit, looked through in one call

# A quote opens a quoted field only at the field's start; anywhere else outside quotes it is text, as for `csv`.
_CSV_RECORDS = re.compile(rb'(?:(?:[^"\n]++|(?<![^,\n])"(?:[^"]++|"")*+"|(?<=[^,\n])")*+\n)*+')
_CSV_RECORD = re.compile(rb'(?:[^"\n]++|(?<![^,\n])"(?:[^"]++|"")*+"|(?<=[^,\n])")*+\n')
_CSV_FIELD_END = re.compile(rb"[,\n]")


class ByteSource(Protocol):
    """Bytes that are looked at before they are taken."""

    @property
    def position(self) -> int:
        """Of the next byte."""
        ...

    @property
    def final(self) -> bool:
        """The last peek, when it came up short, showed all that there will ever be."""
        ...

    def peek(self, size: int) -> bytes:
        """The next ``size`` bytes; fewer when there are no more now. Never waits."""
        ...

    def advance(self, count: int) -> None:
        """Take ``count`` bytes that were seen."""
        ...


class EndSeeker(Protocol):
    """Looks for the end of one record in bytes that are not kept."""

    def feed(self, data: bytes) -> int:
        """One past the record's end in ``data``, or -1."""
        ...


class RecordRule(Protocol):
    """Where records end. Bytes given to it begin where a record begins."""

    def last_end(self, data: bytes) -> int:
        """One past the last whole record; 0: there is none."""
        ...

    def first_end(self, data: bytes) -> int:
        """One past the first whole record; 0: there is none."""
        ...

    def seeker(self) -> EndSeeker: ...


class Lines:
    """A record ends at a newline."""

    def last_end(self, data: bytes) -> int:
        return data.rfind(b"\n") + 1

    def first_end(self, data: bytes) -> int:
        return data.find(b"\n") + 1

    def seeker(self) -> EndSeeker:
        return _NewlineSeeker()


class _NewlineSeeker:
    def feed(self, data: bytes) -> int:
        at = data.find(b"\n")
        return at + 1 if at >= 0 else -1


class CsvRecords:
    """A record ends at a newline outside quotes."""

    def last_end(self, data: bytes) -> int:
        if b'"' not in data:
            return data.rfind(b"\n") + 1
        found = _CSV_RECORDS.match(data)
        return found.end() if found else 0

    def first_end(self, data: bytes) -> int:
        found = _CSV_RECORD.match(data)
        return found.end() if found else 0

    def seeker(self) -> EndSeeker:
        return _CsvSeeker()


class _At(enum.Enum):
    FIELD_START = enum.auto()
    TEXT = enum.auto()
    QUOTED = enum.auto()
    QUOTE_IN_QUOTED = enum.auto()


class _CsvSeeker:
    def __init__(self) -> None:
        self._state = _At.FIELD_START

    def feed(self, data: bytes) -> int:
        at = 0
        while at < len(data):
            match self._state:
                case _At.QUOTED:
                    quote = data.find(b'"', at)
                    if quote < 0:
                        return -1
                    at, self._state = quote + 1, _At.QUOTE_IN_QUOTED
                case _At.FIELD_START | _At.QUOTE_IN_QUOTED:
                    if data.startswith(b'"', at):
                        at, self._state = at + 1, _At.QUOTED
                    else:
                        self._state = _At.TEXT
                case _At.TEXT:
                    end = _CSV_FIELD_END.search(data, at)
                    if end is None:
                        return -1
                    at, self._state = end.end(), _At.FIELD_START
                    if data.startswith(b"\n", end.start()):
                        return at
        return -1


class Piece(msgspec.Struct, frozen=True):
    """The next part of a stream: a block of whole records, or one record that was left out."""

    start: int
    end: int
    block: bytes
    left_out: bytes | None = None
    """The beginning of the record that was left out; its bytes went by unkept."""


class BlockCutter:
    """Cuts blocks of whole records.

    A block is at most ``block_bytes`` long, or one record of up to ``max_record_bytes`` (its newline not counted). A
    longer record is left out: its bytes are looked through for its end and never held. ``max_records`` is a soft
    bound: a block that seems to have more lines, judged by its first 4 KiB, is cut at that share of its bytes.
    """

    def __init__(self, rule: RecordRule, *, block_bytes: int, max_record_bytes: int) -> None:
        self._rule = rule
        self._limit = max_record_bytes
        self._size = min(block_bytes, max_record_bytes + 1)
        self._skipping: EndSeeker | None = None
        self._skip_start = 0
        self._raw = b""
        self.working = False

    @property
    def left_out(self) -> bytes | None:
        """The beginning of the record whose end is being looked for."""
        return self._raw if self._skipping is not None else None

    @property
    def record_start(self) -> int:
        """Where the record that is being left out began."""
        return self._skip_start

    def leave_out_next(self, source: ByteSource) -> None:
        """The next record is left out, whatever its length."""
        data = source.peek(RAW_BYTES)
        self.leave_out_from(source.position, data[: self._rule.first_end(data) or RAW_BYTES].removesuffix(b"\n"))

    def leave_out_from(self, start: int, raw: bytes) -> None:
        """The record that began at ``start`` with ``raw``, and goes on at the source's position, is left out."""
        self._skip_start = start
        self._raw = raw
        self._skipping = self._rule.seeker()

    def next(self, source: ByteSource, max_records: int) -> Piece | None:
        """The next piece; None when there is none now, or (`working`) when looking for it must go on."""
        self.working = False
        if self._skipping is not None:
            return self._skip(source, self._skipping)
        size = self._size
        while True:
            data = source.peek(size)
            end = self._rule.last_end(data)
            if end:
                return self._take(source, data[:end], max_records)
            if len(data) > self._limit:
                self.leave_out_next(source)
                return self.next(source, max_records)
            if len(data) < size:
                return self._take(source, data, max_records) if source.final and data else None
            size = min(size * 2, self._limit + 1)

    def _take(self, source: ByteSource, block: bytes, max_records: int) -> Piece:
        # Counting all would cost more than reading: the block's beginning stands for the whole.
        sample = min(len(block), _SAMPLE_BYTES)
        lines = block.count(b"\n", 0, sample) * len(block) // sample
        if lines > max_records:
            share = block[: len(block) * max_records // lines]
            block = block[: self._rule.last_end(share) or self._rule.first_end(block) or len(block)]
        start = source.position
        source.advance(len(block))
        return Piece(start, source.position, block)

    def _skip(self, source: ByteSource, seeker: EndSeeker) -> Piece | None:
        budget = _SKIP_BYTES
        while budget > 0:
            data = source.peek(self._size)
            end = seeker.feed(data)
            if end >= 0:
                source.advance(end)
                return self._left_out(source)
            source.advance(len(data))
            if len(data) < self._size:
                return self._left_out(source) if source.final else None
            budget -= len(data)
        self.working = True
        return None

    def _left_out(self, source: ByteSource) -> Piece:
        self._skipping = None
        return Piece(self._skip_start, source.position, b"", self._raw)
