"""Writes batches into an SQLite table, one transaction each, in turns with everyone who writes that file.

The connection is in WAL mode with ``synchronous=FULL``: a commit that returned is on the disk. Values are brought into
shape before the turn begins. A turn (`turn`, on ``<file>-headrace.lock``) comes before ``BEGIN IMMEDIATE``, because
SQLite's own waiting sleeps and starves; other programs are waited for by SQLite. One connection a file: more would
only wait for each other.

A row that SQLite refuses (a constraint, a type, a value it cannot hold) rolls everything back; then all rows are tried
one by one in a transaction that is rolled back too, so that one `RejectedRows` names them all.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import urllib.parse
from collections.abc import Generator
from typing import Final

from headrace.codec.columns import Columns
from headrace.errors import ErrorClass, RejectedRows, SinkError
from headrace.sinks.sqlite import Sqlite
from headrace_workers.writers.base import BlockingWriter, SealedBatch, WriterContext
from headrace_workers.writers.failures import os_failure, sqlite_failure
from headrace_workers.writers.sqlite_table import Insert, create_table, table_columns
from headrace_workers.writers.sqlite_values import Binder
from headrace_workers.writers.turn import Turn

_REFUSALS: Final = (sqlite3.IntegrityError, sqlite3.DataError, OverflowError, UnicodeEncodeError)
"""What SQLite says of a row. Its ProgrammingError is none: it is about the statement or the connection."""


class SqliteWriter(BlockingWriter):
    """One database file, or one for each shard where the path has ``{shard}``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._databases: dict[str, _Database] = {}
        self._sink: Sqlite | None = None
        self._columns: Columns | None = None

    def open(self, context: WriterContext) -> Columns:
        """Open the files of the shards that are owned; their columns must be the same."""
        if not isinstance(context.sink, Sqlite):
            raise TypeError(f"the sqlite writer was given a {type(context.sink).__name__}")
        self._sink = context.sink
        for shard in context.shards or (0,):
            self._database(shard)
        assert self._columns is not None
        return self._columns

    def write(self, batch: SealedBatch) -> None:
        if batch.rows:
            self._database(batch.shard).write(batch.rows)

    def close(self) -> None:
        for database in self._databases.values():
            database.close()
        self._databases.clear()

    def _database(self, shard: int) -> _Database:
        sink = self._sink
        assert sink is not None, "write comes after open"
        path = sink.file_of(shard)
        with self._lock:
            if path not in self._databases:
                database = _Database(path, sink)
                columns = database.open()
                if self._columns is not None and columns != self._columns:
                    database.close()
                    raise SinkError(
                        f"{path}: table {sink.table} has the columns {', '.join(columns.names)}, in other files "
                        f"{', '.join(self._columns.names)}",
                        error_class=ErrorClass.FATAL,
                    )
                self._columns = columns
                self._databases[path] = database
            return self._databases[path]


class _Database:
    """One file: its connection, made again after any failure, and its turns."""

    def __init__(self, path: str, sink: Sqlite) -> None:
        self._path = path
        self._sink = sink
        self._turn = Turn(f"{path}-headrace.lock")
        self._db: sqlite3.Connection | None = None
        self._identity: os.stat_result | None = None
        self._binder: Binder | None = None
        self._insert: Insert | None = None
        self._columns: Columns | None = None

    def open(self) -> Columns:
        """Connect, make what is to be made, and look at the table."""
        folder = os.path.dirname(self._path) or "."  # noqa: PTH120 - beside other uses of the path as a text
        if not os.path.isdir(folder):  # noqa: PTH112 - as above
            raise SinkError(f"{self._path}: there is no folder {folder}; make it first", error_class=ErrorClass.FATAL)
        with self._my_turn(needed=not self._stands_already()):
            self._connected()
        assert self._columns is not None
        return self._columns

    def _stands_already(self) -> bool:
        """Whether nothing is to be made. Then a new worker need not wait for a turn before it is ready."""
        if not os.path.exists(self._path):  # noqa: PTH110 - as in open
            return False
        try:
            db = sqlite3.connect(f"file:{urllib.parse.quote(self._path)}?mode=rw", uri=True, timeout=0.0)
        except sqlite3.Error:
            return False
        try:
            (mode,) = db.execute("PRAGMA journal_mode").fetchone()
            found = db.execute("SELECT 1 FROM sqlite_master WHERE lower(name) = lower(?)", (self._sink.table,))
            return mode == "wal" and found.fetchone() is not None
        except sqlite3.Error:
            return False
        finally:
            db.close()

    def write(self, rows: list[tuple[object, ...]]) -> None:
        """One transaction. Raises `RejectedRows` or `SinkError`, the file as it was before."""
        assert self._binder is not None
        values = self._binder.bind(rows)
        with self._my_turn():
            db = self._connected()
            try:
                self._transact(db, values)
            except _REFUSALS:
                reasons = self._refused(db, values)
                if reasons:
                    raise RejectedRows(reasons) from None
                raise

    def close(self) -> None:
        if self._db is not None:
            self._forget()
            self._turn.remove()

    # -- inside the turn

    @contextlib.contextmanager
    def _my_turn(self, *, needed: bool = True) -> Generator[None]:
        """Hold the turn; any failure but a refused row closes the connection and says what it means."""
        try:
            with self._turn.held(self._sink.timeout) if needed else contextlib.nullcontext():
                try:
                    yield
                except RejectedRows:
                    raise
                except BaseException:
                    self._forget()
                    raise
        except TimeoutError:
            raise SinkError(
                f"{self._path}: another process kept its turn for longer than timeout={self._sink.timeout:g} seconds"
            ) from None
        except OSError as error:
            raise os_failure(f"{self._path}-headrace.lock", "the turn cannot be taken", error) from error
        except sqlite3.Error as error:
            raise sqlite_failure(self._path, error) from error

    def _connected(self) -> sqlite3.Connection:
        if self._db is not None:
            self._check_identity()
            return self._db
        mode = "rwc" if self._sink.create else "rw"
        if mode == "rw" and not os.path.exists(self._path):  # noqa: PTH110 - as in open
            raise SinkError(
                f"{self._path} is not there; make it, or give the sink create=True", error_class=ErrorClass.FATAL
            )
        db = self._db = sqlite3.connect(
            f"file:{urllib.parse.quote(self._path)}?mode={mode}",
            uri=True,
            timeout=self._sink.timeout,
            isolation_level=None,
            check_same_thread=False,
        )
        (answer,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
        if answer != "wal":
            raise SinkError(
                f"{self._path}: SQLite keeps journal_mode={answer} where WAL was asked for; is the file on a file "
                "system without shared memory?",
                error_class=ErrorClass.FATAL,
            )
        db.execute("PRAGMA synchronous = FULL")
        self._look_at_table(db)
        self._identity = os.stat(self._path)
        return db

    def _look_at_table(self, db: sqlite3.Connection) -> None:
        declared = self._sink.declared_columns()
        if self._sink.create and declared is not None:
            create_table(db, self._sink.table, declared)
        found = table_columns(db, self._path, self._sink.table, declared)
        columns = Columns(tuple(one.name for one in found), tuple(one.type for one in found))
        if self._columns is not None and columns != self._columns:
            raise SinkError(
                f"{self._path}: table {self._sink.table} was altered while rows were written to it; start again",
                error_class=ErrorClass.FATAL,
            )
        self._columns = columns
        self._binder = Binder(found)
        self._insert = Insert(db, self._sink.table, found)

    def _check_identity(self) -> None:
        """SQLite would go on writing into a file that no path leads to any more."""
        try:
            now = os.stat(self._path)
        except FileNotFoundError:
            now = None
        if now is None or self._identity is None or not os.path.samestat(now, self._identity):
            raise SinkError(
                f"{self._path} was moved, removed or replaced while rows were written to it",
                error_class=ErrorClass.FATAL,
            )

    def _transact(self, db: sqlite3.Connection, values: list[object]) -> None:
        assert self._insert is not None
        db.execute("BEGIN IMMEDIATE")
        try:
            self._insert.all(db, values)
            db.execute("COMMIT")
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")

    def _refused(self, db: sqlite3.Connection, values: list[object]) -> dict[int, str]:
        assert self._insert is not None
        db.execute("BEGIN IMMEDIATE")
        try:
            return self._insert.each(db, values, _REFUSALS)
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")

    def _forget(self) -> None:
        if self._db is not None:
            with contextlib.suppress(sqlite3.Error):
                self._db.close()
            self._db = None
