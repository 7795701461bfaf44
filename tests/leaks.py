"""What a test may not leave behind: processes, zombies, threads, descriptors, mappings of memfds, temporary files.

The test process is a subreaper, so that what outlives its parent becomes a child of ours instead of vanishing to PID 1.
"""

import ctypes
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import psutil

PATIENCE: Final = 5.0
"""Seconds that something which is on its way out (a killed process, a joined thread) has to be gone."""

_PR_SET_CHILD_SUBREAPER: Final = 36
_SHM: Final = Path("/dev/shm")
_SHM_NAMES: Final = ("headrace", "psm_", "sem.")


def become_subreaper() -> None:
    """Orphaned descendants are given to this process from now on."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


class Belongings(NamedTuple):
    """What the test process has at one instant, as names that can be shown."""

    processes: frozenset[tuple[int, float]]
    threads: frozenset[threading.Thread]
    descriptors: frozenset[str]
    mappings: frozenset[str]
    files: frozenset[str]

    @classmethod
    def now(cls, scratch: Path) -> "Belongings":
        """Everything of this process, and the files in the temporary folder ``scratch`` and in shared memory."""
        return cls(
            frozenset((child.pid, child.create_time()) for child in _descendants()),
            frozenset(threading.enumerate()),
            frozenset(_descriptors()),
            frozenset(_memfd_mappings()),
            frozenset(_temporary_files(scratch)),
        )


def _descendants() -> list[psutil.Process]:
    """All descendants, zombies included. The kernel's list of children is looked at first: mostly it is empty."""
    tasks = Path("/proc/self/task")
    try:
        childless = not any((task / "children").read_bytes() for task in tasks.iterdir())
    except OSError:
        childless = False
    if childless:
        return []
    return [child for child in psutil.Process().children(recursive=True) if child.is_running()]


def _descriptors() -> Iterator[str]:
    for entry in os.listdir("/proc/self/fd"):
        try:
            yield f"{entry} -> {os.readlink(f'/proc/self/fd/{entry}')}"
        except FileNotFoundError:  # the descriptor that listed them
            continue


def _memfd_mappings() -> Iterator[str]:
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            if "/memfd:" in line:
                yield line.rstrip()


def _temporary_files(scratch: Path) -> Iterator[str]:
    for folder, _, names in os.walk(scratch):
        yield from (f"{folder}/{name}" for name in names)
    if _SHM.is_dir():
        yield from (str(path) for path in _SHM.iterdir() if path.name.startswith(_SHM_NAMES))


def leaks_since(before: Belongings, scratch: Path) -> list[str]:
    """What is here now and was not ``before``, after waiting `PATIENCE` for it to go. Processes among it are killed."""
    strays = _new_processes(before)
    _wait(lambda: not _living(strays))
    said = [f"process {child.pid}: {_what(child)}" for child in _living(strays)]
    _end(strays)
    if not _wait(lambda: not _rest(before, scratch), gc.collect):
        said += _rest(before, scratch)
    return said


def _new_processes(before: Belongings) -> list[psutil.Process]:
    return [child for child in _descendants() if (child.pid, child.create_time()) not in before.processes]


def _living(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    return [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def _what(process: psutil.Process) -> str:
    try:
        return f"{process.status()}, {' '.join(process.cmdline()) or process.name()}"
    except psutil.Error as error:
        return repr(error)


def _end(strays: list[psutil.Process]) -> None:
    """Kill what lives, each by its own identity, and reap what was orphaned: its parent is gone, so we are to."""
    for stray in _living(strays):
        stray.send_signal(signal.SIGKILL)
    _wait(lambda: not _living(strays))
    for stray in strays:
        try:
            os.waitpid(stray.pid, os.WNOHANG)
        except ChildProcessError:
            continue


def _rest(before: Belongings, scratch: Path) -> list[str]:
    now = Belongings.now(scratch)
    named = {
        "thread": {thread.name for thread in now.threads - before.threads},
        "descriptor": now.descriptors - before.descriptors,
        "mapping": now.mappings - before.mappings,
        "temporary file": now.files - before.files,
        "process or zombie": {str(pid) for pid, _ in now.processes - before.processes},
    }
    return [f"{kind} {name}" for kind, names in named.items() for name in sorted(names)]


def _wait(holds: Callable[[], bool], before_waiting: Callable[[], object] = lambda: None) -> bool:
    """Whether ``holds`` became true within `PATIENCE`."""
    if holds():
        return True
    before_waiting()
    deadline = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
