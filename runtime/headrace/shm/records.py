"""The records of the two pipes between the supervisor and a worker: how they are framed, cut apart and put together.

Each record is ``u8 kind, u16 total length``, then its fields, little endian, at most `RECORD_MAX` bytes in all, so
that one write holds it whole. The kinds stand in `headrace.shm.doorbell` and `headrace.shm.acks`. A partition is its
name in UTF-8, lone surrogates passed.

A reader keeps a torn tail until more comes; what is left at end of file is dropped. Bytes that are no record give
`Malformed`, never an exception; a length that cannot be is the last thing read from that pipe, for nothing says where
the next record begins.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar

import msgspec

from headrace.shm.acks import (
    ACKS,
    Ack,
    Beat,
    Broken,
    Busy,
    ColumnsAre,
    Done,
    Failed,
    Filtered,
    Held,
    Outcome,
    PositionIs,
    Ready,
    Released,
    RowOutcome,
    Stage,
    ack_payload,
    split_ack,
)
from headrace.shm.doorbell import DOORBELLS, ChunkBell, Doorbell, Flush, Open, Release, Stop, doorbell_payload
from headrace.shm.wire import HEAD, PAYLOAD_MAX, RECORD_MAX

__all__ = [
    "RECORD_MAX",
    "Ack",
    "AckReader",
    "Beat",
    "Broken",
    "Busy",
    "ChunkBell",
    "ColumnsAre",
    "Done",
    "Doorbell",
    "DoorbellReader",
    "Failed",
    "Filtered",
    "Flush",
    "Held",
    "Malformed",
    "Open",
    "Outcome",
    "PositionIs",
    "Ready",
    "RecordReader",
    "Release",
    "Released",
    "RowOutcome",
    "Stage",
    "Stop",
    "encode",
    "encode_all",
]

COLUMNS_MAX: Final = 1 << 20


class Malformed(msgspec.Struct, frozen=True):
    """Bytes that are no record of this pipe."""

    kind: int
    reason: str


def encode(record: Doorbell | Ack) -> bytes:
    """One record. Raises ValueError when it does not fit (`encode_all` splits what may be split)."""
    if isinstance(record, ChunkBell | Open | Flush | Release | Stop):
        kind, payload = doorbell_payload(record)
    else:
        kind, payload = ack_payload(record)
    if len(payload) > PAYLOAD_MAX:
        raise ValueError(f"{type(record).__name__} takes {len(payload)} bytes, a record has room for {PAYLOAD_MAX}")
    return HEAD.pack(kind, HEAD.size + len(payload)) + payload


def encode_all(record: Ack) -> list[bytes]:
    """As many records as it takes, for rows, bitmaps and columns without a limit."""
    return [encode(part) for part in split_ack(record)]


R = TypeVar("R")


class RecordReader(Generic[R]):
    """Cuts a pipe's bytes into records."""

    def __init__(self, decoders: Mapping[int, Callable[[bytes], R]]) -> None:
        self._decoders = decoders
        self._tail = b""
        self._lost = False

    @property
    def torn(self) -> int:
        """Bytes of a record that has not come whole."""
        return len(self._tail)

    def feed(self, data: bytes) -> list[R | Malformed]:
        """The records that ``data`` completes, in order."""
        found: list[R | Malformed] = []
        buffer, at = self._tail + data, 0
        while not self._lost and len(buffer) - at >= HEAD.size:
            kind, length = HEAD.unpack_from(buffer, at)
            if not HEAD.size <= length <= RECORD_MAX:
                self._lost = True
                found.append(Malformed(kind, f"a record of {length} bytes cannot be: nothing more is read"))
            elif len(buffer) - at < length:
                break
            else:
                found.append(self._decode(kind, buffer[at + HEAD.size : at + length]))
                at += length
        self._tail = b"" if self._lost else buffer[at:]
        return found

    def _decode(self, kind: int, payload: bytes) -> R | Malformed:
        decoder = self._decoders.get(kind)
        if decoder is None:
            return Malformed(kind, "unknown kind")
        try:
            return decoder(payload)
        except (struct.error, ValueError, IndexError) as error:
            return Malformed(kind, str(error))


class DoorbellReader(RecordReader[Doorbell]):
    """Reads a worker's doorbell."""

    def __init__(self) -> None:
        super().__init__(DOORBELLS)


class AckReader(RecordReader[Ack]):
    """Reads a worker's ack pipe; columns that came in parts are handed out whole."""

    def __init__(self) -> None:
        super().__init__(ACKS)
        self._sink = -1
        self._columns = b""

    def feed(self, data: bytes) -> list[Ack | Malformed]:
        return [record for record in super().feed(data) if not (isinstance(record, ColumnsAre) and record.more)]

    def _decode(self, kind: int, payload: bytes) -> Ack | Malformed:
        record = super()._decode(kind, payload)
        return self._join(record) if isinstance(record, ColumnsAre) else record

    def _join(self, part: ColumnsAre) -> Ack | Malformed:
        columns = (self._columns if part.sink == self._sink else b"") + part.columns
        whole_or_too_long = not part.more or len(columns) > COLUMNS_MAX
        self._sink, self._columns = (-1, b"") if whole_or_too_long else (part.sink, columns)
        if len(columns) > COLUMNS_MAX:
            return Malformed(66, f"columns of sink {part.sink} pass {COLUMNS_MAX} bytes")
        return ColumnsAre(part.sink, columns, part.more)
