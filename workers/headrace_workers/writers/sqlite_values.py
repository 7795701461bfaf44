"""Values on their way into SQLite: what becomes text, and what is refused because SQLite would alter it silently.

Columns whose type leaves SQLite nothing to alter are not looked at. The others are looked at as a whole, and value by
value only where something was found. Integers beyond 64 bits and lone surrogates are left to SQLite, which refuses
them itself.
"""

from __future__ import annotations

import datetime as dt
import enum
import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec

from headrace.errors import RejectedRows


class Affinity(enum.Enum):
    """What SQLite makes of values that are stored in a column, by its declared type."""

    NONE = "BLOB"
    TEXT = "TEXT"
    INTEGER = "INTEGER"
    REAL = "REAL"
    NUMERIC = "NUMERIC"


NUMBERS: Final = (Affinity.INTEGER, Affinity.REAL, Affinity.NUMERIC)


def affinity_of(declared: str, *, strict: bool) -> Affinity:
    """The rules of https://sqlite.org/datatype3.html#determination_of_column_affinity, in their order."""
    name = declared.upper()
    if strict and name == "ANY":
        return Affinity.NONE
    if "INT" in name:
        return Affinity.INTEGER
    if any(word in name for word in ("CHAR", "CLOB", "TEXT")):
        return Affinity.TEXT
    if not name or "BLOB" in name:
        return Affinity.NONE
    if any(word in name for word in ("REAL", "FLOA", "DOUB")):
        return Affinity.REAL
    return Affinity.NUMERIC


class TableColumn(NamedTuple):
    """A column as it is written: its name, its type in `Columns`, and its affinity in the table."""

    name: str
    type: str
    affinity: Affinity


_NATIVE: Final = frozenset({type(None), int, float, str, bytes, bool})
_NUMERIC_KINDS: Final = frozenset({int, float, bool})
_NUMBER_LIKE: Final = re.compile(r"[ \t-\r]*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[ \t-\r]*", re.ASCII)
_EXACT: Final = 2**53


class Binder:
    """Turns rows into the flat list of values that the statements take."""

    def __init__(self, columns: Sequence[TableColumn]) -> None:
        self.width = len(columns)
        self._checks = [(at, column) for at, column in enumerate(columns) if not _cannot_change(column)]

    def bind(self, rows: Sequence[Sequence[Any]]) -> list[Any]:
        """All values, row after row. Raises `RejectedRows`, and ValueError for rows of another width."""
        flat = list(chain.from_iterable(rows))
        if set(map(len, rows)) - {self.width}:
            raise ValueError(f"a batch has rows of other widths than the table's {self.width} columns")
        reasons: dict[int, str] = {}
        for at, column in self._checks:
            values = flat[at :: self.width]
            checked = _checked(column, values, reasons)
            if checked is not values:
                flat[at :: self.width] = checked
        if reasons:
            raise RejectedRows(dict(sorted(reasons.items())))
        return flat


def conflict(column: TableColumn) -> str | None:
    """Why every value of this column would be altered; None: it can be written."""
    kind = column.type.removesuffix("?")
    if column.affinity is Affinity.TEXT and kind in ("int", "float", "bool"):
        return f"column {column.name} is {kind} in the sink and TEXT in the table: every number would become a text"
    if column.affinity in (Affinity.INTEGER, Affinity.REAL) and kind in ("str", "decimal"):
        return (
            f"column {column.name} is {kind} in the sink and {column.affinity.value} in the table: texts would change"
        )
    return None


def _cannot_change(column: TableColumn) -> bool:
    kind = column.type.removesuffix("?")
    return (
        kind == "bytes"
        or (kind in ("int", "bool") and column.affinity in (Affinity.NONE, Affinity.INTEGER, Affinity.NUMERIC))
        or (kind == "str" and column.affinity in (Affinity.NONE, Affinity.TEXT))
    )


def _checked(column: TableColumn, values: list[Any], reasons: dict[int, str]) -> list[Any]:
    """The values as SQLite is to get them; adds to ``reasons`` those that it would alter."""
    if column.type.removesuffix("?") == "float" and column.affinity is not Affinity.TEXT:
        total = sum(filter(None, values))
        if total == total:  # noqa: PLR0124 - only NaN differs from itself; inf - inf is NaN too, and looked at again
            return values
    kinds = set(map(type, values))
    if kinds - _NATIVE:
        values = [_native(value, row, column, reasons) for row, value in enumerate(values)]
        kinds = set(map(type, values))
    if float in kinds:
        _note(reasons, column, "NaN would become NULL", _where(values, _is_nan))
    if column.affinity is Affinity.TEXT and kinds & _NUMERIC_KINDS:
        _note(reasons, column, "a number would become a text", _where(values, _is_number))
    if column.affinity in NUMBERS and str in kinds:
        _note(reasons, column, "a text that looks like a number would become one", _where(values, _looks_like_number))
    if column.affinity is Affinity.REAL and int in kinds:
        _note(reasons, column, "an integer beyond 2^53 would be rounded", _where(values, _is_inexact))
    return values


def _native(value: Any, row: int, column: TableColumn, reasons: dict[int, str]) -> Any:
    """The value as one of SQLite's own kinds, None when there is no such."""
    if type(value) in _NATIVE:
        return value
    if isinstance(value, dt.datetime):
        return (value.astimezone(dt.UTC) if value.tzinfo is not None else value).isoformat()
    if type(value) in (bytearray, memoryview):
        return bytes(value)
    plain: Any = None
    try:
        plain = msgspec.to_builtins(value)
    except (TypeError, ValueError, RecursionError):
        plain = next((kind(value) for kind in (int, float, str) if isinstance(value, kind)), value)
    if type(plain) in _NATIVE:
        return plain
    _note(reasons, column, f"a {type(value).__qualname__} cannot be stored; make a text of it first", [row])
    return None


def _note(reasons: dict[int, str], column: TableColumn, reason: str, rows: Iterable[int]) -> None:
    for row in rows:
        reasons.setdefault(row, f"column {column.name}: {reason}")


def _where(values: list[Any], holds: Any) -> Iterable[int]:
    return (row for row, value in enumerate(values) if holds(value))


def _is_nan(value: Any) -> bool:
    return bool(value != value)  # noqa: PLR0124 - true of NaN alone


def _is_number(value: Any) -> bool:
    return type(value) in _NUMERIC_KINDS


def _looks_like_number(value: Any) -> bool:
    return type(value) is str and _NUMBER_LIKE.fullmatch(value) is not None


def _is_inexact(value: Any) -> bool:
    return type(value) is int and not -_EXACT <= value <= _EXACT
