"""Whole records or none, and no waiting."""

import fcntl
import os
import threading
import time
from collections.abc import Iterator

import pytest

from headrace.record import PartitionId
from headrace.shm.pipes import PeerGone, PipeWriter
from headrace.shm.records import AckReader, Beat, Done, Outcome, PositionIs, encode
from headrace.shm.token import CompletionToken

F_SETPIPE_SZ = 1031


class Pipe:
    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()

    def one_page(self) -> None:
        fcntl.fcntl(self.writer, F_SETPIPE_SZ, 4096)

    def close_reader(self) -> None:
        os.close(self.reader)
        self.reader = -1


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    for fd in (made.reader, made.writer):
        if fd >= 0:
            os.close(fd)


def test_a_full_pipe_takes_nothing_and_says_so(pipe: Pipe) -> None:
    writer = PipeWriter(pipe.writer)

    written = 0
    while writer.try_write(b"x" * 200):
        written += 200

    assert len(os.read(pipe.reader, 1 << 20)) == written
    assert writer.try_write(b"x" * 200)


def test_a_record_is_written_whole_or_not_at_all_into_a_pipe_of_one_page(pipe: Pipe) -> None:
    """D04"""
    pipe.one_page()
    writer = PipeWriter(pipe.writer)
    assert writer.try_write(b"a" * 100)

    assert not writer.try_write(b"b" * 4096)

    assert os.read(pipe.reader, 8192) == b"a" * 100
    assert writer.try_write(b"b" * 4096)
    assert os.read(pipe.reader, 8192) == b"b" * 4096


def test_a_reader_that_is_gone_is_reported_and_nobody_hangs(pipe: Pipe) -> None:
    """D02"""
    writer = PipeWriter(pipe.writer)
    while writer.try_write(b"x" * 4096):
        pass
    pipe.close_reader()

    with pytest.raises(PeerGone):
        writer.try_write(b"x")
    with pytest.raises(PeerGone):
        writer.write_when_room(b"x", time.monotonic() + 30)


@pytest.mark.parametrize("size", [0, 4097])
def test_what_is_no_record_is_not_written(pipe: Pipe, size: int) -> None:
    with pytest.raises(ValueError, match="4096"):
        PipeWriter(pipe.writer).try_write(b"x" * size)


def test_a_wait_for_room_ends_at_its_deadline(pipe: Pipe) -> None:
    writer = PipeWriter(pipe.writer)
    while writer.try_write(b"x" * 4096):
        pass

    assert not writer.write_when_room(b"x" * 4096, time.monotonic() + 0.01)


def test_threads_share_a_pipe_of_one_page_and_no_record_is_torn(pipe: Pipe) -> None:
    """D04"""
    pipe.one_page()
    writer = PipeWriter(pipe.writer)
    each = 300
    records = [
        encode(Done(token=CompletionToken(1, 2, 3), outcome=Outcome.DELIVERED)),
        encode(Beat(b"b" * 1500)),
        encode(PositionIs(1, 2, PartitionId("p" * 700), 9)),
    ]
    missed: list[bytes] = []

    def write(record: bytes) -> None:
        deadline = time.monotonic() + 30
        missed.extend(record for _ in range(each) if not writer.write_when_room(record, deadline))

    threads = [threading.Thread(target=write, args=(record,)) for record in records]
    for thread in threads:
        thread.start()
    reader = AckReader()
    found: list[str] = []
    while len(found) < each * len(records):
        found += [type(record).__name__ for record in reader.feed(os.read(pipe.reader, 777))]
    for thread in threads:
        thread.join()

    assert not missed
    assert {name: found.count(name) for name in set(found)} == {"Done": each, "Beat": each, "PositionIs": each}
    assert reader.torn == 0
