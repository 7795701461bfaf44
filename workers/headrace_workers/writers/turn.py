"""Turns at a file that several processes and threads write: one at a time, and a kill gives the turn back.

A turn is a ``flock`` on a lock file beside it. The lock file is removed by whoever closes last; so who has got the lock
looks whether the file is still the one at that path, and begins again if it is not.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Generator

from headrace_workers.attempt import waiting_for_a_turn


class Turn:
    """The turns of this process at one lock file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def held(self, timeout: float) -> Generator[None]:
        """Wait for the turn and hold it. Raises TimeoutError, or OSError when the lock file cannot be used."""
        deadline = time.monotonic() + timeout
        if not self._lock.acquire(blocking=False):
            with waiting_for_a_turn():
                taken = self._lock.acquire(timeout=timeout)
            if not taken:
                raise TimeoutError
        try:
            fd = self._locked(deadline)
            try:
                yield
            finally:
                _give_back(fd)
        finally:
            self._lock.release()

    def remove(self) -> None:
        """Remove the lock file, unless another process has its turn."""
        with contextlib.suppress(OSError):
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_current(fd):
                    os.unlink(self._path)  # noqa: PTH108 - as everywhere here, by its text
            finally:
                _give_back(fd)

    def _locked(self, deadline: float) -> int:
        while True:
            fd = os.open(self._path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            if not _lock(fd, deadline):
                raise TimeoutError
            if self._is_current(fd):
                return fd
            _give_back(fd)

    def _is_current(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), os.stat(self._path))
        except FileNotFoundError:
            return False


def _give_back(fd: int) -> None:
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)  # a fork that inherited the descriptor must not keep the lock
    os.close(fd)


def _lock(fd: int, deadline: float) -> bool:
    """Lock before the deadline; if not, the descriptor is closed."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        with waiting_for_a_turn():
            return _Waiting(fd).until(deadline)
    except OSError:
        os.close(fd)
        raise


class _Waiting:
    """A thread that waits in ``flock``, which knows no time limit; who gives up leaves the descriptor to it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._state = threading.Lock()
        self._ended = threading.Event()
        self._error: OSError | None = None
        self._given_up = False

    def until(self, deadline: float) -> bool:
        thread = threading.Thread(target=self._wait, name="headrace-turn", daemon=True)
        thread.start()
        self._ended.wait(max(0.0, deadline - time.monotonic()))
        with self._state:
            self._given_up = not self._ended.is_set()
        if self._given_up:
            return False
        thread.join()
        if self._error is not None:
            os.close(self._fd)
            raise self._error
        return True

    def _wait(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        except OSError as error:
            self._error = error
        with self._state:
            if self._given_up:
                _give_back(self._fd)
            else:
                self._ended.set()
