"""Rows into a table of an SQLite file.

A batch is one transaction. Writers of one file take turns, so more workers scale transforms and not writes into it;
``{shard}`` in the path gives each shard a file of its own.

SQLite keeps integers, floats, texts and bytes. True and False become 1 and 0. Decimals, dates, times and UUIDs become
text: dates and times as ISO 8601, a datetime with an offset in UTC (``2013-01-01T05:00:00+00:00``). -0.0 becomes 0.0.
Everything else that SQLite would alter is refused as a rejected row: integers beyond 64 bits, NaN (it would become
NULL), lone surrogates, lists and dicts, a number in a TEXT column, a text that looks like a number in a numeric column,
an integer beyond 2^53 in a REAL column.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

import msgspec

from headrace.codec.columns import Columns
from headrace.codec.rows import Codec
from headrace.errors import ConfigError
from headrace.sinks.base import Sink


class _AtPath(Sink, frozen=True):
    path: str | Path


class Sqlite(_AtPath, frozen=True, kw_only=True):
    """``Sqlite("flights.db", table="flights", create=True, columns=["carrier", "flight"])``."""

    writer: ClassVar[str] = "sqlite"
    codec: ClassVar[Codec] = Codec.MSGPACK

    table: str
    """The table's name, quoted as an identifier."""
    create: bool = False
    """Make the file and the table when they are not there."""
    columns: Sequence[str] | Mapping[str, object] | type[msgspec.Struct] | None = None
    """Names, or names and types (Python's, or their names), or a Struct. None: the rows' Struct or the table's own."""
    timeout: float = 30.0
    """Seconds that a write waits for its turn and for other programs that hold the file, before it counts as failed."""

    def resolve(self, cwd: Path) -> Self:
        return msgspec.structs.replace(self, path=str(cwd / self.path))

    def for_rows(self, row_type: type | None) -> Self:
        if self.columns is not None or row_type is None or not issubclass(row_type, msgspec.Struct):
            return self
        known = Columns.from_struct(row_type)
        return msgspec.structs.replace(self, columns=dict(zip(known.names, known.types, strict=True)))

    def declared_columns(self) -> Columns | None:
        given = self.columns
        if given is None:
            return None
        if isinstance(given, type):
            if not issubclass(given, msgspec.Struct):  # pyright: ignore[reportUnnecessaryIsInstance] - users' word
                raise ConfigError(f"columns={given!r}: of types only a Struct has columns")
            return Columns.from_struct(given)
        if isinstance(given, Mapping):
            return Columns.from_mapping(given)
        if isinstance(given, str):
            raise ConfigError(f"columns={given!r} is one text; give a list of names")
        return Columns.untyped(given)

    def file_of(self, shard: int) -> str:
        """The file that a shard writes to."""
        return str(self.path).replace("{shard}", str(shard))

    def check(self) -> None:
        super().check()
        path = str(self.path)
        if not path or "\0" in path or path.endswith("/"):
            raise ConfigError(f"Sqlite: {path!r} cannot be the path of a file")
        if Path(path).name == ":memory:":
            raise ConfigError("Sqlite: a database in memory ends with its worker; give the path of a file")
        if not self.table or "\0" in self.table:
            raise ConfigError(f"Sqlite: table={self.table!r} cannot be the name of a table")
        if not (self.timeout > 0 and math.isfinite(self.timeout)):
            raise ConfigError(f"Sqlite: timeout={self.timeout!r}; it is a number of seconds above 0")
        try:
            declared = self.declared_columns()
        except ConfigError as error:
            raise ConfigError(f"Sqlite, table {self.table}: {error}") from None
        if declared is None and self.create:
            raise ConfigError(
                f"Sqlite: create=True needs to know the columns of {self.table}: give columns=[…], a mapping to types, "
                "or a Struct"
            )
