"""The state directory: who may use it, and what is proved before a run begins."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import StateError, StateInUseError
from headrace.supervisor import process
from headrace.supervisor.process import ProcessIdentity
from headrace.supervisor.state_dir import (
    SupervisorEntry,
    is_locked,
    live_supervisor,
    open_state,
    read_supervisor,
)

HOLD = "import os,sys,fcntl; fd=int(sys.argv[1]); sys.stdout.write('x'); sys.stdout.flush(); sys.stdin.read()"


def holder_of(fd: int) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(fd)], pass_fds=[fd], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.read(1)
    return child


def end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.communicate()


def test_a_state_directory_is_private_whatever_the_umask(tmp_path: Path) -> None:
    """Y03: modes do not depend on the umask."""
    before = os.umask(0)
    try:
        state = open_state(tmp_path / "state")
        state.clear_run()
        state.write_supervisor(SupervisorEntry("p", 1, 1, "b", 1, []))
        state.close()
    finally:
        os.umask(before)

    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "state").iterdir()}
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    assert modes == {"lock": 0o600, "run": 0o700, "dead_letter": 0o700, "supervisor.json": 0o600}


def test_a_second_supervisor_is_refused_naming_the_first(tmp_path: Path) -> None:
    """U01."""
    first = open_state(tmp_path / "state")
    me = process.identity_of(os.getpid())
    assert me is not None
    first.write_supervisor(SupervisorEntry("flights", me.pid, me.start_ticks, me.boot_id, 1, []))
    (tmp_path / "link").symlink_to(tmp_path / "state")

    for path in (tmp_path / "state", tmp_path / "link", tmp_path / "state" / ".." / "state"):
        with pytest.raises(StateInUseError, match=f"pid {os.getpid()} .*flights"):
            open_state(path)

    assert is_locked(tmp_path / "state")
    first.close()
    assert not is_locked(tmp_path / "state")


def test_a_lock_file_left_by_a_crash_is_no_obstacle(tmp_path: Path) -> None:
    """U03 and I01: liveness is the kernel's lock; a pid is for display."""
    for content in (b"", b"1", b"garbage", str(2**22).encode()):
        state = tmp_path / "state"
        state.mkdir(mode=0o700, exist_ok=True)
        (state / "lock").write_bytes(content)
        (state / "supervisor.json").write_bytes(content)

        open_state(state).close()

        assert live_supervisor(state) is None


@pytest.mark.parametrize(("mode", "words"), [(0o770, "can be written by others"), (0o707, "can be written by others")])
def test_a_directory_that_others_can_write_is_refused(tmp_path: Path, mode: int, words: str) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(mode)

    with pytest.raises(StateError, match=words):
        open_state(state)


def test_a_missing_parent_is_named(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"nowhere.* does not exist"):
        open_state(tmp_path / "nowhere" / "state")


def test_a_file_in_the_directorys_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")

    with pytest.raises(StateError, match="is not a directory"):
        open_state(tmp_path / "state")


def test_a_survivor_that_holds_the_fleet_lock_is_killed(tmp_path: Path) -> None:
    state = open_state(tmp_path / "state")
    fd = os.open(tmp_path / "state" / "fleet.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(fd, fcntl.LOCK_SH)
    child = holder_of(fd)
    os.close(fd)
    survivor = process.identity_of(child.pid)
    assert survivor is not None

    killed = state.take_fleet_lock([survivor], [])

    assert killed == 1
    child.communicate()
    assert child.returncode == -signal.SIGKILL
    state.close()


def test_a_stranger_under_a_recorded_number_lives(tmp_path: Path) -> None:
    """I03 and I04: neither the number nor even the identity is enough: it must hold this very lock."""
    state = open_state(tmp_path / "state")
    other = os.open(tmp_path / "other.lock", os.O_RDWR | os.O_CREAT, 0o600)
    child = holder_of(other)
    os.close(other)
    same = process.identity_of(child.pid)
    assert same is not None
    older = ProcessIdentity(same.boot_id, same.pid, same.start_ticks - 1)
    elsewhere = ProcessIdentity("another boot", same.pid, same.start_ticks)

    killed = state.take_fleet_lock([same, older, elsewhere], [older, elsewhere])

    assert killed == 0
    assert child.poll() is None
    end(child)
    state.close()


def test_an_unrecorded_holder_is_named_and_not_killed(tmp_path: Path) -> None:
    """HR-11: nothing of an earlier run is alive, recorded or not, when this one goes on."""
    state = open_state(tmp_path / "state")
    fd = os.open(tmp_path / "state" / "fleet.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(fd, fcntl.LOCK_SH)
    child = holder_of(fd)
    os.close(fd)

    with pytest.raises(StateInUseError, match=str(child.pid)):
        state.take_fleet_lock([], [], wait=0.2)

    assert child.poll() is None
    end(child)
    state.close()


def test_supervisor_json_is_replaced_whole(tmp_path: Path) -> None:
    state = open_state(tmp_path / "state")
    entry = SupervisorEntry("p", 7, 8, "boot", 9, [])

    state.write_supervisor(entry)

    assert read_supervisor(tmp_path / "state") == entry
    assert live_supervisor(tmp_path / "state") is None
    state.close()
