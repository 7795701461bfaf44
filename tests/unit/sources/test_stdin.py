"""Standard input, of whatever kind."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import SourceError
from headrace.sources import Stdin
from tests.unit.sources.source_context import FakeContext, Run


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write  # the test closes the end that it writes to
    os.close(read)


def test_a_pipe_is_read_to_its_end(pipe: tuple[int, int]) -> None:
    read, write = pipe
    lines = [b"line %d" % number for number in range(50_000)]

    def produce() -> None:
        with os.fdopen(write, "wb") as file:
            file.write(b"\n".join(lines))

    producer = threading.Thread(target=produce)
    producer.start()
    run = Run(Stdin(fd=read), FakeContext(block_bytes=5000)).wait_until_drained(10.0).close()
    producer.join()

    assert run.lines == lines
    assert run.batches[0].start == 0
    assert [batch.start for batch in run.batches[1:]] == [batch.end for batch in run.batches[:-1]]


def test_polling_an_empty_pipe_waits_for_nobody(pipe: tuple[int, int]) -> None:
    read, write = pipe
    run = Run(Stdin(fd=read), FakeContext())

    while_empty = list(run.settle().batches)
    os.write(write, b"1\n2")
    assert run.ctx.woken.wait(10.0)
    unfinished = list(run.settle().lines)
    os.close(write)
    run.wait_until_drained()

    assert while_empty == []
    assert unfinished == [b"1"]
    assert run.close().lines == [b"1", b"2"]


def test_it_can_be_closed_while_nothing_comes(pipe: tuple[int, int]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    run = Run(Stdin(fd=pipe[0]), FakeContext()).settle()

    run.close()
    os.close(pipe[1])

    assert not any(thread.name == "headrace-stdin" for thread in threading.enumerate())
    assert len(os.listdir("/proc/self/fd")) == before - 1


def test_it_reads_no_further_ahead_than_it_must(pipe: tuple[int, int]) -> None:
    read, write = pipe
    os.set_blocking(write, False)
    run = Run(Stdin(fd=read), FakeContext(block_bytes=1000, max_record_bytes=1000))
    written = 0
    stuck = threading.Event()

    while not stuck.is_set() and written < 10_000_000:
        try:
            written += os.write(write, b"123456789\n" * 100)
        except BlockingIOError:
            stuck.wait(0.05)
            try:
                written += os.write(write, b"123456789\n" * 100)
            except BlockingIOError:
                stuck.set()
    os.close(write)
    run.wait_until_drained()

    assert written < 1_000_000
    assert len(run.close().content) == written


@pytest.mark.parametrize("content", [b"", b"1\n2\n3", b"\n\r\n"])
def test_a_file_may_be_standard_input(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "in"
    path.write_bytes(content)
    with path.open("rb") as file:
        run = Run(Stdin(fd=file.fileno()), FakeContext()).wait_until_drained().close()

    assert run.content == content


def test_a_terminal_may_be_standard_input() -> None:
    controller, terminal = os.openpty()
    run = Run(Stdin(fd=terminal), FakeContext())

    os.write(controller, b"typed\n\x04")
    run.wait_until_drained()

    assert run.close().lines == [b"typed"]
    os.close(controller)
    os.close(terminal)


def test_each_run_is_a_new_partition_and_cannot_be_replayed() -> None:
    partitions: set[str] = set()
    for _ in range(2):
        with Path(os.devnull).open("rb") as null:
            run = Run(Stdin(fd=null.fileno()), FakeContext()).wait_until_drained()
            partitions |= {lane.partition for lane in run.lanes.values()}
            run.close()

    assert len(partitions) == 2
    assert all(partition.startswith("stdin#") and len(partition) == 14 for partition in partitions)
    assert not Stdin().replayable


def test_a_line_over_the_limit_is_one_reject(tmp_path: Path) -> None:
    """F09"""
    path = tmp_path / "in"
    path.write_bytes(b"1\n" + b"x" * 10_000_000 + b"\n2\n")
    with path.open("rb") as file:
        run = Run(Stdin(fd=file.fileno()), FakeContext(max_record_bytes=1000)).wait_until_drained().close()

    assert run.lines == [b"1", b"2"]
    assert [(reject.stage, reject.position) for reject in run.rejects] == [("oversize", 10_000_002)]


def test_csv_carries_its_header(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(b'a,b\n1,"x\ny"\n2,z\n')
    with path.open("rb") as file:
        run = Run(Stdin(fd=file.fileno(), format="csv"), FakeContext(block_bytes=4)).wait_until_drained().close()

    assert [(batch.header, batch.block) for batch in run.batches] == [(b"a,b\n", b'1,"x\ny"\n'), (b"a,b\n", b"2,z\n")]


def test_a_closed_standard_input_is_refused() -> None:
    read, write = os.pipe()
    os.close(read)
    os.close(write)

    with pytest.raises(SourceError, match="closed"):
        Stdin(fd=read).open(FakeContext())


def test_a_fault_of_the_reading_thread_is_told(tmp_path: Path) -> None:
    """J10"""
    folder = os.open(tmp_path, os.O_RDONLY)
    run = Run(Stdin(fd=folder), FakeContext())

    with pytest.raises(SourceError, match="IsADirectoryError"):
        run.wait_until_drained()

    run.close()
    os.close(folder)
