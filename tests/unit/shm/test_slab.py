"""Slabs: who can read, who can write, and what is left behind."""

import mmap
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import ConfigError, CorruptFrameError
from headrace.shm.slab import MappedSlab, Slab, check_kernel


@pytest.fixture
def slab() -> Iterator[Slab]:
    with Slab.create(4, 8192) as made:
        yield made


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_worker_sees_what_the_supervisor_writes(slab: Slab) -> None:
    with MappedSlab(slab.fd, 4, 8192) as mapped:
        slab.view(2)[:5] = b"hello"

        assert bytes(mapped.view(2)[:5]) == b"hello"
        assert bytes(mapped.view(1)[:5]) == bytes(5)


def test_a_worker_cannot_write(slab: Slab) -> None:
    with MappedSlab(slab.fd, 4, 8192) as mapped:
        assert mapped.view(0).readonly


def test_nobody_gets_a_new_writable_map_or_another_size(slab: Slab) -> None:
    with pytest.raises(PermissionError):
        mmap.mmap(slab.fd, 4 * 8192)
    with pytest.raises(PermissionError):
        os.pwrite(slab.fd, b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(slab.fd, 8192)
    with pytest.raises(PermissionError):
        os.ftruncate(slab.fd, 8 * 8192)


def test_the_supervisors_own_map_stays_writable_after_the_seals(slab: Slab) -> None:
    slab.view(3)[-1:] = b"!"

    assert slab.view(3)[-1] == ord("!")


@pytest.mark.parametrize("slot", [-1, 4])
def test_a_slot_outside_the_slab_is_refused(slab: Slab, slot: int) -> None:
    with MappedSlab(slab.fd, 4, 8192) as mapped, pytest.raises(CorruptFrameError, match="slot"):
        mapped.view(slot)


def test_a_slab_has_no_name_that_could_be_left_behind() -> None:
    """M03, M06, M16"""
    with Slab.create(4, 8192) as made:
        assert Path(f"/proc/self/fd/{made.fd}").readlink() == Path("/memfd:headrace-slab (deleted)")


def test_closing_with_a_view_about_raises_nothing_and_leaks_no_descriptor() -> None:
    """M11"""
    before = descriptors()
    made = Slab.create(1, 4096)
    kept = made.view(0)
    kept[:3] = b"abc"

    made.close()

    assert bytes(kept[:3]) == b"abc"
    with pytest.raises(ValueError, match="closed"):
        made.view(0)
    kept.release()
    assert descriptors() == before


def test_closing_twice_is_nothing(slab: Slab) -> None:
    slab.close()
    slab.close()


def test_a_machine_that_refuses_is_told_of_with_the_numbers() -> None:
    """M01"""
    before = descriptors()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limit[1]))
    try:
        with pytest.raises(ConfigError, match=r"96 slots x 524288 bytes = 50331648 bytes.*shm\.slots"):
            Slab.create(96, 524288)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)

    assert descriptors() == before


def test_a_size_that_no_machine_has_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"shm\.slot_bytes"):
        Slab.create(2**40, 2**40)


def test_a_slab_smaller_than_the_doorbells_say_is_refused(slab: Slab) -> None:
    with pytest.raises(CorruptFrameError, match="cannot be mapped"):
        MappedSlab(slab.fd, 5, 8192)


@pytest.mark.parametrize(
    ("system", "release"),
    [("Linux", "5.3.18-arch"), ("Linux", "4.19.0"), ("Darwin", "23.1.0"), ("Linux", "unknown")],
)
def test_an_old_kernel_is_refused_with_the_reason(system: str, release: str) -> None:
    with pytest.raises(ConfigError, match=rf"Linux 5\.4 or newer.*{release}"):
        check_kernel(system, release)


@pytest.mark.parametrize("release", ["5.4.0-42-generic", "5.10.1", "6.18.44-fc", "10.0"])
def test_a_newer_kernel_is_taken(release: str) -> None:
    check_kernel("Linux", release)
