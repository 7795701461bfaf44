"""Records on their way to the operators of a worker: as raw lines, as a typed record, or as plain values.

::

    lines     each line and a newline, as the source had them
    typed     a msgpack array of records, decoded as the source's type
    plain     a msgpack array of records; what msgpack loses travels as Ext (`headrace.codec.ext`), so that None, bool,
              int, float, str, bytes, list, dict, tuple, set, frozenset, Decimal, date, datetime, time, timedelta and
              UUID arrive as they left, however nested; any other type is a bad record
"""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from typing import Any, Final

import msgspec

from headrace.codec import ext
from headrace.codec.isolation import BAD_ROW, Decoded, check_count, decode_one_by_one
from headrace.codec.json_lines import join_lines, split_lines

_encode = msgspec.msgpack.Encoder().encode
_PLAIN: Final = (None, Any, object, dict, list)
_KEPT: Final = (
    bytes,
    dt.date,
    dt.datetime,
    dt.time,
    dt.timedelta,
    decimal.Decimal,
    uuid.UUID,
)


class RecordsCodec:
    """Records of one type (the source's ``decode``), or of plain values when it is None, ``dict`` or ``Any``."""

    def __init__(self, record_type: Any = None) -> None:
        self._type = None if any(record_type is one for one in _PLAIN) else record_type
        group: Any = list[Any] if self._type is None else list.__class_getitem__(self._type)
        self._decoder: msgspec.msgpack.Decoder[list[Any]] = msgspec.msgpack.Decoder(group, ext_hook=ext.hook)

    def encode(self, rows: list[Any]) -> bytes:
        """A `RowEncoder`. Raises `RecordError` for what cannot travel."""
        try:
            body = _encode(rows)
        except OverflowError:
            return self._encode_with_ext(rows)
        except TypeError:
            if self._type is not None:
                raise
            return self._encode_with_ext(rows)  # which says it better
        # The encoder has proved that there is no cycle, which the look at the types could not survive.
        return body if self._type is not None or ext.all_plain(rows) else self._encode_with_ext(rows)

    def _encode_with_ext(self, rows: list[Any]) -> bytes:
        if self._type is not None:
            rows = [msgspec.to_builtins(row, builtin_types=_KEPT) for row in rows]
        return ext.encode(rows)

    def decode(self, body: memoryview | bytes, count: int) -> Decoded:
        """A `GroupDecoder`."""
        try:
            records = self._decoder.decode(body)
        except BAD_ROW:
            return decode_one_by_one(body, count, self._decode_one)
        check_count(len(records), count, len(body))
        return records, []

    def _decode_one(self, item: bytes) -> Any:
        record = ext.decode(item)
        return record if self._type is None else msgspec.convert(record, self._type)


class LinesCodec:
    """Raw lines, without their newlines; none is blank."""

    def encode(self, rows: list[Any]) -> bytes:
        """A `RowEncoder`. Raises `RecordError` for a line with a newline in it."""
        return join_lines(rows)

    def decode(self, body: memoryview | bytes, count: int) -> Decoded:
        """A `GroupDecoder`; the lines are copies."""
        lines = split_lines(body)
        check_count(len(lines), count, len(body))
        return lines, []
