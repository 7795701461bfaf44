"""SIGKILL of the supervisor at any moment: the next start alone restores the service (HR-6, HR-11)."""

import json
import random
import sqlite3
import time
from functools import partial
from typing import Any

import pytest

from tests.process import flights
from tests.process.run_headrace import Headrace, Running, wait_until
from tests.scale import scaled

PACED = """
PACE = {pace!r}
state = {{"n": 0, "due": time.monotonic()}}

def pace(f):
    state["n"] += 1
    if state["n"] % 100 == 0:
        state["due"] = max(state["due"] + 100 * PACE, time.monotonic() - 0.05)
        time.sleep(max(0.0, state["due"] - time.monotonic()))

pipeline = (
    Pipeline("flights", settings={{"source.block_bytes": "32KiB", "checkpoint.interval": "200ms"}})
    .source(Files({path!r}, decode=Flight))
    .inspect(pace)
    .shard_by(lambda f: f.tailnum)
    .map(row)
    .sink(Sqlite("flights.db", table="flights", create=True, columns=COLUMNS))
)
"""


def starting_line(running: Running) -> dict[str, Any] | None:
    for line in running.stderr.splitlines():
        if line.startswith("{") and '"event": "starting"' in line:
            found: dict[str, Any] = json.loads(line)
            return found
    return None


def stored_watermarks(headrace: Headrace) -> dict[str, int]:
    if not (headrace.state / "state.db").exists():
        return {}
    db = sqlite3.connect(f"file:{headrace.state / 'state.db'}?mode=ro", uri=True, timeout=5)
    try:
        return dict(db.execute("SELECT partition, position FROM watermarks"))
    except sqlite3.OperationalError:  # it is made, and its tables are not yet
        return {}
    finally:
        db.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fifty_kills_lose_nothing(headrace: Headrace) -> None:
    """S01, S02, S04, M03, U03: nothing is lost, locked or left behind."""
    kills = scaled(50)
    undisturbed = max(8.0, 60.0 * kills / 50)
    text = PACED.format(path=str(flights.flights_data()), pace=undisturbed / flights.RECORDS)
    pipeline = headrace.write("flights.py", flights.STRUCT + text)
    chance = random.Random(20_261_201)

    for _ in range(kills):
        held = stored_watermarks(headrace)
        running = headrace.start_pipeline(pipeline, "--workers", "2")
        line = running.wait_until(partial(starting_line, running), "the first line")
        assert line is not None
        assert line["watermarks"] == held
        assert "in_flight" in line
        time.sleep(chance.uniform(0.0, 2.5))  # the moment of death is what this test draws by lot
        running.kill()
        wait_until(lambda: not headrace.processes(), limit=1.0, what="no process of the killed run is left")

    report = headrace.run_pipeline(pipeline, "--workers", "2", limit=undisturbed + 60.0).expect(0).report

    assert report["incarnation"] == kills + 1
    flights.check_at_least(headrace.folder / "flights.db")


def test_a_killed_supervisor_leaves_no_process_and_the_next_run_completes(headrace: Headrace) -> None:
    text = PACED.format(path=str(flights.flights_data()), pace=3.0 / flights.RECORDS)
    pipeline = headrace.write("flights.py", flights.STRUCT + text)
    running = headrace.start_pipeline(pipeline, "--workers", "2")
    running.wait_until(lambda: stored_watermarks(headrace), "a durable watermark")

    running.kill()
    wait_until(lambda: not headrace.processes(), limit=1.0, what="no process of the killed run is left")
    held = stored_watermarks(headrace)
    second = headrace.start_pipeline(pipeline, "--workers", "2")
    line = second.wait_until(lambda: starting_line(second), "the first line")
    second.wait().expect(0)

    assert line is not None
    assert line["watermarks"] == held
    flights.check_at_least(headrace.folder / "flights.db")


def test_a_second_supervisor_is_refused_naming_the_first(headrace: Headrace) -> None:
    """U01."""
    text = PACED.format(path=str(flights.flights_data()), pace=30.0 / flights.RECORDS)
    pipeline = headrace.write("flights.py", flights.STRUCT + text)
    first = headrace.start_pipeline(pipeline, "--workers", "1")
    first.wait_for_workers(1)

    second = headrace.run_pipeline(pipeline, "--workers", "1").expect(4)

    assert str(first.pid) in second.stderr
    first.kill()
