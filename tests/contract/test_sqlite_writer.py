"""The SQLite writer: its table, what SQLite would alter, its turns, and what its errors mean."""

import datetime as dt
import decimal
import enum
import fcntl
import math
import os
import sqlite3
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.codec.columns import Columns
from headrace.errors import ErrorClass, RejectedRows, SinkError
from headrace.sinks import Sqlite
from headrace_workers.writers.base import SealedBatch, WriterContext
from headrace_workers.writers.sqlite import SqliteWriter
from headrace_workers.writers.turn import Turn


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a b?.db"


@contextmanager
def opened(path: Path, **settings: Any) -> Iterator[tuple[SqliteWriter, Columns]]:
    sink = Sqlite(path, **{"table": "t", **settings})
    writer = SqliteWriter()
    try:
        columns = writer.open(WriterContext(sink=sink, shards=[0], worker="w", run_id="0", incarnation=1))
        yield writer, columns
    finally:
        writer.close()


def write(writer: SqliteWriter, *rows: tuple[Any, ...], shard: int = 0) -> None:
    writer.write(SealedBatch(shard, list(rows), None, len(rows), 0))


def query(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(sql).fetchall()


def run_sql(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.executescript(sql)


def rejected(path: Path, *rows: tuple[Any, ...], **settings: Any) -> dict[int, str]:
    """What a write of these rows is refused for; nothing of it is kept."""
    with opened(path, **settings) as (writer, _):
        try:
            write(writer, *rows)
        except RejectedRows as caught:
            assert query(path, "SELECT count(*) FROM t") == [(0,)]
            return caught.reasons
    return {}


# -- the table


def test_a_table_is_made_with_the_types_of_its_columns(path: Path) -> None:
    types = {"a": "any", "i": "int", "f": "float?", "s": "str?", "b": "bytes", "d": "date", "w": "bool"}

    with opened(path, create=True, columns=types) as (_, columns):
        pass

    assert columns == Columns(tuple(types), tuple(types.values()))
    assert query(path, "SELECT name, type, [notnull] FROM pragma_table_info('t')") == [
        ("a", "", 0), ("i", "INTEGER", 1), ("f", "REAL", 0), ("s", "TEXT", 0), ("b", "BLOB", 1), ("d", "TEXT", 1),
        ("w", "INTEGER", 1),
    ]  # fmt: skip


def test_names_are_identifiers_whatever_is_in_them(path: Path) -> None:
    """HR-21: no name becomes SQL."""
    names = ['x"); DROP TABLE t; --', "select", "a b", "é'"]
    with opened(path, table='my "table"; --', create=True, columns=names) as (writer, _):
        write(writer, (1, 2, 3, 4))

    assert query(path, 'SELECT * FROM "my ""table""; --"') == [(1, 2, 3, 4)]


def test_without_columns_those_of_the_table_are_written(path: Path) -> None:
    run_sql(path, "CREATE TABLE t (a INTEGER, b TEXT, c AS (a + 1))")

    with opened(path) as (writer, columns):
        write(writer, (1, "x"), (None, None))

    assert columns == Columns.untyped(["a", "b"])
    assert query(path, "SELECT a, b FROM t") == [(1, "x"), (None, None)]


def test_columns_are_found_in_any_case_and_any_order(path: Path) -> None:
    run_sql(path, "CREATE TABLE t (a INTEGER, B TEXT, c DEFAULT 7)")

    with opened(path, columns={"b": str, "A": int}) as (writer, _):
        write(writer, ("x", 1))

    assert query(path, "SELECT * FROM t") == [(1, "x", 7)]


@pytest.mark.parametrize(
    ("sql", "settings", "said"),
    [
        ("CREATE TABLE u (a)", {}, "table t is not there; make it, or give the sink create=True"),
        ("CREATE TABLE t (a)", {"columns": ["a", "z"]}, "has no column 'z'; it has a"),
        ("CREATE TABLE t (a TEXT)", {"columns": {"a": int}}, "a is int in the sink and TEXT in the table"),
        ("CREATE TABLE t (a INT)", {"columns": {"a": str}}, "a is str in the sink and INTEGER in the table"),
        ("CREATE TABLE t (a DOUBLE)", {"columns": {"a": decimal.Decimal}}, "a is decimal in the sink and REAL"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_at_open(
    path: Path, sql: str, settings: dict[str, Any], said: str
) -> None:
    run_sql(path, sql)

    with pytest.raises(SinkError) as caught, opened(path, **settings):
        pass

    assert said in str(caught.value)
    assert str(path) in str(caught.value)
    assert caught.value.error_class is ErrorClass.FATAL


def test_each_shard_has_its_own_file(tmp_path: Path) -> None:
    with opened(tmp_path / "s-{shard}.db", create=True, columns=["a"]) as (writer, _):
        write(writer, (1,), shard=0)
        write(writer, (2,), shard=5)

    assert query(tmp_path / "s-0.db", "SELECT * FROM t") == [(1,)]
    assert query(tmp_path / "s-5.db", "SELECT * FROM t") == [(2,)]


def test_a_shard_whose_table_has_other_columns_is_refused(tmp_path: Path) -> None:
    run_sql(tmp_path / "s-0.db", "CREATE TABLE t (a)")
    run_sql(tmp_path / "s-1.db", "CREATE TABLE t (a, b)")

    with opened(tmp_path / "s-{shard}.db") as (writer, _), pytest.raises(SinkError, match=r"s-1\.db: .* columns a, b"):
        write(writer, (1,), shard=1)


def test_commits_are_synced_in_wal_mode(path: Path) -> None:
    """C04: a commit that returned is on the disk."""
    statements: list[str] = []
    with opened(path, create=True, columns=["a"]) as (writer, _):
        (database,) = writer._databases.values()
        assert database._db is not None
        assert database._db.execute("PRAGMA synchronous").fetchone() == (2,)
        assert database._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        database._db.set_trace_callback(statements.append)
        write(writer, *((n,) for n in range(1_000)))

    assert statements[0] == "BEGIN IMMEDIATE"
    assert statements.count("COMMIT") == 1


# -- values


class Colour(enum.Enum):
    RED = "red"


class Size(enum.StrEnum):
    SMALL = "small"


NAIVE = dt.datetime.fromisoformat("2020-01-02T03:04:05")
STORED: list[tuple[Any, Any]] = [
    (None, None),
    (True, 1),
    (2**63 - 1, 2**63 - 1),
    (-(2**63), -(2**63)),
    (1.5, 1.5),
    (math.inf, math.inf),
    ("é\0x", "é\0x"),
    (b"\xff", b"\xff"),
    (bytearray(b"x"), b"x"),
    (decimal.Decimal("1.10"), "1.10"),
    (dt.date(2020, 1, 2), "2020-01-02"),
    (dt.time(1, 2, 3), "01:02:03"),
    (NAIVE, "2020-01-02T03:04:05"),
    (NAIVE.replace(tzinfo=dt.timezone(dt.timedelta(hours=2))), "2020-01-02T01:04:05+00:00"),
    (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
    (Colour.RED, "red"),
    (Size.SMALL, "small"),
]


def test_what_sqlite_has_no_type_for_becomes_text(path: Path) -> None:
    with opened(path, create=True, columns=["a"]) as (writer, _):
        write(writer, *((given,) for given, _ in STORED))

    found = [value for (value,) in query(path, "SELECT a FROM t ORDER BY rowid")]
    assert found == [stored for _, stored in STORED]
    assert [type(one) for one in found] == [type(stored) for _, stored in STORED]


@pytest.mark.parametrize("kind", ["date", "datetime", "time", "decimal", "uuid"])
def test_typed_columns_become_text_too(path: Path, kind: str) -> None:
    samples = {
        "date": STORED[10], "time": STORED[11], "datetime": STORED[13], "decimal": STORED[9], "uuid": STORED[14],
    }  # fmt: skip
    with opened(path, create=True, columns={"a": f"{kind}?"}) as (writer, _):
        write(writer, (samples[kind][0],), (None,))

    assert query(path, "SELECT a FROM t") == [(samples[kind][1],), (None,)]


@pytest.mark.parametrize(
    ("declared", "value", "said"),
    [
        ("", 2**63, "too large to convert to SQLite INTEGER"),
        ("INTEGER", -(2**63) - 1, "too large"),
        ("", math.nan, "column a: NaN would become NULL"),
        ("REAL", math.nan, "column a: NaN would become NULL"),
        ("", "\ud800", "surrogates not allowed"),
        ("", [1], "a list cannot be stored; make a text of it first"),
        ("", {"x": 1}, "a dict cannot be stored"),
        ("", object(), "a object cannot be stored"),
        ("", 1j, "a complex cannot be stored"),
        ("TEXT", 5, "a number would become a text"),
        ("VARCHAR(9)", 1.5, "a number would become a text"),
        ("INT", "007", "a text that looks like a number would become one"),
        ("DECIMAL(9,2)", " 1e5\t", "a text that looks like a number would become one"),
        ("NUMERIC", decimal.Decimal("12.50"), "a text that looks like a number would become one"),
        ("REAL", 2**53 + 1, "an integer beyond 2^53 would be rounded"),
    ],
)
def test_a_value_that_sqlite_would_alter_is_refused(path: Path, declared: str, value: Any, said: str) -> None:
    """J01, J02: never changed silently."""
    run_sql(path, f"CREATE TABLE t (a {declared})")

    reasons = rejected(path, (None,), (value,), (None,))

    assert list(reasons) == [1]
    assert said in reasons[1]


def test_nan_in_a_typed_column_is_found_among_infinities(path: Path) -> None:
    rows = [(value,) for value in (math.inf, -math.inf, None, 0.0, math.nan, 1.5)]

    assert list(rejected(path, *rows, create=True, columns={"a": float | None})) == [4]
    assert rejected(path, *rows[:4], create=True, columns={"a": float | None}) == {}


AFFINITIES = ["", "BLOB", "TEXT", "INTEGER", "REAL", "NUMERIC"]
numeric_texts = st.from_regex(r"\s?[+-]?[0-9]{0,3}\.?[0-9]{0,3}(e[+-]?[0-9])?\s?", fullmatch=True)
any_value = (
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.floats()
    | st.text(max_size=4)
    | st.binary(max_size=3)
    | numeric_texts
    | st.sampled_from(["0x10", "1_000", "١", "nan", "inf", "1e999", "9223372036854775808"])
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(any_value, min_size=1, max_size=8), st.sampled_from(AFFINITIES))
def test_what_is_not_refused_comes_back_equal(tmp_path: Path, values: list[Any], declared: str) -> None:
    """J01, J02: a property of every affinity: refused by name, or stored as it was."""
    path = tmp_path / f"{uuid.uuid4()}.db"
    run_sql(path, f"CREATE TABLE t (a {declared})")
    left = dict(enumerate(values))
    with opened(path) as (writer, _):
        while left:
            keys = list(left)
            try:
                write(writer, *((left[key],) for key in keys))
                break
            except RejectedRows as caught:
                for row in caught.reasons:
                    del left[keys[row]]

    found = [value for (value,) in query(path, "SELECT a FROM t ORDER BY rowid")]
    assert found == list(left.values())
    assert all(isinstance(one, str) == isinstance(two, str) for one, two in zip(found, left.values(), strict=True))


def test_constraints_reject_their_rows_alone(path: Path) -> None:
    run_sql(path, "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT NOT NULL, c INT CHECK (c < 10))")

    reasons = rejected(path, (1, "x", 1), (2, None, 1), (1, "again", 1), (3, "x", 11), (4, "x", 9))

    assert {row: text.split(" ")[0] for row, text in reasons.items()} == {1: "NOT", 2: "UNIQUE", 3: "CHECK"}


def test_a_table_that_rolls_back_on_conflict_still_keeps_nothing(path: Path) -> None:
    run_sql(path, "CREATE TABLE t (a UNIQUE ON CONFLICT ROLLBACK)")

    assert list(rejected(path, (1,), (2,), (1,), (2,))) == [2]


def test_a_strict_table_takes_its_types(path: Path) -> None:
    run_sql(path, "CREATE TABLE t (a INTEGER, b ANY) STRICT")

    assert list(rejected(path, (1, "5"), ("x", 1), (1.5, 2))) == [1, 2]


def test_a_batch_with_rows_of_other_widths_is_a_fault_not_a_shift(path: Path) -> None:
    with opened(path, create=True, columns=["a", "b"]) as (writer, _), pytest.raises(ValueError, match="other widths"):
        write(writer, (1,), (2, 3, 4))


# -- turns and errors


def test_another_programs_transaction_is_waited_for_then_tried_again(path: Path) -> None:
    with opened(path, create=True, columns=["a"], timeout=0.05) as (writer, _):
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(SinkError, match="another program holds the database") as caught:
                write(writer, (1,))
        write(writer, (1,))

    assert caught.value.retryable
    assert query(path, "SELECT * FROM t") == [(1,)]


def test_a_turn_that_another_process_keeps_is_waited_for_then_tried_again(path: Path) -> None:
    with opened(path, create=True, columns=["a"], timeout=0.05) as (writer, _):
        fd = os.open(f"{path}-headrace.lock", os.O_RDONLY | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            with pytest.raises(SinkError, match=r"kept its turn for longer than timeout=0\.05") as caught:
                write(writer, (1,))
        finally:
            os.close(fd)
        write(writer, (2,))

    assert caught.value.retryable
    assert query(path, "SELECT * FROM t") == [(2,)]


def test_a_turn_that_ends_in_time_is_had(path: Path) -> None:
    with opened(path, create=True, columns=["a"]) as (writer, _):
        fd = os.open(f"{path}-headrace.lock", os.O_RDONLY | os.O_CREAT)
        fcntl.flock(fd, fcntl.LOCK_EX)
        thread = threading.Thread(target=write, args=(writer, (1,)))
        thread.start()
        os.close(fd)
        thread.join()

    assert query(path, "SELECT * FROM t") == [(1,)]


def test_a_lock_file_that_was_removed_keeps_nobody_out_or_in(path: Path) -> None:
    with opened(path, create=True, columns=["a"]) as (one, _), opened(path, columns=["a"]) as (other, _):
        write(one, (1,))
        Path(f"{path}-headrace.lock").unlink()
        write(other, (2,))
        write(one, (3,))

    assert query(path, "SELECT * FROM t ORDER BY rowid") == [(1,), (2,), (3,)]
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_turn_counts_only_on_the_lock_file_that_is_there(tmp_path: Path) -> None:
    """Who waits for the lock of a file that is removed meanwhile must not share the turn with who makes it anew."""
    lock = tmp_path / "x.lock"
    old = os.open(lock, os.O_RDONLY | os.O_CREAT)
    fcntl.flock(old, fcntl.LOCK_EX)
    has_turn, checked = threading.Event(), threading.Event()

    def take() -> None:
        with Turn(str(lock)).held(30):
            has_turn.set()
            checked.wait(30)

    thread = threading.Thread(target=take)
    thread.start()
    while not is_waited_for(lock):
        thread.join(0.005)
    lock.unlink()
    os.close(old)
    assert has_turn.wait(30)

    new = os.open(lock, os.O_RDONLY | os.O_CREAT)
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(new, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        checked.set()
        thread.join()
        os.close(new)


def is_waited_for(lock: Path) -> bool:
    """Whether somebody waits in flock: the kernel lists waiters with an arrow."""
    inode = f":{lock.stat().st_ino} "
    return any("->" in line and inode in line for line in Path("/proc/locks").read_text(encoding="ascii").splitlines())


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (lambda path: path.write_bytes(b"not a database at all" * 100), "is no SQLite database"),
        (lambda path: path.mkdir(), "cannot be opened"),
        (lambda _: None, "is not there; make it, or give the sink create=True"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_reason(path: Path, prepare: Any, said: str) -> None:
    prepare(path)

    with pytest.raises(SinkError, match=said) as caught, opened(path):
        pass

    assert path.name in str(caught.value)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "a.db"

    with pytest.raises(SinkError, match=r"there is no folder .*/gone; make it first") as caught, opened(path):
        pass

    assert caught.value.error_class is ErrorClass.FATAL


def test_a_table_that_was_dropped_meanwhile_is_a_failure_for_good(path: Path) -> None:
    with opened(path, create=True, columns=["a"]) as (writer, _):
        run_sql(path, "DROP TABLE t")
        with pytest.raises(SinkError, match="no such table: t") as caught:
            write(writer, (1,))

    assert caught.value.error_class is ErrorClass.FATAL


def test_a_file_that_was_moved_away_is_noticed_before_rows_are_lost(path: Path) -> None:
    with opened(path, create=True, columns=["a"]) as (writer, _):
        write(writer, (1,))
        path.rename(path.with_name("elsewhere.db"))

        with pytest.raises(SinkError, match="was moved, removed or replaced") as caught:
            write(writer, (2,))

    assert caught.value.error_class is ErrorClass.FATAL


def test_a_damaged_file_is_told_apart_from_a_full_disk(path: Path) -> None:
    """E03: three causes, three messages."""
    with opened(path, create=True, columns=["a"]) as (writer, _):
        write(writer, *((f"{n}" * 100,) for n in range(1_000)))
    with path.open("r+b") as file:
        file.seek(4_096)
        file.write(b"\xff" * 8_192)

    with pytest.raises(SinkError, match="the database is damaged") as caught, opened(path) as (writer, _):
        write(writer, *((n,) for n in range(1_000)))

    assert caught.value.error_class is ErrorClass.FATAL
