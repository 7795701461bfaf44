"""The spool of a worker: durable when append returns, nothing kept of what failed."""

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.codec.spool import SpoolEntry, encode_entry, read_entries
from headrace.errors import SinkError
from headrace_workers.spool import Spool


def entry(row: int) -> SpoolEntry:
    return SpoolEntry(
        sink="main",
        shard=0,
        partition="",
        position=-1,
        child=0,
        stage="sink",
        cause="no",
        raw=b"x" * 50,
        chunk=1,
        row=row,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "1-0.spool"


@pytest.fixture
def spool(path: Path) -> Iterator[Spool]:
    spool = Spool(path)
    yield spool
    spool.close()


def rows_in(path: Path, end: int | None = None) -> list[int]:
    found, _ = read_entries(path.read_bytes()[:end])
    return [one.row for one in found]


def test_entries_are_in_the_file_when_append_returns(spool: Spool, path: Path) -> None:
    first = spool.append([entry(1), entry(2)])
    second = spool.append([entry(3)])

    assert rows_in(path, first) == [1, 2]
    assert rows_in(path, second) == [1, 2, 3]
    assert spool.end == second == path.stat().st_size


def test_nothing_is_made_before_the_first_entry(spool: Spool, path: Path) -> None:
    assert spool.end == 0
    assert not path.exists()


def test_others_cannot_read_it_whatever_the_umask(spool: Spool, path: Path) -> None:
    """Y03: no payload is readable by everyone."""
    before = os.umask(0)
    try:
        spool.append([entry(1)])
    finally:
        os.umask(before)

    assert path.stat().st_mode & 0o777 == 0o600


def test_a_torn_tail_is_cut_before_more_is_written(spool: Spool, path: Path) -> None:
    path.write_bytes(encode_entry(entry(1)) + encode_entry(entry(2))[:-3])

    spool.append([entry(3)])

    assert rows_in(path) == [1, 3]


def test_threads_do_not_mix_their_entries(spool: Spool, path: Path) -> None:
    threads = [
        threading.Thread(target=lambda base=base: [spool.append([entry(base + n)]) for n in range(20)])
        for base in (0, 100, 200)
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    rows = rows_in(path)
    assert sorted(rows) == [*range(20), *range(100, 120), *range(200, 220)]
    assert [row for row in rows if row < 100] == list(range(20))


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_a_failed_append_keeps_nothing_and_can_be_tried_again(
    spool: Spool, path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """E01: the disk is full while dead letters are kept."""
    end = spool.append([entry(1)])

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(SinkError, match=r"1-0\.spool: No space left on device \(ENOSPC\)") as caught:
            spool.append([entry(2)])

    assert caught.value.retryable
    assert spool.end == end == path.stat().st_size
    spool.append([entry(3)])
    assert rows_in(path) == [1, 3]


def test_a_short_write_is_gone_on_with(spool: Spool, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwrite

    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: whole(fd, data[:7], at))
    spool.append([entry(1), entry(2)])

    assert rows_in(path) == [1, 2]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match=r"gone/1\.spool: No such file or directory \(ENOENT\)"):
        Spool(tmp_path / "gone" / "1.spool").append([entry(1)])
