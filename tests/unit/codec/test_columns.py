"""Columns: from Structs and mappings, over the wire, and what cannot be columns."""

import datetime as dt
import decimal
import enum
import uuid
from typing import Annotated, Any

import msgspec
import pytest

from headrace.codec.columns import Columns, python_type
from headrace.errors import ConfigError, CorruptFrameError


class Size(enum.StrEnum):
    SMALL = "s"


class Everything(msgspec.Struct):
    a: Any
    b: str
    c: int | None
    d: Annotated[float, msgspec.Meta(ge=0)]
    e: bool
    f: bytes
    g: dt.date
    h: dt.datetime | None
    i: dt.time
    j: decimal.Decimal
    k: uuid.UUID
    m: list[int]
    n: int | str
    o: Size


def test_the_fields_of_a_struct_become_columns() -> None:
    columns = Columns.from_struct(Everything)

    assert columns.names == tuple("abcdefghijkmno")
    assert columns.types == (
        "any", "str", "int?", "float", "bool", "bytes", "date", "datetime?", "time", "decimal", "uuid", "any", "any",
        "str",
    )  # fmt: skip


def test_a_mapping_takes_python_types_and_type_names() -> None:
    columns = Columns.from_mapping({"a": int, "b": "str?", "c": decimal.Decimal | None, "d": object, "e": "any?"})

    assert columns.types == ("int", "str?", "decimal?", "any", "any")


def test_columns_survive_the_wire() -> None:
    columns = Columns.from_struct(Everything)

    assert Columns.from_wire(columns.to_wire()) == columns


@pytest.mark.parametrize("wire", [b"", b"\x93", b"\x92\x91\xa1a\x90", b"\x92\x91\xa1a\x91\xa1b"])
def test_bytes_that_are_no_columns_are_refused(wire: bytes) -> None:
    with pytest.raises(CorruptFrameError):
        Columns.from_wire(wire)


@pytest.mark.parametrize(
    ("names", "types", "said"),
    [
        ((), (), "at least one"),
        (("a", "a"), ("int", "int"), "'a' is named twice"),
        (("a",), ("text",), "no column type 'text'"),
        (("",), ("int",), "cannot be the name"),
        (("a\0b",), ("int",), "cannot be the name"),
        (("a",), (), "1 column names and 0 types"),
    ],
)
def test_columns_that_cannot_be_are_refused(names: tuple[str, ...], types: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Columns(names, types)


def test_a_type_that_no_column_has_is_named() -> None:
    with pytest.raises(ConfigError, match=r"column price: .*complex.* is no column type; known: any, str"):
        Columns.from_mapping({"price": complex})


def test_none_is_allowed_where_the_type_ends_with_a_question_mark() -> None:
    assert python_type("int?") == int | None
    assert python_type("int") is int
    assert python_type("any") is Any
