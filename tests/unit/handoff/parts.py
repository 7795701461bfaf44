"""Small real parts for tests of the hand-off: batches, an encoder, a router, and a queue that is told when to take."""

import itertools
from array import array
from collections.abc import Callable

import msgspec

from headrace.checkpoint.ack import AckRef, BatchId
from headrace.errors import RecordError
from headrace.handoff.chunk import EncodedChunk
from headrace.record import BatchOrigin, ChunkId, PartitionId

PARTITION = PartitionId("p#1")


class MsgpackEncoder:
    """A group's body is the msgpack array of its rows; ``calls`` counts encode calls."""

    def __init__(self) -> None:
        self.calls = 0

    def encode(self, rows: list[object]) -> bytes:
        self.calls += 1
        if any(row == "refused" for row in rows):
            raise RecordError("this row is refused")
        return msgspec.msgpack.encode(rows)


class KeyIsShard:
    """An int key is its shard; keyless rows go to shard 0."""

    def shards_of(self, keys: list[object] | None, n: int, partition: PartitionId) -> list[int]:
        return [0] * n if keys is None else [0 if key is None else _as_int(key) for key in keys]


class ScriptedQueue:
    """Takes chunks while ``room`` is left; raises ``error`` if there is one. ``offered`` may be shared by queues."""

    def __init__(self, room: int = 1_000_000, offered: list[EncodedChunk] | None = None) -> None:
        self.room = room
        self.taken: list[EncodedChunk] = []
        self.offered: list[EncodedChunk] = [] if offered is None else offered
        self.error: Exception | None = None

    def try_send(self, chunk: EncodedChunk, now: float) -> bool:
        self.offered.append(chunk)
        if self.error is not None:
            raise self.error
        if self.room == 0:
            return False
        self.room -= 1
        self.taken.append(chunk)
        return True


def origin(records: int, *, seq: int = 0, partition: PartitionId = PARTITION, start: int = 0) -> BatchOrigin:
    """A batch whose records lie at positions 9, 19, 29, … after ``start``."""
    ends = array("q", (start + 10 * (at + 1) for at in range(records)))
    return BatchOrigin(partition, 1, seq, ends)


def ack(on_resolve: Callable[[AckRef], None] = lambda ref: None, *, seq: int = 0) -> AckRef:
    return AckRef(BatchId(PARTITION, 1, seq), 10 * (seq + 1), on_resolve)


def chunk_ids() -> Callable[[], ChunkId]:
    counter = itertools.count(1)
    return lambda: ChunkId(next(counter))


def rows_of(chunk: EncodedChunk) -> list[object]:
    """The rows in the chunk's frame."""
    rows: list[object] = []
    at = 0
    while at < len(chunk.frame):
        size, count = (
            int.from_bytes(chunk.frame[at : at + 4], "little"),
            int.from_bytes(chunk.frame[at + 4 : at + 8], "little"),
        )
        group = msgspec.msgpack.decode(chunk.frame[at + 8 : at + 8 + size], type=list[object])
        assert len(group) == count
        rows += group
        at += 8 + size
    assert len(rows) == chunk.rows
    return rows


def _as_int(key: object) -> int:
    if not isinstance(key, int):
        raise TypeError(f"{key!r} cannot be a key")
    return key
