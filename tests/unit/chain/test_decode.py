"""Decoders: every line is one record or one bad record, at its own position, however the block is decoded."""

from __future__ import annotations

import json
from array import array
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.chain.decode import decoder_of
from headrace.chain.decoded import Decoded
from headrace.errors import ConfigError
from headrace.record import OnError, PartitionId, PayloadBatch


class Spec(msgspec.Struct):
    """As much of a source as a decoder looks at."""

    decode: Any = dict
    format: str = "ndjson"


class Item(msgspec.Struct):
    v: int
    name: str | None = None


PARTITION = PartitionId("p")


def block(data: bytes, start: int = 100, header: bytes | None = None) -> PayloadBatch:
    return PayloadBatch(partition=PARTITION, start=start, end=start + len(data), block=data, header=header)


def decode(data: bytes, spec: Spec | None = None, **options: Any) -> Decoded:
    return decoder_of(spec or Spec(), OnError.SKIP).decode(block(data, **options))


LINES = st.lists(
    st.sampled_from(
        [
            b'{"v":1}', b'{"v":2,"name":"\xc3\xa9"}', b'{"v":"x"}', b"{", b'{"v":', b"3}", b'{"v":1}{"v":2}', b"",
            b"  ", b"\r", b'{"v":5}\r', b' {"v":6} ', b"\0\0\0", b'\0\0{"v":7}', b"[1]", b"[1,", b"2]", b"7", b"nul",
            b'{"v":1,', b'"name":"\xff"}', b'{"v":8,"name":"\xff"}', b'{"v":1},', b'{"a":{}',
            b',"v":9}', b"[" * 2000 + b"]" * 2000,
        ]
    ),
    max_size=12,
)  # fmt: skip


@given(LINES, st.booleans(), st.sampled_from([Item, dict]))
def test_a_block_gives_what_its_lines_give_one_by_one(lines: list[bytes], ended: bool, kind: Any) -> None:
    """J05 J07 J10"""
    data = b"\n".join(lines) + (b"\n" if ended and lines else b"")
    one = msgspec.json.Decoder(Any if kind is dict else kind)
    good: list[tuple[object, int, bytes]] = []
    bad: list[tuple[int, bytes]] = []
    end = 100
    for line in data.split(b"\n"):
        end = min(end + len(line) + 1, 100 + len(data))
        text = line.strip(b" \t\r\0")
        if text:
            try:
                good.append((one.decode(text), end, text))
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                bad.append((end - 1, text))

    decoded = decode(data, Spec(kind))

    assert decoded.records == [record for record, _, _ in good]
    assert list(decoded.ends) == [place for _, place, _ in good]
    assert [line.strip(b" \t\r\0") for line in decoded.lines] == [text for _, _, text in good]
    assert [(one.position, one.raw) for one in decoded.bad] == bad
    assert all(one.stage == "decode" and one.cause and one.policy is OnError.SKIP for one in decoded.bad)


@pytest.mark.parametrize(
    "spanning",
    [[b'{"v":', b"1}"], [b'{"w":', b'{"v":1}}'], [b'{"w":{}', b',"v":1}'], [b"[{},", b"{}]"], [b"[{}", b"]"]],
)
def test_documents_that_span_and_share_lines_are_not_taken_for_one_a_line(spanning: list[bytes]) -> None:
    """As many documents as lines, and yet the line in the middle is another's."""
    lines = [*spanning, b'{"v":2}', b'{"v":3}{"v":4}']

    decoded = decode(b"\n".join(lines) + b"\n")

    assert decoded.records == [{"v": 2}]
    assert [one.raw for one in decoded.bad] == [line for line in lines if line != b'{"v":2}']


@pytest.mark.parametrize("good", [1, 5, 200])
@pytest.mark.parametrize("tail", [b'{"syntaxerror', b'{"v":1', b"\xff"])
def test_a_torn_last_line_is_one_bad_record_whatever_comes_before_it(good: int, tail: bytes) -> None:
    """J07"""
    data = b'{"v":1}\n' * good + tail

    decoded = decode(data)

    assert len(decoded.records) == good
    assert [(one.position, one.raw) for one in decoded.bad] == [(100 + len(data) - 1, tail)]


@pytest.mark.parametrize(
    "number", ["9007199254740993", "9223372036854775807", "9223372036854775808", "18446744073709551616", "1" + "0" * 30]
)
def test_big_integers_are_kept_to_the_digit(number: str) -> None:
    """J01"""
    decoded = decode(f'{{"id":{number}}}\n'.encode())

    assert decoded.records == [{"id": int(number)}]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "01"])
def test_numbers_that_json_does_not_have_are_bad_records(number: str) -> None:
    """J01 J02"""
    decoded = decode(f'{{"id":1}}\n{{"id":{number}}}\n{{"id":2}}\n'.encode())

    assert decoded.records == [{"id": 1}, {"id": 2}]
    assert len(decoded.bad) == 1


@pytest.mark.parametrize("depth", [100, 512, 1_000, 10_000, 100_000])
def test_deep_nesting_is_decoded_or_is_one_bad_record(depth: int) -> None:
    """J04"""
    data = b'{"v":1}\n' + b"[" * depth + b"]" * depth + b'\n{"v":2}\n'

    decoded = decode(data)

    assert len(decoded.records) + len(decoded.bad) == 3
    assert [record for record in decoded.records if isinstance(record, dict)] == [{"v": 1}, {"v": 2}]
    assert depth == 1_000 or bool(decoded.bad) == (depth > 1_000)  # where the limit lies is the interpreter's


def test_the_last_of_two_equal_keys_counts() -> None:
    """J08"""
    assert decode(b'{"user":1,"user":2}\n').records == [{"user": 2}]


def test_a_byte_order_mark_begins_an_input_and_no_line() -> None:
    mark = b"\xef\xbb\xbf"

    at_start = decode(mark + b'{"v":1}\n{"v":2}\n', start=0)
    later = decode(mark + b'{"v":1}\n', start=500)

    assert at_start.records == [{"v": 1}, {"v": 2}]
    assert list(at_start.ends) == [11, 19]
    assert at_start.lines[0] == b'{"v":1}'
    assert len(later.bad) == 1


def test_what_a_struct_raises_while_it_is_made_is_the_record_s_fault() -> None:
    class Picky(msgspec.Struct):
        v: int

        def __post_init__(self) -> None:
            if self.v == 2:
                raise ZeroDivisionError("two")

    decoded = decode(b'{"v":1}\n{"v":2}\n{"v":3}\n', Spec(Picky))

    assert [record.v for record in decoded.records if isinstance(record, Picky)] == [1, 3]
    assert [one.cause for one in decoded.bad] == ["ZeroDivisionError: two"]


def test_payloads_are_records_and_keep_their_numbers() -> None:
    payloads = [b'{"v":1}', b"", b'{\n"v":2}', b"nope"]
    batch = PayloadBatch(partition=PARTITION, start=7, end=11, payloads=payloads, ends=array("q", [8, 9, 10, 11]))

    decoded = decoder_of(Spec(), OnError.DEAD_LETTER).decode(batch)

    assert decoded.records == [{"v": 1}, {"v": 2}]
    assert (list(decoded.ends), decoded.numbers) == ([8, 10], [0, 2])
    assert [(one.position, one.raw, one.policy) for one in decoded.bad] == [
        (8, b"", OnError.DEAD_LETTER),
        (10, b"nope", OnError.DEAD_LETTER),
    ]


@pytest.mark.parametrize(
    ("spec", "records"),
    [
        (Spec(bytes, "lines"), [b"a,1", b"", b"b,\xff"]),
        (Spec(str, "lines"), ["a,1", ""]),
        (Spec(bytes, "csv"), [b"a,1", b"", b"b,\xff"]),
        (Spec(dict, "csv"), [{"x": "a", "y": "1"}]),
    ],
)
def test_each_payload_is_a_record_in_every_format(spec: Spec, records: list[object]) -> None:
    payloads, ends = [b"a,1", b"", b"b,\xff"], array("q", [1, 2, 3])
    batch = PayloadBatch(partition=PARTITION, start=0, end=3, payloads=payloads, ends=ends, header=b"x,y\n")

    decoded = decoder_of(spec, OnError.SKIP).decode(batch)

    assert decoded.records == records
    assert len(decoded.records) + len(decoded.bad) == 3
    assert decoded.lines == payloads[: len(records)]


@pytest.mark.parametrize("data", [b'{"v":1}\n', b'{"v":1}\nx\n'])
def test_no_memory_is_no_record_s_fault(data: bytes) -> None:
    class Hungry(msgspec.Struct):
        v: int

        def __post_init__(self) -> None:
            raise MemoryError

    with pytest.raises(MemoryError):
        decode(data, Spec(Hungry))


@given(st.lists(st.binary(max_size=6).map(lambda line: line.replace(b"\n", b"")), max_size=8), st.booleans())
def test_lines_are_taken_as_they_are_but_for_the_carriage_return(lines: list[bytes], ended: bool) -> None:
    """F17"""
    data = b"\n".join(lines) + (b"\n" if ended else b"")
    expected = [line.removesuffix(b"\r") for line in data.split(b"\n")]

    decoded = decode(data, Spec(bytes, "lines"))

    assert decoded.records == [line for line in expected if line]
    for record, end in zip(decoded.records, decoded.ends, strict=True):
        assert isinstance(record, bytes)
        assert data[: end - 100].rstrip(b"\n").removesuffix(b"\r").endswith(record)


def test_text_lines_must_be_utf_8() -> None:
    decoded = decode(b"\xef\xbb\xbfone\ntw\xc3\xb6\n\xff\n", Spec(str, "lines"), start=0)

    assert decoded.records == ["one", "twö"]
    assert [(one.position, one.raw) for one in decoded.bad] == [(13, b"\xff")]


@pytest.mark.parametrize("spec", [Spec(Item, "lines"), Spec(complex), Spec(42), Spec(list, "csv"), Spec(int, "csv")])
def test_a_type_that_the_format_cannot_give_is_refused(spec: Spec) -> None:
    with pytest.raises(ConfigError, match="decode="):
        decoder_of(spec, OnError.FAIL)


# -- CSV


class Flight(msgspec.Struct, rename={"tail": "tail number"}):
    origin: str
    delay: int | None
    tail: str | None = None
    late: bool = False


@given(
    st.lists(
        st.lists(st.text(st.sampled_from('ab,"\n\r é'), max_size=6), min_size=3, max_size=3), max_size=6
    ),
    st.booleans(),
)  # fmt: skip
def test_csv_gives_back_what_was_written(rows: list[list[str]], ended: bool) -> None:
    quoted = [",".join('"' + field.replace('"', '""') + '"' for field in row) for row in rows]
    data = ("\n".join(quoted) + ("\n" if ended and rows else "")).encode()

    decoded = decode(data, Spec(dict, "csv"), header=b'x,"y ""z""",w\r\n')

    assert decoded.records == [dict(zip(("x", 'y "z"', "w"), row, strict=True)) for row in rows]
    starts = [100, *decoded.ends][: len(rows)]
    for start, end, line in zip(starts, decoded.ends, decoded.lines, strict=True):
        assert data[start - 100 : end - 100].removesuffix(b"\n") == line


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ('a,"b"', ["a", "b"]),
        ("a,", ["a", ""]),
        (",", ["", ""]),
        ('a"b",c', ['a"b"', "c"]),
        ('"a"b"c,d', ['ab"c', "d"]),
        ('a,"open', ["a", "open"]),
        ("a\rb,c\r", ["a\rb", "c"]),
        ("a\0,b", ["a\0", "b"]),
    ],
)
def test_quotes_and_carriage_returns_that_are_text_stay(line: str, fields: list[str]) -> None:
    decoded = decode(line.encode(), Spec(dict, "csv"), header=b"x,y\n")

    assert decoded.records == [dict(zip("xy", fields, strict=True))]


def test_csv_values_are_converted_loosely_into_a_struct() -> None:
    data = b"EWR,12,N1,true\nJFK,,,0\nLGA,x,N3,1\n\nHPN,1,N4\n"

    decoded = decode(data, Spec(Flight, "csv"), header=b"\xef\xbb\xbforigin,delay,tail number,late\n")

    assert decoded.records == [Flight("EWR", 12, "N1", True), Flight("JFK", None, "", False)]
    assert [one.cause for one in decoded.bad] == [
        "Expected `int | null`, got `str` - at `$.delay`",
        "the record has 3 field(s) and the header 4",
    ]


@pytest.mark.parametrize(
    ("header", "cause"),
    [
        (None, "the header cannot be read: the source gave none"),
        (b"a,a\n", "the header cannot be read: it has 2 columns, of which 2 are called 'a'"),
        (b"\xff,b\n", "the header cannot be read: 'utf-8' codec"),
    ],
)
def test_under_a_header_that_cannot_be_read_every_record_is_bad(header: bytes | None, cause: str) -> None:
    decoded = decode(b"1,2\n3,4\n", Spec(dict, "csv"), header=header)

    assert len(decoded.bad) == 2
    assert decoded.bad[0].cause.startswith(cause)


def test_each_file_s_records_stand_under_its_own_header() -> None:
    decoder = decoder_of(Spec(dict, "csv"), OnError.FAIL)

    first = decoder.decode(block(b"1,2\n", header=b"a,b\n"))
    second = decoder.decode(block(b"1\n", header=b"c\n"))

    assert first.records + second.records == [{"a": "1", "b": "2"}, {"c": "1"}]


def test_csv_records_may_be_taken_as_they_are() -> None:
    decoded = decode(b'1,"a\nb"\r\n\n2,c', Spec(bytes, "csv"), header=b"x,y\n")

    assert decoded.records == [b'1,"a\nb"', b"2,c"]
    assert list(decoded.ends) == [109, 113]


def test_lines_that_end_in_carriage_returns_are_decoded_as_a_block() -> None:
    data = json.dumps({"v": [1, {"w": "\u2028"}]}, ensure_ascii=False).encode() + b"\r\n"

    decoded = decode(data * 3)

    assert decoded.records == [json.loads(data)] * 3
    assert not decoded.bad
