"""The state directory: who may use it, which incarnation this is, and that nothing of an earlier one is alive.

::

    lock              flock, held by the supervisor from before the first write to after the last
    fleet.lock        flock on a descriptor that every worker is given: held while any process of the fleet lives
    state.db          incarnation, watermarks, ledger, losses, processes (supervisor/journal.py)
    supervisor.json   for people and tools: written whole, then renamed; never believed without an identity check
    control.sock      one JSON object a line
    run/              the fork server's socket; emptied at start
    dead_letter/      spools of workers, and letters.db
    headrace.log      of a detached run

After a crash a reader may find: a ``supervisor.json`` of a dead process (its lock is free), ``run/`` with a socket
nobody listens on, spools with a torn tail. None of them needs a person.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import time
from pathlib import Path

import msgspec

from headrace.errors import StateError, StateInUseError
from headrace.supervisor import process
from headrace.supervisor.process import ProcessIdentity

FLEET_LOCK_WAIT = 10.0
"""Seconds that a start waits for the processes of earlier incarnations to be gone."""


class WorkerEntry(msgspec.Struct, frozen=True):
    """A worker as ``supervisor.json`` names it."""

    name: str
    pid: int
    start_time: int
    shards: list[int]


class SupervisorEntry(msgspec.Struct, frozen=True):
    """What ``supervisor.json`` holds. Times are start ticks of ``/proc/PID/stat``."""

    pipeline: str
    pid: int
    start_time: int
    boot_id: str
    incarnation: int
    workers: list[WorkerEntry]


class StateDirectory:
    """An opened state directory: both locks are ours until `close`."""

    def __init__(self, path: Path, lock_fd: int) -> None:
        self.path = path
        self._lock_fd = lock_fd
        self.fleet_fd = -1

    @property
    def database(self) -> Path:
        return self.path / "state.db"

    @property
    def run(self) -> Path:
        return self.path / "run"

    @property
    def dead_letters(self) -> Path:
        return self.path / "dead_letter"

    @property
    def control(self) -> Path:
        return self.path / "control.sock"

    def clear_run(self) -> None:
        """Empty ``run/``: what lies there belonged to a fork server that is gone."""
        shutil.rmtree(self.run, ignore_errors=True)
        for folder in (self.run, self.dead_letters):
            folder.mkdir(mode=0o700, exist_ok=True)

    def drop_spools(self) -> None:
        """What was spooled and not collected belongs to chunks that replay: at least once keeps nothing of it."""
        for spool in self.dead_letters.glob("*.spool"):
            spool.unlink(missing_ok=True)

    def take_fleet_lock(
        self, workers: list[ProcessIdentity], helpers: list[ProcessIdentity], wait: float = FLEET_LOCK_WAIT
    ) -> int:
        """End what is left of earlier incarnations, then prove that nothing is: the number of processes killed.

        A recorded worker is killed if it is still that process, by identity, and has this very ``fleet.lock`` open; a
        recorded helper (a fork server) if it is still that process. The proof is the flock: it is free once no
        descriptor of any earlier fleet is open, whoever holds it, recorded or not (HR-11).

        Raises `StateInUseError` naming the pids that still hold it after ``wait`` seconds.
        """
        path = self.path / "fleet.lock"
        fd = _open_private(path)
        found = os.fstat(fd)
        holding = set(process.holders(found.st_dev, found.st_ino)) if workers else set[int]()
        killed = sum(_kill(one) for one in [*helpers, *(one for one in workers if one.pid in holding)])
        deadline = time.monotonic() + wait
        while not _try_flock(fd):
            if time.monotonic() > deadline:
                pids = ", ".join(map(str, process.holders(found.st_dev, found.st_ino))) or "unknown"
                os.close(fd)
                raise StateInUseError(
                    f"{self.path}: processes of an earlier run are still alive (pid {pids}); end them and start again"
                )
            _wait_for_any(path, deadline)
        self.fleet_fd = fd
        return killed

    def write_supervisor(self, entry: SupervisorEntry) -> None:
        """Replace ``supervisor.json``; a reader sees the old one or the new one, whole."""
        target = self.path / "supervisor.json"
        fresh = self.path / "supervisor.json.new"
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(entry)) + b"\n")
        fresh.replace(target)

    def close(self) -> None:
        """Give both locks back; nothing may be written after this (U01)."""
        for fd in (self.fleet_fd, self._lock_fd):
            if fd >= 0:
                os.close(fd)
        self.fleet_fd = self._lock_fd = -1


def open_state(path: Path) -> StateDirectory:
    """Take a state directory, making it if its parent exists.

    Raises `StateInUseError` when a supervisor runs on it, `StateError` when it cannot be used.
    """
    _make(path)
    _check_ownership(path)
    try:
        fd = _open_private(path / "lock")
    except OSError as error:
        raise StateError(f"{path}: cannot open the lock file ({_reason(error)}); the directory must be ours") from None
    if not _try_flock(fd):
        os.close(fd)
        raise StateInUseError(f"{path} is in use by {_who(path)}; stop it, or give this run another --state")
    return StateDirectory(path, fd)


def _make(path: Path) -> None:
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if not path.is_dir():
            raise StateError(f"{path} is not a directory; --state names a directory") from None
    except FileNotFoundError:
        raise StateError(f"{path.parent} does not exist; make it, or give another --state") from None
    except OSError as error:
        raise StateError(f"{path}: cannot make the state directory ({_reason(error)})") from None


def _check_ownership(path: Path) -> None:
    found = path.stat()
    if found.st_uid != os.geteuid():
        raise StateError(f"{path} belongs to uid {found.st_uid}, this process runs as uid {os.geteuid()}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise StateError(f"{path} can be written by others (mode {found.st_mode & 0o777:04o}); run: chmod 700 {path}")
    if found.st_mode & 0o077:
        with contextlib.suppress(OSError):
            path.chmod(0o700)


def _open_private(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _try_flock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP):
            raise StateError(
                f"the state directory's file system has no locks ({_reason(error)}); use another --state"
            ) from None
        raise
    return True


def _kill(identity: ProcessIdentity) -> bool:
    pidfd = process.open_pidfd(identity)
    if pidfd is None:
        return False
    try:
        process.kill_pidfd(pidfd)
        return process.wait_gone(pidfd, FLEET_LOCK_WAIT)
    finally:
        os.close(pidfd)


def _wait_for_any(lock: Path, deadline: float) -> None:
    """Wait until one of the lock's holders has ended, or a moment, whichever is first."""
    found = lock.stat()
    for pid in process.holders(found.st_dev, found.st_ino):
        identity = process.identity_of(pid)
        pidfd = process.open_pidfd(identity) if identity else None
        if pidfd is not None:
            try:
                process.wait_gone(pidfd, min(0.1, max(0.0, deadline - time.monotonic())))
            finally:
                os.close(pidfd)
            return
    time.sleep(0.005)


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)


def _who(path: Path) -> str:
    entry = read_supervisor(path)
    return f"pid {entry.pid} (pipeline {entry.pipeline})" if entry else "another process"


def read_supervisor(path: Path) -> SupervisorEntry | None:
    """What ``supervisor.json`` says, or None when it is missing or makes no sense."""
    try:
        return msgspec.json.decode((path / "supervisor.json").read_bytes(), type=SupervisorEntry)
    except (OSError, msgspec.MsgspecError, UnicodeError):
        return None


def live_supervisor(path: Path) -> SupervisorEntry | None:
    """The supervisor that runs on this directory now: its entry, proved by its identity."""
    entry = read_supervisor(path)
    if entry is None or not process.is_alive(ProcessIdentity(entry.boot_id, entry.pid, entry.start_time)):
        return None
    return entry


def is_locked(path: Path) -> bool:
    """Whether a supervisor holds this directory; reads ``/proc/locks`` and so disturbs nobody who is starting."""
    try:
        found = (path / "lock").stat()
        locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return False
    key = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    return any("FLOCK" in line and key in line.split() and "->" not in line for line in locks)
