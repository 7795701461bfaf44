"""Rows in each codec: column order, types, and what is refused."""

import datetime as dt
import decimal
import json
import math
import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.codec.columns import Columns
from headrace.codec.isolation import BAD_ROW
from headrace.codec.rows import Codec, JsonLines, MsgpackRows, RawRows, rows_converter, rows_decoder
from headrace.errors import CorruptFrameError, RecordError

COLUMNS = Columns.from_mapping({"name": str, "count": int | None, "price": float})


class Whole(msgspec.Struct):
    price: float
    name: str
    count: int | None = None


class Part(msgspec.Struct):
    name: str
    price: float


class Other(msgspec.Struct):
    name: str
    price: float
    colour: str


def through(columns: Columns | None, rows: list[Any]) -> tuple[list[Any], list[tuple[int, str]]]:
    body = MsgpackRows(columns).encode(rows)
    return rows_decoder(Codec.MSGPACK, columns)(memoryview(body), len(rows))


@pytest.mark.parametrize(
    "row",
    [
        ("a", None, 1.5),
        ["a", None, 1.5],
        {"price": 1.5, "name": "a", "count": None},
        {"price": 1.5, "name": "a"},
        Whole(1.5, "a"),
        Part("a", 1.5),
    ],
)
def test_a_row_of_any_shape_comes_out_in_column_order(row: Any) -> None:
    assert through(COLUMNS, [row, row]) == ([("a", None, 1.5)] * 2, [])
    assert rows_converter(COLUMNS)([row, row]) == ([("a", None, 1.5)] * 2, [])


def test_shapes_may_be_mixed_in_a_group() -> None:
    rows: list[Any] = [("a", 1, 1.5), {"name": "b", "count": 2, "price": 2.5}, Whole(3.5, "c", 3)]

    assert through(COLUMNS, rows) == ([("a", 1, 1.5), ("b", 2, 2.5), ("c", 3, 3.5)], [])


def test_one_column_is_a_tuple_of_one() -> None:
    columns = Columns.untyped(["x"])

    assert through(columns, [{"x": [1, 2]}, (3,)]) == ([([1, 2],), (3,)], [])


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (("a", 1), "a row has 2 values and the sink 3 columns: name, count, price"),
        (("a", 1, 1.5, 2), "a row has 4 values"),
        (
            {"name": "a", "price": 1.5, 'x"; DROP TABLE t': 1},
            "the key 'x\"; DROP TABLE t', and the sink no such column",
        ),
        (Other("a", 1.5, "red"), "the field 'colour', and the sink no such column"),
        ("abc", "a row is a tuple, a list, a dict or a Struct, not str"),
        (None, "not NoneType"),
    ],
)
def test_a_row_that_does_not_fit_the_columns_is_refused(row: Any, said: str) -> None:
    with pytest.raises(RecordError) as caught:
        MsgpackRows(COLUMNS).encode([("a", 1, 1.5), row])

    assert said in str(caught.value)
    good, bad = rows_converter(COLUMNS)([("a", 1, 1.5), row])
    assert good == [("a", 1, 1.5)]
    assert [at for at, _ in bad] == [1]
    assert said in bad[0][1]


def test_rows_of_wrong_types_are_named_by_row_and_column() -> None:
    rows: list[Any] = [("a", 1, 1.5), ("b", "2", 1.5), ("c", 3, 1.5), (None, 4, 1.5), ("e", True, 1.5)]
    expected = [
        (1, "column count: Expected `int | null`, got `str`"),
        (3, "column name: Expected `str`, got `null`"),
        (4, "column count: Expected `int | null`, got `bool`"),
    ]

    assert through(COLUMNS, rows) == ([rows[0], rows[2]], expected)
    assert rows_converter(COLUMNS)(rows) == ([rows[0], rows[2]], expected)


MOMENT = dt.datetime.fromisoformat("2020-01-02T03:04:05.000006")
SAMPLES: dict[str, Any] = {
    "any": {"deep": [1, None]},
    "str": "é",
    "int": -1,
    "float": 1.5,
    "bool": True,
    "bytes": b"\0\xff",
    "date": dt.date(2020, 1, 2),
    "datetime": MOMENT,
    "time": dt.time(1, 2, 3),
    "decimal": decimal.Decimal("1.10"),
    "uuid": uuid.UUID(int=5),
}


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_value_of_a_typed_column_arrives_as_that_type(kind: str) -> None:
    columns = Columns(("x", "y"), (kind, kind.removesuffix("?") + "?"))
    row = (SAMPLES[kind], None)

    assert through(columns, [row]) == ([row], [])
    assert rows_converter(columns)([row]) == ([row], [])


def test_a_moment_with_an_offset_arrives_as_the_same_moment() -> None:
    columns = Columns(("x",), ("datetime",))
    moment = MOMENT.replace(tzinfo=dt.timezone(dt.timedelta(hours=2)))

    assert through(columns, [(moment,)])[0] == [(moment,)]


@pytest.mark.parametrize("column", SAMPLES)
def test_it_makes_no_difference_where_a_row_was_made(column: str) -> None:
    columns = Columns(("x",), (column,))
    rows: list[Any] = [(value,) for value in (*SAMPLES.values(), None, 2**70, "1.5", "2020-01-02")]

    for group in (rows, *([row] for row in rows)):
        there, bad_there = through(columns, group)
        here, bad_here = rows_converter(columns)(group)

        assert bad_here == bad_there
        assert here == there or column == "any"


def test_integers_beyond_64_bits_keep_their_digits() -> None:
    """J01: never changed silently."""
    numbers = [2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**30]
    for columns in (Columns(("x",), ("any",)), Columns(("x",), ("int",))):
        assert through(columns, [(number,) for number in numbers]) == ([(number,) for number in numbers], [])


def test_rows_without_columns_keep_their_shape() -> None:
    assert through(None, [{"a": 1}, [1, 2], "x", None]) == ([{"a": 1}, [1, 2], "x", None], [])


@given(st.binary(max_size=40), st.integers(0, 5), st.sampled_from([COLUMNS, None]))
def test_any_bytes_are_rows_or_corrupt(body: bytes, count: int, columns: Columns | None) -> None:
    for codec in Codec:
        try:
            good, bad = rows_decoder(codec, columns)(body, count)
        except CorruptFrameError:
            continue
        assert len(good) + len(bad) == count


@given(st.lists(st.binary(max_size=10), max_size=10))
def test_raw_rows_come_out_as_they_went_in(rows: list[Any]) -> None:
    assert rows_decoder(Codec.RAW, None)(memoryview(RawRows().encode(rows)), len(rows)) == (rows, [])


def test_a_raw_row_is_bytes() -> None:
    with pytest.raises(RecordError, match="map each row to bytes"):
        RawRows().encode([b"a", "b"])


def test_decoded_rows_outlive_the_memory_they_came_from() -> None:
    slot = bytearray(MsgpackRows(COLUMNS).encode([("abc", 1, 1.5)]))
    view = memoryview(slot)

    rows, _ = rows_decoder(Codec.MSGPACK, COLUMNS)(view, 1)
    view.release()
    slot[:] = bytes(len(slot))
    slot.clear()

    assert rows == [("abc", 1, 1.5)]


def test_a_bad_row_leaves_no_view_into_the_memory_it_came_from() -> None:
    slot = bytearray(MsgpackRows(COLUMNS).encode([("abc", "x", 1.5)]))
    view = memoryview(slot)

    rows, bad = rows_decoder(Codec.MSGPACK, COLUMNS)(view, 1)
    view.release()
    slot.clear()

    assert (rows, len(bad)) == ([], 1)


# -- lines


def test_rows_become_lines() -> None:
    body = JsonLines().encode([{"a": None}, (1, "x\ny"), Part("b", 1.5), b'{"raw": 1}'])

    assert body == b'{"a":null}\n[1,"x\\ny"]\n{"name":"b","price":1.5}\n{"raw": 1}\n'


@pytest.mark.parametrize("number", [2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**30])
def test_integers_of_any_size_keep_their_digits_in_lines(number: int) -> None:
    """J01: integers come out digit for digit."""
    assert json.loads(JsonLines().encode([{"id": number, "n": None}])) == {"id": number, "n": None}


class Reading(msgspec.Struct):
    value: int  # annotations bind nobody
    nested: Any = None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("shape", [
    lambda x: {"a": x}, lambda x: (1, x), lambda x: {"a": [{"b": (x,)}]}, Reading, lambda x: Reading(1, {"y": [x]}),
    lambda x: {"big": 10**30, "a": x}, lambda x: x,
])  # fmt: skip
def test_a_float_that_json_has_no_word_for_never_becomes_null(bad: float, shape: Any) -> None:
    """J02: refused, and only that row."""
    rows: list[Any] = [{"a": 1}, {"a": None, "b": -1.7e308}, shape(bad)]

    with pytest.raises(RecordError, match="which JSON cannot carry"):
        JsonLines().encode(rows)
    JsonLines().encode(rows[:2])


@given(st.lists(st.dictionaries(st.text(max_size=3), st.floats() | st.none() | st.text() | st.binary(), max_size=4)))
def test_lines_are_refused_exactly_when_a_float_is_not_finite(rows: list[Any]) -> None:
    finite = all(math.isfinite(one) for row in rows for one in row.values() if isinstance(one, float))
    try:
        JsonLines().encode(rows)
    except RecordError:
        assert not finite
    else:
        assert finite


@pytest.mark.parametrize("row", [b"", b"a\nb", {"a": msgspec.Raw(b"[1,\n2]")}])
def test_a_row_is_one_line(row: Any) -> None:
    with pytest.raises(RecordError):
        JsonLines().encode([{"a": 1}, row])


def test_a_lone_surrogate_is_a_bad_row() -> None:
    for encoder in (JsonLines(), MsgpackRows(None), MsgpackRows(COLUMNS)):
        with pytest.raises(BAD_ROW):
            encoder.encode([("\ud800", 1, 1.5)])
