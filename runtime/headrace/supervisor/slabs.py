"""The shared memory of a run: one slab for each sink and shard, and the port through which a queue moves chunks."""

from __future__ import annotations

from headrace.handoff.chunk import EncodedChunk
from headrace.lease.fences import WorkerAttribution
from headrace.shm.records import ChunkBell
from headrace.shm.slab import Slab
from headrace.shm.slot import SlotHeader, write_slot
from headrace.supervisor.worker_handle import WorkerHandle


class Slabs:
    """All slabs, in the order in which workers are given them: by sink, then by shard."""

    def __init__(self, sinks: int, shards: int, slots: int, slot_bytes: int) -> None:
        self._shards = shards
        self._slabs: list[Slab] = []
        try:
            for _ in range(sinks * shards):
                self._slabs.append(Slab.create(slots, slot_bytes))
        except BaseException:
            self.close()
            raise

    @property
    def descriptors(self) -> list[int]:
        return [slab.fd for slab in self._slabs]

    def of(self, sink: int, shard: int) -> Slab:
        return self._slabs[sink * self._shards + shard]

    def close(self) -> None:
        for slab in self._slabs:
            slab.close()


class Doorbells:
    """Finds the worker that a queue's owner is."""

    def __init__(self) -> None:
        self._workers: dict[WorkerAttribution, WorkerHandle] = {}

    def add(self, worker: WorkerHandle) -> None:
        assert worker.attribution is not None
        self._workers[worker.attribution] = worker

    def remove(self, worker: WorkerHandle) -> None:
        if worker.attribution is not None:
            self._workers.pop(worker.attribution, None)

    def ring(self, worker: WorkerAttribution, bell: ChunkBell) -> bool:
        handle = self._workers.get(worker)
        return handle is not None and handle.ring(bell)


class Port:
    """One queue's way to its slab and to the doorbells."""

    def __init__(self, slab: Slab, doorbells: Doorbells, incarnation: int) -> None:
        self._slab = slab
        self._doorbells = doorbells
        self._incarnation = incarnation

    def fill(self, slot: int, chunk: EncodedChunk) -> None:
        header = SlotHeader(
            sink=chunk.sink, shard=chunk.shard, chunk=chunk.id, incarnation=self._incarnation, rows=chunk.rows
        )
        with self._slab.view(slot) as view:
            write_slot(view, header, chunk.frame, chunk.spans)

    def ring(self, worker: WorkerAttribution, bell: ChunkBell) -> bool:
        return self._doorbells.ring(worker, bell)
