"""A table of an SQLite database as a sink sees it: made when asked, looked at, and its insert statements."""

from __future__ import annotations

import sqlite3
from typing import Final

from headrace.codec.columns import Columns
from headrace.errors import ErrorClass, SinkError
from headrace_workers.writers.sqlite_values import TableColumn, affinity_of, conflict

_ROWS_PER_STATEMENT: Final = 100
_DECLARED: Final = {
    "any": "",
    "int": "INTEGER",
    "bool": "INTEGER",
    "float": "REAL",
    "bytes": "BLOB",
    "str": "TEXT",
    "date": "TEXT",
    "datetime": "TEXT",
    "time": "TEXT",
    "decimal": "TEXT",
    "uuid": "TEXT",
}


def quoted(name: str) -> str:
    """The name as an identifier, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def create_table(db: sqlite3.Connection, table: str, columns: Columns) -> None:
    """Make the table with typed columns, those of type any without a type; nothing when it is there."""
    lines = [
        f"{quoted(name)} {_declaration(kind)}".rstrip() for name, kind in zip(columns.names, columns.types, strict=True)
    ]
    db.execute(f"CREATE TABLE IF NOT EXISTS {quoted(table)} ({', '.join(lines)})")


def _declaration(kind: str) -> str:
    plain = kind.removesuffix("?")
    return _DECLARED[plain] + ("" if kind.endswith("?") or plain == "any" else " NOT NULL")


def table_columns(db: sqlite3.Connection, path: str, table: str, declared: Columns | None) -> list[TableColumn]:
    """The columns to write: ``declared``, else all of the table's. Raises `SinkError` (fatal) where they do not fit."""
    strict = _is_strict(db, table)
    found = {
        name: affinity_of(kind, strict=strict)
        for _, name, kind, _, _, _, hidden in db.execute(f"PRAGMA table_xinfo({quoted(table)})")
        if hidden == 0
    }
    where = f"{path}: table {table}"
    if not found:
        raise SinkError(f"{where} is not there; make it, or give the sink create=True", error_class=ErrorClass.FATAL)
    if declared is None:
        return [TableColumn(name, "any", affinity) for name, affinity in found.items()]
    folded = {name.casefold(): affinity for name, affinity in found.items()}
    columns: list[TableColumn] = []
    for name, kind in zip(declared.names, declared.types, strict=True):
        affinity = folded.get(name.casefold())
        if affinity is None:
            raise SinkError(f"{where} has no column {name!r}; it has {', '.join(found)}", error_class=ErrorClass.FATAL)
        columns.append(TableColumn(name, kind, affinity))
    problems = [problem for column in columns if (problem := conflict(column)) is not None]
    if problems:
        raise SinkError(f"{where}: {'; '.join(problems)}", error_class=ErrorClass.FATAL)
    return columns


def _is_strict(db: sqlite3.Connection, table: str) -> bool:
    if sqlite3.sqlite_version_info < (3, 37):
        return False
    row = db.execute("SELECT strict FROM pragma_table_list WHERE schema = 'main' AND name = ?", (table,)).fetchone()
    return bool(row and row[0])


class Insert:
    """The statements that insert rows from the flat list of their values."""

    def __init__(self, db: sqlite3.Connection, table: str, columns: list[TableColumn]) -> None:
        self._width = len(columns)
        names = ", ".join(quoted(column.name) for column in columns)
        self._head = f"INSERT INTO {quoted(table)} ({names}) VALUES "  # noqa: S608 - identifiers are quoted, values are bound
        self._row = f"({', '.join('?' * self._width)})"
        limit = db.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER)
        self._rows = max(1, min(_ROWS_PER_STATEMENT, limit // self._width))
        self._many = self._statement(self._rows)
        self.one = self._statement(1)

    def _statement(self, rows: int) -> str:
        return self._head + ", ".join([self._row] * rows)

    def all(self, db: sqlite3.Connection, values: list[object]) -> None:
        """Insert every row, many to a statement."""
        step = self._rows * self._width
        whole = len(values) - len(values) % step
        if whole:
            db.executemany(self._many, zip(*[iter(values)] * step, strict=False))
        if whole < len(values):
            db.execute(self._statement((len(values) - whole) // self._width), values[whole:])

    def each(
        self, db: sqlite3.Connection, values: list[object], refusals: tuple[type[Exception], ...]
    ) -> dict[int, str]:
        """Insert row by row; the rows that are refused, and why. An error ends with its statement undone alone."""
        reasons: dict[int, str] = {}
        for row, begin in enumerate(range(0, len(values), self._width)):
            try:
                db.execute(self.one, values[begin : begin + self._width])
            except refusals as error:
                reasons[row] = str(error)
                if not db.in_transaction:  # the table says ON CONFLICT ROLLBACK: the others are found by the next try
                    return reasons
        return reasons
