"""Workers that die are replaced, and their chunks handed out again from their slots: nothing is read twice."""

import json
import os
import random
import shutil
import signal
import sqlite3
import statistics
import time
from typing import Any

import pytest

from headrace.supervisor import process
from headrace.supervisor.process import ProcessIdentity, boot_id
from tests.process import flights
from tests.process.run_headrace import Headrace, Running, WorkerSeen
from tests.scale import scaled

REPEATED = """
pipeline = (
    Pipeline("flights")
    .source(Files("copies/*.gz", decode=Flight))
    .shard_by(lambda f: f.tailnum)
    .map(row)
    .sink(Sqlite("flights.db", table="flights", create=True, columns=COLUMNS))
)
"""


def lines_of(running: Running, event: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in running.stderr.splitlines() if f'"event": "{event}"' in line]


def kill(worker: WorkerSeen) -> None:
    process.kill(ProcessIdentity(boot_id(), worker.pid, worker.start_time))


def settled_since_ready(headrace: Headrace, pid: int) -> bool:
    """Whether the worker with this pid has settled a chunk: the ledger says so."""
    db = sqlite3.connect(f"file:{headrace.state / 'state.db'}?mode=ro", uri=True, timeout=5)
    try:
        found = db.execute(
            "SELECT 1 FROM ledger AS lease JOIN ledger AS done ON done.chunk = lease.chunk AND done.kind = 'done'"
            " AND done.incarnation = lease.incarnation AND done.seq > lease.seq"
            " WHERE lease.kind = 'lease' AND lease.pid = ? LIMIT 1",
            (pid,),
        ).fetchone()
    finally:
        db.close()
    return found is not None


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_killed_workers_lose_nothing(headrace: Headrace) -> None:
    """W03, W05, W10: deaths are survived one by one, and every record is there."""
    kills = scaled(100)
    copies = max(3, scaled(16))
    (headrace.folder / "copies").mkdir()
    for copy in range(copies):
        shutil.copyfile(flights.flights_data(), headrace.folder / "copies" / f"{copy:03}.ndjson.gz")
    pipeline = headrace.write("flights.py", flights.STRUCT + REPEATED)
    running = headrace.start_pipeline(pipeline, "--workers", "2")
    chance = random.Random(7)
    killed: set[int] = set()
    due = time.monotonic()

    while not running.has_ended:
        seen = running.supervisor()
        victims = [] if seen is None else [one for one in seen.workers if one.pid not in killed]
        chance.shuffle(victims)
        for victim in victims:
            if settled_since_ready(headrace, victim.pid):
                kill(victim)
                killed.add(victim.pid)
                break
        due = max(due + 0.2, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))  # one kill each 200 ms is what this test is about
    report = running.wait().expect(0).report

    assert len(killed) >= kills
    assert report["records_in"] == copies * flights.RECORDS
    flights.check_at_least(headrace.folder / "flights.db", copies)
    assert report["workers_lost"] >= len(killed) - 1
    assert report["chunks_redelivered"] > 0
    waits = [line["seconds"] for line in lines_of(running, "chunks of a lost worker were handed out again")]
    assert statistics.median(waits) < 0.1


def test_a_killed_worker_is_replaced_and_nothing_is_read_twice(headrace: Headrace) -> None:
    text = flights.STRUCT + flights.DECODE_IN_WORKERS.format(path=str(flights.flights_data()))
    pipeline = headrace.write("flights.py", text)
    running = headrace.start_pipeline(pipeline, "--workers", "2")
    seen = running.wait_for_workers(2)
    running.wait_until(lambda: settled_since_ready(headrace, seen.workers[0].pid), "a settled chunk")

    kill(seen.workers[0])
    report = running.wait().expect(0).report

    assert report["records_in"] == flights.RECORDS
    assert report["workers_lost"] == 1
    flights.check_at_least(headrace.folder / "flights.db")


SLOW_SINK = """
from headrace import Pipeline
from headrace.sources import Files
from headrace.sinks import Sqlite
import os, time, signal

def work(record):
    {body}
    return (record["n"],)

pipeline = (
    Pipeline("p", settings={{"fleet.heartbeat_timeout": "1s", "fleet.beat_interval": "100ms", "lease.timeout": "2s",
                            "fleet.max_restarts": 3}})
    .source(Files("in.ndjson", decode=dict))
    .shard_by("n")
    .map(work)
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


def test_a_worker_that_is_stopped_is_detected_killed_and_replaced(headrace: Headrace) -> None:
    """H01: alive is not enough; a worker that says nothing is hung."""
    numbers(headrace, 3000)
    pipeline = headrace.write("p.py", SLOW_SINK.format(body="time.sleep(0.001)"))
    running = headrace.start_pipeline(pipeline, "--workers", "2")
    seen = running.wait_for_workers(2)
    running.wait_until(lambda: running.stderr.count("a worker is ready") == 2, "both workers ready")
    victim = ProcessIdentity(boot_id(), seen.workers[0].pid, seen.workers[0].start_time)
    pidfd = process.open_pidfd(victim)
    assert pidfd is not None

    signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
    report = running.wait().expect(0).report

    assert process.wait_gone(pidfd, 0.0)
    os.close(pidfd)
    assert report["workers_lost"] == 1
    assert set(landed(headrace)) == set(range(3000))


def test_a_worker_that_dies_without_ever_settling_ends_the_run(headrace: Headrace) -> None:
    """W01: a crash loop slows down, is told with its signal, and ends with exit 1; no other shard loses anything."""
    numbers(headrace, 10)
    pipeline = headrace.write("p.py", SLOW_SINK.format(body="os.kill(os.getpid(), signal.SIGKILL)"))

    finished = headrace.run_pipeline(pipeline, "--workers", "1").expect(1)

    assert "died within 60 s without settling a chunk" in finished.stderr
    assert finished.report["state"] == "failed"
    assert landed(headrace) == []


def test_a_worker_that_cannot_start_ends_the_run_with_its_own_reason(headrace: Headrace) -> None:
    """W08, L04: the sink's refusal is told once, and nothing storms."""
    numbers(headrace, 10)
    headrace.write("out.db", "this is no database " * 100)
    pipeline = headrace.write("p.py", SLOW_SINK.format(body="pass"))

    finished = headrace.run_pipeline(pipeline, "--workers", "2").expect(1)

    assert "not a database" in finished.stderr
