"""Who a process is, and how one is watched and ended: by its pidfd, never by a number alone.

An identity is (boot id, pid, start ticks): the pid may be used again, the ticks of ``/proc/PID/stat`` field 22 tell
the users apart, and a boot id ends all of them. No wall-clock time takes part.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec


class ProcessIdentity(msgspec.Struct, frozen=True):
    """A process, told apart from every other that ever has its number."""

    boot_id: str
    pid: int
    start_ticks: int


def boot_id() -> str:
    """This boot's id."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def start_ticks(pid: int) -> int | None:
    """When the process began, in clock ticks since boot; None when there is no such process, or only its zombie."""
    fields = _stat_fields(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def parent_pid(pid: int) -> int | None:
    """The pid of the process' parent, or None when it is gone."""
    fields = _stat_fields(pid)
    return None if fields is None else int(fields[1])


def _stat_fields(pid: int) -> list[str] | None:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            text = stat.read()
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()


def identity_of(pid: int) -> ProcessIdentity | None:
    """The identity of a living process, or None."""
    ticks = start_ticks(pid)
    return None if ticks is None else ProcessIdentity(boot_id(), pid, ticks)


def is_alive(identity: ProcessIdentity) -> bool:
    """Whether just this process is alive; a zombie is not."""
    return identity.boot_id == boot_id() and start_ticks(identity.pid) == identity.start_ticks


def open_pidfd(identity: ProcessIdentity) -> int | None:
    """A pidfd of just this process, or None when it is gone."""
    try:
        pidfd = os.pidfd_open(identity.pid)
    except (ProcessLookupError, OSError):
        return None
    if is_alive(identity):
        return pidfd
    os.close(pidfd)
    return None


def kill_pidfd(pidfd: int) -> None:
    """SIGKILL; a process that is gone already is no error."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def wait_gone(pidfd: int, timeout: float) -> bool:
    """Whether the process ended within ``timeout`` seconds."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(max(0, int(timeout * 1000))))


def holders(dev: int, inode: int) -> Iterator[int]:
    """The pids, our own apart, that have the file with this device and inode open."""
    me = os.getpid()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != me and _has_open(int(name), dev, inode):
            yield int(name)


def _has_open(pid: int, dev: int, inode: int) -> bool:
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for descriptor in descriptors:
        try:
            found = os.stat(f"/proc/{pid}/fd/{descriptor}")
        except OSError:
            continue
        if found.st_ino == inode and found.st_dev == dev:
            return True
    return False


def descendants(pid: int) -> list[ProcessIdentity]:
    """The living children of a process and theirs, as the kernel lists them now."""
    found: list[ProcessIdentity] = []
    waiting = [pid]
    while waiting:
        for child in _children(waiting.pop()):
            identity = identity_of(child)
            if identity is not None:
                found.append(identity)
                waiting.append(child)
    return found


def _children(pid: int) -> list[int]:
    children: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as listed:
                children += [int(one) for one in listed.read().split()]
    except OSError:
        return children
    return children


def kill(identity: ProcessIdentity) -> None:
    """SIGKILL just this process, if it is still there."""
    pidfd = open_pidfd(identity)
    if pidfd is not None:
        kill_pidfd(pidfd)
        os.close(pidfd)
