"""The format of a worker's spool of dead letters.

::

    for each entry
        0       u32   bytes of the map
        4             msgpack map: sink, shard, partition, position, child, stage, cause, raw, chunk, row
        4+n     u64   xxh3 of the length and the map

Little endian, entries back to back. A worker appends and fsyncs; the supervisor reads up to where the worker said its
chunk's entries end. After a crash the first entry that is short, or whose checksum is wrong, ends the spool: what
follows was never acknowledged.

Under at-least-once a worker knows a row by ``chunk`` and ``row`` alone, and leaves ``partition`` empty and
``position`` -1 for the supervisor to fill.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec
import xxhash

_LENGTH: Final = struct.Struct("<I")
_CHECKSUM: Final = struct.Struct("<Q")


class SpoolEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One row that was left out. ``sink`` is the sink's key; ``raw`` is the row as well as it can still be shown."""

    sink: str
    shard: int
    partition: str
    position: int
    child: int
    stage: str
    cause: str
    raw: bytes
    chunk: int
    row: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SpoolEntry).decode


def encode_entry(entry: SpoolEntry) -> bytes:
    """The entry's bytes. Texts that are no Unicode are written with their surrogates escaped."""
    try:
        body = _encode(entry)
    except UnicodeEncodeError:
        body = _encode(_printable(entry))
    record = _LENGTH.pack(len(body)) + body
    return record + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(record))


def read_entries(data: bytes) -> tuple[list[SpoolEntry], int]:
    """The whole entries from the start, and how many bytes they take; a torn tail is dropped."""
    entries: list[SpoolEntry] = []
    good = 0
    while (end := _end_of(data, good)) is not None:
        try:
            entries.append(_decode(data[good + _LENGTH.size : end - _CHECKSUM.size]))
        except (msgspec.MsgspecError, UnicodeError):
            break
        good = end
    return entries, good


def _end_of(data: bytes, at: int) -> int | None:
    """Where the entry that begins at ``at`` ends; None: it is torn."""
    if at + _LENGTH.size > len(data):
        return None
    (length,) = _LENGTH.unpack_from(data, at)
    body_end = at + _LENGTH.size + length
    if body_end + _CHECKSUM.size > len(data):
        return None
    (checksum,) = _CHECKSUM.unpack_from(data, body_end)
    return body_end + _CHECKSUM.size if checksum == xxhash.xxh3_64_intdigest(data[at:body_end]) else None


def _printable(entry: SpoolEntry) -> SpoolEntry:
    texts = {
        name: getattr(entry, name).encode("utf-8", "backslashreplace").decode()
        for name in ("sink", "partition", "stage", "cause")
    }
    return msgspec.structs.replace(entry, **texts)
