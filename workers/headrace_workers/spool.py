"""A worker's spool of dead letters: entries are durable before anything that passes them (HR-15).

The format is `headrace.codec.spool`. One worker appends, from any of its threads; the file is made by the first entry.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from headrace.codec.spool import SpoolEntry, encode_entry, read_entries
from headrace.errors import SinkError


class Spool:
    """Appends to one file. ``end`` is where its durable entries end."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._fd = -1
        self.end = 0

    def append(self, entries: Sequence[SpoolEntry]) -> int:
        """Returns ``end`` once the entries are durable. Raises `SinkError` (retryable) having kept none of them."""
        data = b"".join(map(encode_entry, entries))
        with self._lock:
            try:
                self._open()
                self._write(data)
                os.fdatasync(self._fd)
            except OSError as error:
                self._cut()
                name = errno.errorcode.get(error.errno or 0, "?")
                raise SinkError(f"dead letters cannot be kept in {self._path}: {error.strerror} ({name})") from error
            self.end += len(data)
            return self.end

    def close(self) -> None:
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def _open(self) -> None:
        if self._fd >= 0:
            return
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with open(self._fd, "rb", closefd=False) as spool:
            _, self.end = read_entries(spool.read())
        os.ftruncate(self._fd, self.end)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _write(self, data: bytes) -> None:
        done = 0
        while done < len(data):
            done += os.pwrite(self._fd, data[done:], self.end + done)

    def _cut(self) -> None:
        """Forget what was not made durable, and open anew next time: a failed fsync forgets its pages."""
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, self.end)
        os.close(self._fd)
        self._fd = -1
