"""Whole lines to the run's standard output, which all workers share.

A line is never mixed with another worker's: each write holds a record lock on the output itself, which excludes other
processes though they share the open file, and which the kernel frees at a kill. Lines of at most ``PIPE_BUF`` bytes
(4,096) are handed over in pieces of whole lines of that size, which a pipe takes whole or not at all: no kill tears
one. A kill can tear a longer line, and any line when the output is a file; in a file the next write ends the torn line
first, so that it spoils no other. Its row is written again.

When the output is a file it is synced before ``write`` returns; a pipe's or terminal's lines are the reader's then. A
line that is out cannot be taken back: when a write fails half way its first lines come again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import stat
import threading
from collections.abc import Generator, Iterator

from headrace.errors import ErrorClass, SinkError
from headrace_workers.writers.base import BlockingWriter, SealedBatch, WriterContext
from headrace_workers.writers.failures import os_failure

_PIECE = select.PIPE_BUF
_THREADS = threading.Lock()  # a record lock belongs to the process, so it says nothing to threads


class StdoutWriter(BlockingWriter):
    """Writes blocks to ``stdout_fd``."""

    def __init__(self) -> None:
        self._fd = -1
        self._is_file = False
        self._reader = -1

    def open(self, context: WriterContext) -> None:
        self._fd = context.stdout_fd
        try:
            self._is_file = stat.S_ISREG(os.fstat(self._fd).st_mode)
            if self._is_file:
                with contextlib.suppress(OSError):  # an output that may not be read is only written
                    self._reader = os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise os_failure("standard output", "it is not open", error) from error

    def write(self, batch: SealedBatch) -> None:
        try:
            with _THREADS, _record_lock(self._fd):
                if self._has_torn_line():
                    os.write(self._fd, b"\n")
                for block in batch.blocks or ():
                    with memoryview(block) as lines:
                        self._write_lines(lines)
                if self._is_file:
                    os.fdatasync(self._fd)
        except BrokenPipeError as error:
            raise SinkError("the reader of standard output went away", error_class=ErrorClass.FATAL) from error
        except OSError as error:
            raise os_failure("standard output", "rows cannot be written", error) from error

    def close(self) -> None:
        """``stdout_fd`` itself is the worker's."""
        if self._reader >= 0:
            os.close(self._reader)
            self._reader = -1

    def _has_torn_line(self) -> bool:
        if self._reader < 0:
            return False
        size = os.fstat(self._reader).st_size
        return size > 0 and os.pread(self._reader, 1, size - 1) != b"\n"

    def _write_lines(self, lines: memoryview) -> None:
        for begin, end in _pieces(lines):
            with lines[begin:end] as piece:
                self._write_piece(piece)

    def _write_piece(self, piece: memoryview) -> None:
        done = 0
        while done < len(piece):
            try:
                with piece[done:] as rest:
                    done += os.write(self._fd, rest)
            except BlockingIOError:  # whoever shares the output made it non-blocking
                _wait_for_room(self._fd)


def _pieces(lines: memoryview) -> Iterator[tuple[int, int]]:
    """Runs of whole lines of at most `_PIECE` bytes; a longer line is a run of its own."""
    begin, size = 0, len(lines)
    while begin < size:
        end = begin + _PIECE
        if end >= size:
            yield begin, size
            return
        cut = bytes(lines[begin:end]).rfind(b"\n") + 1
        end = begin + cut if cut else _line_end(lines, end)
        yield begin, end
        begin = end


def _line_end(lines: memoryview, at: int) -> int:
    """One past the first newline at or after ``at``."""
    while at < len(lines):
        found = bytes(lines[at : at + 65_536]).find(b"\n")
        if found >= 0:
            return at + found + 1
        at += 65_536
    return len(lines)


@contextlib.contextmanager
def _record_lock(fd: int) -> Generator[None]:
    """Held where the output knows locks; where it does not, lines of up to ``PIPE_BUF`` bytes are still whole."""
    locked = True
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in {errno.ENOLCK, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}:
            raise
        locked = False
    try:
        yield
    finally:
        if locked:
            fcntl.lockf(fd, fcntl.LOCK_UN)


def _wait_for_room(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    poll.poll()
