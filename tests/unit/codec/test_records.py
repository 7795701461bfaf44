"""Records on their way to a worker: exact, or a bad record."""

import datetime as dt
import decimal
import enum
import zoneinfo
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.codec import ext
from headrace.codec.records import LinesCodec, RecordsCodec
from headrace.errors import CorruptFrameError, RecordError

ZONES = st.sampled_from(
    [None, dt.UTC, dt.timezone(dt.timedelta(hours=5, minutes=45)), zoneinfo.ZoneInfo("Europe/Paris")]
)
FINITE = decimal.Decimal("1E+400"), decimal.Decimal("-0.00"), decimal.Decimal("Infinity"), decimal.Decimal("1.10")

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.sampled_from(FINITE)
    | st.dates()
    | st.datetimes(timezones=ZONES, allow_imaginary=False)
    | st.times()
    | st.timedeltas()
    | st.uuids()
)
hashable = st.recursive(scalars, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=4)
values = st.recursive(
    hashable,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.sets(hashable, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.dictionaries(hashable, inner, max_size=2)
    ),
    max_leaves=8,
)


def typed(value: Any) -> Any:
    """The value with the type of every part, so that True is not 1 and no list a tuple."""
    if isinstance(value, dict):
        return [(typed(key), typed(one)) for key, one in value.items()]
    if isinstance(value, list | tuple):
        return type(value).__name__, [typed(one) for one in value]
    if isinstance(value, set | frozenset):
        return type(value).__name__, sorted(map(repr, map(typed, value)))
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None), value.utcoffset(), value.fold, type(value)
    return repr(value), type(value)


@given(st.lists(values, max_size=4))
def test_plain_records_arrive_as_they_left(records: list[Any]) -> None:
    codec = RecordsCodec()

    arrived, bad = codec.decode(memoryview(codec.encode(records)), len(records))

    assert bad == []
    assert typed(arrived) == typed(records)


@given(st.recursive(st.integers(-(2**63), 2**64 - 1) | st.text() | st.none(), st.lists))
def test_what_msgpack_carries_alone_takes_no_ext(value: Any) -> None:
    assert RecordsCodec().encode([value]) == msgspec.msgpack.encode([value])


class Point(NamedTuple):
    x: int


class Colour(enum.Enum):
    RED = 1


class Made(msgspec.Struct):
    x: int


@pytest.mark.parametrize("value", [Point(1), Colour.RED, Made(1), 1j, object(), bytearray(b"x"), {"deep": [Made(1)]}])
def test_what_would_change_on_the_way_is_a_bad_record(value: Any) -> None:
    with pytest.raises(RecordError, match="cannot travel to a worker"):
        RecordsCodec().encode([{"fine": 1}, value])


def test_a_record_that_contains_itself_is_a_bad_record() -> None:
    record: list[Any] = []
    record.append(record)

    with pytest.raises((RecordError, RecursionError)):
        RecordsCodec().encode([record])


class Order(msgspec.Struct):
    id: int
    price: decimal.Decimal
    day: dt.date
    tags: tuple[str, ...] = ()


def test_typed_records_come_back_as_their_type() -> None:
    orders = [Order(1, decimal.Decimal("1.10"), dt.date(2020, 1, 2), ("a",))]
    codec = RecordsCodec(Order)

    assert codec.decode(codec.encode(orders), 1) == (orders, [])


def test_a_typed_record_carries_integers_beyond_64_bits() -> None:
    """J01: integers come out digit for digit."""
    orders = [Order(number, decimal.Decimal(1), dt.date(2020, 1, 2)) for number in (2**64, -(2**63) - 1, 10**30, 5)]
    codec = RecordsCodec(Order)

    assert codec.decode(codec.encode(orders), 4) == (orders, [])


def test_only_the_record_that_is_not_of_the_type_is_bad() -> None:
    orders: list[Any] = [Order(1, decimal.Decimal(1), dt.date(2020, 1, 2)) for _ in range(3)]
    orders[1].id = "one"
    codec = RecordsCodec(Order)

    good, bad = codec.decode(codec.encode(orders), 3)

    assert good == [orders[0], orders[2]]
    assert bad == [(1, "Expected `int`, got `str` - at `$.id`")]


@pytest.mark.parametrize("body", [b"", b"\x01", b"\x91", b"\x92\x01\x02", b"\x91\x01\x02"])
def test_a_group_that_is_not_its_rows_is_corrupt(body: bytes) -> None:
    with pytest.raises(CorruptFrameError):
        RecordsCodec().decode(body, 1)


@given(st.integers(-128, 127), st.binary(max_size=20))
def test_any_ext_is_a_value_or_a_bad_record(code: int, payload: bytes) -> None:
    body = msgspec.msgpack.encode([1, msgspec.msgpack.Ext(code, payload)])

    good, bad = RecordsCodec().decode(body, 2)

    assert len(good) + len(bad) == 2
    assert good[0] == 1


def test_the_types_of_mixed_nested_records_are_seen() -> None:
    assert ext.all_plain([{"a": [1, {"b": None}]}, 3, [b"x"], {1: 2}])
    assert not ext.all_plain([{"a": [1, {"b": (1,)}]}])
    assert not ext.all_plain([{dt.date(2020, 1, 1): 1}])


def test_lines_travel_as_they_are() -> None:
    lines: list[Any] = [b'{"a":1}', b"  x\r", b"\xff\0"]
    codec = LinesCodec()

    assert codec.decode(memoryview(codec.encode(lines)), 3) == (lines, [])


@pytest.mark.parametrize("line", [b"", b"a\nb", b"a\n"])
def test_a_line_that_is_not_one_line_is_refused(line: bytes) -> None:
    with pytest.raises(RecordError):
        LinesCodec().encode([b"ok", line])
