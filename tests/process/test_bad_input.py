"""Bad input through the real command: each kind gets what it is promised, and never a lost neighbour."""

import gzip
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.process.records import (
    TO_SQLITE,
    chain,
    landed,
    letters,
    lines_of_numbers,
    position_of,
    write_lines,
    written,
)
from tests.process.run_headrace import Headrace

IN_SUPERVISOR = ("map(lambda r: (r.n,))", f"sink({TO_SQLITE})")
COUNT = 100
SMALL_SLOTS = ("--set", "shm.slot_bytes=16KiB", "--set", "chunk.target_bytes=8KiB", "--set", "batch.max_bytes=64KiB")

ROW = """
def row(r):
    if r.n == 37:
        raise ZeroDivisionError("of 37")
    return (None if r.n == 67 else r.n, "x" * (20_000 if r.n == 79 else 1))
"""

BEFORE = {
    "the supervisor": (),
    "workers, of lines": ('shard_by("n")',),
    "workers, of records": ("shard_by(lambda r: r.n)",),
}
"""Where a pipeline's map runs, and what its steps before that are."""


class Bad(NamedTuple):
    """A bad record: its line, the stage at which it is found, words of the reason, and what its letter shows of it."""

    line: str
    stage: str
    cause: str
    raw: bytes | None = None


def bad_records(side: str) -> dict[int, Bad]:
    """One of every kind, by number."""
    broken, other_type = '{"n": 11, "text": "', '{"n": 23, "text": 5}'
    long, fits_no_slot = (f'{{"n": {n}, "text": "{"x" * size}"}}' for n, size in ((41, 50_000), (79, 16_300)))
    return {
        11: Bad(broken, "decode", "truncated", broken.encode()),
        23: Bad(other_type, "decode", "`$.text`", other_type.encode()),
        37: Bad('{"n": 37}', "1_map", "ZeroDivisionError: of 37", b'{"n": 37}' if side == "the supervisor" else None),
        41: Bad(long, "oversize", "raise shm.slot_bytes"),
        53: Bad('{"n": 53}', "sink", "CHECK constraint failed", b'[53,"x"]'),
        67: Bad('{"n": 67}', "sink", "NOT NULL constraint failed", b'[null,"x"]'),
        79: Bad('{"n": 79}' if side == "the supervisor" else fits_no_slot, "oversize", "raise shm.slot_bytes"),
    }


def pipeline_of(headrace: Headrace, side: str, bad: dict[int, Bad]) -> tuple[Path, list[str]]:
    """The pipeline, its table with constraints, and the input's lines."""
    good = {n: f'{{"n": {n + 1000}}}' for n in bad_records(side)}
    lines = lines_of_numbers(COUNT, good | {n: one.line for n, one in bad.items()})
    write_lines(headrace, lines)
    with closing(sqlite3.connect(headrace.folder / "out.db")) as db:
        db.execute("CREATE TABLE t (n INTEGER NOT NULL CHECK (n <> 53), text)")
    text = chain(*BEFORE[side], "map(row)", 'sink(Sqlite("out.db", table="t"))', more=ROW)
    return headrace.write("p.py", text), lines


@pytest.mark.parametrize("policy", [pytest.param("skip", marks=pytest.mark.slow), "dead_letter"])
@pytest.mark.parametrize("side", BEFORE)
def test_bad_records_of_every_kind_go_by_policy_and_all_neighbours_land(
    headrace: Headrace, side: str, policy: str
) -> None:
    """One of each kind in one batch."""
    bad = bad_records(side)
    pipeline, lines = pipeline_of(headrace, side, bad)

    report = headrace.run_pipeline(pipeline, "--set", f"on_error={policy}", *SMALL_SLOTS).expect(0).report

    assert landed(headrace) == [n for n in range(COUNT) if n not in bad]
    assert (report["records_in"], written(report), report["in_flight"]) == (COUNT, COUNT - len(bad), 0)
    if policy == "skip":
        assert (report["skipped"], report["dead_letters"], letters(headrace)) == (len(bad), 0, [])
        return
    assert (report["skipped"], report["dead_letters"]) == (0, len(bad))
    for letter, (n, one) in zip(letters(headrace), sorted(bad.items()), strict=True):
        assert letter.partition.startswith(str(headrace.folder / "in.ndjson#"))
        assert (letter.position, letter.child, letter.stage) == (position_of(lines, n), 0, one.stage)
        assert one.cause in letter.cause
        assert letter.raw == one.raw or (one.raw is None and str(n).encode() in letter.raw)


@pytest.mark.parametrize(
    ("side", "n"),
    [
        *(("the supervisor", n) for n in (11, 37, 41, 67, 79)),
        *(("workers, of lines", n) for n in (23, 53)),
    ],
)
def test_a_bad_record_under_fail_ends_the_run_with_its_place_and_the_reason(
    headrace: Headrace, side: str, n: int
) -> None:
    one = bad_records(side)[n]
    pipeline, lines = pipeline_of(headrace, side, {n: one})

    finished = headrace.run_pipeline(pipeline, "--workers", "1", *SMALL_SLOTS).expect(1)

    error = finished.report["error"]
    assert f"{headrace.folder / 'in.ndjson'}#" in error
    assert f"position {position_of(lines, n)}" in error
    assert f"stage {one.stage}" in error
    assert one.cause in error
    assert finished.report["state"] == "failed"
    assert n not in landed(headrace)


def test_a_run_that_failed_goes_on_with_another_policy(headrace: Headrace) -> None:
    """Nothing is lost by a failure: what was not written replays."""
    side = "workers, of records"
    bad = bad_records(side)
    pipeline, _ = pipeline_of(headrace, side, bad)
    headrace.run_pipeline(pipeline, "--workers", "1", *SMALL_SLOTS).expect(1)

    report = headrace.run_pipeline(pipeline, "--set", "on_error=skip", *SMALL_SLOTS).expect(0).report

    assert report["skipped"] == len(bad)
    assert sorted(set(landed(headrace))) == [n for n in range(COUNT) if n not in bad]


@pytest.mark.parametrize("given", ["flag", "file", "environment", "pipeline"])
def test_an_unknown_setting_is_refused_with_its_path_and_the_nearest_key(headrace: Headrace, given: str) -> None:
    write_lines(headrace, lines_of_numbers(1))
    text = chain(*IN_SUPERVISOR)
    if given == "pipeline":
        text = text.replace("SETTINGS = {", 'SETTINGS = {"batch.max_row": 5, ')
    pipeline = headrace.write("p.py", text)
    headrace.write("more.toml", "[batch]\nmax_row = 5\n")
    more = {"flag": ("--set", "batch.max_row=5"), "file": ("--config", "more.toml")}.get(given, ())
    env = {"HEADRACE_BATCH__MAX_ROW": "5"} if given == "environment" else {}

    finished = headrace.run("run", pipeline, "--state", headrace.state, *more, env=env).expect(2)

    wrong, right = (
        ("BATCH__MAX_ROW", "BATCH__MAX_ROWS") if given == "environment" else ("batch.max_row", "batch.max_rows")
    )
    assert right in finished.stderr
    assert wrong in finished.stderr.replace(right, "")
    assert "Traceback" not in finished.stderr
    assert not headrace.state.exists()


def test_a_pipeline_file_that_raises_gets_its_own_traceback_without_ours(headrace: Headrace) -> None:
    headrace.write("beside.py", "def broken():\n    return {}['nothing']\n")
    pipeline = headrace.write("p.py", "import beside\nbeside.broken()\n")

    finished = headrace.run_pipeline(pipeline).expect(2)

    assert "KeyError: 'nothing'" in finished.stderr
    assert f'File "{pipeline}", line 2' in finished.stderr
    assert f'File "{headrace.folder / "beside.py"}", line 2, in broken' in finished.stderr
    assert "headrace/" not in finished.stderr.replace(str(headrace.folder), "")
    assert "importlib" not in finished.stderr
    assert finished.report["exit_code"] == 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = 1\n", "no object named `pipeline`"),
        ("pipeline = 5\n", "`pipeline` is a int"),
        ("def f(:\n", "SyntaxError"),
    ],
)
def test_a_pipeline_file_without_a_pipeline_is_refused(headrace: Headrace, text: str, told: str) -> None:
    pipeline = headrace.write("p.py", text)

    finished = headrace.run_pipeline(pipeline).expect(2)

    assert told in finished.stderr
    assert "p.py" in finished.stderr


def without_the_rights_of_root() -> tuple[str, ...]:
    """What a command runs under so that file modes hold for it."""
    if os.geteuid() != 0:
        return ()
    return ("setpriv", "--inh-caps=-all", "--bounding-set=-dac_override,-dac_read_search")


@pytest.mark.parametrize("what", ["missing", "a directory", "no rights", "no match", "no folder"])
def test_input_that_cannot_be_read_is_refused_with_its_path(headrace: Headrace, what: str) -> None:
    name = {"no match": "none/*.ndjson", "no folder": "none/in.ndjson"}.get(what, "in.ndjson")
    path = headrace.folder / name
    if what == "a directory":
        path.mkdir()
    if what == "no rights":
        write_lines(headrace, lines_of_numbers(1))
        path.chmod(0)
    pipeline = headrace.write("p.py", chain(*IN_SUPERVISOR, source=f'Files("{name}", decode=Number)'))

    finished = headrace.run(
        "run", pipeline, "--state", headrace.state, "--json", under=without_the_rights_of_root()
    ).expect(2)

    assert str(path) in finished.stderr
    assert finished.report["exit_code"] == 2
    assert not (headrace.folder / "out.db").exists()


@pytest.mark.parametrize("what", ["no folder", "a file"])
def test_a_sink_whose_place_is_missing_ends_the_run_with_its_path(headrace: Headrace, what: str) -> None:
    write_lines(headrace, lines_of_numbers(3))
    if what == "a file":
        headrace.write("place", "")
    sink = 'Sqlite("place/out.db", table="t", create=True, columns=["n"])'
    pipeline = headrace.write("p.py", chain("map(lambda r: (r.n,))", f"sink({sink})"))

    finished = headrace.run_pipeline(pipeline, "--workers", "1").expect(1)

    assert str(headrace.folder / "place") in finished.report["error"]
    assert finished.report["records_in"] == 0


def test_a_state_directory_without_a_parent_is_refused(headrace: Headrace) -> None:
    write_lines(headrace, lines_of_numbers(1))
    pipeline = headrace.write("p.py", chain(*IN_SUPERVISOR))

    finished = headrace.run("run", pipeline, "--state", "none/state", "--json").expect(2)

    assert f"{headrace.folder / 'none'} does not exist" in finished.report["error"]


@pytest.mark.parametrize("when", ["before the first run", "after a run"])
def test_a_state_directory_that_cannot_be_written_to_is_refused_with_its_path(headrace: Headrace, when: str) -> None:
    write_lines(headrace, lines_of_numbers(1))
    pipeline = headrace.write("p.py", chain(*IN_SUPERVISOR))
    headrace.state.mkdir(mode=0o700)
    if when == "after a run":
        headrace.run_pipeline(pipeline, "--workers", "1").expect(0)
        for path in headrace.state.rglob("*"):
            path.chmod(0o500 if path.is_dir() else 0o400)
    headrace.state.chmod(0o500)

    finished = headrace.run(
        "run", pipeline, "--state", headrace.state, "--json", under=without_the_rights_of_root()
    ).expect(2)

    assert str(headrace.state) in finished.report["error"]
    headrace.state.chmod(0o700)


def test_a_state_directory_of_another_pipeline_is_refused(headrace: Headrace) -> None:
    write_lines(headrace, lines_of_numbers(5))
    pipeline = headrace.write("p.py", chain(*IN_SUPERVISOR))
    headrace.run_pipeline(pipeline, "--workers", "1").expect(0)
    other = headrace.write("other.py", chain(*IN_SUPERVISOR).replace('Pipeline("p"', 'Pipeline("other"'))

    finished = headrace.run_pipeline(other, "--workers", "1").expect(2)

    error = finished.report["error"]
    assert str(headrace.state) in error
    assert "'p'" in error
    assert "'other'" in error
    assert landed(headrace) == list(range(5))


@pytest.mark.parametrize("damage", ["no database", "a torn page", pytest.param("empty", marks=pytest.mark.slow)])
def test_a_damaged_state_database_is_refused_and_kept_as_it_is(headrace: Headrace, damage: str) -> None:
    write_lines(headrace, lines_of_numbers(5))
    pipeline = headrace.write("p.py", chain(*IN_SUPERVISOR))
    headrace.run_pipeline(pipeline, "--workers", "1").expect(0)
    database = headrace.state / "state.db"
    before = _damage(database, damage)

    finished = headrace.run_pipeline(pipeline, "--workers", "1")

    if damage == "empty":  # an empty file is a database that nothing was written to: a new load
        assert finished.expect(0).report["records_in"] == 5
        return
    finished.expect(2)
    assert str(database) in finished.report["error"]
    assert database.read_bytes() == before


def _damage(database: Path, how: str) -> bytes:
    whole = database.read_bytes()
    match how:
        case "no database":
            whole = b"this is no database " * 500
        case "a torn page":
            whole = whole[:4096] + b"\xff" * 4096 + whole[8192:]
        case _:
            whole = b""
    database.write_bytes(whole)
    return whole


@pytest.mark.parametrize("how", ["cut short", "broken inside"])
def test_a_damaged_gzip_file_is_told_with_its_path_and_what_was_before_it_lands(headrace: Headrace, how: str) -> None:
    """F10: what can be read is written; the rest is no silent end."""
    first, second = (
        gzip.compress("".join(f"{line}\n" for line in part).encode())
        for part in (lines_of_numbers(COUNT)[:50], lines_of_numbers(COUNT)[50:])
    )
    damaged = {
        "cut short": first + second[: len(second) // 2],
        "broken inside": first + second[:40] + bytes(20) + second[60:],
    }[how]
    (headrace.folder / "in.ndjson.gz").write_bytes(damaged)
    pipeline = headrace.write("p.py", chain(*IN_SUPERVISOR, source='Files("in.ndjson.gz", decode=Number)'))

    finished = headrace.run_pipeline(pipeline, "--workers", "1")

    assert f"{headrace.folder / 'in.ndjson.gz'}" in finished.expect(1).report["error"]
    assert set(range(49)) <= set(landed(headrace))


@pytest.mark.parametrize(
    ("sink", "told"),
    [
        ('Sqlite("out.db", table="t")', "out.db"),
        ('Sqlite("there.db", table="missing")', "missing"),
        ('Sqlite("there.db", table="t", columns=["n", "other"])', "other"),
    ],
)
def test_a_sink_that_does_not_fit_ends_the_run_before_anything_is_read(
    headrace: Headrace, sink: str, told: str
) -> None:
    write_lines(headrace, lines_of_numbers(3))
    with closing(sqlite3.connect(headrace.folder / "there.db")) as db:
        db.execute("CREATE TABLE t (n INTEGER)")
    pipeline = headrace.write("p.py", chain("map(lambda r: (r.n, 1))", f"sink({sink})"))

    finished = headrace.run_pipeline(pipeline, "--workers", "2").expect(1)

    assert told in finished.report["error"]
    assert finished.report["records_in"] == 0
    assert finished.stderr.count("Traceback") == 0
