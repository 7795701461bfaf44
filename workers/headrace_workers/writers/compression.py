"""How the lines of a part file are stored, and where a part that was cut off anywhere is still whole.

Each write is one unit: with compression a gzip member or a zstd frame of its own, without it each line. So a part can
be cut after its last whole unit, and what was acknowledged is before that cut.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import zstandard

_BLOCK: Final = 1 << 18
_GZIP: Final = 16 + zlib.MAX_WBITS
_GZIP_LEVEL: Final = 6
_ZSTD_LEVEL: Final = 3

Buffers = Sequence["memoryview | bytes"]


class Storage(Protocol):
    """``suffix`` ends the names of its files."""

    suffix: str

    def encode(self, blocks: Buffers) -> Buffers:
        """The bytes of one write."""
        ...

    def whole_length(self, fd: int) -> int:
        """How many bytes from the start of a file are whole units."""
        ...


class PlainLines:
    """The lines as they are."""

    suffix: str = ""

    def encode(self, blocks: Buffers) -> Buffers:
        return blocks

    def whole_length(self, fd: int) -> int:
        at = os.fstat(fd).st_size
        while at > 0:
            begin = max(0, at - _BLOCK)
            found = os.pread(fd, at - begin, begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            at = begin
        return 0


class GzipMembers:
    """One gzip member a write."""

    suffix: str = ".gz"

    def encode(self, blocks: Buffers) -> Buffers:
        packer = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP)
        return [*(packer.compress(block) for block in blocks), packer.flush()]

    def whole_length(self, fd: int) -> int:
        whole = at = 0
        unpacker = zlib.decompressobj(_GZIP)
        for block in _blocks(fd):
            data = block
            at += len(block)
            try:
                while data:
                    unpacker.decompress(data)
                    data = unpacker.unused_data
                    if unpacker.eof:
                        whole = at - len(data)
                        unpacker = zlib.decompressobj(_GZIP)
            except zlib.error:
                break
        return whole


class ZstdFrames:
    """One zstd frame a write."""

    suffix: str = ".zst"

    def encode(self, blocks: Buffers) -> Buffers:
        packer = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True).compressobj()
        return [*(packer.compress(block) for block in blocks), packer.flush()]

    def whole_length(self, fd: int) -> int:
        whole = at = 0
        unpacker = zstandard.ZstdDecompressor().decompressobj()
        for block in _blocks(fd):
            data = block
            at += len(block)
            try:
                while data:
                    unpacker.decompress(data)
                    data = unpacker.unused_data
                    if unpacker.eof:
                        whole = at - len(data)
                        unpacker = zstandard.ZstdDecompressor().decompressobj()
            except zstandard.ZstdError:
                break
        return whole


def _blocks(fd: int) -> Iterable[bytes]:
    at = 0
    while block := os.pread(fd, _BLOCK, at):
        yield block
        at += len(block)


STORAGES: Final[dict[str | None, Storage]] = {None: PlainLines(), "gzip": GzipMembers(), "zstd": ZstdFrames()}
