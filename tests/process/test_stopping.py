"""Drain, signals and freezes through the real command (HR-10, HR-16)."""

import json
import os
import signal
import sqlite3
import statistics
import time
from functools import partial
from pathlib import Path

import pytest

from headrace.supervisor import process
from headrace.supervisor.process import ProcessIdentity, boot_id
from tests.process import flights
from tests.process.run_headrace import Headrace, Running, WorkerSeen, wait_until
from tests.process.test_supervisor_killed import PACED, stored_watermarks


def paced(headrace: Headrace, seconds: float) -> Path:
    text = PACED.format(path=str(flights.flights_data()), pace=seconds / flights.RECORDS)
    return headrace.write("flights.py", flights.STRUCT + text)


def test_a_stopped_run_drains_and_the_next_continues_to_the_exact_result(headrace: Headrace) -> None:
    """R03, G05: a clean stop leaves no duplicate; a signal to the whole group is a drain like any other."""
    pipeline = paced(headrace, 4.0)
    running = headrace.start_pipeline(pipeline, "--workers", "2")
    seen = running.wait_for_workers(2)
    running.wait_until(lambda: stored_watermarks(headrace), "a durable watermark")

    for pid in (*(worker.pid for worker in seen.workers), running.pid):
        os.kill(pid, signal.SIGTERM)
    report = running.wait().expect(0).report
    second = headrace.run_pipeline(pipeline, "--workers", "2").expect(0).report

    assert report["state"] == "drained"
    assert report["workers_lost"] == 0
    assert report["records_in"] + second["records_in"] == flights.RECORDS
    flights.check_exactly(headrace.folder / "flights.db")


def test_seven_records_are_written_and_committed_at_once_when_told_to_stop(headrace: Headrace) -> None:
    """R01: no batch period is honoured when nothing more can come."""
    headrace.write("in.ndjson", "".join(f'{{"n": {n}}}\n' for n in range(7)))
    pipeline = headrace.write(
        "p.py",
        "from headrace import Pipeline\nfrom headrace.sources import Files\nfrom headrace.sinks import Sqlite\n"
        "pipeline = (Pipeline('p', settings={'batch.linger': '60s', 'chunk.linger': '60s'})"
        ".source(Files('in.ndjson', decode=dict, follow=True)).map(lambda r: (r['n'],))"
        ".sink(Sqlite('out.db', table='t', create=True, columns=['n'])))\n",
    )
    running = headrace.start_pipeline(pipeline, "--workers", "1")
    running.wait_until(lambda: status(headrace)["records_in"] == 7, "seven records read")

    began = time.monotonic()
    running.signal(signal.SIGTERM)
    running.wait().expect(0)

    assert time.monotonic() - began < 2.0
    db = sqlite3.connect(headrace.folder / "out.db")
    assert [n for (n,) in db.execute("SELECT n FROM t ORDER BY n")] == list(range(7))
    db.close()


def status(headrace: Headrace) -> dict[str, object]:
    from headrace.admin.control import ask
    from headrace.errors import HeadraceError

    try:
        answer = ask(headrace.state, {"verb": "status"}, 5.0)["ok"]
    except HeadraceError:
        return {"records_in": -1, "state": "none"}
    assert isinstance(answer, dict)
    return answer


STUCK = """
import time
from headrace import Pipeline
from headrace.sources import Files
from headrace.sinks import Sqlite
pipeline = (
    Pipeline("p", settings={"drain.timeout": "3s", "retry.max": "500ms"})
    .source(Files("in.ndjson", decode=dict))
    .map(lambda r: (r["n"],))
    .sink(Sqlite("out.db", table="t", create=True, columns=["n"], timeout=0.2))
)
"""


def test_a_sink_that_refuses_bounds_the_drain_and_the_next_run_completes(headrace: Headrace) -> None:
    """R05, R06, HR-10: a drain ends by its time, with exit 3, and says what will replay."""
    headrace.write("in.ndjson", "".join(f'{{"n": {n}}}\n' for n in range(2000)))
    pipeline = headrace.write("p.py", STUCK)
    blocker = sqlite3.connect(headrace.folder / "out.db", isolation_level=None)
    blocker.execute("CREATE TABLE t (n)")
    blocker.execute("PRAGMA journal_mode=WAL").fetchone()
    blocker.execute("BEGIN IMMEDIATE")
    blocker.execute("INSERT INTO t VALUES (-1)")
    running = headrace.start_pipeline(pipeline, "--workers", "1")
    running.wait_until(lambda: "will be tried again" in running.stderr, "a refused write")

    began = time.monotonic()
    running.signal(signal.SIGTERM)
    finished = running.wait().expect(3)

    assert time.monotonic() - began < 4.0
    assert finished.report["state"] == "incomplete"
    assert finished.report["in_flight"] == 2000
    blocker.execute("ROLLBACK")
    blocker.close()
    headrace.run_pipeline(pipeline, "--workers", "1").expect(0)
    db = sqlite3.connect(headrace.folder / "out.db")
    assert [n for (n,) in db.execute("SELECT n FROM t ORDER BY n")] == list(range(2000))
    db.close()


def test_a_second_signal_ends_the_run_at_once(headrace: Headrace) -> None:
    headrace.write("in.ndjson", "".join(f'{{"n": {n}}}\n' for n in range(2000)))
    pipeline = headrace.write("p.py", STUCK.replace('"3s"', '"60s"'))
    blocker = sqlite3.connect(headrace.folder / "out.db", isolation_level=None)
    blocker.execute("CREATE TABLE t (n)")
    blocker.execute("PRAGMA journal_mode=WAL").fetchone()
    blocker.execute("BEGIN IMMEDIATE")
    running = headrace.start_pipeline(pipeline, "--workers", "1")
    running.wait_until(lambda: "will be tried again" in running.stderr, "a refused write")

    running.signal(signal.SIGTERM)
    running.wait_until(lambda: "told to stop" in running.stderr, "the first signal heard")
    running.signal(signal.SIGTERM)

    assert running.wait(10.0).code == 130
    blocker.close()
    wait_until(lambda: not headrace.processes(), limit=2.0, what="nothing is left")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_supervisor_that_was_stopped_blames_nobody(headrace: Headrace) -> None:
    """A freeze of 15 s and more is not the workers' silence: limits count only time in which the loop was turning."""
    pipeline = paced(headrace, 10.0)
    running = headrace.start_pipeline(pipeline, "--workers", "2")
    seen = running.wait_for_workers(2)
    running.wait_until(lambda: stored_watermarks(headrace), "a durable watermark")

    running.signal(signal.SIGSTOP)
    time.sleep(15.0)  # longer than fleet.heartbeat_timeout, which is what this test is about
    running.signal(signal.SIGCONT)
    report = running.wait(90.0).expect(0).report

    assert report["workers_lost"] == 0
    assert {worker.name for worker in seen.workers} == {"worker-0", "worker-1"}
    flights.check_exactly(headrace.folder / "flights.db")


BUSY_IN_C = """
import ctypes, os
from headrace import Pipeline
from headrace.sources import Files
from headrace.sinks import Blackhole

def hold_the_gil(record):
    os.write(2, b"in C now\\n")
    ctypes.PyDLL(None).sleep(60)
    return record

pipeline = (
    Pipeline("p").source(Files("in.ndjson", decode=dict)).shard_by("n").map(hold_the_gil).sink(Blackhole())
)
"""


def both_in_c(running: Running) -> bool:
    return running.stderr.count("in C now") >= 2


@pytest.mark.parametrize("how", ["holds the GIL in C", "stopped"])
def test_workers_die_with_their_supervisor_whatever_they_do(headrace: Headrace, how: str) -> None:
    """S01: a worker that sleeps in C with the GIL held, and one that is stopped, are gone with the supervisor."""
    assert max(times_to_die(headrace, how, rounds=2)) < 2.0


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["holds the GIL in C", "stopped"])
def test_workers_die_at_once_with_their_supervisor(headrace: Headrace, how: str) -> None:
    """Twenty tries: the median under 100 ms, each under 2 s."""
    times = times_to_die(headrace, how, rounds=20)

    assert max(times) < 2.0
    assert statistics.median(times) < 0.1


def times_to_die(headrace: Headrace, how: str, rounds: int) -> list[float]:
    """Seconds from the supervisor's SIGKILL until the pidfds of both its workers say that they are gone."""
    headrace.write("in.ndjson", "".join(f'{{"n": {n}}}\n' for n in range(100)))
    pipeline = headrace.write("p.py", BUSY_IN_C)
    times: list[float] = []
    for _ in range(rounds):
        running = headrace.start_pipeline(pipeline, "--workers", "2")
        seen = running.wait_for_workers(2)
        running.wait_until(partial(both_in_c, running), "both workers in C")
        pidfds = [pidfd_of(worker) for worker in seen.workers]
        if how == "stopped":
            for pidfd in pidfds:
                signal.pidfd_send_signal(pidfd, signal.SIGSTOP)

        began = time.monotonic()
        os.kill(running.pid, signal.SIGKILL)
        gone = [process.wait_gone(pidfd, 2.0) for pidfd in pidfds]
        times.append(time.monotonic() - began)
        running.wait()
        for pidfd in pidfds:
            os.close(pidfd)
        assert all(gone)
    return times


def pidfd_of(worker: WorkerSeen) -> int:
    pidfd = process.open_pidfd(ProcessIdentity(boot_id(), worker.pid, worker.start_time))
    assert pidfd is not None
    return pidfd


def test_a_signal_at_any_moment_of_the_start_ends_the_run(headrace: Headrace) -> None:
    """G01, G07, S06: a stop is never lost, however early it comes."""
    pipeline = paced(headrace, 20.0)
    for delay in (0.0, 0.1, 0.2, 0.3, 0.4, 0.6):
        running = headrace.start_pipeline(pipeline, "--workers", "2")
        time.sleep(delay)  # the moment is what this test varies
        running.signal(signal.SIGTERM)

        assert running.wait(15.0).code in {0, -signal.SIGTERM}

    wait_until(lambda: not headrace.processes(), limit=2.0, what="nothing is left")


def test_the_report_is_one_object_and_the_log_is_json(headrace: Headrace) -> None:
    headrace.write("in.ndjson", '{"n": 1}\n')
    pipeline = headrace.write("p.py", STUCK)

    finished = headrace.run_pipeline(pipeline).expect(0)

    assert len(finished.stdout.splitlines()) == 1
    for line in finished.stderr.splitlines():
        json.loads(line)
