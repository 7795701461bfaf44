"""A disk of a few megabytes that a test can fill, and free again."""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

_LIBC = ctypes.CDLL(None, use_errno=True)
_MS_RDONLY, _MS_REMOUNT, _MNT_DETACH = 1, 32, 2
_PAGE = 4096


class SmallDisk:
    """A file system of its own at ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self, but_pages: int = 0) -> None:
        """Leave not a byte, or so many pages."""
        with self._ballast.open("ab", buffering=0) as ballast:
            for size in (1 << 16, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while True:
                        ballast.write(bytes(size))
            if but_pages:
                ballast.truncate((ballast.tell() // _PAGE - but_pages) * _PAGE)

    def free(self) -> None:
        """Give back what `fill` took."""
        self._ballast.unlink()

    def make_read_only(self) -> None:
        """From now on nothing on it can be changed."""
        _check(_LIBC.mount(None, os.fsencode(self.path), None, _MS_REMOUNT | _MS_RDONLY, None))


@contextlib.contextmanager
def small_disk(path: Path, size: str = "2m") -> Iterator[SmallDisk]:
    """Mounted while the block runs. Skips the test where nothing may be mounted."""
    path.mkdir(mode=0o700)
    try:
        _check(_LIBC.mount(b"tmpfs", os.fsencode(path), b"tmpfs", 0, f"size={size},mode=700".encode()))
    except PermissionError:
        pytest.skip("a small disk cannot be mounted here: that takes the rights of root")
    try:
        yield SmallDisk(path)
    finally:
        _check(_LIBC.umount2(os.fsencode(path), _MNT_DETACH))


def _check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
