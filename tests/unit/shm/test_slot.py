"""What a slot says of the chunk in it."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CorruptFrameError, OversizeError
from headrace.record import PartitionId
from headrace.shm.slot import (
    FRAME_AT,
    HEADER_BYTES,
    SlotContents,
    SlotHeader,
    Span,
    read_slot,
    trailer_bytes,
    write_slot,
)

HEADER = SlotHeader(sink=1, shard=2, chunk=3, incarnation=4, rows=5)
FRAME = b"a frame of five rows"
SPANS = (Span(PartitionId("a#1"), 10, 14), Span(PartitionId("b#\udcff"), 0, 2**62))


def filled() -> memoryview:
    view = memoryview(bytearray(1024))
    write_slot(view, HEADER, FRAME, SPANS)
    return view


def read(
    view: memoryview,
    *,
    sink: int = 1,
    shard: int = 2,
    length: int = len(FRAME),
    rows: int = 5,
    first_row: int = 0,
    incarnation: int = 4,
) -> SlotContents:
    return read_slot(
        view, sink=sink, shard=shard, length=length, rows=rows, first_row=first_row, incarnation=incarnation
    )


def test_a_slot_gives_back_what_was_written() -> None:
    contents = read(filled())

    assert contents.header == HEADER
    assert bytes(contents.frame) == FRAME
    assert contents.spans == SPANS


def test_the_bytes_used_are_header_gap_frame_and_trailer() -> None:
    used = write_slot(memoryview(bytearray(1024)), HEADER, FRAME, SPANS)

    assert used == FRAME_AT + len(FRAME) + trailer_bytes(span.partition for span in SPANS)


def test_a_frame_fits_a_slot_to_the_byte() -> None:
    room = FRAME_AT + trailer_bytes([PartitionId("p")]) + len(FRAME)
    span = Span(PartitionId("p"), 0, 1)

    assert write_slot(memoryview(bytearray(room)), HEADER, FRAME, [span]) == room
    with pytest.raises(OversizeError, match=r"shm\.slot_bytes"):
        write_slot(memoryview(bytearray(room - 1)), HEADER, FRAME, [span])


def test_a_half_of_the_rows_may_be_asked_for() -> None:
    assert read(filled(), rows=2, first_row=3).header.rows == 5


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("sink", 9, "sink"),
        ("shard", 9, "shard"),
        ("incarnation", 9, "incarnation"),
        ("length", 19, "frame length"),
        ("rows", 6, "rows"),
        ("rows", 0, "rows"),
        ("first_row", 1, "rows"),
        ("first_row", -1, "rows"),
    ],
)
def test_a_doorbell_that_says_otherwise_is_not_believed(field: str, value: int, named: str) -> None:
    view = filled()

    with pytest.raises(CorruptFrameError, match=named):
        read(view, **{field: value})


@given(st.integers(0, 1023), st.integers(1, 255))
def test_a_changed_byte_is_noticed_wherever_it_matters(at: int, flip: int) -> None:
    view = filled()
    used = FRAME_AT + len(FRAME) + trailer_bytes(span.partition for span in SPANS)
    view[at] ^= flip

    if at >= used or HEADER_BYTES <= at < FRAME_AT:
        assert read(view).spans == SPANS
    else:
        with pytest.raises(CorruptFrameError):
            read(view)


@pytest.mark.parametrize("size", [0, 63, 64, 200])
def test_a_slot_that_was_never_filled_is_refused(size: int) -> None:
    with pytest.raises(CorruptFrameError):
        read(memoryview(bytes(size)))


@given(st.data())
def test_a_slot_that_was_half_filled_over_an_older_chunk_is_neither(data: st.DataObject) -> None:
    """D11"""
    view = filled()
    old, new = bytes(view), memoryview(bytearray(1024))
    frame = b"another frame that is longer"
    used = write_slot(new, SlotHeader(sink=1, shard=2, chunk=4, incarnation=4, rows=5), frame, SPANS[:1])
    order = [*range(FRAME_AT, used), *range(HEADER_BYTES)]
    done = data.draw(st.integers(0, len(order)))
    for at in order[:done]:
        view[at] = new[at]

    sound: list[int] = []
    for length in (len(FRAME), len(frame)):
        with contextlib.suppress(CorruptFrameError):
            sound.append(read(view, length=length).header.chunk)

    assert sound == ([3] if bytes(view) == old else [4] if done == len(order) else [])
