"""The doorbell: what the supervisor tells a worker.

Records of `headrace.shm.records`, little endian::

    1  CHUNK     u16 sink, u32 shard, slot, frame length, first row, rows, attempt, 24s token, u32 free slots
    2  OPEN      u16 sink, u32 shard, partition
    3  FLUSH     u16 sink, u32 shard
    4  RELEASE   u16 sink, u32 shard
    5  STOP
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from headrace.record import PartitionId
from headrace.shm.token import CompletionToken
from headrace.shm.wire import partition_bytes, partition_from, token_from

_BELL: Final = struct.Struct("<HIIIIII24sI")
_SHARD: Final = struct.Struct("<HI")


class ChunkBell(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk is in its slot. ``length`` is its frame's, ``free_slots`` what the shard has left."""

    sink: int
    shard: int
    slot: int
    length: int
    first_row: int
    rows: int
    attempt: int
    token: CompletionToken
    free_slots: int


class Open(msgspec.Struct, frozen=True):
    sink: int
    shard: int
    partition: PartitionId


class Flush(msgspec.Struct, frozen=True):
    sink: int
    shard: int


class Release(msgspec.Struct, frozen=True):
    sink: int
    shard: int


class Stop(msgspec.Struct, frozen=True):
    pass


Doorbell = ChunkBell | Open | Flush | Release | Stop


def doorbell_payload(record: Doorbell) -> tuple[int, bytes]:
    match record:
        case ChunkBell():
            return 1, _BELL.pack(
                record.sink,
                record.shard,
                record.slot,
                record.length,
                record.first_row,
                record.rows,
                record.attempt,
                record.token.to_bytes(),
                record.free_slots,
            )
        case Open():
            return 2, _SHARD.pack(record.sink, record.shard) + partition_bytes(record.partition)
        case Flush():
            return 3, _SHARD.pack(record.sink, record.shard)
        case Release():
            return 4, _SHARD.pack(record.sink, record.shard)
        case Stop():
            return 5, b""


def _bell(data: bytes) -> ChunkBell:
    sink, shard, slot, length, first_row, rows, attempt, token, free_slots = _BELL.unpack(data)
    return ChunkBell(
        sink=sink,
        shard=shard,
        slot=slot,
        length=length,
        first_row=first_row,
        rows=rows,
        attempt=attempt,
        token=token_from(token),
        free_slots=free_slots,
    )


def _open(data: bytes) -> Open:
    sink, shard = _SHARD.unpack_from(data)
    return Open(sink, shard, partition_from(data[_SHARD.size :]))


def _stop(data: bytes) -> Stop:
    if data:
        raise ValueError(f"{len(data)} bytes too many")
    return Stop()


DOORBELLS: Final[Mapping[int, Callable[[bytes], Doorbell]]] = {
    1: _bell,
    2: _open,
    3: lambda data: Flush(*_SHARD.unpack(data)),
    4: lambda data: Release(*_SHARD.unpack(data)),
    5: _stop,
}
