"""Frames: groups come out as they went in, and anything else is corrupt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.codec.frame import group, iter_groups
from headrace.errors import CorruptFrameError

groups_of_bytes = st.lists(st.tuples(st.binary(max_size=20), st.integers(0, 2**32 - 1)), max_size=5)


@given(groups_of_bytes)
def test_groups_come_out_as_they_went_in(groups: list[tuple[bytes, int]]) -> None:
    frame = b"".join(group(body, rows) for body, rows in groups)

    assert [(bytes(body), rows) for body, rows in iter_groups(memoryview(frame))] == groups


@given(groups_of_bytes, st.integers(1, 100))
def test_a_frame_that_is_cut_is_corrupt_or_ends_between_two_groups(groups: list[tuple[bytes, int]], cut: int) -> None:
    frame = b"".join(group(body, rows) for body, rows in groups)[:-cut]

    try:
        found = [(bytes(body), rows) for body, rows in iter_groups(frame)]
    except CorruptFrameError:
        return
    assert found == groups[: len(found)]


@given(st.binary(max_size=64))
def test_any_bytes_are_groups_or_corrupt(data: bytes) -> None:
    try:
        length = sum(8 + len(body) for body, _ in iter_groups(data))
    except CorruptFrameError:
        return
    assert length == len(data)


def test_a_group_longer_than_its_frame_is_corrupt() -> None:
    with pytest.raises(CorruptFrameError, match="a group of 9 bytes at byte 8"):
        list(iter_groups(b"\x09\0\0\0\x01\0\0\0abc"))
