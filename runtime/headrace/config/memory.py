"""How much memory this process may use: the least of its control groups' limits and the machine's memory.

Pages of a memfd are charged to the control group of the process that touches them first, so shared memory counts
against the same limit as everything else.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from headrace.config import cgroup

_V1_NO_LIMIT = 2**62
"""Version 1 writes "no limit" as the largest multiple of a page below 2**63."""


class MemoryRoom(msgspec.Struct, frozen=True):
    """``limit``: all that may be used; ``free``: what of it is not in use now; both in bytes, None where unknown."""

    limit: int | None
    free: int | None
    source: str


def memory_room(root: str | Path = "/") -> MemoryRoom:
    """The tightest limit above this process, and the least that is free under any of them."""
    base = Path(root)
    total, available = _machine(base)
    rooms = [MemoryRoom(total, available, "the machine's memory")] if total is not None else []
    version, folders = cgroup.groups(base, "memory")
    for folder in folders:
        limit, used, source = _group_v2(folder) if version == 2 else _group_v1(folder)
        if limit is not None:
            rooms.append(MemoryRoom(limit, max(0, limit - (used or 0)), source))
    if not rooms:
        return MemoryRoom(None, None, "unknown")
    tightest = min(rooms, key=lambda room: room.limit or 0)
    return MemoryRoom(tightest.limit, min(room.free for room in rooms if room.free is not None), tightest.source)


def _machine(root: Path) -> tuple[int | None, int | None]:
    fields: dict[str, int] = {}
    try:
        for line in (root / "proc/meminfo").read_text(encoding="ascii").splitlines():
            name, _, rest = line.partition(":")
            words = rest.split()
            if words and words[0].isdigit():
                fields[name] = int(words[0]) * 1024
    except OSError:
        pass
    total = fields.get("MemTotal")
    return total, fields.get("MemAvailable", total)


def _group_v2(folder: Path) -> tuple[int | None, int | None, str]:
    path = folder / "memory.max"
    used = cgroup.read_number(folder / "memory.current")
    return cgroup.read_number(path), _without_cache(folder, used, "inactive_file"), str(path)


def _group_v1(folder: Path) -> tuple[int | None, int | None, str]:
    path = folder / "memory.limit_in_bytes"
    limit = cgroup.read_number(path)
    used = cgroup.read_number(folder / "memory.usage_in_bytes")
    return (
        limit if limit is not None and limit < _V1_NO_LIMIT else None,
        _without_cache(folder, used, "total_inactive_file"),
        str(path),
    )


def _without_cache(folder: Path, used: int | None, field: str) -> int | None:
    """What is in use, less the file cache that the kernel gives up at once."""
    if used is None:
        return None
    try:
        lines = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return used
    cache = next((int(line.split()[1]) for line in lines if line.startswith(f"{field} ")), 0)
    return max(0, used - cache)


def free_space(path: Path, room: MemoryRoom, root: str | Path = "/") -> int:
    """Bytes that can be written under ``path``: what its file system says and, on one in memory, what memory allows."""
    found = os.statvfs(path)
    free = found.f_bavail * found.f_frsize
    return min(free, room.free) if room.free is not None and _is_in_memory(path, Path(root)) else free


def _is_in_memory(path: Path, root: Path) -> bool:
    device = path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = (root / "proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    mounts = [line.split() for line in lines]
    return any(
        words[2] == number and words[words.index("-") + 1] in ("tmpfs", "ramfs") for words in mounts if "-" in words
    )
