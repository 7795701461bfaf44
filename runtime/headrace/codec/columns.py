"""The columns of a sink: their names in order and, for each, one of a closed set of types.

On the wire (``COLUMNS``): a msgpack array of two arrays, the names and the type names.

A type name is one of ``any str int float bool bytes date datetime time decimal uuid``; with ``?`` at its end it takes
None too (``any`` always does). ``int`` is any whole number that the codec carries, ``float`` takes whole numbers as
Python's ``float()`` does.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import types
import typing
import uuid
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from headrace.errors import ConfigError, CorruptFrameError

_PYTHON_TYPES: Final[dict[str, Any]] = {
    "any": Any,
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
    "bytes": bytes,
    "date": dt.date,
    "datetime": dt.datetime,
    "time": dt.time,
    "decimal": decimal.Decimal,
    "uuid": uuid.UUID,
}
_NAMES: Final = {python: name for name, python in _PYTHON_TYPES.items()} | {object: "any"}


class Columns(msgspec.Struct, frozen=True, array_like=True):
    """Names and type names, parallel. Raises `ConfigError` when they cannot be columns."""

    names: tuple[str, ...]
    types: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.names:
            raise ConfigError("a sink needs at least one column")
        if len(self.names) != len(self.types):
            raise ConfigError(f"{len(self.names)} column names and {len(self.types)} types")
        for at, name in enumerate(self.names):
            if not name or "\0" in name:
                raise ConfigError(f"{name!r} cannot be the name of a column")
            if name in self.names[:at]:
                raise ConfigError(f"column {name!r} is named twice")
        for name, kind in zip(self.names, self.types, strict=True):
            if kind.removesuffix("?") not in _PYTHON_TYPES:
                raise ConfigError(f"column {name}: there is no column type {kind!r}; {_known()}")

    @classmethod
    def untyped(cls, names: typing.Iterable[str]) -> Columns:
        """Columns that take what comes."""
        given = tuple(names)
        return cls(given, ("any",) * len(given))

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> Columns:
        """Column names to Python types (``int``, ``str | None``) or to type names (``"int"``, ``"str?"``)."""
        return cls(tuple(mapping), tuple(_given_type(name, kind) for name, kind in mapping.items()))

    @classmethod
    def from_struct(cls, struct: type[msgspec.Struct]) -> Columns:
        """The fields of a Struct, under their Python names. A type that no column has becomes ``any``."""
        hints = typing.get_type_hints(struct)
        names = struct.__struct_fields__
        return cls(names, tuple(_type_name(hints[name]) or "any" for name in names))

    @property
    def python_types(self) -> tuple[Any, ...]:
        """For each column what msgspec checks it against."""
        return tuple(python_type(name) for name in self.types)

    def to_wire(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def from_wire(cls, wire: bytes) -> Columns:
        """Raises `CorruptFrameError`."""
        try:
            return msgspec.msgpack.decode(wire, type=cls)
        except (msgspec.MsgspecError, UnicodeError, ConfigError) as error:
            raise CorruptFrameError(f"these {len(wire)} bytes are no columns: {error}") from None


def python_type(name: str) -> Any:
    """The Python type behind a type name, None allowed where it ends with ``?``."""
    plain = _PYTHON_TYPES[name.removesuffix("?")]
    return plain | None if name.endswith("?") and plain is not Any else plain


def _given_type(column: str, kind: object) -> str:
    name = kind if isinstance(kind, str) else _type_name(kind)
    if name is None:
        raise ConfigError(f"column {column}: {kind!r} is no column type; {_known()}, or the Python type")
    return "any" if name == "any?" else name


def _type_name(hint: object) -> str | None:
    """The type name of an annotation; None: no column has it."""
    if typing.get_origin(hint) is typing.Annotated:
        return _type_name(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        parts = [part for part in typing.get_args(hint) if part is not type(None)]
        plain = _type_name(parts[0]) if len(parts) == 1 else None
        return plain if plain in (None, "any") or plain.endswith("?") else f"{plain}?"
    if isinstance(hint, type) and issubclass(hint, enum.StrEnum):
        return "str"
    if isinstance(hint, type) and issubclass(hint, enum.IntEnum):
        return "int"
    try:
        return _NAMES.get(cast(Any, hint))
    except TypeError:  # an annotation that is not hashable
        return None


def _known() -> str:
    return f"known: {', '.join(_PYTHON_TYPES)}, each with ? where None is allowed"
