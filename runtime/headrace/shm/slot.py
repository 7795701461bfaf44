"""What one slot of shared memory holds: a header, a chunk's frame, and a trailer with its spans.

Layout, little endian::

    header, 64 bytes
    0   4s   magic "HRS1"
    4   u16  version 1
    6   u16  sink
    8   u32  shard
    12  u32  rows
    16  u64  chunk
    24  u64  incarnation
    32  u32  frame length
    36  u32  trailer length
    40  u64  xxh3_64 of the frame
    48  u64  xxh3_64 of the trailer
    56  u64  xxh3_64 of the 56 bytes before
    64       64 bytes that are not used
    128      frame: the groups of `headrace.codec.frame`
             trailer: u32 count of spans, then for each i64 first position, i64 last position, u16 length and the
             partition's name in UTF-8 (lone surrogates passed)

The gap keeps the frame off the place in its page at which large blocks of malloc begin: a copy from just before it in
another page takes twelve times as long on some processors (page aliasing of ``rep movsb``).

The supervisor alone writes: frame, trailer, then header; the doorbell rings after that, and the bytes stay as they
are until the slot is freed (HR-13). A worker believes neither header nor doorbell before `read_slot` has compared
the two. Token and attempt are not here: a chunk that is sent again keeps its slot untouched.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from xxhash import xxh3_64_intdigest

from headrace.errors import CorruptFrameError, OversizeError
from headrace.record import PartitionId
from headrace.shm.wire import partition_bytes, partition_from

MAGIC: Final = b"HRS1"
VERSION: Final = 1
HEADER_BYTES: Final = 64
FRAME_AT: Final = 128
_FIELDS: Final = struct.Struct("<4sHHIIQQIIQQ")
_CHECKSUM: Final = struct.Struct("<Q")
_COUNT: Final = struct.Struct("<I")
_SPAN: Final = struct.Struct("<qqH")


class Span(msgspec.Struct, frozen=True):
    """The first and the last position that a chunk holds of a partition."""

    partition: PartitionId
    first: int
    last: int


class SlotHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Whose frame a slot holds. ``rows`` counts the whole chunk's."""

    sink: int
    shard: int
    chunk: int
    incarnation: int
    rows: int


class SlotContents(msgspec.Struct, frozen=True):
    """A slot that was found sound. ``frame`` is a view into the slot: release it before the chunk is done with."""

    header: SlotHeader
    frame: memoryview
    spans: tuple[Span, ...]


def trailer_bytes(partitions: Iterable[PartitionId]) -> int:
    """The length of the trailer of a chunk with rows of these partitions."""
    return _COUNT.size + sum(map(span_bytes, partitions))


def span_bytes(partition: PartitionId) -> int:
    return _SPAN.size + len(partition_bytes(partition))


def write_slot(view: memoryview, header: SlotHeader, frame: bytes, spans: Sequence[Span]) -> int:
    """Fill the slot and return the bytes used. Raises `OversizeError` when they do not fit."""
    trailer = _trailer(spans)
    start, end = FRAME_AT + len(frame), FRAME_AT + len(frame) + len(trailer)
    if end > len(view):
        raise OversizeError(
            f"chunk {header.chunk} of sink {header.sink}, shard {header.shard} takes {end} bytes, a slot has "
            f"{len(view)}: raise shm.slot_bytes"
        )
    view[FRAME_AT:start] = frame
    view[start:end] = trailer
    fields = _FIELDS.pack(
        MAGIC,
        VERSION,
        header.sink,
        header.shard,
        header.rows,
        header.chunk,
        header.incarnation,
        len(frame),
        len(trailer),
        xxh3_64_intdigest(frame),
        xxh3_64_intdigest(trailer),
    )
    view[:HEADER_BYTES] = fields + _CHECKSUM.pack(xxh3_64_intdigest(fields))
    return end


def read_slot(
    view: memoryview, *, sink: int, shard: int, length: int, rows: int, incarnation: int, first_row: int = 0
) -> SlotContents:
    """Compare the slot with what its doorbell says, and with its own checksums.

    ``length`` is the frame's; ``first_row`` and ``rows`` are a range inside the chunk's rows. Raises
    `CorruptFrameError` that says which field.
    """
    if len(view) < HEADER_BYTES:
        raise CorruptFrameError(f"slot of sink {sink}, shard {shard}: {len(view)} bytes are no slot")
    fields = bytes(view[: _FIELDS.size])
    magic, version, *rest = _FIELDS.unpack(fields)
    _match("magic", magic, MAGIC, sink, shard)
    _match("version", version, VERSION, sink, shard)
    stored: int = _CHECKSUM.unpack_from(view, _FIELDS.size)[0]
    _match("header checksum", xxh3_64_intdigest(fields), stored, sink, shard)
    its_sink, its_shard, its_rows, chunk, its_incarnation, frame_length, trailer_length, frame_sum, trailer_sum = rest
    _match("sink", its_sink, sink, sink, shard)
    _match("shard", its_shard, shard, sink, shard)
    _match("incarnation", its_incarnation, incarnation, sink, shard)
    _match("frame length", frame_length, length, sink, shard)
    if rows < 1 or first_row < 0 or first_row + rows > its_rows:
        raise CorruptFrameError(
            f"slot of sink {sink}, shard {shard}: rows are {its_rows}, the doorbell asks for {rows} from {first_row}"
        )
    start, end = FRAME_AT + frame_length, FRAME_AT + frame_length + trailer_length
    if end > len(view):
        raise CorruptFrameError(
            f"slot of sink {sink}, shard {shard}: trailer length leads to byte {end} of {len(view)}"
        )
    frame = view[FRAME_AT:start]
    _match("frame checksum", xxh3_64_intdigest(frame), frame_sum, sink, shard)
    trailer = bytes(view[start:end])
    _match("trailer checksum", xxh3_64_intdigest(trailer), trailer_sum, sink, shard)
    header = SlotHeader(sink=sink, shard=shard, chunk=chunk, incarnation=incarnation, rows=its_rows)
    return SlotContents(header, frame, _spans(trailer, sink, shard))


def _match(field: str, found: object, expected: object, sink: int, shard: int) -> None:
    if found != expected:
        raise CorruptFrameError(f"slot of sink {sink}, shard {shard}: {field} is {found!r}, expected {expected!r}")


def _trailer(spans: Sequence[Span]) -> bytes:
    parts = [_COUNT.pack(len(spans))]
    for span in spans:
        name = partition_bytes(span.partition)
        parts += (_SPAN.pack(span.first, span.last, len(name)), name)
    return b"".join(parts)


def _spans(trailer: bytes, sink: int, shard: int) -> tuple[Span, ...]:
    spans: list[Span] = []
    try:
        (count,) = _COUNT.unpack_from(trailer)
        at = _COUNT.size
        for _ in range(count):
            first, last, length = _SPAN.unpack_from(trailer, at)
            at += _SPAN.size
            spans.append(Span(partition_from(trailer[at : at + length]), first, last))
            at += length
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptFrameError(f"slot of sink {sink}, shard {shard}: trailer: {error}") from error
    _match("trailer length", at, len(trailer), sink, shard)
    return tuple(spans)
