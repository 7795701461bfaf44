"""Watermarks across restarts."""

import sqlite3
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.checkpoint.store import SqliteCheckpointStore
from headrace.errors import StateError
from headrace.record import PartitionId

A, B = PartitionId("a#1"), PartitionId("caf\udce9/x#2")


def opened() -> tuple[sqlite3.Connection, SqliteCheckpointStore]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    store = SqliteCheckpointStore(connection)
    store.create()
    store.take_over(1)
    return connection, store


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    made, _ = opened()
    yield made
    made.close()


@pytest.fixture
def store(connection: sqlite3.Connection) -> SqliteCheckpointStore:
    return SqliteCheckpointStore(connection)


def test_what_was_committed_is_loaded_whatever_the_partitions_name(store: SqliteCheckpointStore) -> None:
    assert store.load() == {}

    assert store.commit(1, {A: 10, B: 2**62}) == {}

    assert store.load() == {A: 10, B: 2**62}


def test_no_commit_lowers_a_watermark(store: SqliteCheckpointStore) -> None:
    """C08"""
    store.commit(1, {A: 10, B: 10})

    assert store.commit(1, {A: 9, B: 11}) == {A: 10}

    assert store.load() == {A: 10, B: 11}


def test_the_same_position_again_is_nothing(store: SqliteCheckpointStore) -> None:
    store.commit(1, {A: 10})

    assert store.commit(1, {A: 10}) == {}


def test_an_incarnation_that_was_followed_by_another_commits_nothing(store: SqliteCheckpointStore) -> None:
    """C08"""
    store.take_over(2)

    with pytest.raises(StateError, match="incarnation 1 does not own"):
        store.commit(1, {A: 10})
    assert store.load() == {}
    store.commit(2, {A: 10})
    assert store.load() == {A: 10}


def test_an_earlier_incarnation_cannot_take_over_again(store: SqliteCheckpointStore) -> None:
    store.take_over(3)
    store.take_over(3)

    with pytest.raises(StateError):
        store.take_over(2)


def test_a_commit_is_the_callers_transaction(connection: sqlite3.Connection, store: SqliteCheckpointStore) -> None:
    connection.execute("BEGIN IMMEDIATE")
    store.commit(1, {A: 10})
    connection.execute("ROLLBACK")

    assert store.load() == {}
    assert not connection.in_transaction


def test_tables_that_are_there_are_kept(store: SqliteCheckpointStore) -> None:
    store.commit(1, {A: 10})

    store.create()

    assert store.load() == {A: 10}


@given(st.lists(st.dictionaries(st.sampled_from([A, B]), st.integers(0, 20)), max_size=10))
def test_a_stored_watermark_is_the_highest_ever_committed(commits: list[dict[PartitionId, int]]) -> None:
    connection, store = opened()
    highest: dict[PartitionId, int] = {}

    for positions in commits:
        left_out = store.commit(1, positions)
        assert left_out == {p: highest[p] for p, at in positions.items() if highest.get(p, -1) > at}
        for partition, position in positions.items():
            highest[partition] = max(position, highest.get(partition, position))
    loaded = store.load()
    connection.close()

    assert loaded == highest
