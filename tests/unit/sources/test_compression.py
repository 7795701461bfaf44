"""Streams of gzip members and zstd frames."""

from __future__ import annotations

import gzip

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from headrace.sources.compression import Compression, CorruptStream, compression_of, inflater_of


def pack(data: bytes, compression: Compression, *, checksum: bool = True) -> bytes:
    if compression is Compression.GZIP:
        return gzip.compress(data)
    return zstandard.ZstdCompressor(write_checksum=checksum).compress(data)


def unpack(data: bytes, compression: Compression, *, chunk: int, limit: int) -> tuple[bytes, bool, str]:
    """The content, whether it ended whole, and what was wrong."""
    inflater = inflater_of(compression)
    out = b""
    for at in range(0, len(data), chunk):
        inflater.feed(data[at : at + chunk])
        try:
            while part := inflater.inflate(limit):
                out += part
        except CorruptStream as error:
            return out, inflater.whole, str(error)
    return out, inflater.whole, ""


packed = st.sampled_from([Compression.GZIP, Compression.ZSTD])


@given(packed, st.lists(st.binary(max_size=3000), min_size=1, max_size=4), st.integers(1, 500), st.integers(1, 500))
def test_any_number_of_members_is_read_in_pieces_of_any_size(
    compression: Compression, members: list[bytes], chunk: int, limit: int
) -> None:
    data = b"".join(pack(member, compression) for member in members)

    content, whole, fault = unpack(data, compression, chunk=chunk, limit=limit)

    assert (content, whole, fault) == (b"".join(members), True, "")


@given(packed, st.binary(min_size=20, max_size=2000), st.data())
def test_a_stream_that_is_cut_anywhere_is_not_whole(
    compression: Compression, member: bytes, data: st.DataObject
) -> None:
    stream = pack(member, compression)
    cut = data.draw(st.integers(0, len(stream) - 1))

    content, whole, fault = unpack(stream[:cut], compression, chunk=100, limit=100)

    assert member.startswith(content)
    assert (whole, fault) == (False, "")


@given(packed, st.integers(0, 10_000), st.integers(1, 255), st.integers(1, 300), st.integers(1, 300))
def test_what_comes_before_corrupt_bytes_does_not_depend_on_how_it_was_asked_for(
    compression: Compression, place: int, flip: int, chunk: int, limit: int
) -> None:
    good = bytearray(pack(b"".join(b'{"line": %d}\n' % number for number in range(300)), compression))
    good[place % len(good)] ^= flip

    one = unpack(bytes(good), compression, chunk=len(good), limit=100_000)
    other = unpack(bytes(good), compression, chunk=chunk, limit=limit)

    assert one == other


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.ZSTD])
def test_a_piece_is_bounded_whatever_the_ratio(compression: Compression) -> None:
    inflater = inflater_of(compression)
    inflater.feed(pack(bytes(50_000_000), compression))

    longest = total = 0
    while part := inflater.inflate(1000):
        longest, total = max(longest, len(part)), total + len(part)

    assert total == 50_000_000
    assert longest <= 1000 + 128 * 1024


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.ZSTD])
def test_bytes_after_the_last_member_are_told_apart_from_content(compression: Compression) -> None:
    inflater = inflater_of(compression)
    inflater.feed(pack(b"abc\n", compression) + b"garbage after the end")

    content = inflater.inflate(100) + inflater.inflate(100)

    assert content == b"abc\n"
    assert inflater.trailing
    assert inflater.whole


def test_zeros_after_a_gzip_member_are_padding() -> None:
    assert unpack(gzip.compress(b"a\n") + bytes(512), Compression.GZIP, chunk=7, limit=50) == (b"a\n", True, "")


def test_skippable_frames_are_skipped() -> None:
    skippable = (0x184D2A53).to_bytes(4, "little") + (5).to_bytes(4, "little") + b"hello"

    content = unpack(skippable + pack(b"a\n", Compression.ZSTD), Compression.ZSTD, chunk=3, limit=50)

    assert content == (b"a\n", True, "")


@pytest.mark.parametrize(
    ("first", "suffix", "expected"),
    [
        (b"\x1f\x8b\x08\x00", ".log", Compression.GZIP),
        (b"\x28\xb5\x2f\xfd", "", Compression.ZSTD),
        (b"", ".gz", Compression.GZIP),
        (b"\x1f", ".gz", Compression.GZIP),
        (b"", ".zst", Compression.ZSTD),
        (b'{"a"', ".gz", Compression.NONE),
        (b"", ".log", Compression.NONE),
    ],
)
def test_the_first_bytes_tell_the_compression_and_the_suffix_helps(
    first: bytes, suffix: str, expected: Compression
) -> None:
    assert compression_of(first, suffix) is expected
