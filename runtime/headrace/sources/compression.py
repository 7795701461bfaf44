"""Inflaters: compressed bytes in, pieces of content out, with an end that is known to be whole or not.

An inflater is fed the bytes of a file in any pieces and gives its content in pieces of bounded size, whatever the
content's ratio. It knows whether the bytes so far end where a gzip member or a zstd frame ends (`whole`). What it
gives before corrupt bytes does not depend on the sizes in which it was fed or asked.
"""

from __future__ import annotations

import enum
import zlib
from typing import Protocol, Self

import zstandard

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_SKIPPABLE = range(0x184D2A50, 0x184D2A60)
_BLOCK_LIMIT = 128 * 1024
_GZIP = 31  # zlib's window bits for a gzip member with its header and checksum


class Compression(enum.StrEnum):
    """How a file's bytes are packed."""

    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"


class CorruptStream(Exception):
    """The bytes are not what their format says. All content before them has been given."""


class Inflater(Protocol):
    """One compressed stream, read forwards."""

    @property
    def whole(self) -> bool:
        """At least one member was read, and the bytes so far end where one ends."""
        ...

    @property
    def trailing(self) -> bool:
        """Foreign bytes follow the last member; they are no content."""
        ...

    def feed(self, data: bytes) -> None: ...
    def inflate(self, limit: int) -> bytes:
        """About ``limit`` bytes of content, or none when it must be fed first. Raises `CorruptStream`."""
        ...


def compression_of(first: bytes, suffix: str) -> Compression:
    """What a file that begins with ``first`` is. Its suffix decides while the bytes are too few to say."""
    if first.startswith(GZIP_MAGIC):
        return Compression.GZIP
    if first.startswith(ZSTD_MAGIC) or (len(first) >= 4 and int.from_bytes(first[:4], "little") in _SKIPPABLE):
        return Compression.ZSTD
    if suffix == ".gz" and GZIP_MAGIC.startswith(first):
        return Compression.GZIP
    if suffix in {".zst", ".zstd"} and (ZSTD_MAGIC.startswith(first) or len(first) < 4):
        return Compression.ZSTD
    return Compression.NONE


def inflater_of(compression: Compression) -> Inflater:
    return GzipInflater() if compression is Compression.GZIP else ZstdInflater()


class GzipInflater:
    """Any number of gzip members, with zeros between and after them."""

    def __init__(self) -> None:
        self._pending = b""
        self._members = 0
        self._stream = zlib.decompressobj(_GZIP)
        self._inside = False
        self._failure = ""
        self.trailing = False

    @property
    def whole(self) -> bool:
        return self._members > 0 and not self._inside and not self._pending and not self._failure

    def feed(self, data: bytes) -> None:
        if not self.trailing:
            self._pending += data

    def inflate(self, limit: int) -> bytes:
        while True:
            if self._failure:
                raise CorruptStream(self._failure)
            if not self._inside and not self._begin_member():
                return b""
            out = self._step(limit)
            if out or (self._inside and not self._pending):
                return out

    def _begin_member(self) -> bool:
        if self._members:
            self._pending = self._pending.lstrip(b"\0")
        if not self._pending or (self._members and self._pending == GZIP_MAGIC[:1]):
            return False
        if self._members and not self._pending.startswith(GZIP_MAGIC):
            self.trailing, self._pending = True, b""
            return False
        self._stream = zlib.decompressobj(_GZIP)
        self._inside = True
        return True

    def _step(self, limit: int) -> bytes:
        # A call that fails keeps what it had unpacked to itself: it is then repeated byte by byte on a copy.
        before = self._stream.copy()
        try:
            out = self._stream.decompress(self._pending, limit)
        except zlib.error as error:
            self._failure = f"not valid gzip: {error}"
            return _all_before_the_fault(before, self._pending)
        if self._stream.eof:
            self._pending = self._stream.unused_data
            self._members += 1
            self._inside = False
        else:
            self._pending = self._stream.unconsumed_tail
        return out


class _Unpacker(Protocol):
    @property
    def unconsumed_tail(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = 0, /) -> bytes: ...
    def copy(self) -> Self: ...


def _all_before_the_fault(stream: _Unpacker, data: bytes) -> bytes:
    out = bytearray()
    for at in range(len(data)):
        byte = data[at : at + 1]
        before = stream.copy()
        try:
            out += stream.decompress(byte)
        except zlib.error:
            return bytes(out) + _all_of_the_faulty_byte(before, byte)
    return bytes(out)


def _all_of_the_faulty_byte(stream: _Unpacker, byte: bytes) -> bytes:
    out = bytearray()
    try:
        while part := stream.decompress(byte, 1):
            out += part
            byte = stream.unconsumed_tail
    except zlib.error:
        pass
    return bytes(out)


class _Part(enum.Enum):
    MAGIC = enum.auto()
    HEADER = enum.auto()
    BLOCK = enum.auto()
    CHECKSUM = enum.auto()
    SKIPPED = enum.auto()


class ZstdInflater:
    """Any number of zstd frames. Blocks are fed one at a time: a block's content is at most 128 KiB."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._part = _Part.MAGIC
        self._frames = 0
        self._stream = zstandard.ZstdDecompressor().decompressobj()
        self._checksum = False
        self._skip = 0
        self._failure = ""
        self.trailing = False

    @property
    def whole(self) -> bool:
        return self._frames > 0 and self._part is _Part.MAGIC and not self._pending and not self._failure

    def feed(self, data: bytes) -> None:
        if not self.trailing:
            self._pending += data

    def inflate(self, limit: int) -> bytes:
        out: list[bytes] = []
        made = 0
        while made < limit:
            if self._failure:
                if made:
                    break
                raise CorruptStream(self._failure)
            try:
                piece = self._step()
            except (zstandard.ZstdError, CorruptStream) as error:
                self._failure = f"not valid zstd: {error}"
                continue
            if piece is None:
                break
            out.append(piece)
            made += len(piece)
        return b"".join(out)

    def _step(self) -> bytes | None:
        """The content of the next part of a frame, mostly none; None when more bytes are needed."""
        match self._part:
            case _Part.MAGIC:
                return self._read_magic()
            case _Part.HEADER:
                return self._read_header()
            case _Part.BLOCK:
                return self._read_block()
            case _Part.CHECKSUM:
                return self._end_frame(self._take(4))
            case _Part.SKIPPED:
                gone = min(self._skip, len(self._pending))
                del self._pending[:gone]
                self._skip -= gone
                return None if self._skip else self._end_frame(b"")

    def _take(self, size: int) -> bytes | None:
        if len(self._pending) < size:
            return None
        taken = bytes(self._pending[:size])
        del self._pending[:size]
        return taken

    def _read_magic(self) -> bytes | None:
        if len(self._pending) < 4:
            return None
        magic = int.from_bytes(self._pending[:4], "little")
        if magic in _SKIPPABLE:
            start = self._take(8)
            if start is None:
                return None
            self._skip = int.from_bytes(start[4:], "little")
            self._part = _Part.SKIPPED
            return b""
        if not self._pending.startswith(ZSTD_MAGIC):
            if not self._frames:
                raise CorruptStream("it does not begin like a zstd frame")
            self.trailing = True
            self._pending.clear()
            return None
        self._stream = zstandard.ZstdDecompressor().decompressobj()
        self._part = _Part.HEADER
        return b""

    def _read_header(self) -> bytes | None:
        if len(self._pending) < 5:
            return None
        descriptor = self._pending[4]
        single_segment = bool(descriptor & 0x20)
        content_size = (int(single_segment), 2, 4, 8)[descriptor >> 6]
        dictionary = (0, 1, 2, 4)[descriptor & 3]
        header = self._take(5 + int(not single_segment) + dictionary + content_size)
        if header is None:
            return None
        self._checksum = bool(descriptor & 0x04)
        self._part = _Part.BLOCK
        return self._stream.decompress(header)

    def _read_block(self) -> bytes | None:
        if len(self._pending) < 3:
            return None
        head = int.from_bytes(self._pending[:3], "little")
        last, kind, size = head & 1, head >> 1 & 3, head >> 3
        if size > _BLOCK_LIMIT or kind == 3:
            raise CorruptStream("a block's header is wrong")
        block = self._take(3 + (1 if kind == 1 else size))
        if block is None:
            return None
        content = self._stream.decompress(block)
        if last and self._checksum:
            self._part = _Part.CHECKSUM
        elif last:
            self._end_frame(b"")
        return content

    def _end_frame(self, checksum: bytes | None) -> bytes | None:
        if checksum is None:
            return None
        content = self._stream.decompress(checksum) if checksum else b""
        self._part = _Part.MAGIC
        self._frames += 1
        return content
