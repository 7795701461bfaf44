"""Watermarks kept by us, for sources that cannot keep their own.

Tables, in ``state.db``::

    watermarks        partition TEXT (BLOB where its name has lone surrogates), position, incarnation that wrote it
    watermark_owner   one row: the incarnation that may write

All runs in the caller's thread and inside the caller's transaction: what a reader finds after a crash is what the
last commit held. A commit of an incarnation that is not the owner is refused; no commit lowers a watermark.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Final, Protocol

from headrace.errors import StateError
from headrace.record import PartitionId

SCHEMA: Final = (
    """CREATE TABLE IF NOT EXISTS watermarks (
        partition PRIMARY KEY, position INTEGER NOT NULL, incarnation INTEGER NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS watermark_owner (
        only INTEGER PRIMARY KEY CHECK (only = 1), incarnation INTEGER NOT NULL
    )""",
)


class CheckpointStore(Protocol):
    """Where watermarks are kept across restarts."""

    def load(self) -> dict[PartitionId, int]: ...

    def commit(self, incarnation: int, positions: Mapping[PartitionId, int]) -> dict[PartitionId, int]:
        """Store the positions. Returns those that were left out, because the store holds a higher one, with what it
        holds. Raises `StateError` when another incarnation owns the store."""
        ...


class SqliteCheckpointStore:
    """The watermarks in an SQLite database that the caller opened. It begins and commits the transactions."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def create(self) -> None:
        """Make the tables where they are not."""
        for statement in SCHEMA:
            self._connection.execute(statement)

    def take_over(self, incarnation: int) -> None:
        """From now on only this incarnation commits. Raises `StateError` when a later one has taken over."""
        cursor = self._connection.execute(
            "INSERT INTO watermark_owner VALUES (1, ?) "
            "ON CONFLICT DO UPDATE SET incarnation = excluded.incarnation WHERE excluded.incarnation >= incarnation",
            (incarnation,),
        )
        if cursor.rowcount != 1:
            raise _not_owner(incarnation)

    def load(self) -> dict[PartitionId, int]:
        rows = self._connection.execute("SELECT partition, position FROM watermarks")
        return {_partition(key): position for key, position in rows}

    def commit(self, incarnation: int, positions: Mapping[PartitionId, int]) -> dict[PartitionId, int]:
        self._check_owner(incarnation)
        lower: dict[PartitionId, int] = {}
        for partition, position in positions.items():
            stored = self._raise(incarnation, partition, position)
            if stored > position:
                lower[partition] = stored
        return lower

    def _check_owner(self, incarnation: int) -> None:
        # An UPDATE, so that the write lock is ours before the answer is believed.
        cursor = self._connection.execute(
            "UPDATE watermark_owner SET incarnation = incarnation WHERE incarnation = ?", (incarnation,)
        )
        if cursor.rowcount != 1:
            raise _not_owner(incarnation)

    def _raise(self, incarnation: int, partition: PartitionId, position: int) -> int:
        """The position that the store holds after this."""
        key = _key(partition)
        self._connection.execute(
            "INSERT INTO watermarks VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET position = excluded.position, "
            "incarnation = excluded.incarnation WHERE excluded.position > position",
            (key, position, incarnation),
        )
        stored: int
        (stored,) = self._connection.execute("SELECT position FROM watermarks WHERE partition = ?", (key,)).fetchone()
        return stored


def _not_owner(incarnation: int) -> StateError:
    return StateError(
        f"incarnation {incarnation} does not own the watermarks (any more): another supervisor was started on this "
        "state directory; stop this one"
    )


def _key(partition: PartitionId) -> str | bytes:
    try:
        partition.encode()
    except UnicodeEncodeError:
        return partition.encode("utf-8", "surrogatepass")
    return partition


def _partition(key: str | bytes) -> PartitionId:
    return PartitionId(key if isinstance(key, str) else key.decode("utf-8", "surrogatepass"))
