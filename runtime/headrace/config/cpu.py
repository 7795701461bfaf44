"""How many workers ``auto`` means: what the CPU affinity and the control group's quota let this process use."""

from __future__ import annotations

import math
import os
from pathlib import Path

import msgspec

from headrace.config import cgroup


class AutoWorkers(msgspec.Struct, frozen=True):
    """The number chosen and why, for the log and for ``headrace check``."""

    count: int
    reason: str


def auto_workers(root: str | Path = "/", affinity: int | None = None, *, shards: int | None = None) -> AutoWorkers:
    """The least of the CPUs this process may run on, its quota rounded up, and ``shards``; never under 1."""
    allowed = affinity if affinity is not None else len(os.sched_getaffinity(0))
    quota, source = cpu_quota(Path(root))
    limits = [(allowed, f"{allowed} CPU{'s' if allowed != 1 else ''} in the affinity mask")]
    if quota is not None:
        limits.append((math.ceil(quota), f"a CPU quota of {quota:g} ({source})"))
    if shards is not None:
        limits.append((shards, f"{shards} shard{'s' if shards != 1 else ''}"))
    count, reason = min(limits, key=lambda limit: limit[0])
    return AutoWorkers(max(1, count), reason)


def cpu_quota(root: Path) -> tuple[float | None, str]:
    """The tightest CPU quota of this process's control groups, in CPUs, and the file that says so."""
    version, folders = cgroup.groups(root, "cpu")
    found = [_quota_v2(folder) if version == 2 else _quota_v1(folder) for folder in folders]
    quotas = [(quota, source) for quota, source in found if quota is not None]
    return min(quotas) if quotas else (None, "")


def _quota_v2(folder: Path) -> tuple[float | None, str]:
    path = folder / "cpu.max"
    return _ratio(cgroup.read_word(path), cgroup.read_word(path, 1) or "100000"), str(path)


def _quota_v1(folder: Path) -> tuple[float | None, str]:
    path = folder / "cpu.cfs_quota_us"
    return _ratio(cgroup.read_word(path), cgroup.read_word(folder / "cpu.cfs_period_us") or "100000"), str(path)


def _ratio(quota: str | None, period: str) -> float | None:
    """Microseconds of CPU in a period; ``max`` and ``-1`` are no limit."""
    if quota is None or not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return int(quota) / int(period)
