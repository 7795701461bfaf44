"""A shard queue with its port, ledger and fences, where a test says when the doorbell blocks."""

import itertools
from array import array

from headrace.checkpoint.ack import AckSet
from headrace.handoff.chunk import EncodedChunk, Segment
from headrace.lease.fences import CompletionFences, WorkerAttribution
from headrace.lease.handoff import LeaseFailures, LeaseKey
from headrace.record import BatchOrigin, ChunkId, PartitionId
from headrace.shm.queue import ShardQueue, SlotTable
from headrace.shm.records import ChunkBell

W0 = WorkerAttribution("w0", 100, 1, "host", "1")
W1 = WorkerAttribution("w1", 101, 2, "host", "1")


def chunk(number: int, rows: int = 2) -> EncodedChunk:
    """A chunk whose frame says which one it is."""
    origin = BatchOrigin(PartitionId("p"), 1, number, array("q", range(1, rows + 1)))
    return EncodedChunk(
        id=ChunkId(number),
        sink=0,
        shard=3,
        frame=b"chunk %d" % number,
        segments=(Segment(origin, array("I", range(rows))),),
        acks=AckSet(),
        sealed_at=0.0,
    )


class Port:
    """Slots as bytes, and the bells that rang; ``room`` more will."""

    def __init__(self, slots: int) -> None:
        self.slots = [b""] * slots
        self.bells: list[tuple[WorkerAttribution, ChunkBell]] = []
        self.room = 1_000_000
        self.error: Exception | None = None

    def fill(self, slot: int, chunk: EncodedChunk) -> None:
        self.slots[slot] = chunk.frame

    def ring(self, worker: WorkerAttribution, bell: ChunkBell) -> bool:
        if self.error is not None:
            raise self.error
        if self.room == 0:
            return False
        self.room -= 1
        self.bells.append((worker, bell))
        return True


class Ledger:
    """The leases that were recorded, in order."""

    def __init__(self) -> None:
        self.leases: list[LeaseKey] = []

    def record(self, key: LeaseKey, worker: WorkerAttribution, token_digest: str, now: float) -> None:
        self.leases.append(key)


class Bench:
    """A queue of shard 3 with ``slots`` slots, closed."""

    def __init__(self, slots: int) -> None:
        self.port = Port(slots)
        self.ledger = Ledger()
        self.fences = CompletionFences(1, itertools.count(1).__next__)
        self.failures = LeaseFailures(lambda key, error: None)
        self.queue = ShardQueue(
            0, 3, SlotTable(slots), self.port, fences=self.fences, seam=self.ledger, failures=self.failures
        )

    def opened(self, worker: WorkerAttribution = W0) -> "Bench":
        self.queue.assign(worker)
        self.queue.open()
        return self

    @property
    def rung(self) -> list[int]:
        """The chunks whose bells rang, in order."""
        return [int(self.port.slots[bell.slot].split()[1]) for _, bell in self.port.bells]

    def complete(self, number: int) -> None:
        """The worker holds the chunk and ends it well."""
        chunk_id = ChunkId(number)
        self.queue.hold(chunk_id, 1.0)
        self.fences.accept(self.queue.in_flight[chunk_id].token)
        self.queue.settle(chunk_id)
