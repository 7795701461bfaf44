"""Where records end, and how streams are cut."""

from __future__ import annotations

import csv
import io

from hypothesis import given
from hypothesis import strategies as st

from headrace.sources.splitting import BlockCutter, CsvRecords, Lines, Piece, RecordRule


class Bytes:
    """A stream that shows at most ``window`` bytes at a time until it is opened up."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0
        self.final = True
        self.most_held = 0

    def peek(self, size: int) -> bytes:
        shown = self._data[self.position : self.position + size]
        self.most_held = max(self.most_held, len(shown))
        return shown

    def advance(self, count: int) -> None:
        self.position += count


def cut_all(data: bytes, rule: RecordRule, block: int, limit: int, max_records: int = 10**9) -> list[Piece]:
    cutter = BlockCutter(rule, block_bytes=block, max_record_bytes=limit)
    source = Bytes(data)
    pieces: list[Piece] = []
    while (piece := cutter.next(source, max_records)) is not None:
        assert piece.end > piece.start
        pieces.append(piece)
    assert source.most_held <= max(block, limit + 1, 1024)
    return pieces


def csv_records(data: bytes) -> list[bytes]:
    """The definition, one byte at a time."""
    records: list[bytes] = []
    start = 0
    quoted = False
    field_start = True
    at = 0
    while at < len(data):
        byte = data[at : at + 1]
        if quoted:
            if byte == b'"':
                if data[at + 1 : at + 2] == b'"':
                    at += 1
                else:
                    quoted = False
            field_start = False
        elif byte == b'"' and field_start:
            quoted, field_start = True, False
        elif byte == b"\n":
            records.append(data[start : at + 1])
            start, field_start = at + 1, True
        else:
            field_start = byte == b","
        at += 1
    return [*records, data[start:]] if start < len(data) else records


text = st.text(alphabet='ab\n\r\0é"', max_size=200).map(str.encode)
csv_text = st.lists(st.sampled_from(['"', '""', ",", "\n", "a", "bc", "\r\n", ' "']), max_size=80).map(
    lambda parts: "".join(parts).encode()
)


@given(text, st.integers(1, 40), st.integers(1, 60), st.integers(1, 20))
def test_the_pieces_of_a_stream_are_its_lines_whatever_the_block_size(
    data: bytes, block: int, limit: int, max_records: int
) -> None:
    pieces = cut_all(data, Lines(), block, limit, max_records)

    position = 0
    for piece in pieces:
        assert piece.start == position
        expected = data[piece.start : piece.end]
        if piece.left_out is None:
            assert piece.block == expected
            assert all(len(line) <= limit for line in expected.split(b"\n"))
        else:
            assert piece.block == b""
            assert len(expected.removesuffix(b"\n")) > limit
            assert b"\n" not in expected[:-1]
            assert expected.startswith(piece.left_out)
        assert expected.endswith(b"\n") or piece.end == len(data)
        position = piece.end
    assert position == len(data)


@given(csv_text, st.integers(1, 40), st.integers(200, 300))
def test_csv_blocks_hold_whole_records_whatever_the_block_size(data: bytes, block: int, limit: int) -> None:
    pieces = cut_all(data, CsvRecords(), block, limit)

    ends = {0}
    for record in csv_records(data):
        ends.add(max(ends) + len(record))
    assert b"".join(piece.block for piece in pieces) == data
    assert {piece.end for piece in pieces} <= ends


@given(csv_text, st.integers(1, 9), st.integers(1, 9))
def test_a_csv_record_over_the_limit_is_left_out_to_its_own_end(data: bytes, block: int, limit: int) -> None:
    pieces = cut_all(data, CsvRecords(), block, limit)

    left_out = [data[piece.start : piece.end] for piece in pieces if piece.left_out is not None]
    *whole, last = csv_records(data + b"\0")  # one more byte, so that the last is the unfinished one
    expected = [record for record in whole if len(record) > limit + 1]
    assert left_out == expected + [last[:-1]] * (len(last) > limit + 1)
    assert b"".join(data[piece.start : piece.end] for piece in pieces) == data


@given(st.lists(st.lists(st.text(alphabet='a",\n', max_size=5), min_size=2, max_size=3), max_size=8))
def test_csv_written_by_the_standard_library_is_cut_into_its_rows(rows: list[list[str]]) -> None:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    data = out.getvalue().encode()

    pieces = cut_all(data, CsvRecords(), 1, 10_000, max_records=1)

    assert [next(csv.reader(io.StringIO(piece.block.decode(), newline=""))) for piece in pieces] == rows


def test_a_block_of_very_many_records_is_cut_near_the_bound() -> None:
    data = b"abc\n" * 1000

    pieces = cut_all(data, Lines(), 4000, 4000, max_records=100)

    assert [len(piece.block) for piece in pieces] == [400] * 10


def test_a_record_over_the_limit_is_not_held_in_memory() -> None:
    """F09"""
    data = b"x" * 1_000_000 + b"\nnext\n"

    pieces = cut_all(data, Lines(), 256, 1000)

    assert [(piece.start, piece.end, piece.block) for piece in pieces] == [
        (0, 1_000_001, b""),
        (1_000_001, 1_000_006, b"next\n"),
    ]
    assert pieces[0].left_out == b"x" * 1024
