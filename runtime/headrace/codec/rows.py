"""The codecs of rows: what a sink's frame is written in, and how a worker reads it.

::

    msgpack      the body of a group is an array of rows. Rows of fixed columns are arrays in column order, else the
                 rows as they are. Integers beyond 64 bits travel as Ext (`headrace.codec.ext`); decimals, dates,
                 times, UUIDs and naive datetimes as their text and aware datetimes in UTC, which columns of their type
                 turn back; in a column of type any they stay so
    json_lines   the lines themselves (`headrace.codec.json_lines`)
    raw          a u32 for each row, its length, little endian; then the rows' bytes, back to back
"""

from __future__ import annotations

import enum
import sys
from array import array
from itertools import accumulate, pairwise
from typing import Any, Protocol

import msgspec

from headrace.codec import ext
from headrace.codec.columns import Columns
from headrace.codec.isolation import Decoded, GroupDecoder, check_count
from headrace.codec.json_lines import JsonLines, split_lines
from headrace.codec.tuples import TupleMaker
from headrace.codec.typed_rows import msgpack_decoder, rows_converter
from headrace.errors import CorruptFrameError, RecordError

__all__ = ["Codec", "JsonLines", "MsgpackRows", "RawRows", "RowEncoder", "rows_converter", "rows_decoder"]

_encode = msgspec.msgpack.Encoder().encode


class Codec(enum.StrEnum):
    """What a sink's frames are written in."""

    MSGPACK = "msgpack"
    JSON_LINES = "json_lines"
    RAW = "raw"


class RowEncoder(Protocol):
    """Makes the body of a group.

    When any row is bad it raises `RecordError`, or what msgspec raises (``MsgspecError``, ``UnicodeError``,
    ``OverflowError``, ``TypeError``, ``ValueError``, ``RecursionError``), and the caller tries the rows one by one.
    `BrokenEncoderError` means that it can encode nothing any more.
    """

    def encode(self, rows: list[Any]) -> bytes: ...


class MsgpackRows:
    """Rows of fixed columns, or of any shape when ``columns`` is None. Types are checked where they are decoded."""

    def __init__(self, columns: Columns | None) -> None:
        self._tuples = None if columns is None else TupleMaker(columns)

    def encode(self, rows: list[Any]) -> bytes:
        if self._tuples is not None:
            rows = self._tuples.make(rows)
        try:
            return _encode(rows)
        except OverflowError:
            return _encode(ext.with_big_ints(rows))


class RawRows:
    """Rows of bytes."""

    def encode(self, rows: list[Any]) -> bytes:
        if not set(map(type, rows)) <= {bytes}:
            raise RecordError("this sink takes rows of bytes: decode with bytes, or map each row to bytes")
        lengths = array("I", map(len, rows))
        if sys.byteorder == "big":
            lengths.byteswap()
        return b"".join((lengths.tobytes(), *rows))


def _decode_raw(body: memoryview | bytes, count: int) -> Decoded:
    lengths = array("I")
    if len(body) < count * lengths.itemsize:
        raise CorruptFrameError(f"a group of {len(body)} bytes is too short for the lengths of {count} rows")
    data = bytes(body)
    lengths.frombytes(data[: count * lengths.itemsize])
    if sys.byteorder == "big":
        lengths.byteswap()
    ends = list(accumulate(lengths, initial=count * lengths.itemsize))
    if ends[-1] != len(data):
        raise CorruptFrameError(f"a group of {len(data)} bytes has {count} rows that end at byte {ends[-1]}")
    return [data[begin:end] for begin, end in pairwise(ends)], []


def _decode_lines(body: memoryview | bytes, count: int) -> Decoded:
    lines = split_lines(body)
    check_count(len(lines), count, len(body))
    return lines, []


def rows_decoder(codec: Codec, columns: Columns | None) -> GroupDecoder:
    """How a worker reads the groups of a sink.

    msgpack is checked against the columns, row by row where a group fails.
    """
    if codec is Codec.MSGPACK:
        return msgpack_decoder(columns)
    return _decode_raw if codec is Codec.RAW else _decode_lines
