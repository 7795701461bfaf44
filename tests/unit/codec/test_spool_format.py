"""The spool's format: a torn or damaged tail ends it, nothing else is lost."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.codec.spool import SpoolEntry, encode_entry, read_entries

entries = st.lists(
    st.builds(
        SpoolEntry,
        sink=st.text(max_size=5),
        shard=st.integers(0, 9),
        partition=st.text(max_size=5),
        position=st.integers(-1, 2**62),
        child=st.integers(0, 9),
        stage=st.text(max_size=5),
        cause=st.text(max_size=5),
        raw=st.binary(max_size=20),
        chunk=st.integers(0, 2**62),
        row=st.integers(0, 2**31),
    ),
    max_size=4,
)


@given(entries)
def test_entries_come_out_as_they_went_in(written: list[SpoolEntry]) -> None:
    data = b"".join(map(encode_entry, written))

    assert read_entries(data) == (written, len(data))


@given(entries, st.data())
def test_a_spool_that_is_cut_loses_only_its_torn_tail(written: list[SpoolEntry], data: st.DataObject) -> None:
    whole = b"".join(map(encode_entry, written))
    cut = data.draw(st.integers(0, len(whole)))

    found, good = read_entries(whole[:cut])

    assert found == written[: len(found)]
    assert good == len(b"".join(map(encode_entry, found))) <= cut
    assert len(found) == len(written) or good + len(encode_entry(written[len(found)])) > cut


@given(entries, st.data())
def test_a_flipped_bit_ends_the_spool_there(written: list[SpoolEntry], data: st.DataObject) -> None:
    spool = bytearray(b"".join(map(encode_entry, written)))
    if not spool:
        return
    at = data.draw(st.integers(0, len(spool) - 1))
    spool[at] ^= 1 << data.draw(st.integers(0, 7))

    found, good = read_entries(bytes(spool))

    assert good <= at
    assert found == written[: len(found)]


@given(st.binary(max_size=100))
def test_any_bytes_are_read_without_an_error(data: bytes) -> None:
    assert read_entries(data)[1] <= len(data)


def test_a_cause_that_is_no_unicode_is_kept_readable() -> None:
    entry = SpoolEntry(
        sink="s", shard=0, partition="p", position=1, child=0, stage="sink", cause="\udcff", raw=b"\xff", chunk=1, row=0
    )

    (found,), _ = read_entries(encode_entry(entry))

    assert found.cause == "\\udcff"
