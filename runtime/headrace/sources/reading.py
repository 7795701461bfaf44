"""An open file and its content as bytes by position, whether it is packed or not."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Protocol

from headrace.sources.compression import Compression, CorruptStream, Inflater, compression_of, inflater_of

_RAW_BYTES = 64 * 1024
_STEP_BYTES = 1024 * 1024


class Content(Protocol):
    """A file's content. Positions count unpacked bytes."""

    @property
    def position(self) -> int: ...
    @property
    def final(self) -> bool: ...
    @property
    def torn(self) -> str | None:
        """Why the content ends before its end; None while nothing says so."""
        ...

    @property
    def whole(self) -> bool:
        """The last peek ended where a packed stream may end; always so for a plain file."""
        ...

    def peek(self, size: int) -> bytes: ...
    def advance(self, count: int) -> None: ...
    def skip_to(self, position: int, budget: int) -> int:
        """Move on towards ``position``; how many bytes of work that was, at least ``budget`` if there is more to do."""
        ...


class PlainContent:
    """Content that is read where it is asked for."""

    torn: str | None = None
    whole = True

    def __init__(self, file: OpenFile, *, bounded: bool) -> None:
        self._file = file
        self.final = bounded
        self.position = 0

    def peek(self, size: int) -> bytes:
        return os.pread(self._file.fd, size, self.position)

    def advance(self, count: int) -> None:
        self.position += count

    def skip_to(self, position: int, budget: int) -> int:  # noqa: ARG002 - a plain file needs no work to be skipped
        self.position = position
        return 0


class CompressedContent:
    """Content that is unpacked from the file's start on, in pieces of bounded size."""

    def __init__(self, file: OpenFile, compression: Compression, *, bounded: bool) -> None:
        self._file = file
        self._bounded = bounded
        self._compression = compression
        self._inflater: Inflater = inflater_of(compression)
        self._raw = 0
        self._raw_ended = False
        self._failure: str | None = None
        self._ahead = b""
        self.position = 0

    @property
    def taken(self) -> int:
        """Bytes of the file that were unpacked."""
        return self._raw

    @property
    def final(self) -> bool:
        return self._bounded and self._raw_ended and self._inflater.whole

    @property
    def whole(self) -> bool:
        return self._raw_ended and self._inflater.whole

    @property
    def trailing(self) -> bool:
        return self._inflater.trailing

    @property
    def torn(self) -> str | None:
        if self._failure is not None:
            return f"the {self._compression} data are corrupt ({self._failure})"
        if self._bounded and self._raw_ended and not self._inflater.whole:
            return f"the {self._compression} data end in the middle (the file is truncated)"
        return None

    def peek(self, size: int) -> bytes:
        if len(self._ahead) < size:
            parts = [self._ahead]
            have = len(self._ahead)
            while have < size and (part := self._unpack(size - have)):
                parts.append(part)
                have += len(part)
            self._ahead = b"".join(parts)
        return self._ahead[:size]

    def advance(self, count: int) -> None:
        self._ahead = self._ahead[count:]
        self.position += count

    def skip_to(self, position: int, budget: int) -> int:
        done = 0
        while self.position < position and done < budget:
            gone = len(self.peek(min(_STEP_BYTES, position - self.position)))
            if not gone:
                return done
            self.advance(gone)
            done += gone
        return done

    def _unpack(self, limit: int) -> bytes:
        while self._failure is None:
            try:
                part = self._inflater.inflate(limit)
            except CorruptStream as error:
                self._failure = str(error)
                break
            if part:
                return part
            raw = b"" if self._inflater.trailing else os.pread(self._file.fd, _RAW_BYTES, self._raw)
            self._raw_ended = not raw
            if not raw:
                break
            self._raw += len(raw)
            self._inflater.feed(raw)
        return b""


def _open(path: Path) -> int:
    # Not blocking, so that a name that has become a pipe does not hold the caller.
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)


class OpenFile:
    """A regular file that is held open, so that it stays the same file whatever happens to its name.

    Raises `OSError`; `IsADirectoryError` and its like for what is no regular file.
    """

    def __init__(self, path: Path, compression: Compression | None, *, bounded: bool) -> None:
        self.path = path
        self._bounded = bounded
        self.fd = _open(path)
        try:
            status = os.fstat(self.fd)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(f"not a regular file: {path}")
            self.device, self.inode = status.st_dev, status.st_ino
            self._asked = compression
            self.compression = self._detect()
        except BaseException:
            os.close(self.fd)
            raise

    @property
    def key(self) -> tuple[int, int]:
        return self.device, self.inode

    @property
    def packed(self) -> bool:
        return self.compression is not Compression.NONE

    def _detect(self) -> Compression:
        return self._asked or compression_of(os.pread(self.fd, 4, 0), self.path.suffix.lower())

    def detect_again(self) -> None:
        """The file has grown from nothing: see what it is now."""
        self.compression = self._detect()

    def content(self) -> Content:
        """The content from its start."""
        if self.compression is Compression.NONE:
            return PlainContent(self, bounded=self._bounded)
        return CompressedContent(self, self.compression, bounded=self._bounded)

    def open_again(self) -> None:
        """Open it if it was closed to spare descriptors."""
        if self.fd >= 0:
            return
        fd = _open(self.path)
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) != self.key:
            os.close(fd)
            raise OSError("the file was replaced by another one since the run began")
        self.fd = fd

    def status(self) -> os.stat_result:
        return os.fstat(self.fd)

    def size(self) -> int:
        """In bytes as stored."""
        return os.fstat(self.fd).st_size

    def read(self, size: int, position: int) -> bytes:
        """Bytes as stored."""
        return os.pread(self.fd, size, position)

    def next_data(self, position: int) -> int | None:
        """Where stored bytes that are no hole come next; None: nowhere before the end."""
        try:
            return os.lseek(self.fd, position, os.SEEK_DATA)
        except OSError:
            return None if position >= self.size() or self._only_a_hole_follows(position) else position

    def _only_a_hole_follows(self, position: int) -> bool:
        try:
            return os.lseek(self.fd, position, os.SEEK_HOLE) == position
        except OSError:
            return False

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
