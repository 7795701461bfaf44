"""The Ext table: how values travel in msgpack that msgpack alone would turn into something else.

::

    code  value       payload
    1     int         outside [-2^63, 2^64): two's complement, big endian
    2     Decimal     its text, ASCII; exponent, sign of zero, NaN and Infinity are kept
    3     date        ISO 8601 text, ASCII
    4     datetime    msgpack [naive ISO 8601 text, zone, fold]; zone: nil (naive), an int (microseconds east of UTC) or
                      a zone's name
    5     time        msgpack [naive ISO 8601 text, zone, fold]
    6     UUID        its 16 bytes
    7     tuple       msgpack array
    8     set         msgpack array
    9     frozenset   msgpack array
    10    timedelta   msgpack [days, seconds, microseconds]
    11    dict        with keys other than texts, bytes and small integers: msgpack array of key, value, key, value …

Codes 12 to 127 are free. A datetime whose zone is neither fixed nor a ``ZoneInfo`` arrives with the offset it had.
"""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
import zoneinfo
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, Final, cast

import msgspec

from headrace.errors import RecordError

BIG_INT: Final = 1
DECIMAL: Final = 2
DATE: Final = 3
DATETIME: Final = 4
TIME: Final = 5
UUID: Final = 6
TUPLE: Final = 7
SET: Final = 8
FROZENSET: Final = 9
TIMEDELTA: Final = 10
PAIRS: Final = 11

_Ext = msgspec.msgpack.Ext
_encode = msgspec.msgpack.Encoder().encode
_SCALARS: Final = frozenset({type(None), bool, int, float, str, bytes})
_KEYS: Final = frozenset({str, int, bytes})
_DICT: Final = {dict}
_values_of: Final[Callable[[dict[Any, Any]], Iterable[Any]]] = dict[Any, Any].values
_INT_LOW, _INT_HIGH = -(2**63), 2**64


def encode(value: object) -> bytes:
    """msgpack that `decode` turns back into an equal value of the same types. Raises `RecordError` for other types."""
    return _encode(_wrap(value))


def decode(data: bytes | memoryview) -> Any:
    """The inverse of `encode`."""
    return _decoder.decode(data)


def all_plain(values: Iterable[object]) -> bool:
    """Whether msgpack alone carries these exactly, integers beyond 64 bits apart. They must have no cycles."""
    level: list[Any] = list(values)
    while level:
        kinds = set(map(type, level))
        containers = kinds - _SCALARS
        if not containers:
            return True
        if not containers <= {list, dict}:
            return False
        dicts: list[dict[Any, Any]] = level if kinds == _DICT else [one for one in level if type(one) is dict]
        lists: list[list[Any]] = [one for one in level if type(one) is list] if list in kinds else []
        if not _keys_are_plain(dicts):
            return False
        level = [*chain.from_iterable(map(_values_of, dicts)), *chain.from_iterable(lists)]
    return True


def _keys_are_plain(dicts: list[dict[Any, Any]]) -> bool:
    try:
        "".join(chain.from_iterable(dicts))  # the quickest way to learn that all of them are texts
    except TypeError:
        return set(map(type, chain.from_iterable(dicts))) <= _KEYS
    return True


def with_big_ints(value: Any) -> Any:
    """The value with the integers that msgpack cannot carry replaced by their Ext; everything else as it is."""
    if type(value) is int:
        return _wrap_int(value)
    if isinstance(value, list | tuple):
        return [with_big_ints(one) for one in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: with_big_ints(one) for key, one in _items(value)}
    return value


# -- wrapping


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    items: Iterable[tuple[Any, Any]] = value.items()
    return items


def _wrap(value: Any) -> Any:
    kind = cast(Any, type(value))
    wrap = _WRAPPERS.get(kind)
    if wrap is None:
        raise RecordError(
            f"a value of type {kind.__module__}.{kind.__qualname__} cannot travel to a worker: make a dict, a tuple or "
            "a text of it before shard_by, or make it after"
        )
    return wrap(value)


def _as_is(value: Any) -> Any:
    return value


def _wrap_int(value: int) -> Any:
    if _INT_LOW <= value < _INT_HIGH:
        return value
    return _Ext(BIG_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def _wrap_list(value: list[Any]) -> Any:
    return [_wrap(one) for one in value]


def _wrap_dict(value: dict[Any, Any]) -> Any:
    if all(type(key) in _KEYS and (type(key) is not int or _INT_LOW <= key < _INT_HIGH) for key in value):
        return {key: _wrap(one) for key, one in value.items()}
    return _Ext(PAIRS, _encode([_wrap(one) for one in chain.from_iterable(value.items())]))


def _wrap_items(code: int) -> Callable[[Any], Any]:
    return lambda value: _Ext(code, _encode([_wrap(one) for one in value]))


def _wrap_datetime(value: dt.datetime) -> Any:
    naive = value.replace(tzinfo=None, fold=0).isoformat()
    return _Ext(DATETIME, _encode([naive, _zone_of(value.tzinfo, value.utcoffset()), value.fold]))


def _wrap_time(value: dt.time) -> Any:
    naive = value.replace(tzinfo=None, fold=0).isoformat()
    return _Ext(TIME, _encode([naive, _zone_of(value.tzinfo, value.utcoffset()), value.fold]))


def _zone_of(zone: dt.tzinfo | None, offset: dt.timedelta | None) -> int | str | None:
    if isinstance(zone, zoneinfo.ZoneInfo) and zone.key:
        return zone.key
    return None if offset is None else offset // dt.timedelta(microseconds=1)


_WRAPPERS: Final[dict[type, Callable[[Any], Any]]] = {
    type(None): _as_is,
    bool: _as_is,
    float: _as_is,
    str: _as_is,
    bytes: _as_is,
    int: _wrap_int,
    list: _wrap_list,
    dict: _wrap_dict,
    tuple: _wrap_items(TUPLE),
    set: _wrap_items(SET),
    frozenset: _wrap_items(FROZENSET),
    decimal.Decimal: lambda value: _Ext(DECIMAL, str(value).encode("ascii")),
    dt.date: lambda value: _Ext(DATE, value.isoformat().encode("ascii")),
    dt.datetime: _wrap_datetime,
    dt.time: _wrap_time,
    dt.timedelta: lambda value: _Ext(TIMEDELTA, _encode([value.days, value.seconds, value.microseconds])),
    uuid.UUID: lambda value: _Ext(UUID, value.bytes),
}


# -- unwrapping


def hook(code: int, payload: memoryview) -> Any:
    """An ``ext_hook`` for msgspec. Raises `RecordError` for what the table does not hold."""
    unwrap = _UNWRAPPERS.get(code)
    if unwrap is None:
        raise RecordError(f"Ext code {code} is not in this version's table")
    data = bytes(payload)
    try:
        return unwrap(data)
    except (ValueError, ArithmeticError, TypeError, LookupError) as error:
        raise RecordError(f"Ext code {code} holds what it cannot: {error}") from None


def _unwrap_datetime(data: bytes) -> dt.datetime:
    naive, zone, fold = decode(data)
    return dt.datetime.fromisoformat(naive).replace(tzinfo=_zone(zone), fold=fold)


def _unwrap_time(data: bytes) -> dt.time:
    naive, zone, fold = decode(data)
    return dt.time.fromisoformat(naive).replace(tzinfo=_zone(zone), fold=fold)


def _zone(zone: int | str | None) -> dt.tzinfo | None:
    if zone is None:
        return None
    if isinstance(zone, str):
        return zoneinfo.ZoneInfo(zone)
    return dt.timezone(dt.timedelta(microseconds=zone)) if zone else dt.UTC


def _unwrap_pairs(data: bytes) -> dict[Any, Any]:
    items = decode(data)
    return dict(zip(items[::2], items[1::2], strict=True))


_UNWRAPPERS: Final[dict[int, Callable[[bytes], Any]]] = {
    BIG_INT: lambda data: int.from_bytes(data, "big", signed=True),
    DECIMAL: lambda data: decimal.Decimal(data.decode("ascii")),
    DATE: lambda data: dt.date.fromisoformat(data.decode("ascii")),
    DATETIME: _unwrap_datetime,
    TIME: _unwrap_time,
    UUID: lambda data: uuid.UUID(bytes=data),
    TUPLE: lambda data: tuple(decode(data)),
    SET: lambda data: set(decode(data)),
    FROZENSET: lambda data: frozenset(decode(data)),
    TIMEDELTA: lambda data: dt.timedelta(*decode(data)),
    PAIRS: _unwrap_pairs,
}

_decoder: Final = msgspec.msgpack.Decoder(ext_hook=hook)
