"""Turns the rows of one shard into groups that fit a slot, and finds the rows that cannot be encoded.

The rows of one batch are encoded in one call. Only when that fails are they tried one by one; only when the group is
too large for an empty slot is it halved, between source records, for the rows of one record stay in one chunk.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple, Protocol

from headrace.codec.frame import GROUP_HEADER
from headrace.codec.isolation import BAD_ROW
from headrace.errors import BrokenEncoderError
from headrace.handoff.chunk import Segment
from headrace.record import BadRecord, OnError, PartitionId
from headrace.shm.slot import FRAME_AT, trailer_bytes


class RowEncoder(Protocol):
    """Makes the body of a group. Raises one of `BAD_ROW` for a row, `BrokenEncoderError` for itself."""

    def encode(self, rows: list[object]) -> bytes: ...


class Group(NamedTuple):
    """Encoded rows and where they came from."""

    body: bytes
    segment: Segment


class GroupEncoder:
    """Encodes for slots of ``slot_bytes``. Rows that are left out wait in ``bad``."""

    def __init__(self, encoder: RowEncoder, slot_bytes: int, policy: OnError) -> None:
        self.bad: list[BadRecord] = []
        self._encoder = encoder
        self._slot_bytes = slot_bytes
        self._policy = policy

    def encode(self, rows: list[object], segment: Segment) -> list[Group]:
        """The rows as groups, in order; each fits an empty slot. Raises `BrokenEncoderError`."""
        try:
            body = self._encoder.encode(rows)
        except BAD_ROW:
            return self._encode_good(rows, segment)
        return self._fit(rows, segment, body)

    def room(self, partition: PartitionId) -> int:
        """The bytes that an empty slot has for the body of a group of this partition."""
        return self._slot_bytes - FRAME_AT - trailer_bytes([partition]) - GROUP_HEADER.size

    def _encode_good(self, rows: list[object], segment: Segment) -> list[Group]:
        good = [at for at, row in enumerate(rows) if self._encodes(row, segment, at)]
        if not good:
            return []
        rows, segment = [rows[at] for at in good], segment.pick(good)
        try:
            body = self._encoder.encode(rows)
        except BAD_ROW as error:
            raise BrokenEncoderError(
                f"partition {segment.origin.partition}, batch {segment.origin.seq}: the encoder takes {len(rows)} rows "
                f"one by one and refuses them together: {error}"
            ) from error
        return self._fit(rows, segment, body)

    def _encodes(self, row: object, segment: Segment, at: int) -> bool:
        try:
            self._encoder.encode([row])
        except BAD_ROW as error:
            self.leave_out(row, segment, at, "encode", f"{type(error).__name__}: {error}")
            return False
        return True

    def _fit(self, rows: list[object], segment: Segment, body: bytes) -> list[Group]:
        room = self.room(segment.origin.partition)
        if len(body) <= room:
            return [Group(body, segment)]
        cut = _middle(segment.records)
        if cut is None:
            self.leave_out(rows[0], segment, 0, "oversize", self._too_large(len(rows), len(body), room))
            return []
        halves = slice(0, cut), slice(cut, len(rows))
        return [group for half in halves for group in self.encode(rows[half], segment.slice(half))]

    def _too_large(self, rows: int, size: int, room: int) -> str:
        subject = "its row takes" if rows == 1 else f"its {rows} rows, which must stay together, take"
        return (
            f"{subject} {size} bytes and a slot has room for {max(room, 0)}: "
            f"raise shm.slot_bytes (now {self._slot_bytes})"
        )

    def leave_out(self, row: object, segment: Segment, at: int, stage: str, cause: str) -> None:
        """Note the ``at``-th row of the segment as bad."""
        partition, position, child = segment.locate(at)
        raw = row if isinstance(row, bytes) else b""
        self.bad.append(
            BadRecord(
                partition=partition,
                position=position,
                child=child,
                stage=stage,
                cause=cause,
                raw=raw,
                policy=self._policy,
            )
        )


def _middle(records: array[int]) -> int | None:
    """The place nearest before the middle, else after it, where a new record begins; None: there is one record."""
    record = records[len(records) // 2]
    before = bisect_left(records, record)
    if before:
        return before
    after = bisect_right(records, record)
    return after if after < len(records) else None
