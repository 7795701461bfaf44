"""The journal: everything of a run that outlives it, in one file, written by one thread in one order.

``state.db`` (SQLite, WAL, ``synchronous=FULL``)::

    meta       key, value         schema, pipeline, incarnation, shards, fingerprint
    watermarks                    checkpoint/store.py
    partitions partition, details how a source recognises a partition again
    processes  incarnation, kind, name, boot_id, pid, start_ticks
    ledger     seq, kind, incarnation, sink, shard, chunk, attempt, worker, pid, start_ticks, host, version, digest,
               outcome, rows, wall  kind: lease | done | failed | lost; wall is an annotation, never compared
    losses     sink, shard, partition, first, last, count

``dead_letter/letters.db``::

    letters    id, incarnation, sink, shard, partition, position, child, stage, cause, raw, wall
               unique by (sink, shard, partition, position, child)

What is queued first is durable first. The thread takes all that waits, writes it in one transaction, and tells the
loop through an eventfd; the loop never waits for it (HR-2). Every transaction first reads the incarnation back and
stops the run if another supervisor has raised it. After a crash a reader finds a prefix of what was queued.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace.checkpoint.store import SqliteCheckpointStore
from headrace.errors import StateError
from headrace.lease.fences import WorkerAttribution
from headrace.lease.handoff import LeaseKey
from headrace.record import BadRecord, PartitionIdentity
from headrace.supervisor.process import ProcessIdentity

SCHEMA = 1
LEDGER_KEEP = 10_000
_PRUNE_EVERY = 2_000

_TABLES = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS partitions (partition TEXT PRIMARY KEY, details BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS processes (incarnation INTEGER, kind TEXT, name TEXT, boot_id TEXT, pid INTEGER,
    start_ticks INTEGER, PRIMARY KEY (incarnation, pid, start_ticks)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ledger (seq INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, incarnation INTEGER,
    sink INTEGER, shard INTEGER, chunk INTEGER, attempt INTEGER, worker TEXT, pid INTEGER, start_ticks INTEGER,
    host TEXT, version TEXT, digest TEXT, outcome TEXT, rows INTEGER, wall REAL);
CREATE INDEX IF NOT EXISTS ledger_chunk ON ledger (incarnation, chunk, kind);
CREATE TABLE IF NOT EXISTS losses (sink INTEGER, shard INTEGER, partition TEXT, first INTEGER, last INTEGER,
    count INTEGER NOT NULL, PRIMARY KEY (sink, shard, partition, first, last)) WITHOUT ROWID;
"""
_LETTERS = """
CREATE TABLE IF NOT EXISTS letters (id INTEGER PRIMARY KEY, incarnation INTEGER, sink TEXT, shard INTEGER,
    partition TEXT, position INTEGER, child INTEGER, stage TEXT, cause TEXT, raw BLOB, wall REAL,
    UNIQUE (sink, shard, partition, position, child));
"""


class Letter(msgspec.Struct, frozen=True):
    """A dead letter on its way to ``letters.db``. ``shard`` is -1 before routing, and ``sink`` then empty."""

    sink: str
    shard: int
    record: BadRecord


class Loss(msgspec.Struct, frozen=True):
    """One death counted against a chunk, by what the chunk held."""

    sink: int
    shard: int
    partition: str
    first: int
    last: int


class InFlightLease(msgspec.Struct, frozen=True):
    """A chunk that an earlier incarnation handed over and of which no end is recorded."""

    sink: int
    shard: int
    chunk: int
    worker: str
    pid: int


class Recovered(msgspec.Struct, frozen=True):
    """What the state directory held when this incarnation began."""

    incarnation: int
    shards: int | None
    watermarks: dict[str, int]
    identities: list[PartitionIdentity]
    workers: list[ProcessIdentity]
    helpers: list[ProcessIdentity]
    in_flight: list[InFlightLease]
    losses: dict[Loss, int]


class JournalFailure(msgspec.Struct, frozen=True):
    """A transaction that could not be written: which file, and why. ``lost``: another supervisor owns the file now."""

    path: Path
    reason: str
    lost: bool


class NotNowError(StateError):
    """A database that cannot be used now, and may be later."""


def connect(path: Path) -> sqlite3.Connection:
    """An autocommit connection to a state database, in WAL mode by its own answer.

    Raises `StateError` for a file that is not a database, is read-only, or belongs to a newer version.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        os.close(fd)
        db = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)
        try:
            mode = db.execute("PRAGMA journal_mode=WAL").fetchone()[0]
            if mode != "wal":
                raise StateError(f"{path}: the file system gives no write-ahead log (journal_mode is {mode})")
            db.execute("PRAGMA synchronous=FULL").fetchone()
        except BaseException:
            db.close()
            raise
    except sqlite3.DatabaseError as error:
        raise _unusable(path, error) from None
    except OSError as error:
        raise StateError(f"{path}: {error.strerror}; the state directory must be writable and ours") from None
    return db


def _unusable(path: Path, error: sqlite3.DatabaseError) -> StateError:
    damaged = getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)
    if damaged or not isinstance(error, sqlite3.OperationalError):
        return StateError(f"{path}: {error}; it is kept as it is: repair it, move it away, or use another --state")
    return NotNowError(f"{path}: {error}; is there space left, and is the disk sound?")


def begin_incarnation(path: Path, pipeline: str) -> tuple[sqlite3.Connection, Recovered]:
    """Open ``state.db``, raise the incarnation durably, and read what earlier ones left.

    Raises `StateError` when it belongs to another pipeline or a newer version.
    """
    db = connect(path)
    try:
        return db, _begin(db, path, pipeline)
    except sqlite3.DatabaseError as error:
        db.close()
        raise _unusable(path, error) from None
    except BaseException:
        db.close()
        raise


def _begin(db: sqlite3.Connection, path: Path, pipeline: str) -> Recovered:
    damage = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if damage != "ok":
        raise StateError(f"{path} is damaged ({damage}); it is kept as it is: restore it, or use another --state")
    db.execute("BEGIN IMMEDIATE")
    try:
        for statement in _TABLES.split(";"):
            db.execute(statement)
        store = SqliteCheckpointStore(db)
        store.create()
        meta = dict(db.execute("SELECT key, value FROM meta"))
        _check_meta(meta, path, pipeline)
        incarnation = int(meta.get("incarnation", 0)) + 1
        db.executemany(
            "INSERT OR REPLACE INTO meta VALUES (?, ?)",
            [("schema", SCHEMA), ("pipeline", pipeline), ("incarnation", incarnation)],
        )
        store.take_over(incarnation)
        recovered = Recovered(
            incarnation=incarnation,
            shards=meta.get("shards"),
            watermarks={str(k): int(v) for k, v in store.load().items()},
            identities=[
                PartitionIdentity(partition=row[0], details=row[1])
                for row in db.execute("SELECT partition, details FROM partitions")
            ],
            workers=_processes(db, "worker"),
            helpers=_processes(db, "helper"),
            in_flight=_in_flight(db, incarnation - 1),
            losses={Loss(*row[:5]): row[5] for row in db.execute("SELECT * FROM losses")},
        )
        db.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise
    return recovered


def _check_meta(meta: Mapping[str, Any], path: Path, pipeline: str) -> None:
    if int(meta.get("schema", SCHEMA)) > SCHEMA:
        raise StateError(f"{path} was written by a newer headrace (schema {meta['schema']}, this one knows {SCHEMA})")
    if meta.get("pipeline", pipeline) != pipeline:
        raise StateError(
            f"{path.parent} belongs to the pipeline {meta['pipeline']!r}, not to {pipeline!r}; give another --state"
        )


def _processes(db: sqlite3.Connection, kind: str) -> list[ProcessIdentity]:
    rows = db.execute("SELECT boot_id, pid, start_ticks FROM processes WHERE kind = ?", (kind,))
    return [ProcessIdentity(*row) for row in rows]


def _in_flight(db: sqlite3.Connection, incarnation: int) -> list[InFlightLease]:
    """The last lease of each chunk that has no end."""
    rows = db.execute(
        "SELECT sink, shard, chunk, worker, pid FROM ledger AS lease WHERE kind = 'lease' AND incarnation = ?"
        " AND NOT EXISTS (SELECT 1 FROM ledger AS later WHERE later.incarnation = lease.incarnation"
        " AND later.chunk = lease.chunk AND later.seq > lease.seq)"
        " ORDER BY sink, shard, chunk",
        (incarnation,),
    )
    return [InFlightLease(*row) for row in rows]


def read_leases(path: Path, limit: int) -> list[dict[str, object]]:
    """The newest rows of a ledger, newest first, for people and tools; opens the file read-only."""
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=1.0)
    try:
        db.row_factory = sqlite3.Row
        return [dict(row) for row in db.execute("SELECT * FROM ledger ORDER BY seq DESC LIMIT ?", (limit,))]
    finally:
        db.close()


class _Op(msgspec.Struct):
    """One queued write: statements for ``state.db``, letters, and what the loop is told once it is durable.

    ``owed``: where it cannot be written, nothing later is written without it.
    """

    statements: list[tuple[str, Sequence[object]]] = msgspec.field(default_factory=list[tuple[str, Sequence[object]]])
    positions: Mapping[Any, int] = msgspec.field(default_factory=dict[Any, int])
    letters: list[Letter] = msgspec.field(default_factory=list[Letter])
    done: Callable[[], None] | None = None
    failed: Callable[[JournalFailure], None] | None = None
    owed: bool = False


_LEDGER_SQL = (
    "INSERT INTO ledger (kind, incarnation, sink, shard, chunk, attempt, worker, pid, start_ticks, host, version,"
    " digest, outcome, rows, wall) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


class Journal:
    """The writing thread and its queue. Every method but `collect` and `close` only queues, and returns at once."""

    def __init__(self, db: sqlite3.Connection, path: Path, letters: Path, incarnation: int, host: str) -> None:
        self._db = db
        self._path = path
        self._letters_path = letters
        self._letters: sqlite3.Connection | None = None
        self._incarnation = incarnation
        self._host = host
        self._queue: queue.SimpleQueue[_Op | None] = queue.SimpleQueue()
        self._told: deque[Callable[[], None]] = deque()
        self._since_prune = 0
        self._owed: list[_Op] = []
        self.pending = 0
        self.record_failures = 0
        self.last_failure: JournalFailure | None = None
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="headrace-journal", daemon=True)
        self._thread.start()

    # -- what the loop asks for

    def lease(self, key: LeaseKey, worker: WorkerAttribution, digest: str) -> None:
        """A worker holds a chunk."""
        values = (worker.name, worker.pid, worker.start_ticks, worker.host, worker.version, digest, None, None)
        self._put(_Op(statements=[(_LEDGER_SQL, self._ledger("lease", key, values))]))

    def ended(self, kind: str, key: LeaseKey, worker: str, outcome: str, rows: int) -> None:
        """A lease ended: ``done``, ``failed`` or ``lost``."""
        values = (worker, None, None, self._host, None, None, outcome, rows)
        self._put(_Op(statements=[(_LEDGER_SQL, self._ledger(kind, key, values))]))

    def _ledger(self, kind: str, key: LeaseKey, values: tuple[object, ...]) -> tuple[object, ...]:
        return (kind, self._incarnation, key.sink, key.shard, key.chunk, key.attempt, *values, time.time())

    def losses(
        self, losses: Sequence[Loss], done: Callable[[], None], failed: Callable[[JournalFailure], None]
    ) -> None:
        """Count a death against each of these."""
        sql = (
            "INSERT INTO losses VALUES (?, ?, ?, ?, ?, 1)"
            " ON CONFLICT (sink, shard, partition, first, last) DO UPDATE SET count = count + 1"
        )
        self._put(_Op(statements=[(sql, msgspec.structs.astuple(one)) for one in losses], done=done, failed=failed))

    def forget_losses(self, losses: Sequence[Loss]) -> None:
        """What these counted has been delivered."""
        sql = "DELETE FROM losses WHERE sink = ? AND shard = ? AND partition = ? AND first = ? AND last = ?"
        self._put(_Op(statements=[(sql, msgspec.structs.astuple(one)) for one in losses]))

    def remember(self, identity: PartitionIdentity) -> None:
        """Keep how a partition is recognised; durable before any position queued after it."""
        sql = "INSERT OR REPLACE INTO partitions VALUES (?, ?)"
        self._put(_Op(statements=[(sql, (identity.partition, identity.details))], owed=True))

    def process(
        self,
        kind: str,
        name: str,
        identity: ProcessIdentity,
        done: Callable[[], None] | None,
        failed: Callable[[JournalFailure], None] | None = None,
    ) -> None:
        """Keep who runs for this incarnation (``worker`` or ``helper``)."""
        sql = "INSERT OR REPLACE INTO processes VALUES (?, ?, ?, ?, ?, ?)"
        row = (self._incarnation, kind, name, identity.boot_id, identity.pid, identity.start_ticks)
        self._put(_Op(statements=[(sql, row)], done=done, failed=failed))

    def gone(self, identity: ProcessIdentity) -> None:
        """A recorded process was proved gone."""
        sql = "DELETE FROM processes WHERE pid = ? AND start_ticks = ?"
        self._put(_Op(statements=[(sql, (identity.pid, identity.start_ticks))]))

    def commit(
        self, positions: Mapping[Any, int], done: Callable[[], None], failed: Callable[[JournalFailure], None]
    ) -> None:
        """Make watermarks durable. ``failed`` is told each time it could not be done; the attempt is given up then."""
        self._put(_Op(positions=dict(positions), done=done, failed=failed))

    def letters(
        self, letters: list[Letter], done: Callable[[], None], failed: Callable[[JournalFailure], None]
    ) -> None:
        """Make dead letters durable; ``failed`` ends what passes them (HR-15)."""
        self._put(_Op(letters=letters, done=done, failed=failed))

    def _put(self, op: _Op) -> None:
        self.pending += 1
        self._queue.put(op)

    # -- what the loop hears

    def collect(self) -> int:
        """Run what the thread has to tell; on the loop. The number of writes that ended."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.wake_fd)
        ended = 0
        while self._told:
            self._told.popleft()()
            ended += 1
        self.pending -= ended
        return ended

    def close(self, timeout: float) -> bool:
        """Write what waits and stop; False when the thread did not end in time."""
        self._queue.put(None)
        self._thread.join(timeout)
        ended = not self._thread.is_alive()
        if ended:
            self.collect()
            for db in (self._letters, self._db):
                if db is not None:
                    with contextlib.suppress(sqlite3.Error):
                        db.close()
            os.close(self.wake_fd)
        return ended

    # -- the thread

    def _run(self) -> None:
        last = False
        while not last:
            ops, last = self._take()
            if ops:
                self._write(ops)

    def _take(self) -> tuple[list[_Op], bool]:
        """All that waits, at least one."""
        ops: list[_Op] = []
        item = self._queue.get()
        while item is not None:
            ops.append(item)
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return ops, False
        return ops, True

    def _write(self, ops: list[_Op]) -> None:
        try:
            letters = [letter for op in ops for letter in op.letters]
            if letters:
                self._write_letters(letters)
            self._write_state(ops)
        except Exception as error:  # noqa: BLE001 - a thread that dies in silence would hang every commit
            if len(ops) > 1:
                for op in ops:
                    self._write([op])
                return
            self._owed += [op for op in ops if op.owed]
            self._tell_failure(
                ops[0], str(error), lost=isinstance(error, StateError) and not isinstance(error, NotNowError)
            )
        else:
            for op in ops:
                self._tell(op.done)

    def _write_state(self, ops: list[_Op]) -> None:
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        try:
            current = db.execute("SELECT value FROM meta WHERE key = 'incarnation'").fetchone()[0]
            if current != self._incarnation:
                raise StateError(f"incarnation {current} has taken this state directory over")
            for op in [*self._owed, *ops]:
                for sql, values in op.statements:
                    db.execute(sql, values)
                if op.positions:
                    SqliteCheckpointStore(db).commit(self._incarnation, op.positions)
            self._prune(len(ops))
            db.execute("COMMIT")
            self._owed.clear()
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                db.execute("ROLLBACK")
            raise

    def _prune(self, ops: int) -> None:
        """Drop old rows of the ledger whose chunk has ended or whose incarnation has (HR-9)."""
        self._since_prune += ops
        if self._since_prune < _PRUNE_EVERY:
            return
        self._since_prune = 0
        self._db.execute(
            "DELETE FROM ledger WHERE seq < (SELECT max(seq) FROM ledger) - ? AND (incarnation < ? OR kind <> 'lease'"
            " OR EXISTS (SELECT 1 FROM ledger AS later WHERE later.incarnation = ledger.incarnation"
            " AND later.chunk = ledger.chunk AND later.seq > ledger.seq))",
            (LEDGER_KEEP, self._incarnation),
        )

    def _write_letters(self, letters: list[Letter]) -> None:
        db = self._letters or self._open_letters()
        rows = [
            (
                self._incarnation,
                letter.sink,
                letter.shard,
                letter.record.partition,
                letter.record.position,
                letter.record.child,
                letter.record.stage,
                letter.record.cause,
                letter.record.raw,
                time.time(),
            )
            for letter in letters
        ]
        db.execute("BEGIN IMMEDIATE")
        try:
            db.executemany(
                "INSERT INTO letters (incarnation, sink, shard, partition, position, child, stage, cause, raw, wall)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET stage = excluded.stage,"
                " cause = excluded.cause, raw = excluded.raw, incarnation = excluded.incarnation, wall = excluded.wall",
                rows,
            )
            db.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                db.execute("ROLLBACK")
            raise

    def _open_letters(self) -> sqlite3.Connection:
        db = connect(self._letters_path)
        db.execute(_LETTERS)
        self._letters = db
        return db

    def _tell_failure(self, op: _Op, reason: str, *, lost: bool) -> None:
        failure = JournalFailure(self._letters_path if op.letters else self._path, reason, lost)
        failed = op.failed or self._count_failure
        self._tell(lambda: failed(failure))

    def _count_failure(self, failure: JournalFailure) -> None:
        self.record_failures += 1
        self.last_failure = failure

    def _tell(self, callback: Callable[[], None] | None) -> None:
        self._told.append(callback or _nothing)
        with contextlib.suppress(BlockingIOError, OSError):
            os.eventfd_write(self.wake_fd, 1)


def _nothing() -> None:
    return None
