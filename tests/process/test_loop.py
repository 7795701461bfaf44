"""The supervisor's loop waits in one place only, and does little when there is little to do (HR-2)."""

import os
import signal
import statistics
import time

import psutil
import pytest

from headrace.admin.control import ask
from headrace.errors import HeadraceError
from headrace.supervisor import process
from headrace.supervisor.process import ProcessIdentity, boot_id
from tests.process.run_headrace import Headrace, Running

FOLLOW = """
from headrace import Pipeline
from headrace.sources import Files
from headrace.sinks import Sqlite
pipeline = (
    Pipeline("p")
    .source(Files("in.ndjson", decode=dict, follow=True))
    .shard_by("n")
    .map(lambda r: (r["n"],))
    .sink(Sqlite("out.db", table="t", create=True, columns=["n"]))
)
"""


@pytest.fixture
def following(headrace: Headrace) -> Running:
    headrace.write("in.ndjson", "".join(f'{{"n": {n}}}\n' for n in range(100)))
    running = headrace.start_pipeline(headrace.write("p.py", FOLLOW), "--workers", "2")
    running.wait_until(lambda: written(headrace) == 100, "a hundred rows written")
    return running


def written(headrace: Headrace) -> int:
    try:
        status = ask(headrace.state, {"verb": "status"}, 5.0)["ok"]
    except HeadraceError:
        return -1
    assert isinstance(status, dict)
    return int(status["rows_written"])


def test_the_loop_turns_while_every_peer_is_stopped(headrace: Headrace, following: Running) -> None:
    seen = following.wait_for_workers(2)
    helpers = [one for one in psutil.Process(following.pid).children() if "forkserver" in " ".join(one.cmdline())]
    assert helpers
    stopped = [psutil.Process(seen.workers[0].pid), *helpers]
    for one in stopped:
        one.suspend()
    process.kill(ProcessIdentity(boot_id(), seen.workers[1].pid, seen.workers[1].start_time))
    with (headrace.folder / "in.ndjson").open("a", encoding="utf-8") as grown:
        grown.write("".join(f'{{"n": {n}}}\n' for n in range(1000)))

    turns = []
    for _ in range(30):
        began = time.monotonic()
        ask(headrace.state, {"verb": "status"}, 5.0)
        turns.append(time.monotonic() - began)

    assert statistics.median(turns) < 0.05
    for one in stopped:
        one.resume()
    following.wait_until(lambda: written(headrace) == 1100, "the rest is written once all run again", limit=40.0)
    following.signal(signal.SIGTERM)
    following.wait().expect(0)


def test_an_idle_fleet_uses_little_of_a_core(headrace: Headrace, following: Running) -> None:
    def spent() -> float:
        return sum(sum(one.cpu_times()[:2]) for one in headrace.processes())

    before, began = spent(), time.monotonic()
    time.sleep(3.0)  # the time over which idleness is measured
    share = (spent() - before) / (time.monotonic() - began)

    assert share < 0.05  # under 1 % on a quiet machine; the clock of CPU times ticks at 10 ms
    following.signal(signal.SIGTERM)
    following.wait().expect(0)


def test_no_descriptor_is_kept_of_a_worker_that_is_gone(headrace: Headrace, following: Running) -> None:
    """H03: a hundred deaths or one, what is open stays what it was."""

    def descriptors() -> int:
        return len(os.listdir(f"/proc/{following.pid}/fd"))

    seen = following.wait_for_workers(2)
    before = descriptors()
    for death in range(6):
        victim = seen.workers[death % 2]
        process.kill(ProcessIdentity(boot_id(), victim.pid, victim.start_time))
        following.wait_until(
            lambda death=death: following.stderr.count('"event": "a worker is ready"') == 3 + death,  # type: ignore[misc]
            "the replacement",
        )
        seen = following.wait_for_workers(2)

    assert descriptors() <= before
    following.signal(signal.SIGTERM)
    following.wait().expect(0)
