"""Writing whole records into a pipe: at once or not at all, and never into the void.

A record of at most `RECORD_MAX` bytes (``PIPE_BUF``) is written whole or not at all, from whichever thread. Nothing
is assumed of the pipe's capacity: past a per-user limit it is one page, and a page with one unread byte is full.
"""

from __future__ import annotations

import os
import select
import time

from headrace.errors import HeadraceError
from headrace.shm.wire import RECORD_MAX


class PeerGone(HeadraceError):
    """Nobody reads the other end any more."""


class PipeWriter:
    """The writing end of a pipe, made non-blocking. The descriptor stays the caller's to close."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        os.set_blocking(fd, False)

    def try_write(self, record: bytes) -> bool:
        """Write one record. False: no room now. Raises `PeerGone`."""
        if not 0 < len(record) <= RECORD_MAX:
            raise ValueError(f"a record is 1 to {RECORD_MAX} bytes, not {len(record)}")
        try:
            written = os.write(self.fd, record)
        except BlockingIOError:
            return False
        except BrokenPipeError as error:
            raise PeerGone(f"the reader of pipe {self.fd} is gone") from error
        if written != len(record):
            raise PeerGone(f"pipe {self.fd} took {written} of {len(record)} bytes: it is no pipe")
        return True

    def write_when_room(self, record: bytes, deadline: float) -> bool:
        """Write one record, waiting for room until ``deadline`` (monotonic). False: it passed. (HR-19)"""
        poll = select.poll()
        poll.register(self.fd, select.POLLOUT)
        while not self.try_write(record):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            poll.poll(left * 1000)
        return True
