"""Checks rows against a sink's columns: those that come out of a frame, and those that operators made in a worker.

Both roads accept the same rows and find fault in the same words, so it makes no difference to a row where it was made.
The check is strict: a text is no number, True is no integer, None needs a ``?``. Two things that msgpack does are part
of it: dates, times, decimals and UUIDs may fill a ``str`` column (as ISO 8601 or plain text), and their text may fill
theirs.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Callable
from operator import itemgetter
from typing import Any, Final

import msgspec

from headrace.codec import ext
from headrace.codec.columns import Columns
from headrace.codec.isolation import BAD_ROW, Decoded, GroupDecoder, check_count, decode_one_by_one, one_by_one
from headrace.codec.tuples import TupleMaker

_PLACE: Final = re.compile(r" - at `\$\[(\d+)\](.*)`$")
_encode = msgspec.msgpack.Encoder().encode


class TypedRows:
    """The rows of one sink as tuples in column order; with ``columns`` None, any values."""

    def __init__(self, columns: Columns | None) -> None:
        self._columns = columns
        self._row: Any = Any if columns is None else tuple.__class_getitem__(columns.python_types)
        self._rows: Any = list.__class_getitem__(self._row)
        self._untyped = columns is None or set(columns.types) <= {"any", "any?"}
        self._tuples = None if columns is None else TupleMaker(columns)
        floats = () if columns is None else (at for at, kind in enumerate(columns.types) if kind in {"float", "float?"})
        self._floats = [itemgetter(at) for at in floats]
        self._group = _decoder(self._rows)

    def decode(self, body: memoryview | bytes, count: int) -> Decoded:
        """A `GroupDecoder`."""
        try:
            rows = self._group.decode(body)
        except BAD_ROW:
            return decode_one_by_one(body, count, self._decode_one, self._explain)
        check_count(len(rows), count, len(body))
        return rows, []

    def convert(self, rows: list[Any]) -> Decoded:
        """Rows of any shape that a sink takes."""
        if self._tuples is None:
            return rows, []
        try:
            tuples = self._tuples.make(rows)
            if self._untyped:
                return tuples, []
            if not self._would_round(tuples):
                return msgspec.convert(tuples, self._rows), []
            return one_by_one(rows, self._convert_one, self._explain)
        except BAD_ROW:
            return one_by_one(rows, self._convert_one, self._explain)

    def _decode_one(self, item: bytes) -> Any:
        row = ext.decode(item)
        return msgspec.convert(row, self._row) if self._tuples is not None else row

    def _convert_one(self, row: Any) -> Any:
        assert self._tuples is not None
        made = self._tuples.make_one(row)
        if self._untyped:
            return made
        try:
            if not self._would_round([made]):
                return msgspec.convert(made, self._row)
        except msgspec.ValidationError:
            pass
        return self._decode_one(_encode(ext.with_big_ints(made)))

    def _would_round(self, tuples: list[tuple[Any, ...]]) -> bool:
        """Whether there is a decimal in a column of floats, which convert would round and a frame refuses."""
        return any(decimal.Decimal in set(map(type, map(value_of, tuples))) for value_of in self._floats)

    def _explain(self, message: str) -> str:
        """Name the column that msgspec counts."""
        place = _PLACE.search(message)
        if self._columns is None or place is None or int(place[1]) >= len(self._columns.names):
            return message
        inside = f" at {place[2]}" if place[2] else ""
        return f"column {self._columns.names[int(place[1])]}{inside}: {message[: place.start()]}"


def _decoder(rows: Any) -> msgspec.msgpack.Decoder[list[Any]]:
    return msgspec.msgpack.Decoder(rows, ext_hook=ext.hook)


def rows_converter(columns: Columns | None) -> Callable[[list[Any]], Decoded]:
    """For rows made in a worker: tuples, lists, dicts and Structs to tuples of the columns' types."""
    return TypedRows(columns).convert


def msgpack_decoder(columns: Columns | None) -> GroupDecoder:
    """For groups of `MsgpackRows`."""
    return TypedRows(columns).decode
