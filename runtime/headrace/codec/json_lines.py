"""Rows as newline-delimited JSON, which passes through the worker untouched.

A ``bytes`` row is a line that is already encoded: it holds no newline and is not empty, and nothing else of it is
checked. Every other row is encoded as msgspec does: integers of any size keep their digits; decimals, dates, times and
UUIDs become texts; keys that are numbers become texts.

JSON has no NaN and no infinity, and the encoder would write ``null``. A row that holds one is refused. Only a group
whose lines contain ``null`` can hide one, and then msgpack finds it: it writes every such float, and no UTF-8 text, as
a byte 0xCB before 0x7F or 0xFF.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

import msgspec

from headrace.codec.isolation import BAD_ROW
from headrace.errors import RecordError

_json = msgspec.json.Encoder()
_to_msgpack = msgspec.msgpack.Encoder().encode
_BYTES: Final = {bytes}
_NULL: Final = re.compile(b"null")
_FLOAT: Final = b"\xcb"
_NON_FINITE: Final = re.compile(b"\xcb[\x7f\xff]")


class JsonLines:
    """Encodes a group; its body is its lines, each with its newline."""

    def encode(self, rows: list[Any]) -> bytes:
        """Raises `RecordError`, or what msgspec raises, when any row is bad."""
        kinds = set(map(type, rows))
        if kinds == _BYTES:
            return join_lines(rows)
        if bytes in kinds:
            return b"".join(join_lines([row]) if type(row) is bytes else self.encode([row]) for row in rows)
        body = _json.encode_lines(rows)
        if body.count(b"\n") != len(rows):
            raise RecordError("a row holds raw JSON with a newline in it")
        if _NULL.search(body) and _may_hold_non_finite(rows):
            for row in rows:
                _refuse_non_finite(row)
        return body


def join_lines(lines: list[bytes]) -> bytes:
    """Lines without their newlines, one body. Raises `RecordError` for one that is empty or has a newline in it."""
    body = b"\n".join(lines) + b"\n" if lines else b""
    if body.count(b"\n") != len(lines):
        raise RecordError("a line has a newline in it")
    if not all(lines):
        raise RecordError("a line is empty, which is no JSON")
    return body


def split_lines(body: memoryview | bytes) -> list[bytes]:
    """The lines of a body, without their newlines, copied."""
    return bytes(body).split(b"\n")[:-1]


def _may_hold_non_finite(rows: Any) -> bool:
    try:
        wire = _to_msgpack(rows)
    except BAD_ROW:  # what only JSON can carry, such as an integer beyond 64 bits
        return True
    return _FLOAT in wire and _NON_FINITE.search(wire) is not None


def _refuse_non_finite(row: Any) -> None:
    if _may_hold_non_finite(row) and (found := _non_finite(msgspec.to_builtins(row))) is not None:
        raise RecordError(f"a row holds the float {found!r}, which JSON cannot carry")


def _non_finite(value: Any) -> float | None:
    """The first float of a value made of builtins that is not finite."""
    if isinstance(value, float):
        return None if math.isfinite(value) else value
    if isinstance(value, dict):
        return _first_non_finite(value.values())
    return _first_non_finite(value) if isinstance(value, list | tuple | set | frozenset) else None


def _first_non_finite(values: Any) -> float | None:
    return next((found for one in values if (found := _non_finite(one)) is not None), None)
