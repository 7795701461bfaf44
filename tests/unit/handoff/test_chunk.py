"""Where the rows of a chunk came from."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.checkpoint.ack import AckSet
from headrace.handoff.chunk import EncodedChunk, Segment
from headrace.record import ChunkId, PartitionId
from headrace.shm.slot import Span
from tests.unit.handoff.parts import origin

A, B = PartitionId("a"), PartitionId("b")


def chunk(*segments: Segment) -> EncodedChunk:
    return EncodedChunk(
        id=ChunkId(1), sink=0, shard=0, frame=b"x" * 100, segments=segments, acks=AckSet(), sealed_at=0.0
    )


def segment(records: list[int], partition: PartitionId = A, start: int = 0) -> Segment:
    return Segment(origin(20, partition=partition, start=start), array("I", records))


def test_a_row_is_located_by_partition_position_and_child() -> None:
    made = chunk(segment([0, 2, 2, 2, 5]), segment([1], B), segment([0, 0], start=200))

    assert [tuple(made.locate(row)) for row in range(made.rows)] == [
        ("a", 9, 0),
        ("a", 29, 0),
        ("a", 29, 1),
        ("a", 29, 2),
        ("a", 59, 0),
        ("b", 19, 0),
        ("a", 209, 0),
        ("a", 209, 1),
    ]


@pytest.mark.parametrize("row", [-1, 3])
def test_a_row_outside_the_chunk_is_an_error(row: int) -> None:
    with pytest.raises(IndexError, match="has 3 rows"):
        chunk(segment([0, 1, 2])).locate(row)


def test_spans_hold_the_first_and_the_last_position_of_each_partition() -> None:
    made = chunk(segment([3, 4]), segment([7], B), segment([0, 1], start=200))

    assert set(made.spans) == {Span(A, 39, 219), Span(B, 79, 79)}


def test_the_size_counts_the_frame_and_the_rows_positions() -> None:
    """(HR-17)"""
    assert chunk(segment([0, 1, 2])).size == 100 + 3 * 8


def test_rows_that_were_left_out_do_not_renumber_their_siblings() -> None:
    picked = segment([0, 2, 2, 2]).pick([0, 2, 3])

    assert [picked.locate(row).child for row in range(3)] == [0, 1, 2]
    assert [picked.slice(slice(1, 3)).locate(row).child for row in range(2)] == [1, 2]


@given(st.lists(st.lists(st.integers(0, 19), min_size=1, max_size=12).map(sorted), min_size=1, max_size=5))
def test_every_row_is_found_in_its_segment(segments: list[list[int]]) -> None:
    made = chunk(*(segment(records, start=1000 * at) for at, records in enumerate(segments)))

    expected = [
        (1000 * at + 10 * record + 9, records[:row].count(record))
        for at, records in enumerate(segments)
        for row, record in enumerate(records)
    ]
    assert [(made.locate(row).position, made.locate(row).child) for row in range(made.rows)] == expected
