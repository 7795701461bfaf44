"""Which chunks are written together, and when."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from headrace.config.settings import BatchSettings
from headrace.shm.records import ChunkBell
from headrace.shm.token import CompletionToken
from headrace_workers.batch import Batcher, Prepared, SealReason

SETTINGS = BatchSettings(max_rows=100, max_bytes=1000, linger=0.2)


def chunk(number: int, *, rows: int = 10, nbytes: int = 100, free_slots: int = 5) -> Prepared:
    bell = ChunkBell(
        sink=0, shard=0, slot=number % 8, length=nbytes, first_row=0, rows=rows, attempt=1,
        token=CompletionToken(1, number + 1, 7), free_slots=free_slots,
    )  # fmt: skip
    return Prepared(bell=bell, chunk=number, rows=[(number, row) for row in range(rows)], count=rows, nbytes=nbytes)


def test_nothing_open_is_never_due() -> None:
    batcher = Batcher(SETTINGS)

    assert batcher.due(1e9, flushing=True, more=False) is None
    assert batcher.next_due() is None


def test_rows_and_bytes_seal_at_once() -> None:
    rows, nbytes = Batcher(SETTINGS), Batcher(SETTINGS)

    rows.add(chunk(0, rows=100), 0.0)
    nbytes.add(chunk(0, nbytes=1000), 0.0)

    assert rows.due(0.0, flushing=False, more=True) is SealReason.ROWS
    assert nbytes.due(0.0, flushing=False, more=True) is SealReason.BYTES


def test_linger_counts_from_the_first_chunk() -> None:
    batcher = Batcher(SETTINGS)
    batcher.add(chunk(0), 10.0)
    batcher.add(chunk(1), 10.15)

    assert batcher.next_due() == 10.2
    assert batcher.due(10.19, flushing=False, more=False) is None
    assert batcher.due(10.2, flushing=False, more=False) is SealReason.LINGER


def test_a_flush_waits_for_what_is_claimed_already() -> None:
    batcher = Batcher(SETTINGS)
    batcher.add(chunk(0), 0.0)

    assert batcher.due(0.0, flushing=True, more=True) is None
    assert batcher.due(0.0, flushing=True, more=False) is SealReason.FLUSH


def test_a_shard_without_a_free_slot_does_not_linger() -> None:
    """Waiting for more is no use when no more can come."""
    batcher = Batcher(SETTINGS)
    batcher.add(chunk(0, free_slots=0), 0.0)

    assert batcher.due(0.0, flushing=False, more=False) is SealReason.SLOTS


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 600)), max_size=50))
def test_chunks_keep_their_order_and_none_is_lost(sizes: list[tuple[int, int]]) -> None:
    batcher = Batcher(SETTINGS)
    written: list[int] = []

    for number, (rows, nbytes) in enumerate(sizes):
        batcher.add(chunk(number, rows=rows, nbytes=nbytes), 0.0)
        if batcher.due(0.0, flushing=False, more=True):
            taken = batcher.take()
            assert sum(one.count for one in taken[:-1]) < SETTINGS.max_rows
            assert sum(one.nbytes for one in taken[:-1]) < SETTINGS.max_bytes
            written += [one.chunk for one in taken]
    written += [one.chunk for one in batcher.take()]

    assert written == list(range(len(sizes)))


def test_rows_that_are_left_out_keep_their_numbers() -> None:
    prepared = chunk(0, rows=5)
    prepared.index = array("I", [1, 3, 5, 7, 9])
    rows = prepared.rows
    assert rows is not None

    prepared.keep([0, 2, 4], rows)

    assert prepared.count == 3
    assert [prepared.chunk_row(row) for row in range(3)] == [1, 5, 9]
    assert prepared.rows == [(0, 0), (0, 2), (0, 4)]
