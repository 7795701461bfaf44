"""Part files of a directory: one is open under a hidden name until it is finished, and none replaces another.

::

    .part-NAME    open: its writer holds a ``flock`` on it; everything up to the last sync is acknowledged
    NAME          finished: given by ``link``, which never overwrites; then the hidden name is removed

    NAME = SHARD-INCARNATION-NUMBER-ID.ndjson[.gz|.zst]
           4+ digits, 8+ digits, 6+ digits, hex digits

A crash leaves an open part without a lock, or both names of one file. `adopt` ends either: it takes the lock (a part
that a living worker writes is let be), cuts the part after its last whole unit, syncs it and gives it its name. A part
of which nothing is left is removed. Whoever makes a part looks, once the lock is had, whether an adopter was quicker.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
from collections.abc import Generator, Sequence
from typing import Final, NamedTuple, Self

from headrace_workers.writers.compression import STORAGES, Storage

HIDDEN: Final = ".part-"
_OPEN_PART: Final = re.compile(r"\.part-\d{4,}-\d{8,}-\d{6,}-[0-9a-f]{8,}\.ndjson(\.gz|\.zst)?", re.ASCII)
_AT_ONCE: Final = 512


def part_name(shard: int, incarnation: int, number: int, identity: str, storage: Storage) -> str:
    """The name of a finished part."""
    return f"{shard:04}-{incarnation:08}-{number:06}-{identity}.ndjson{storage.suffix}"


class Folder:
    """A directory, by descriptor: parts stay in it though it be renamed."""

    def __init__(self, path: str) -> None:
        self.path = path
        made = _make_folders(path)
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if made:
                _sync_folder(os.path.dirname(made) or ".")  # noqa: PTH120 - a text beside other texts
        except BaseException:
            self.close()
            raise

    def sync(self) -> None:
        """Make the names of its files durable."""
        os.fsync(self.fd)

    def close(self) -> None:
        os.close(self.fd)


def _make_folders(path: str) -> str | None:
    """Make the folder; the outermost one that had to be made."""
    made: str | None = None
    outer = path
    while outer and not os.path.isdir(outer):  # noqa: PTH112 - as above
        made, outer = outer, os.path.dirname(outer)  # noqa: PTH120 - as above
    os.makedirs(path, 0o755, exist_ok=True)  # noqa: PTH103 - as above
    return made


def _sync_folder(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class OpenPart:
    """A part that is being written. Everything below ``length`` is durable."""

    def __init__(self, folder: Folder, name: str, fd: int, began: float) -> None:
        self.name = name
        self.began = began
        self.length = 0
        self.rows = 0
        self.broken = False
        self._folder = folder
        self._fd = fd

    @classmethod
    def create(cls, folder: Folder, name: str, now: float) -> Self:
        """Make it, lock it, and make its name durable."""
        hidden = HIDDEN + name
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        while True:
            fd = os.open(hidden, flags, 0o644, dir_fd=folder.fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                if _is_at(folder, hidden, fd):
                    folder.sync()
                    return cls(folder, name, fd, now)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(hidden, dir_fd=folder.fd)
                os.close(fd)
                raise
            os.close(fd)

    def append(self, buffers: Sequence[memoryview | bytes], rows: int) -> None:
        """Returns when they are durable. Raises OSError, having cut off what it wrote; ``broken`` if it could not."""
        try:
            end = _write_all(self._fd, buffers, self.length)
            os.fdatasync(self._fd)
            if os.fstat(self._fd).st_nlink == 0:
                self.broken = True
                raise OSError(errno.ESTALE, "the part was removed while it was written")
        except BaseException:
            self._cut()
            raise
        self.length = end
        self.rows += rows

    def _cut(self) -> None:
        try:
            os.ftruncate(self._fd, self.length)
        except OSError:
            self.broken = True

    def finish(self) -> None:
        """Give it its name. Raises OSError; it stays open then, and can go on."""
        _give_name(self._folder, self._fd, self.name)
        self.close()

    def close(self) -> None:
        """Let go of it; what is durable in it is adopted later."""
        if self._fd >= 0:
            _release(self._fd)
            self._fd = -1


class Adopted(NamedTuple):
    """Names given, and hidden names that had to be left because another file has the name."""

    named: list[str]
    left: list[str]


def adopt(folder: Folder) -> Adopted:
    """Finish the parts that dead workers left."""
    adopted = Adopted([], [])
    for hidden in sorted(os.listdir(folder.fd)):
        if not _OPEN_PART.fullmatch(hidden):
            continue
        try:
            name = _adopt_one(folder, hidden)
        except FileExistsError:
            adopted.left.append(hidden)
        else:
            adopted.named.extend([name] if name is not None else [])
    return adopted


def _adopt_one(folder: Folder, hidden: str) -> str | None:
    """The name given; None: it is not ours to adopt, or nothing was left of it."""
    with _locked_part(folder, hidden) as fd:
        if fd is None:
            return None
        length = _storage_of(hidden).whole_length(fd)
        if length == 0:
            os.unlink(hidden, dir_fd=folder.fd)
            folder.sync()
            return None
        if length < os.fstat(fd).st_size and os.fstat(fd).st_nlink == 1:
            os.ftruncate(fd, length)
        os.fsync(fd)
        name = hidden.removeprefix(HIDDEN)
        _give_name(folder, fd, name)
        return name


@contextlib.contextmanager
def _locked_part(folder: Folder, hidden: str) -> Generator[int | None]:
    """The part, locked; None when it is gone, a living worker writes it, or it is no file of its own."""
    try:
        fd = os.open(hidden, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder.fd)
    except OSError as error:
        if error.errno not in {errno.ENOENT, errno.ELOOP, errno.EACCES, errno.EISDIR, errno.ENXIO}:
            raise
        yield None
        return
    try:
        yield fd if _is_ours(folder, hidden, fd) else None
    finally:
        _release(fd)


def _is_ours(folder: Folder, hidden: str, fd: int) -> bool:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return _is_at(folder, hidden, fd)


def _storage_of(name: str) -> Storage:
    return next(one for one in STORAGES.values() if one.suffix == name.rpartition(".ndjson")[2])


def _is_at(folder: Folder, name: str, fd: int) -> bool:
    """Whether the name still leads to this file."""
    try:
        return os.path.samestat(os.stat(name, dir_fd=folder.fd, follow_symlinks=False), os.fstat(fd))
    except FileNotFoundError:
        return False


def _give_name(folder: Folder, fd: int, name: str) -> None:
    """Link the final name, which fails when another file has it, then drop the hidden one."""
    hidden = HIDDEN + name
    try:
        os.link(hidden, name, src_dir_fd=folder.fd, dst_dir_fd=folder.fd, follow_symlinks=False)
    except FileExistsError:
        if not _is_at(folder, name, fd):
            raise
    folder.sync()
    os.unlink(hidden, dir_fd=folder.fd)
    folder.sync()


def _release(fd: int) -> None:
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)  # a fork that inherited the descriptor must not keep the lock
    os.close(fd)


def _write_all(fd: int, buffers: Sequence[memoryview | bytes], at: int) -> int:
    """Write the buffers one after another from ``at`` on; where they end. Keeps no view of them."""
    for first in range(0, len(buffers), _AT_ONCE):
        some = buffers[first : first + _AT_ONCE]
        done = os.pwritev(fd, some, at)
        at += done
        for buffer in some:
            if done >= len(buffer):
                done -= len(buffer)
                continue
            at = _write_rest(fd, buffer, done, at)
            done = 0
    return at


def _write_rest(fd: int, buffer: memoryview | bytes, done: int, at: int) -> int:
    with memoryview(buffer) as whole:
        while done < len(whole):
            with whole[done:] as rest:
                written = os.pwrite(fd, rest, at)
            done += written
            at += written
    return at
