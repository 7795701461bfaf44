"""A slab: one shard's slots in shared memory without a name, written by the supervisor alone.

The supervisor makes a memfd, maps it read-write and then seals it: nobody can shrink or grow it, and no new writable
map or write of it is possible, whoever holds the descriptor (HR-13). Workers map it read-only. There is no name: the
kernel frees the pages when the last process is gone, so a kill leaves nothing behind (HR-6). Pages are charged when
first touched, to the memory control group.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import re
from types import TracebackType
from typing import Final, Self

from headrace.errors import ConfigError, CorruptFrameError

OLDEST_KERNEL: Final = (5, 4)
_MFD_NOEXEC_SEAL: Final = 0x8
_F_ADD_SEALS: Final = 1033
_F_SEAL_SEAL: Final = 0x1
_F_SEAL_SHRINK: Final = 0x2
_F_SEAL_GROW: Final = 0x4
_F_SEAL_FUTURE_WRITE: Final = 0x10
_SEALS: Final = _F_SEAL_SHRINK | _F_SEAL_GROW | _F_SEAL_FUTURE_WRITE | _F_SEAL_SEAL


def check_kernel(system: str, release: str) -> None:
    """Raise `ConfigError` where sealed shared memory and pidfds are not to be had."""
    numbers = re.match(r"(\d+)\.(\d+)", release)
    if system != "Linux" or numbers is None or (int(numbers[1]), int(numbers[2])) < OLDEST_KERNEL:
        raise ConfigError(
            f"headrace needs Linux {OLDEST_KERNEL[0]}.{OLDEST_KERNEL[1]} or newer (sealed shared memory, pidfds); "
            f"this is {system} {release}"
        )


class _Slots:
    """A mapping cut into slots."""

    def __init__(self, mapping: mmap.mmap, slots: int, slot_bytes: int) -> None:
        self.slots = slots
        self.slot_bytes = slot_bytes
        self._map: mmap.mmap | None = mapping

    def view(self, slot: int) -> memoryview:
        """The bytes of one slot; a new view each time, the caller's to release."""
        if not 0 <= slot < self.slots:
            raise CorruptFrameError(f"slot {slot} is outside the slab, which has {self.slots}")
        if self._map is None:
            raise ValueError("the slab is closed")
        with memoryview(self._map) as whole:
            return whole[slot * self.slot_bytes : (slot + 1) * self.slot_bytes]

    def close(self) -> None:
        """Give the mapping up. Views that are still about keep their pages until they go; nothing is raised."""
        mapping, self._map = self._map, None
        if mapping is not None:
            with contextlib.suppress(BufferError):
                mapping.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class Slab(_Slots):
    """The supervisor's slab: writable here, and nowhere else."""

    def __init__(self, fd: int, mapping: mmap.mmap, slots: int, slot_bytes: int) -> None:
        super().__init__(mapping, slots, slot_bytes)
        self._fd = fd

    @classmethod
    def create(cls, slots: int, slot_bytes: int) -> Slab:
        """Make, map and seal a slab. Raises `ConfigError` with the numbers when the machine refuses."""
        uname = os.uname()
        check_kernel(uname.sysname, uname.release)
        size = slots * slot_bytes
        try:
            fd = _memfd()
        except OSError as error:
            raise _refused(slots, slot_bytes, error) from error
        try:
            os.ftruncate(fd, size)
            mapping = mmap.mmap(fd, size)
            fcntl.fcntl(fd, _F_ADD_SEALS, _SEALS)
        except (OSError, ValueError, OverflowError) as error:
            os.close(fd)
            raise _refused(slots, slot_bytes, error) from error
        return cls(fd, mapping, slots, slot_bytes)

    @property
    def fd(self) -> int:
        """The descriptor that workers are given."""
        return self._fd

    def close(self) -> None:
        super().close()
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class MappedSlab(_Slots):
    """A worker's read-only map of a slab. The descriptor stays the caller's, who may close it afterwards."""

    def __init__(self, fd: int, slots: int, slot_bytes: int) -> None:
        size = slots * slot_bytes
        try:
            mapping = mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        except (OSError, ValueError, OverflowError) as error:
            raise CorruptFrameError(
                f"a slab of {slots} slots of {slot_bytes} bytes cannot be mapped: {error}"
            ) from error
        super().__init__(mapping, slots, slot_bytes)


def _memfd() -> int:
    try:
        return os.memfd_create("headrace-slab", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | _MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    # Kernels before 6.3 do not know the no-exec flag; some newer ones are set to refuse a memfd without it.
    return os.memfd_create("headrace-slab", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def _refused(slots: int, slot_bytes: int, error: Exception) -> ConfigError:
    return ConfigError(
        f"shared memory of {slots} slots x {slot_bytes} bytes = {slots * slot_bytes} bytes for one shard was refused: "
        f"{error}; lower shm.slots or shm.slot_bytes, or raise the limit"
    )
