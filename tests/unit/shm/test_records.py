"""The records of both pipes: there and back, torn, and hostile."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.record import OnError, PartitionId
from headrace.shm.records import (
    RECORD_MAX,
    Ack,
    AckReader,
    Beat,
    Broken,
    Busy,
    ChunkBell,
    ColumnsAre,
    Done,
    Doorbell,
    DoorbellReader,
    Failed,
    Filtered,
    Flush,
    Held,
    Malformed,
    Open,
    Outcome,
    PositionIs,
    Ready,
    Release,
    Released,
    RowOutcome,
    Stage,
    Stop,
    encode,
    encode_all,
)
from headrace.shm.token import CompletionToken

u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))
i64 = st.integers(-(2**63), 2**63 - 1)
tokens = st.builds(CompletionToken, u64, u64, u64)
partitions = st.text(st.characters(), max_size=300).map(PartitionId)
doorbells: st.SearchStrategy[Doorbell] = st.one_of(
    st.builds(
        ChunkBell,
        sink=u16,
        shard=u32,
        slot=u32,
        length=u32,
        first_row=u32,
        rows=u32,
        attempt=u32,
        token=tokens,
        free_slots=u32,
    ),
    st.builds(Open, u16, u32, partitions),
    st.builds(Flush, u16, u32),
    st.builds(Release, u16, u32),
    st.builds(Stop),
)
plain = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
outcomes = st.builds(RowOutcome, u32, st.sampled_from(OnError), plain, plain)
acks: st.SearchStrategy[Ack] = st.one_of(
    st.builds(Ready, u32, u64, st.binary(min_size=8, max_size=8)),
    st.builds(ColumnsAre, u16, st.binary(max_size=500)),
    st.builds(Held, tokens),
    st.builds(Busy, tokens, st.sampled_from(Stage)),
    st.builds(Failed, tokens, st.lists(outcomes, max_size=5).map(tuple)),
    st.builds(Filtered, tokens, u32, st.binary(max_size=500)),
    st.builds(
        Done,
        token=tokens,
        outcome=st.sampled_from(Outcome),
        written=u32,
        filtered=u32,
        skipped=u32,
        dead_lettered=u32,
        spool_end=u64,
    ),
    st.builds(Released, tokens),
    st.builds(PositionIs, u16, u32, partitions, i64),
    st.builds(Beat, st.binary(max_size=4000)),
    st.builds(Broken, plain),
)
TOKEN = CompletionToken(1, 2, 3)


@given(doorbells)
def test_a_doorbell_survives_its_bytes(record: Doorbell) -> None:
    assert DoorbellReader().feed(encode(record)) == [record]


@given(acks)
def test_an_ack_survives_its_bytes(record: Ack) -> None:
    assert AckReader().feed(encode(record)) == [record]


@given(st.lists(acks, max_size=8), st.randoms(use_true_random=False))
def test_records_are_found_however_the_bytes_are_cut(records: list[Ack], dice: random.Random) -> None:
    stream = b"".join(map(encode, records))
    reader = AckReader()

    found: list[Ack | Malformed] = []
    while stream:
        cut = dice.randint(1, len(stream))
        found += reader.feed(stream[:cut])
        stream = stream[cut:]

    assert found == records
    assert reader.torn == 0


@given(acks, st.data())
def test_a_torn_record_is_kept_and_counted_and_is_no_record(record: Ack, data: st.DataObject) -> None:
    whole = encode(record)
    cut = data.draw(st.integers(0, len(whole) - 1))
    reader = AckReader()

    assert reader.feed(encode(Held(TOKEN)) + whole[:cut]) == [Held(TOKEN)]
    assert reader.torn == cut
    assert reader.feed(whole[cut:]) == [record]


@given(st.lists(st.binary(max_size=300), max_size=5))
def test_hostile_bytes_raise_nothing_and_are_not_hoarded(pieces: list[bytes]) -> None:
    for reader in (AckReader(), DoorbellReader()):
        for piece in pieces:
            reader.feed(piece)

        assert reader.torn < RECORD_MAX


@given(acks, st.data())
def test_a_changed_byte_gives_records_or_malformed_ones(record: Ack, data: st.DataObject) -> None:
    raw = bytearray(encode(record) + encode(Held(TOKEN)))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))

    for found in AckReader().feed(bytes(raw)):
        assert isinstance(found, Malformed) or encode(found)


@pytest.mark.parametrize("length", [0, 2, 4097, 65535])
def test_after_a_length_that_cannot_be_nothing_more_is_read(length: int) -> None:
    reader = AckReader()

    (found,) = reader.feed(b"\x43" + length.to_bytes(2, "little") + encode(Held(TOKEN)))

    assert isinstance(found, Malformed)
    assert reader.feed(encode(Held(TOKEN))) == []
    assert reader.torn == 0


@pytest.mark.parametrize(
    "payload",
    [
        b"\x43\x04\x00x",  # HELD without a whole token
        b"\x44\x1c\x00" + bytes(24) + b"\x09",  # BUSY with a stage that is none
        b"\x47\x03\x00",  # DONE without anything
        b"\x45\x1e\x00" + bytes(24) + b"\x00\x00\x00",  # FAILED with a torn row
        b"\x45\x23\x00" + bytes(24) + b"\x00\x00\x00\x00\x01\x00\x63\x00",  # FAILED with a cause that is cut off
        b"\x63\x03\x00",  # a kind that is none
        b"\x05\x03\x00",  # a doorbell on the ack pipe
    ],
)
def test_a_record_that_does_not_parse_does_not_hide_the_next(payload: bytes) -> None:
    found = AckReader().feed(payload + encode(Held(TOKEN)))

    assert isinstance(found[0], Malformed)
    assert found[1:] == [Held(TOKEN)]


def test_a_stop_with_a_payload_is_no_stop() -> None:
    (found,) = DoorbellReader().feed(b"\x05\x04\x00x")

    assert isinstance(found, Malformed)


@given(st.lists(st.tuples(st.text(max_size=80), st.text(max_size=400)), min_size=1, max_size=60))
def test_any_number_of_failed_rows_travels_in_order_with_causes_cut(rows: list[tuple[str, str]]) -> None:
    entries = tuple(RowOutcome(at, OnError.SKIP, stage, cause) for at, (stage, cause) in enumerate(rows))

    parts = encode_all(Failed(TOKEN, entries))
    found = AckReader().feed(b"".join(parts))

    assert all(len(part) <= RECORD_MAX for part in parts)
    travelled = [entry for record in found if isinstance(record, Failed) for entry in record.entries]
    assert [entry.row for entry in travelled] == list(range(len(rows)))
    assert all(entry.cause == cause[:300] for entry, (_, cause) in zip(travelled, rows, strict=True))


def test_the_longest_causes_that_can_be_still_fit() -> None:
    worst = RowOutcome(1, OnError.FAIL, "\udcff" * 99, "\udcff" * 999)

    (part,) = encode_all(Failed(TOKEN, (worst,)))

    assert len(part) <= RECORD_MAX


@given(st.integers(0, 90_000), st.integers(0, 1000))
def test_a_bitmap_without_a_limit_travels(rows: int, first: int) -> None:
    bitmap = bytes(0x81 for _ in range((rows + 7) // 8))

    found = AckReader().feed(b"".join(encode_all(Filtered(TOKEN, first, bitmap))))

    travelled = [row for record in found if isinstance(record, Filtered) for row in record.rows()]
    assert travelled == Filtered(TOKEN, first, bitmap).rows()


@pytest.mark.parametrize("size", [0, 1, 4090, 4091, 20_000])
def test_columns_in_parts_arrive_whole(size: int) -> None:
    columns = random.Random(1).randbytes(size)

    found = AckReader().feed(b"".join(encode_all(ColumnsAre(3, columns))))

    assert found == [ColumnsAre(3, columns)]


def test_columns_without_end_are_refused() -> None:
    reader = AckReader()
    part = encode(ColumnsAre(3, bytes(4000), more=True))

    found = [record for _ in range(300) for record in reader.feed(part)]

    assert found
    assert isinstance(found[0], Malformed)


def test_a_record_that_does_not_fit_is_refused_before_it_is_written() -> None:
    with pytest.raises(ValueError, match="Beat"):
        encode(Beat(bytes(4094)))


def test_last_words_are_cut_to_what_fits_and_keep_the_cause() -> None:
    raw = encode(Broken("é" * 5000 + "ValueError: the cause"))

    (found,) = AckReader().feed(raw)

    assert isinstance(found, Broken)
    assert found.text.endswith("é" * 100 + "ValueError: the cause")


def test_filtered_rows_are_named_by_index() -> None:
    assert Filtered(TOKEN, 100, bytes([0b00000101, 0b10000000])).rows() == [100, 102, 115]
