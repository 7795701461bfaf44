"""Dead letters, one for each bad row whoever dies meanwhile, and the books of every run (HR-8, HR-15)."""

import os
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from headrace.supervisor import process
from headrace.supervisor.process import ProcessIdentity, boot_id
from tests.process.records import chain, landed, letters, lines_of_numbers, position_of, write_lines, written
from tests.process.run_headrace import Headrace, Running, WorkerSeen, wait_until

COUNT = 200

CHILDREN = """
def children(r):
    return [(r.n, c) for c in range(r.n % 4)]

def odd(row):
    return row[1] % 2 == 1

def twice(row):
    return [(row[0], row[1] * 10 + d) for d in (0, 1)]
"""

REFUSED = "n % 10 = 3 AND c <> 1"


def is_refused(n: int, c: int) -> bool:
    return n % 10 == 3 and c != 1


def with_table(headrace: Headrace, *, count: int = COUNT) -> list[str]:
    """The input, and a table that refuses some rows; the input's lines."""
    lines = lines_of_numbers(count)
    write_lines(headrace, lines)
    with closing(sqlite3.connect(headrace.folder / "out.db")) as db:
        db.execute(f"CREATE TABLE t (n INTEGER, c INTEGER CHECK (NOT ({REFUSED})))")
    return lines


INTO_TABLE = 'sink(Sqlite("out.db", table="t"))'

SHAPES: dict[str, tuple[tuple[str, ...], Callable[[int], list[tuple[int, int, int]]]]] = {
    "flat_map in the supervisor": (("flat_map(children)",), lambda n: [(n, c, c) for c in range(n % 4)]),
    "flat_map in workers, of lines": (
        ('shard_by("n")', "flat_map(children)"),
        lambda n: [(n, c, c) for c in range(n % 4)],
    ),
    "flat_map in workers, of records": (
        ("shard_by(lambda r: r.n)", "flat_map(children)"),
        lambda n: [(n, c, c) for c in range(n % 4)],
    ),
    "flat_map in the supervisor, a filter in workers": (
        ("flat_map(children)", "shard_by(lambda row: row[0])", "filter(odd)"),
        lambda n: [(n, c, c) for c in range(n % 4) if c % 2],
    ),
    "flat_map on both sides": (
        ("flat_map(children)", "shard_by(lambda row: row[1])", "flat_map(twice)"),
        lambda n: [(n, c * 10 + d, -1) for c in range(n % 4) for d in (0, 1)],
    ),
    "filters on both sides": (
        ("filter(lambda r: r.n % 4 != 0)", "shard_by(lambda r: r.n)", "filter(lambda r: r.n % 4 != 2)",
         "map(lambda r: (r.n, 0))"),
        lambda n: [(n, 0, 0)] if n % 2 else [],
    ),
}  # fmt: skip
"""The steps of a chain, and for a record the rows that it becomes: n, c, and its number as a child."""


@pytest.mark.parametrize(
    ("shape", "policy"),
    [*((shape, "dead_letter") for shape in SHAPES), ("flat_map in workers, of lines", "skip")],
)
def test_every_record_is_counted_once_and_every_refused_row_has_its_letter(
    headrace: Headrace, shape: str, policy: str
) -> None:
    """B01: a record counts by the first of dead-lettered, skipped, written, filtered."""
    lines = with_table(headrace)
    steps, rows_of = SHAPES[shape]
    pipeline = headrace.write("p.py", chain(*steps, INTO_TABLE, more=CHILDREN))

    report = headrace.run_pipeline(pipeline, "--workers", "2", "--set", f"on_error={policy}").expect(0).report

    rows = {n: rows_of(n) for n in range(COUNT)}
    bad = {n for n, its in rows.items() if any(is_refused(*row[:2]) for row in its)}
    good = [(n, c) for its in rows.values() for n, c, _ in its if not is_refused(n, c)]
    with closing(sqlite3.connect(headrace.folder / "out.db")) as db:
        assert sorted(db.execute("SELECT n, c FROM t")) == sorted(good)
    assert report["rows_written"] == len(good)
    assert report["records_in"] == COUNT
    assert report["in_flight"] == 0
    assert report["filtered"] == sum(not its for its in rows.values())
    assert report["dead_letters" if policy == "dead_letter" else "skipped"] == len(bad)
    assert report["skipped" if policy == "dead_letter" else "dead_letters"] == 0
    assert written(report) == sum(bool(its) and n not in bad for n, its in rows.items())
    refused = [row for its in rows.values() for row in its if is_refused(*row[:2])] if policy == "dead_letter" else []
    found = letters(headrace)
    assert sorted(letter.raw for letter in found) == sorted(f"[{n},{c}]".encode() for n, c, _ in refused)
    assert {letter.stage for letter in found} <= {"sink"}
    assert Counter(letter.position for letter in found) == Counter(position_of(lines, n) for n, _, _ in refused)
    if shape != "flat_map on both sides":
        assert {(letter.raw, letter.child) for letter in found} == {(f"[{n},{c}]".encode(), at) for n, c, at in refused}


MIXED = """
def mixed(r):
    return [(r.n, "no number"), (r.n, 1), (r.n, -1), (r.n, 2)]
"""


def test_children_that_fail_at_different_stages_keep_their_numbers(headrace: Headrace) -> None:
    write_lines(headrace, lines_of_numbers(3))
    with closing(sqlite3.connect(headrace.folder / "out.db")) as db:
        db.execute("CREATE TABLE t (n INTEGER, c INTEGER CHECK (c > 0))")
    into = 'sink(Sqlite("out.db", table="t", columns={"n": int, "c": int}))'
    pipeline = headrace.write("p.py", chain('shard_by("n")', "flat_map(mixed)", into, more=MIXED))

    report = headrace.run_pipeline(pipeline, "--workers", "1", "--set", "on_error=dead_letter").expect(0).report

    assert [(letter.child, letter.stage) for letter in letters(headrace)] == [(0, "encode"), (2, "sink")] * 3
    assert (report["records_in"], report["dead_letters"], report["rows_written"]) == (3, 3, 6)
    assert landed(headrace, column="c") == [1, 1, 1, 2, 2, 2]


SPLIT = """
def route(r):
    return {0: "left", 1: "right", 2: ("left", "right"), 3: None, 4: "nowhere"}[r.n % 5]
"""


def test_the_books_of_a_split_balance_and_letters_name_their_sink(headrace: Headrace) -> None:
    lines = lines_of_numbers(COUNT)
    write_lines(headrace, lines)
    with closing(sqlite3.connect(headrace.folder / "out.db")) as db:
        db.execute("CREATE TABLE l (n INTEGER CHECK (n % 10 <> 2), text)")
        db.execute("CREATE TABLE r (n INTEGER CHECK (n % 10 <> 1), text)")
    left, right = ('Sqlite("out.db", table="%s", columns=["n", "text"])' % table for table in "lr")  # noqa: UP031
    split = f'split(route, {{"left": {left}, "right": {right}}})'
    pipeline = headrace.write("p.py", chain(split, more=SPLIT))

    report = headrace.run_pipeline(pipeline, "--workers", "2", "--set", "on_error=dead_letter").expect(0).report

    numbers = range(COUNT)
    assert landed(headrace, "l") == [n for n in numbers if n % 5 in (0, 2) and n % 10 != 2]
    assert landed(headrace, "r") == [n for n in numbers if n % 5 in (1, 2) and n % 10 != 1]
    assert (report["records_in"], report["skipped"], report["in_flight"]) == (COUNT, 0, 0)
    assert report["filtered"] == sum(n % 5 == 3 for n in numbers)
    assert report["dead_letters"] == sum(n % 5 == 4 or n % 10 in (1, 2) for n in numbers)
    assert written(report) == sum(n % 10 in (0, 5, 6, 7) for n in numbers)
    by_sink: dict[str, list[int]] = {"left": [], "right": [], "": []}
    for letter in letters(headrace):
        by_sink[letter.sink].append(letter.position)
    assert by_sink["left"] == [position_of(lines, n) for n in numbers if n % 10 == 2]
    assert by_sink["right"] == [position_of(lines, n) for n in numbers if n % 10 == 1]
    assert by_sink[""] == [position_of(lines, n) for n in numbers if n % 5 == 4]


KILLS = 3000

SLOW = """
def work(r):
    if r.n % 7 == 3:
        raise ValueError("no")
    time.sleep(0.0003)
    return (r.n, 1)

SETTINGS |= {
    "source.max_records": 100, "checkpoint.interval": "50ms", "batch.linger": "20ms", "inflight.max_per_shard": 1,
}
"""


def check_letters(headrace: Headrace, lines: list[str]) -> None:
    """One for each bad record, none lost, none twice; and all others landed."""
    bad = [n for n in range(len(lines)) if n % 7 == 3 or n % 10 == 3]
    assert [letter.position for letter in letters(headrace)] == [position_of(lines, n) for n in bad]
    assert sorted(set(landed(headrace))) == [n for n in range(len(lines)) if n % 7 != 3 and n % 10 != 3]


def slow_pipeline(headrace: Headrace) -> tuple[Path, list[str]]:
    lines = lines_of_numbers(KILLS)
    write_lines(headrace, lines)
    with closing(sqlite3.connect(headrace.folder / "out.db")) as db:
        db.execute("CREATE TABLE t (n INTEGER, c INTEGER CHECK (n % 10 <> 3))")
    return headrace.write("p.py", chain('shard_by("n")', "map(work)", INTO_TABLE, more=SLOW)), lines


def number_of_letters(headrace: Headrace) -> int:
    try:
        return len(letters(headrace))
    except sqlite3.OperationalError:
        return 0


def kill(worker: WorkerSeen) -> None:
    process.kill(ProcessIdentity(boot_id(), worker.pid, worker.start_time))


def test_letters_are_kept_once_when_workers_are_killed(headrace: Headrace) -> None:
    """HR-15: a worker that dies with letters in its spool loses none and repeats none."""
    pipeline, lines = slow_pipeline(headrace)
    running = headrace.start_pipeline(pipeline, "--workers", "2", "--set", "on_error=dead_letter")
    running.wait_for_workers(2)
    for so_many in (1, 100, 300):
        running.wait_until(lambda so_many=so_many: number_of_letters(headrace) >= so_many, f"{so_many} letters")  # type: ignore[misc]
        seen = running.supervisor()
        assert seen is not None
        kill(seen.workers[0])

    report = running.wait().expect(0).report

    assert report["workers_lost"] >= 1
    assert (report["records_in"], report["in_flight"]) == (KILLS, 0)
    assert report["dead_letters"] == sum(n % 7 == 3 or n % 10 == 3 for n in range(KILLS))
    assert written(report) == KILLS - report["dead_letters"]
    check_letters(headrace, lines)


def test_letters_are_kept_once_when_the_supervisor_is_killed(headrace: Headrace) -> None:
    """HR-15: what replays writes the same letters again, over the old ones."""
    pipeline, lines = slow_pipeline(headrace)
    for so_many in (1, 200, 400):
        running = headrace.start_pipeline(pipeline, "--workers", "2", "--set", "on_error=dead_letter")
        running.wait_until(lambda so_many=so_many: number_of_letters(headrace) >= so_many, f"{so_many} letters")  # type: ignore[misc]
        os.kill(running.pid, signal.SIGKILL)
        running.wait()
        wait_until(lambda: not headrace.processes(), limit=2.0, what="no process of the killed run is left")

    headrace.run_pipeline(pipeline, "--workers", "2", "--set", "on_error=dead_letter").expect(0)

    check_letters(headrace, lines)
    assert list((headrace.state / "dead_letter").glob("*.spool")) == []


def test_a_running_pipelines_books_balance_at_every_moment(headrace: Headrace) -> None:
    pipeline, _ = slow_pipeline(headrace)
    running = headrace.start_pipeline(pipeline, "--workers", "2", "--set", "on_error=dead_letter")
    running.wait_for_workers(2)
    seen = []

    while not running.has_ended:
        seen.append(headrace.run("status", "--state", headrace.state, "--json"))

    statuses = [one.report for one in seen if one.code == 0]
    assert len(statuses) > 2
    for status in statuses:
        assert written(status) >= 0
    assert _drained(running)["in_flight"] == 0


def _drained(running: Running) -> dict[str, int]:
    return running.wait().expect(0).report


BATCHES = """
def broken(rows):
    if any(r.n % 50 == 7 for r in rows):
        raise LookupError("one of them")
    return [(r.n, 1) for r in rows]

SETTINGS["source.max_records"] = 20
"""


@pytest.mark.parametrize("before", [(), ("shard_by(lambda r: r.n // 20)",)], ids=["supervisor", "workers"])
def test_a_batch_for_which_an_operator_raises_is_left_out_record_by_record(
    headrace: Headrace, before: tuple[str, ...]
) -> None:
    lines = with_table(headrace)
    pipeline = headrace.write("p.py", chain(*before, "map_batch(broken)", INTO_TABLE, more=BATCHES))

    report = headrace.run_pipeline(pipeline, "--workers", "2", "--set", "on_error=dead_letter").expect(0).report

    found = letters(headrace)
    broken = [letter for letter in found if letter.stage == "1_map_batch"]
    refused = [letter for letter in found if letter.stage == "sink"]
    assert all("LookupError: one of them" in letter.cause for letter in broken)
    assert {letter.position for letter in broken} >= {position_of(lines, n) for n in range(7, COUNT, 50)}
    assert len({letter.position for letter in found}) == len(found) == report["dead_letters"]
    assert report["records_in"] == COUNT == len(landed(headrace)) + len(broken) + len(refused)


GIVEN_UP = """
def wait(r):
    while not os.path.exists("go"):
        time.sleep(0.01)

SETTINGS |= {"retry.max_attempts": 2, "retry.initial": "10ms"}
"""


@pytest.mark.parametrize("policy", ["fail", "dead_letter"])
def test_a_write_that_is_given_up_goes_by_policy(headrace: Headrace, policy: str) -> None:
    write_lines(headrace, lines_of_numbers(10))
    into = 'sink(Sqlite("out.db", table="t", columns=["n", "c"], timeout=0.1))'
    pipeline = headrace.write("p.py", chain("inspect(wait)", "map(lambda r: (r.n, 1))", into, more=GIVEN_UP))
    with closing(sqlite3.connect(headrace.folder / "out.db", isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode=WAL").fetchone()
        db.execute("CREATE TABLE t (n INTEGER, c INTEGER)")
        running = headrace.start_pipeline(pipeline, "--workers", "1", "--set", f"on_error={policy}")
        running.wait_until(lambda: "a worker is ready" in running.stderr, "the worker")
        db.execute("BEGIN IMMEDIATE")
        headrace.write("go", "")
        finished = running.wait()
        db.execute("ROLLBACK")

    assert landed(headrace) == []
    if policy == "fail":
        finished.expect(1)
        assert "given up after 2 attempts" in finished.report["error"]
        assert "another program holds the database" in finished.report["error"]
        return
    report = finished.expect(0).report
    assert (report["records_in"], report["dead_letters"], report["rows_written"]) == (10, 10, 0)
    assert all("given up after 2 attempts" in letter.cause for letter in letters(headrace))
