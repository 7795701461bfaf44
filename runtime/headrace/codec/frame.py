"""A frame: what one chunk carries, as groups of rows, each decodable in one call.

::

    for each group
        0   u32   bytes of the body
        4   u32   rows in it
        8         the body, in the sink's codec

Little endian, groups back to back, nothing after the last. The supervisor writes a frame whole before the chunk is
published; a worker that finds anything else has been told of the wrong bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from headrace.errors import CorruptFrameError

GROUP_HEADER: Final = struct.Struct("<II")


def group(body: bytes, rows: int) -> bytes:
    """One group of a frame."""
    return GROUP_HEADER.pack(len(body), rows) + body


def iter_groups(view: memoryview | bytes) -> Iterator[tuple[memoryview, int]]:
    """The body and the number of rows of each group. The bodies are views. Raises `CorruptFrameError`."""
    frame = memoryview(view)
    at, end = 0, len(frame)
    while at < end:
        if end - at < GROUP_HEADER.size:
            raise CorruptFrameError(f"a frame of {end} bytes ends inside a group's header at byte {at}")
        length, rows = GROUP_HEADER.unpack_from(frame, at)
        at += GROUP_HEADER.size
        if length > end - at:
            raise CorruptFrameError(f"a frame of {end} bytes has a group of {length} bytes at byte {at}")
        yield frame[at : at + length], rows
        at += length
