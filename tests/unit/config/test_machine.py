"""CPU and memory limits, read from made-up trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config.cpu import auto_workers
from headrace.config.memory import MemoryRoom, free_space, memory_room

MIB = 2**20


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def version_2(files: dict[str, str], group: str = "/") -> dict[str, str]:
    return {"proc/self/cgroup": f"0::{group}\n", "sys/fs/cgroup/cgroup.controllers": "cpu memory\n"} | {
        f"sys/fs/cgroup/{name}": text for name, text in files.items()
    }


@pytest.mark.parametrize(
    ("quota", "affinity", "expected"),
    [
        ("200000 100000", 80, 2),
        ("50000 100000", 80, 1),
        ("250000 100000", 80, 3),
        ("max 100000", 80, 80),
        ("max", 5, 5),
        ("400000 100000", 1, 1),
        ("nonsense", 3, 3),
        ("100000 0", 3, 3),
    ],
)
def test_auto_workers_honours_quota_and_affinity(tmp_path: Path, quota: str, affinity: int, expected: int) -> None:
    """O01"""
    root = tree(tmp_path, version_2({"cpu.max": quota}))

    assert auto_workers(root, affinity).count == expected


def test_the_tightest_group_above_the_process_counts_and_is_named(tmp_path: Path) -> None:
    """O01"""
    files = {"a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000", "cpu.max": "800000 100000"}
    root = tree(tmp_path, version_2(files, "/a/b"))

    found = auto_workers(root, 16)

    assert found.count == 2
    assert found.reason == f"a CPU quota of 1.5 ({root}/sys/fs/cgroup/a/cpu.max)"


@pytest.mark.parametrize(("quota", "expected"), [("200000", 2), ("-1", 16)])
def test_version_1_quotas_are_read(tmp_path: Path, quota: str, expected: int) -> None:
    """O01"""
    files = {
        "proc/self/cgroup": "5:cpu,cpuacct:/docker/abc\n3:memory:/docker/abc\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": quota,
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
    }

    assert auto_workers(tree(tmp_path, files), 16).count == expected


def test_more_workers_than_shards_are_never_chosen(tmp_path: Path) -> None:
    """O01"""
    assert auto_workers(tmp_path, 16, shards=4).count == 4
    assert auto_workers(tmp_path, 16, shards=4).reason == "4 shards"


def test_this_machine_gives_at_least_one_worker() -> None:
    assert auto_workers().count >= 1


MEMINFO = {"proc/meminfo": f"MemTotal: {1024 * 1024} kB\nMemFree: 1 kB\nMemAvailable: {512 * 1024} kB\n"}


def test_the_machine_is_the_limit_where_no_group_is(tmp_path: Path) -> None:
    assert memory_room(tree(tmp_path, MEMINFO)) == MemoryRoom(1024 * MIB, 512 * MIB, "the machine's memory")


def test_a_group_is_the_limit_and_its_file_cache_is_free(tmp_path: Path) -> None:
    """M15"""
    group = {
        "memory.max": str(256 * MIB),
        "memory.current": str(200 * MIB),
        "memory.stat": f"anon 5\ninactive_file {100 * MIB}\n",
    }

    found = memory_room(tree(tmp_path, MEMINFO | version_2(group)))

    assert (found.limit, found.free) == (256 * MIB, 156 * MIB)
    assert found.source.endswith("memory.max")


def test_a_version_1_group_without_a_limit_is_none(tmp_path: Path) -> None:
    files = MEMINFO | {
        "proc/self/cgroup": "3:memory:/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "5",
    }

    assert memory_room(tree(tmp_path, files)).source == "the machine's memory"


def test_an_unreadable_machine_is_unknown(tmp_path: Path) -> None:
    assert memory_room(tmp_path) == MemoryRoom(None, None, "unknown")


def test_free_space_in_memory_is_what_memory_allows(tmp_path: Path) -> None:
    """O07"""
    device = tmp_path.stat().st_dev
    mount = f"36 35 {device >> 8}:{device & 255} / {tmp_path} rw - tmpfs tmpfs rw\n"
    in_memory = tree(tmp_path / "a", {"proc/self/mountinfo": mount})
    on_disk = tree(tmp_path / "b", {"proc/self/mountinfo": mount.replace("tmpfs", "ext4")})

    assert free_space(tmp_path, MemoryRoom(1, 4096, ""), in_memory) == 4096
    assert free_space(tmp_path, MemoryRoom(1, 4096, ""), on_disk) > 4096
    assert free_space(tmp_path, MemoryRoom(None, None, ""), in_memory) > 4096
