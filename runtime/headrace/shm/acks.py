"""The ack pipe: what a worker tells the supervisor.

Records of `headrace.shm.records`, little endian::

    65 READY     u32 pid, u64 start ticks, 8s digest
    66 COLUMNS   u16 sink, u8 more, columns       ``more``: the next record of this sink goes on
    67 HELD      24s token
    68 BUSY      24s token, u8 stage (1 operators, 2 write)
    69 FAILED    24s token, then for each row u32 row, u8 outcome, u8 length and stage, u16 length and cause
    70 FILTERED  24s token, u32 first row, bitmap    bit i of byte b: row ``first + 8 b + i``
    71 DONE      24s token, u8 outcome, u32 written, filtered, skipped, dead-lettered, u64 spool end
    72 RELEASED  24s token
    73 POSITION  u16 sink, u32 shard, i64 position, partition
    74 BEAT      msgpack
    75 BROKEN    text

A worker sends HELD, then BUSY, FAILED and FILTERED as often as needed, then one DONE or RELEASED; a worker that dies
may stop anywhere.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from headrace.record import OnError, PartitionId
from headrace.shm.token import TOKEN_BYTES, CompletionToken
from headrace.shm.wire import PAYLOAD_MAX, partition_bytes, partition_from, token_from

CAUSE_CHARS: Final = 300
STAGE_CHARS: Final = 60
_READY: Final = struct.Struct("<IQ8s")
_COLUMNS: Final = struct.Struct("<HB")
_DONE: Final = struct.Struct("<24sBIIIIQ")
_BUSY: Final = struct.Struct("<24sB")
_ROW: Final = struct.Struct("<IBB")
_LENGTH: Final = struct.Struct("<H")
_FILTERED: Final = struct.Struct("<24sI")
_POSITION: Final = struct.Struct("<HIq")


class Stage(enum.IntEnum):
    """What a worker is busy with: the operators on a chunk, or one write attempt; ``NONE``: it waits, for linger, a
    turn or the next attempt, and the chunk is not to blame for anything."""

    NONE = 0
    OPERATORS = 1
    WRITE = 2


class Outcome(enum.IntEnum):
    """How a worker's work on a chunk ended.

    ``RETRY``: to be sent again, one attempt later. ``ABANDONED``: likewise, but the write is still running and ends
    the worker, so the chunk waits until the worker is proved gone.
    """

    DELIVERED = 1
    RETRY = 2
    FAILED = 3
    ABANDONED = 4


class Ready(msgspec.Struct, frozen=True):
    pid: int
    start_ticks: int
    digest: bytes


class ColumnsAre(msgspec.Struct, frozen=True):
    sink: int
    columns: bytes
    more: bool = False


class Held(msgspec.Struct, frozen=True):
    token: CompletionToken


class Busy(msgspec.Struct, frozen=True):
    token: CompletionToken
    stage: Stage


class RowOutcome(msgspec.Struct, frozen=True):
    """A row that was left out, by its index in the chunk, and the policy that was applied to it."""

    row: int
    outcome: OnError
    stage: str
    cause: str


class Failed(msgspec.Struct, frozen=True):
    token: CompletionToken
    entries: tuple[RowOutcome, ...]


class Filtered(msgspec.Struct, frozen=True):
    token: CompletionToken
    first_row: int
    bitmap: bytes

    def rows(self) -> list[int]:
        return [
            self.first_row + 8 * at + bit for at, byte in enumerate(self.bitmap) for bit in range(8) if byte >> bit & 1
        ]


class Done(msgspec.Struct, frozen=True, kw_only=True):
    token: CompletionToken
    outcome: Outcome
    written: int = 0
    filtered: int = 0
    skipped: int = 0
    dead_lettered: int = 0
    spool_end: int = 0


class Released(msgspec.Struct, frozen=True):
    token: CompletionToken


class PositionIs(msgspec.Struct, frozen=True):
    sink: int
    shard: int
    partition: PartitionId
    position: int


class Beat(msgspec.Struct, frozen=True):
    body: bytes


class Broken(msgspec.Struct, frozen=True):
    """A worker's last words. What does not fit is cut from the front: the cause stands at a traceback's end."""

    text: str


Ack = Ready | ColumnsAre | Held | Busy | Failed | Filtered | Done | Released | PositionIs | Beat | Broken


def ack_payload(record: Ack) -> tuple[int, bytes]:
    match record:
        case Ready():
            return 65, _READY.pack(record.pid, record.start_ticks, record.digest)
        case ColumnsAre():
            return 66, _COLUMNS.pack(record.sink, record.more) + record.columns
        case Held():
            return 67, record.token.to_bytes()
        case Busy():
            return 68, _BUSY.pack(record.token.to_bytes(), record.stage)
        case Failed():
            return 69, record.token.to_bytes() + b"".join(map(_row, record.entries))
        case Filtered():
            return 70, _FILTERED.pack(record.token.to_bytes(), record.first_row) + record.bitmap
        case Done():
            counts = record.written, record.filtered, record.skipped, record.dead_lettered, record.spool_end
            return 71, _DONE.pack(record.token.to_bytes(), record.outcome, *counts)
        case Released():
            return 72, record.token.to_bytes()
        case PositionIs():
            return 73, _POSITION.pack(record.sink, record.shard, record.position) + partition_bytes(record.partition)
        case Beat():
            return 74, record.body
        case Broken():
            text = record.text.encode("utf-8", "backslashreplace")
            return 75, text[-PAYLOAD_MAX:].decode("utf-8", "ignore").encode()


def split_ack(record: Ack) -> Iterator[Ack]:
    """The same in as many records as it takes."""
    match record:
        case Failed():
            yield from _split_rows(record.token, record.entries)
        case Filtered():
            room = PAYLOAD_MAX - _FILTERED.size
            for at in range(0, len(record.bitmap), room):
                yield Filtered(record.token, record.first_row + 8 * at, record.bitmap[at : at + room])
        case ColumnsAre():
            room = PAYLOAD_MAX - _COLUMNS.size
            for at in range(0, max(len(record.columns), 1), room):
                more = at + room < len(record.columns)
                yield ColumnsAre(record.sink, record.columns[at : at + room], more)
        case _:
            yield record


def _split_rows(token: CompletionToken, entries: Sequence[RowOutcome]) -> Iterator[Failed]:
    part: list[RowOutcome] = []
    room = PAYLOAD_MAX - TOKEN_BYTES
    for entry in entries:
        size = len(_row(entry))
        if size > room:
            yield Failed(token, tuple(part))
            part, room = [], PAYLOAD_MAX - TOKEN_BYTES
        part.append(entry)
        room -= size
    if part:
        yield Failed(token, tuple(part))


_OUTCOMES: Final = (OnError.SKIP, OnError.DEAD_LETTER, OnError.FAIL)


def _row(entry: RowOutcome) -> bytes:
    stage = entry.stage[:STAGE_CHARS].encode("utf-8", "replace")
    cause = entry.cause[:CAUSE_CHARS].encode("utf-8", "backslashreplace")
    outcome = _OUTCOMES.index(entry.outcome)
    return b"".join((_ROW.pack(entry.row, outcome, len(stage)), stage, _LENGTH.pack(len(cause)), cause))


def _columns(data: bytes) -> ColumnsAre:
    sink, more = _COLUMNS.unpack_from(data)
    return ColumnsAre(sink, data[_COLUMNS.size :], bool(more))


def _busy(data: bytes) -> Busy:
    token, stage = _BUSY.unpack(data)
    return Busy(token_from(token), Stage(stage))


def _failed(data: bytes) -> Failed:
    entries: list[RowOutcome] = []
    at = TOKEN_BYTES
    while at < len(data):
        row: int
        outcome: int
        row, outcome, stage_length = _ROW.unpack_from(data, at)
        stage_at = at + _ROW.size
        (cause_length,) = _LENGTH.unpack_from(data, stage_at + stage_length)
        cause_at = stage_at + stage_length + _LENGTH.size
        at = cause_at + cause_length
        if at > len(data):
            raise ValueError(f"row {row}'s cause is cut off")
        stage = data[stage_at : stage_at + stage_length].decode()
        entries.append(RowOutcome(row, _OUTCOMES[outcome], stage, data[cause_at:at].decode()))
    return Failed(token_from(data[:TOKEN_BYTES]), tuple(entries))


def _filtered(data: bytes) -> Filtered:
    token, first_row = _FILTERED.unpack_from(data)
    return Filtered(token_from(token), first_row, data[_FILTERED.size :])


def _done(data: bytes) -> Done:
    token, outcome, written, filtered, skipped, dead_lettered, spool_end = _DONE.unpack(data)
    return Done(
        token=token_from(token),
        outcome=Outcome(outcome),
        written=written,
        filtered=filtered,
        skipped=skipped,
        dead_lettered=dead_lettered,
        spool_end=spool_end,
    )


def _position(data: bytes) -> PositionIs:
    sink, shard, position = _POSITION.unpack_from(data)
    return PositionIs(sink, shard, partition_from(data[_POSITION.size :]), position)


ACKS: Final[Mapping[int, Callable[[bytes], Ack]]] = {
    65: lambda data: Ready(*_READY.unpack(data)),
    66: _columns,
    67: lambda data: Held(token_from(data)),
    68: _busy,
    69: _failed,
    70: _filtered,
    71: _done,
    72: lambda data: Released(token_from(data)),
    73: _position,
    74: Beat,
    75: lambda data: Broken(data.decode("utf-8", "replace")),
}
