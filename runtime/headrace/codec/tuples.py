"""Brings rows of every shape into column order: tuples, lists, dicts and Structs become tuples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter, itemgetter
from typing import Any, Final, cast

import msgspec

from headrace.codec.columns import Columns
from headrace.errors import RecordError

_TUPLE: Final = {tuple}
_DICT: Final = {dict}


class TupleMaker:
    """Makes rows of fixed columns. A key or field that is missing becomes None; one too many makes a bad row."""

    def __init__(self, columns: Columns) -> None:
        self._names = columns.names
        self._known = frozenset(columns.names)
        self._width = len(columns.names)
        self._lengths = {self._width}
        self._of_dict = _getter(itemgetter, columns.names)
        self._of_struct = _getter(attrgetter, columns.names)
        self._whole_structs: set[type] = set()

    def make(self, rows: list[Any]) -> list[Any]:
        """The rows as tuples; the same list when they are already. Raises `RecordError` when any is bad."""
        kinds = set(map(type, rows))
        if kinds == _TUPLE:
            if set(map(len, rows)) == self._lengths:
                return rows
        elif kinds == _DICT:
            if set(map(len, rows)) == self._lengths:
                try:
                    return list(map(self._of_dict, rows))
                except KeyError:
                    pass
        elif kinds and all(map(self._is_whole_struct, kinds)):
            return list(map(self._of_struct, rows))
        return [self.make_one(row) for row in rows]

    def make_one(self, row: Any) -> tuple[Any, ...]:
        """One row. Raises `RecordError`."""
        if isinstance(row, tuple | list):
            values = tuple(cast("list[Any]", row))
            if len(values) != self._width:
                raise RecordError(
                    f"a row has {len(values)} values and the sink {self._width} columns: {self._listed()}"
                )
            return values
        if isinstance(row, dict):
            return self._of_loose_dict(row)  # pyright: ignore[reportUnknownArgumentType] - keys are looked at there
        if isinstance(row, msgspec.Struct):
            self._refuse_others([name for name in row.__struct_fields__ if name not in self._known], "field")
            return tuple(getattr(row, name, None) for name in self._names)
        raise RecordError(f"a row is a tuple, a list, a dict or a Struct, not {type(row).__qualname__}")

    def _of_loose_dict(self, row: Mapping[Any, Any]) -> tuple[Any, ...]:
        self._refuse_others([key for key in row if key not in self._known], "key")
        return tuple(map(row.get, self._names))

    def _is_whole_struct(self, kind: type) -> bool:
        """Whether it is a Struct whose fields are the columns, in whatever order."""
        if kind in self._whole_structs:
            return True
        if not issubclass(kind, msgspec.Struct) or frozenset(kind.__struct_fields__) != self._known:
            return False
        self._whole_structs.add(kind)
        return True

    def _refuse_others(self, others: list[Any], what: str) -> None:
        if others:
            named = ", ".join(repr(one) for one in others[:5])
            raise RecordError(f"a row has the {what} {named}, and the sink no such column: {self._listed()}")

    def _listed(self) -> str:
        return ", ".join(self._names[:20]) + (", …" if self._width > 20 else "")


def _getter(make: Callable[..., Callable[[Any], Any]], names: tuple[str, ...]) -> Callable[[Any], Any]:
    if make is attrgetter and any("." in name for name in names):
        return lambda row: tuple(getattr(row, name) for name in names)
    get = make(*names)
    return (lambda row: (get(row),)) if len(names) == 1 else get
