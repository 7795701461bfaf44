"""The writer of part files: names, rolling, adoption, and files that are not its own."""

import fcntl
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import SinkError
from headrace.sinks import NdjsonFiles
from headrace_workers.writers.base import SealedBatch, WriterContext
from headrace_workers.writers.compression import STORAGES
from headrace_workers.writers.ndjson_files import NdjsonFilesWriter

NAME = re.compile(r"0000-0000000[12]-\d{6}-[0-9a-f]{16}\.ndjson(\.gz|\.zst)?")
OPEN = ".part-0003-00000001-000000-0123456789abcdef.ndjson"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "a" / "out"


@contextmanager
def opened(out: Path, log: list[dict[str, Any]] | None = None, **settings: Any) -> Iterator[NdjsonFilesWriter]:
    said = [] if log is None else log
    writer = NdjsonFilesWriter()
    context = WriterContext(
        sink=NdjsonFiles(out, **settings),
        shards=[0],
        worker="w",
        run_id="89abcdef",
        incarnation=1,
        log=lambda event, **values: said.append({"event": event, **values}),
    )
    try:
        writer.open(context)
        yield writer
    finally:
        writer.close()


def write(writer: NdjsonFilesWriter, lines: bytes, shard: int = 0) -> None:
    writer.write(SealedBatch(shard, None, [lines], lines.count(b"\n"), len(lines)))


def contents(out: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(out.iterdir())}


def test_a_part_gets_its_name_when_the_writer_closes(out: Path) -> None:
    with opened(out) as writer:
        write(writer, b"1\n")
        (while_open,) = contents(out)

    (name,) = contents(out)
    assert while_open == f".part-{name}"
    assert NAME.fullmatch(name)
    assert (out / name).stat().st_mode & 0o777 == 0o644


def test_parts_are_rolled_by_rows_and_keep_their_order(out: Path) -> None:
    with opened(out, roll_rows=2) as writer:
        for number in range(5):
            write(writer, b"%d\n" % number)

    assert list(contents(out).values()) == [b"0\n1\n", b"2\n3\n", b"4\n"]


def test_parts_are_rolled_by_bytes(out: Path) -> None:
    with opened(out, roll_bytes=10) as writer:
        for _ in range(4):
            write(writer, b"123456\n")

    assert [len(part) for part in contents(out).values()] == [14, 14]


def test_parts_are_rolled_by_age(out: Path) -> None:
    with opened(out, roll_age=1e-9) as writer:
        write(writer, b"1\n")
        write(writer, b"2\n")

        assert list(contents(out).values()) == [b"1\n", b"2\n"]


def test_two_runs_and_two_workers_never_share_a_name(out: Path) -> None:
    for _ in range(3):
        with opened(out) as one, opened(out) as other:
            write(one, b"1\n")
            write(other, b"2\n")

    assert len(contents(out)) == 6


def test_a_part_of_a_dead_worker_is_cut_after_its_last_whole_line_and_named(out: Path) -> None:
    out.mkdir(parents=True)
    (out / OPEN).write_bytes(b'{"a":1}\n{"a":2}\n{"a":')
    log: list[dict[str, Any]] = []

    with opened(out, log):
        pass

    name = OPEN.removeprefix(".part-")
    assert contents(out) == {name: b'{"a":1}\n{"a":2}\n'}
    assert log == [{"event": "a part that was left open has got its name", "directory": str(out), "part": name}]


@pytest.mark.parametrize("left", [b"", b'{"a":'])
def test_a_part_of_which_nothing_is_left_is_removed(out: Path, left: bytes) -> None:
    out.mkdir(parents=True)
    (out / OPEN).write_bytes(left)

    with opened(out):
        pass

    assert contents(out) == {}


def test_a_part_with_both_names_loses_the_hidden_one(out: Path) -> None:
    out.mkdir(parents=True)
    (out / OPEN).write_bytes(b"1\n")
    os.link(out / OPEN, out / OPEN.removeprefix(".part-"))

    with opened(out):
        pass

    assert contents(out) == {OPEN.removeprefix(".part-"): b"1\n"}


def test_a_part_that_a_living_worker_writes_is_let_be(out: Path) -> None:
    out.mkdir(parents=True)
    with (out / OPEN).open("wb") as living:
        fcntl.flock(living, fcntl.LOCK_EX)
        living.write(b"1\n2")
        living.flush()

        with opened(out):
            pass

        assert contents(out) == {OPEN: b"1\n2"}


def test_a_name_that_another_file_has_is_never_overwritten(out: Path) -> None:
    out.mkdir(parents=True)
    (out / OPEN).write_bytes(b"mine\n")
    (out / OPEN.removeprefix(".part-")).write_bytes(b"yours\n")
    log: list[dict[str, Any]] = []

    with opened(out, log):
        pass

    assert contents(out) == {OPEN: b"mine\n", OPEN.removeprefix(".part-"): b"yours\n"}
    assert [one["event"] for one in log] == ["a part that was left open stays: another file has its name"]


def test_files_that_are_not_its_own_are_never_touched(out: Path, tmp_path: Path) -> None:
    out.mkdir(parents=True)
    strange = [".part-x.ndjson", f"{OPEN}.bak", OPEN.upper(), "data.ndjson", ".part-", OPEN.replace("0003", "3")]
    for name in strange:
        (out / name).write_bytes(b"torn")
    (tmp_path / "victim").write_bytes(b"torn")
    (out / OPEN.replace("0003", "0004")).symlink_to(tmp_path / "victim")
    (out / OPEN.replace("0003", "0005")).mkdir()
    os.mkfifo(out / OPEN.replace("0003", "0006"))

    with opened(out):
        pass

    assert {name: (out / name).read_bytes() for name in strange} == dict.fromkeys(strange, b"torn")
    assert (tmp_path / "victim").read_bytes() == b"torn"
    assert len(list(out.iterdir())) == len(strange) + 3


def test_an_adopter_that_is_quicker_than_the_lock_costs_nothing(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between making a part and locking it, another worker may take the empty part for a dead one and remove it."""
    real = fcntl.flock
    left = [1]

    def late(fd: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX and left:
            left.pop()
            with opened(out):
                assert contents(out) == {}
        real(fd, operation)

    with opened(out) as writer:
        monkeypatch.setattr(fcntl, "flock", late)
        write(writer, b"1\n")

    assert left == []
    assert list(contents(out).values()) == [b"1\n"]


def test_a_name_is_durable_before_the_hidden_one_is_removed(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def noting(call: str) -> Callable[..., object]:
        real: Callable[..., object] = getattr(os, call)

        def noted(*args: object, **kwargs: object) -> object:
            calls.append(call)
            return real(*args, **kwargs)

        return noted

    with opened(out) as writer:
        write(writer, b"1\n")
        for call in ("link", "fsync", "unlink"):
            monkeypatch.setattr(os, call, noting(call))

    assert calls == ["link", "fsync", "unlink", "fsync"]


def test_a_part_that_was_removed_while_it_was_written_is_noticed(out: Path) -> None:
    with opened(out) as writer:
        write(writer, b"1\n")
        for file in out.iterdir():
            file.unlink()

        with pytest.raises(SinkError, match="removed while it was written") as caught:
            write(writer, b"2\n")
        assert caught.value.retryable
        write(writer, b"2\n")

    assert list(contents(out).values()) == [b"2\n"]


def test_a_part_that_cannot_get_its_name_keeps_its_rows(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    log: list[dict[str, Any]] = []
    with opened(out, log, roll_rows=1) as writer, monkeypatch.context() as patch:
        patch.setattr(os, "link", refusing)
        write(writer, b"1\n")
        write(writer, b"2\n")

    assert list(contents(out).values()) == [b"1\n2\n"]
    assert {one["event"] for one in log} == {"a part could not get its name yet"}


def test_closing_names_the_parts_that_keep_their_hidden_names(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    with opened(out) as writer:
        write(writer, b"1\n")
        with monkeypatch.context() as patch:
            patch.setattr(os, "link", refusing)
            with pytest.raises(SinkError, match=r"keeps its hidden name .*EPERM"):
                writer.close()
    with opened(out):
        pass

    assert list(contents(out).values()) == [b"1\n"]
    assert not any(name.startswith(".") for name in contents(out))


@pytest.mark.parametrize("compress", [None, "gzip", "zstd"])
def test_a_write_of_thousands_of_blocks_is_whole(out: Path, compress: Any) -> None:
    blocks: list[memoryview | bytes] = [b"%d\n" % number for number in range(3_000)]
    with opened(out, compress=compress) as writer:
        writer.write(SealedBatch(0, None, blocks, len(blocks), 0))

    (packed,) = contents(out).values()
    assert len(packed) > 0
    if compress is None:
        assert packed == b"".join(blocks)


def test_short_writes_are_gone_on_with(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gather, single = os.pwritev, os.pwrite
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, at: single(fd, bytes(buffers[0])[:3], at))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: gather(fd, [bytes(data)[:2]], at))
    blocks: list[memoryview | bytes] = [b"12345\n", b"6\n", memoryview(b"789\n")]

    with opened(out) as writer:
        writer.write(SealedBatch(0, None, blocks, 3, 0))

    assert list(contents(out).values()) == [b"12345\n6\n789\n"]


units = st.lists(st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b" ") + b"\n"), min_size=1), max_size=4)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(units, st.sampled_from([None, "gzip", "zstd"]), st.data())
def test_a_part_that_is_cut_anywhere_is_whole_up_to_its_last_whole_unit(
    tmp_path: Path, writes: list[list[bytes]], compress: str | None, data: st.DataObject
) -> None:
    storage = STORAGES[compress]
    stored = [b"".join(storage.encode(blocks)) for blocks in writes]
    whole = b"".join(stored)
    cut = data.draw(st.integers(0, len(whole)))
    file = tmp_path / "part"
    file.write_bytes(whole[:cut])

    fd = os.open(file, os.O_RDONLY)
    try:
        length = storage.whole_length(fd)
    finally:
        os.close(fd)

    if compress is None:
        assert length == whole[:cut].rfind(b"\n") + 1
    else:
        ends = [sum(map(len, stored[:count])) for count in range(len(stored) + 1)]
        assert length == max(end for end in ends if end <= cut)


@pytest.mark.parametrize("compress", [None, "gzip", "zstd"])
@pytest.mark.parametrize("tail", [b"", b"\0" * 300_000, b"\x1f\x8b\x08" + b"\xff" * 20, b"garbage"])
def test_what_lies_behind_the_last_whole_unit_is_no_matter(tmp_path: Path, compress: str | None, tail: bytes) -> None:
    storage = STORAGES[compress]
    whole = b"".join(storage.encode([os.urandom(200_000).replace(b"\n", b"") + b"\n"] * 4))
    file = tmp_path / "part"
    file.write_bytes(whole + tail)

    fd = os.open(file, os.O_RDONLY)
    try:
        assert storage.whole_length(fd) == len(whole)
    finally:
        os.close(fd)
