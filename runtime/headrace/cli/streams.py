"""Who writes to the real standard output: our report and the ``Stdout`` sink, or whoever prints."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Generator


class SavedStdout:
    """Standard output put aside: from `__init__` on, what anybody prints goes to standard error.

    ``fd`` is the real one, kept on a descriptor of its own that no child inherits by itself.
    """

    def __init__(self) -> None:
        _open_missing()
        _flush()
        self.fd = os.dup(1)
        os.dup2(2, 1)

    def give_back(self) -> None:
        """Let standard output be the real one again; ``fd`` stays open."""
        _flush()
        os.dup2(self.fd, 1)

    def close(self) -> None:
        """Give it back and forget it."""
        if self.fd >= 0:
            self.give_back()
            os.close(self.fd)
            self.fd = -1


@contextlib.contextmanager
def prints_to_stderr() -> Generator[None]:
    """While a user's module is imported: its prints must not get between our lines."""
    saved = SavedStdout()
    try:
        yield
    finally:
        saved.close()


def write_whole(fd: int, data: bytes) -> None:
    """Write all of ``data``, also to a pipe that somebody made non-blocking. Raises `OSError` when nobody reads."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            select.select([], [fd], [])


def _open_missing() -> None:
    """A closed 0, 1 or 2 would be the number of the next file that is opened."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != fd:
                os.dup2(opened, fd)
                os.close(opened)


def _flush() -> None:
    if sys.stdout is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
