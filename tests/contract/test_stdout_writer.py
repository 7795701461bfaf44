"""The writer of standard output: whole lines, several workers, a reader that goes away."""

import fcntl
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ErrorClass, SinkError
from headrace.sinks import Stdout
from headrace_workers.writers.base import SealedBatch, WriterContext
from headrace_workers.writers.stdout import StdoutWriter, _pieces

CHILD = """
import sys
from headrace.sinks import Stdout
from headrace_workers.writers.base import SealedBatch, WriterContext
from headrace_workers.writers.stdout import StdoutWriter

mark, lines, length, stdout = sys.argv[1].encode(), *map(int, sys.argv[2:])
writer = StdoutWriter()
writer.open(WriterContext(sink=Stdout(), shards=[0], worker="w", run_id="0", incarnation=1, stdout_fd=stdout))
while True:
    writer.write(SealedBatch(0, None, [(mark * length + b"\\n") * lines], lines, 0))
"""


def writer_to(fd: int) -> StdoutWriter:
    writer = StdoutWriter()
    writer.open(WriterContext(sink=Stdout(), shards=[0], worker="w", run_id="0", incarnation=1, stdout_fd=fd))
    return writer


def batch(*blocks: bytes) -> SealedBatch:
    return SealedBatch(0, None, list(blocks), sum(block.count(b"\n") for block in blocks), sum(map(len, blocks)))


@contextmanager
def a_pipe() -> Iterator[tuple[int, int]]:
    ends = list(os.pipe())
    try:
        yield ends[0], ends[1]
    finally:
        for fd in ends:
            try:
                os.close(fd)
            except OSError:
                continue


@contextmanager
def workers(fd: int, marks: str, lines: int, length: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that share the output, as workers do: one open file description."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, mark, str(lines), str(length), str(fd)],
            pass_fds=[fd],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for mark in marks
    ]
    try:
        yield started
    finally:
        for one in started:
            one.kill()
            one.wait()


def whole_lines(reader: int, marks: str, count: int) -> None:
    """Read until each mark had so many lines; each line is of one mark and of full length."""
    seen = dict.fromkeys(marks.encode(), 0)
    lengths: set[int] = set()
    rest = b""
    while min(seen.values()) < count:
        *lines, rest = (rest + os.read(reader, 65_536)).split(b"\n")
        for line in lines:
            assert len(set(line)) == 1
            seen[line[0]] += 1
            lengths.add(len(line))
    assert len(lengths) == 1


@pytest.mark.parametrize(("lines", "length"), [(300, 80), (3, 10_000)])
def test_lines_of_several_workers_never_mix(lines: int, length: int) -> None:
    with a_pipe() as (reader, writer), workers(writer, "abc", lines, length):
        whole_lines(reader, "abc", 50)


def test_a_kill_tears_no_line_of_up_to_pipe_buf_bytes() -> None:
    for _ in range(3):
        with a_pipe() as (reader, writer):
            with workers(writer, "a", 1_000, 700) as (child,):
                os.read(reader, 100)
                child.kill()
                child.wait()
            os.close(writer)
            rest = bytearray(b"a")
            while data := os.read(reader, 65_536):
                rest += data

            assert rest.endswith(b"\n")


def test_a_killed_worker_leaves_no_lock() -> None:
    with a_pipe() as (reader, writer):
        with workers(writer, "a", 1_000, 700):
            os.read(reader, 100)
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 1 << 20)
        writer_to(writer).write(batch(b"last\n"))
        os.close(writer)
        found = b""
        while data := os.read(reader, 65_536):
            found = data

    assert found.endswith(b"last\n")


def test_a_reader_that_went_away_is_a_failure_for_good() -> None:
    with a_pipe() as (reader, writer):
        os.close(reader)

        with pytest.raises(SinkError, match="the reader of standard output went away") as caught:
            writer_to(writer).write(batch(b"1\n"))

    assert caught.value.error_class is ErrorClass.FATAL


def test_an_output_that_does_not_block_is_waited_for() -> None:
    text = b"%d\n" % 12345678 * 40_000
    with a_pipe() as (reader, writer):
        os.set_blocking(writer, False)
        thread = threading.Thread(target=lambda: writer_to(writer).write(batch(text)))
        thread.start()
        found = b""
        while len(found) < len(text):
            select.select([reader], [], [], 5)
            found += os.read(reader, 65_536)
        thread.join()

    assert found == text


def test_an_output_that_is_not_open_is_named_at_open() -> None:
    with pytest.raises(SinkError, match=r"standard output: it is not open: .*EBADF"):
        writer_to(-1)


def test_the_output_may_be_a_file(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb", buffering=0) as file:
        file.write(b"before\n")
        writer = writer_to(file.fileno())
        writer.write(batch(b"1\n2\n", b"3\n"))
        writer.close()

    assert (tmp_path / "out").read_bytes() == b"before\n1\n2\n3\n"


def test_a_line_that_a_kill_tore_in_a_file_spoils_no_other(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb", buffering=0) as file:
        file.write(b'{"a":1}\n{"a":')
        writer = writer_to(file.fileno())
        writer.write(batch(b'{"a":2}\n'))
        writer.write(batch(b'{"a":3}\n'))
        writer.close()

    assert (tmp_path / "out").read_bytes() == b'{"a":1}\n{"a":\n{"a":2}\n{"a":3}\n'


@given(st.lists(st.integers(0, 9_000), max_size=8))
def test_pieces_are_whole_lines_and_only_a_long_line_is_longer_than_pipe_buf(lengths: list[int]) -> None:
    text = b"".join(b"x" * length + b"\n" for length in lengths)

    pieces = [text[begin:end] for begin, end in _pieces(memoryview(text))]

    assert b"".join(pieces) == text
    for piece in pieces:
        assert piece.endswith(b"\n")
        assert len(piece) <= select.PIPE_BUF or piece.count(b"\n") == 1
