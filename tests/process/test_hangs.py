"""What does not go on: operators that hang, in Python and in C, and writes that nobody can stop."""

import sqlite3

import pytest

from tests.process.run_headrace import Headrace

PIPELINE = """
import ctypes, os, time
from headrace import Pipeline
from headrace.sources import Files
from headrace.sinks import Sqlite

def hang_once(record):
    if record["n"] == 50 and not os.path.exists("hung"):
        open("hung", "w").close()
        {hang}
    return (record["n"],)

pipeline = (
    Pipeline("p", settings={{"lease.timeout": "1s", "fleet.heartbeat_timeout": "2s", "fleet.beat_interval": "100ms"}})
    .source(Files("in.ndjson", decode=dict))
    .shard_by("n")
    .map(hang_once)
    .sink(Sqlite("out.db", table="t", create=True, columns=["n"]))
)
"""


def numbers(headrace: Headrace, count: int) -> None:
    headrace.write("in.ndjson", "".join(f'{{"n": {n}}}\n' for n in range(count)))


def landed(headrace: Headrace) -> list[int]:
    db = sqlite3.connect(headrace.folder / "out.db")
    try:
        return [n for (n,) in db.execute("SELECT n FROM t ORDER BY n")]
    finally:
        db.close()


@pytest.mark.parametrize(
    ("hang", "reason"),
    [("time.sleep(600)", "stage 'operators'"), ("ctypes.PyDLL(None).sleep(600)", "silent for")],
    ids=["in Python", "in C with the GIL held"],
)
def test_a_hung_operator_is_shown_with_its_stacks_and_its_worker_replaced(
    headrace: Headrace, hang: str, reason: str
) -> None:
    """H01, H03: the stacks come first, then the kill; the chunk runs again and nothing is lost."""
    numbers(headrace, 100)
    pipeline = headrace.write("p.py", PIPELINE.format(hang=hang))

    finished = headrace.run_pipeline(pipeline, "--workers", "2").expect(0)

    assert reason in finished.stderr
    assert "hang_once" in finished.stderr, "the stack names the user's function"
    assert finished.report["workers_lost"] == 1
    assert finished.report["chunks_redelivered"] >= 1
    assert set(landed(headrace)) == set(range(100))


STUCK_WRITE = """
from headrace import Pipeline
from headrace.sources import Files
from headrace.sinks import Sqlite
pipeline = (
    Pipeline("p", settings={"retry.attempt_timeout": "1s", "retry.max": "500ms"})
    .source(Files("in.ndjson", decode=dict))
    .map(lambda r: (r["n"],))
    .sink(Sqlite("out.db", table="t", create=True, columns=["n"], timeout=600.0))
)
"""


def test_a_write_that_nobody_can_stop_ends_its_worker_and_is_tried_again(headrace: Headrace) -> None:
    """H02: it counts as a retry, never as a loss or a restart."""
    numbers(headrace, 500)
    blocker = sqlite3.connect(headrace.folder / "out.db", isolation_level=None)
    blocker.execute("CREATE TABLE t (n)")
    blocker.execute("PRAGMA journal_mode=WAL").fetchone()
    blocker.execute("BEGIN IMMEDIATE")
    blocker.execute("INSERT INTO t VALUES (-1)")
    running = headrace.start_pipeline(headrace.write("p.py", STUCK_WRITE), "--workers", "1")

    running.wait_until(lambda: running.stderr.count("a blocking write passed its limit") >= 2, "two abandoned writes")
    blocker.execute("ROLLBACK")
    blocker.close()
    report = running.wait().expect(0).report

    assert report["workers_lost"] == 0
    assert landed(headrace) == list(range(500))
    db = sqlite3.connect(headrace.state / "state.db")
    attempts = [attempt for (attempt,) in db.execute("SELECT attempt FROM ledger WHERE kind = 'lease' ORDER BY seq")]
    db.close()
    assert attempts == sorted(attempts)
    assert attempts[-1] >= 3
