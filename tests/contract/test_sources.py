"""What every source holds to, whatever it reads."""

from __future__ import annotations

import gzip
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.record import Drained, Idle, Lane, LanesAssigned, Source
from headrace.sources import Files, Stdin
from headrace.testing import MemorySource
from tests.unit.sources.source_context import FakeContext, Run, lines_of

Lines = list[bytes]
LINES: Lines = [b'{"n": %d}' % number for number in range(500)]

Make = Callable[[Lines], Source]


@pytest.fixture(params=["files", "several files", "packed files", "stdin", "memory"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Makes a source of the given lines; asked again, of the same lines in the same place."""
    descriptors: list[int] = []

    def files(lines: Lines) -> Source:
        path = tmp_path / "data.ndjson"
        if not path.exists():
            path.write_bytes(b"".join(line + b"\n" for line in lines))
        return Files(path)

    def several(lines: Lines) -> Source:
        for number in range(3):
            path = tmp_path / f"{number}.ndjson"
            if not path.exists():
                path.write_bytes(b"".join(line + b"\n" for line in lines[number::3]))
        return Files(tmp_path / "*.ndjson")

    def packed(lines: Lines) -> Source:
        path = tmp_path / "data.ndjson.gz"
        if not path.exists():
            path.write_bytes(gzip.compress(b"".join(line + b"\n" for line in lines)))
        return Files(path)

    def stdin(lines: Lines) -> Source:
        path = tmp_path / "stdin"
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        descriptors.append(os.open(path, os.O_RDONLY))
        return Stdin(fd=descriptors[-1])

    def memory(lines: Lines) -> Source:
        return MemorySource({"p": lines[::2], "q": lines[1::2]})

    yield {
        "files": files,
        "several files": several,
        "packed files": packed,
        "stdin": stdin,
        "memory": memory,
    }[request.param]
    for descriptor in descriptors:
        os.close(descriptor)


def context() -> FakeContext:
    return FakeContext(block_bytes=500)


def lanes_of(source: Source) -> list[Lane]:
    lanes: list[Lane] = []
    while isinstance(event := source.poll_events(), LanesAssigned):
        lanes.extend(event.lanes)
    return lanes


def test_it_has_the_attributes_of_a_source(make: Make) -> None:
    source = make(LINES)

    assert isinstance(source, Source)
    assert source.decode is dict  # type: ignore[attr-defined]  # beside the protocol
    assert source.format == "ndjson"  # type: ignore[attr-defined]  # as above
    assert source.bounded is True  # type: ignore[attr-defined]  # as above
    assert source.replayable in {True, False}  # type: ignore[attr-defined]  # as above
    assert source.resolve("/") is not None  # type: ignore[attr-defined]  # as above


def test_it_hands_out_each_record_once_and_then_is_drained(make: Make) -> None:
    run = Run(make(LINES), context(), max_records=50).wait_until_drained()

    assert sorted(run.lines) == sorted(LINES)
    assert isinstance(run.source.poll_events(), Drained)
    run.close()


def test_records_of_a_partition_keep_their_order_and_positions_grow(make: Make) -> None:
    run = Run(make(LINES), context(), max_records=50).wait_until_drained().close()

    order = {line: number for number, line in enumerate(LINES)}
    for partition in {batch.partition for batch in run.batches}:
        batches = [batch for batch in run.batches if batch.partition == partition]
        assert all(batch.start < batch.end for batch in batches)
        assert all(one.end <= other.start for one, other in itertools.pairwise(batches))
        mine = [line for batch in batches for line in lines_of(batch)]
        assert mine == sorted(mine, key=order.__getitem__)


def test_a_batch_is_a_block_or_payloads_with_their_ends(make: Make) -> None:
    run = Run(make(LINES), context()).wait_until_drained().close()

    for batch in run.batches:
        if batch.block is not None:
            assert batch.payloads is None
            assert batch.start + len(batch.block) == batch.end
        else:
            assert batch.payloads is not None
            assert batch.ends is not None
            assert len(batch.payloads) == len(batch.ends)
            assert batch.ends[-1] <= batch.end


def test_it_resumes_at_every_watermark_it_was_told(make: Make) -> None:
    source = make(LINES)
    first = Run(source, context(), max_records=20, commit=False).wait_until_drained().close()
    if not source.replayable:  # type: ignore[attr-defined]  # beside the protocol
        return

    for done in range(0, len(first.batches), 3):
        ends = {batch.partition: batch.end for batch in first.batches[: done + 1]}
        again = Run(make(LINES), first.ctx.restarted(ends)).wait_until_drained().close()
        before = [line for batch in first.batches[: done + 1] for line in lines_of(batch)]
        assert sorted(before + again.lines) == sorted(LINES)


def test_a_paused_lane_hands_out_nothing_and_events_go_on(make: Make) -> None:
    source = make(LINES)
    source.open(context())
    lanes = lanes_of(source)
    source.pause([lane.id for lane in lanes])

    paused = [lane.poll(100) for lane in lanes]
    event = source.poll_events()
    source.resume([lane.id for lane in lanes])

    assert paused == [None] * len(lanes)
    assert isinstance(event, Idle)
    assert len({lane.id for lane in lanes}) == len({lane.partition for lane in lanes}) == len(lanes)
    source.close()


def test_a_source_without_records_is_drained(make: Make) -> None:
    run = Run(make([]), context()).wait_until_drained().close()

    assert run.batches == []


def test_it_takes_commits_and_closes_more_than_once(make: Make) -> None:
    run = Run(make(LINES), context()).wait_until_drained()

    run.source.commit({batch.partition: batch.end for batch in run.batches})
    run.source.flush_commits()
    run.source.close()
    run.source.close()
