"""``status``, ``stop`` and ``start`` against a process that holds a state directory and answers as a run does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.cli import start
from headrace.cli.main import call
from headrace.supervisor.state_dir import is_locked

STAND_IN = """
import os, selectors, signal, sys
from pathlib import Path
from headrace.admin.control import ControlServer
from headrace.supervisor import process
from headrace.supervisor.state_dir import SupervisorEntry, open_state

path, behaviour = Path(sys.argv[1]), sys.argv[2]
state = open_state(path)
me = process.identity_of(os.getpid())
state.write_supervisor(SupervisorEntry("flights", me.pid, me.start_ticks, me.boot_id, 1, []))
stopping = False

def handle(request):
    global stopping
    if request["verb"] == "stop":
        stopping = behaviour != "stubborn"
        return {"ok": {}}
    return {"ok": {"pipeline": "flights", "state": "running", "pid": os.getpid(), "shards": [
        {"sink": "main", "shard": 0, "worker": "w0", "slots_used": 1, "parked": 0, "in_flight": 1,
         "oldest_seconds": 0.1}]}}

server = None
if behaviour != "deaf":
    server = ControlServer(state.control, handle)
    selector = selectors.DefaultSelector()
    server.register(selector)
print("ready", flush=True)
if server is None:
    signal.pause()
while not stopping:
    for key, _ in selector.select():
        server.on_ready(key)
server.close()
state.close()
"""

RunStandIn = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunStandIn]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))
    running: list[subprocess.Popen[bytes]] = []

    def run(behaviour: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", STAND_IN, str(tmp_path / "state"), behaviour], stdout=subprocess.PIPE
        )
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process

    yield run
    for process in running:
        process.kill()
        process.communicate()


def test_status_is_what_the_run_says(stand_in: RunStandIn, capsys: pytest.CaptureFixture[str]) -> None:
    process = stand_in("obedient")

    assert call(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pid"] == process.pid
    assert call(["status"]) == 0
    assert "flights: running" in capsys.readouterr().out


def test_stop_waits_for_the_end(stand_in: RunStandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process = stand_in("obedient")

    assert call(["stop", "--json"]) == 0

    assert json.loads(capsys.readouterr().out)["state"] == "stopped"
    assert not is_locked(tmp_path / "state")
    assert process.wait(5) == 0


def test_stop_gives_up_after_its_timeout(stand_in: RunStandIn, capsys: pytest.CaptureFixture[str]) -> None:
    """H06"""
    stand_in("stubborn")

    assert call(["stop", "--timeout", "0.3"]) == 1

    assert "goes on draining" in capsys.readouterr().err


def test_a_run_that_listens_to_nobody_is_stopped_by_signal(stand_in: RunStandIn) -> None:
    process = stand_in("deaf")

    assert call(["stop"]) == 0

    assert process.wait(5) == -signal.SIGTERM


def test_without_a_live_run_stop_is_done_and_status_is_not(
    stand_in: RunStandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = stand_in("obedient")
    process.kill()
    process.wait()

    assert call(["stop"]) == 0
    assert call(["status"]) == 1

    assert "error: nothing runs on" in capsys.readouterr().err


def test_a_second_start_is_refused(stand_in: RunStandIn, tmp_path: Path) -> None:
    process = stand_in("obedient")

    with pytest.raises(Exception, match=rf"in use by pid {process.pid}; `headrace stop`"):
        start._refuse_if_in_use(tmp_path / "state")


def test_start_answers_once_the_fleet_is_ready(stand_in: RunStandIn, tmp_path: Path) -> None:
    stand_in("obedient")
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])

    assert start._wait_until_ready(child, tmp_path / "state", 10.0) is None

    os.kill(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)


def test_a_run_that_dies_first_gives_its_code_and_the_end_of_its_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])

    code = start._wait_until_ready(child, tmp_path, 10.0)

    assert code == 3
    assert start._tell(child, tmp_path, code, b"earlier\n" * 50 + b"the cause\n", False) == 3
    err = capsys.readouterr().err
    assert "ended with exit code 3" in err
    assert err.rstrip().endswith("the cause")
    assert err.count("earlier") == 19


def test_start_as_process_one_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """O04"""
    monkeypatch.setattr("os.getpid", lambda: 1)

    assert call(["start", "flights.py"]) == 2

    assert "use `headrace run`" in capsys.readouterr().err


def test_the_log_is_ours_alone_and_grows(tmp_path: Path) -> None:
    state = tmp_path / "state"

    for _ in range(2):
        log = start._open_log(state)
        os.write(log, b"line\n")
        os.close(log)

    path = state / "headrace.log"
    assert path.read_text() == "line\nline\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert state.stat().st_mode & 0o777 == 0o700
