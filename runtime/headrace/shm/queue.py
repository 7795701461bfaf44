"""One shard's bounded queue: which chunk is in which slot, and who was told of it.

A slot is ``FREE → ARMED → PUBLISHED → HELD → FREE``: taken for a chunk, the doorbell has rung, the worker said that it
holds it, settled. Back to ``FREE`` when a doorbell would block; back to ``ARMED`` when the worker gave the chunk back
or is proved gone: then it is sent again from its slot, before anything that was sealed later (HR-7). The state lives
here alone; nothing of it is in shared memory.
"""

from __future__ import annotations

import enum
import heapq
from typing import Protocol

from headrace.errors import HeadraceError
from headrace.handoff.chunk import EncodedChunk
from headrace.lease.fences import ChunkKey, CompletionFences, WorkerAttribution
from headrace.lease.handoff import LeaseFailures, LeaseHandoff, LeaseKey, LeaseRecorderSeam, LeaseSignal
from headrace.record import ChunkId
from headrace.shm.records import ChunkBell, Stage
from headrace.shm.token import CompletionToken


class SlotState(enum.IntEnum):
    """What a slot's bytes are to the worker that may read them."""

    FREE = 0
    ARMED = 1
    PUBLISHED = 2
    HELD = 3


class SlotTable:
    """The state of each slot. A step that is not in the module's diagram raises `HeadraceError`."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._states = [SlotState.FREE] * slots
        self._free = list(range(slots))
        self._counts = [slots, 0, 0, 0]

    def take(self) -> int | None:
        """Arm the lowest free slot; None: all are used."""
        if not self._free:
            return None
        slot = heapq.heappop(self._free)
        self._move(slot, SlotState.ARMED, SlotState.FREE)
        return slot

    def publish(self, slot: int) -> None:
        self._move(slot, SlotState.PUBLISHED, SlotState.ARMED)

    def hold(self, slot: int) -> None:
        self._move(slot, SlotState.HELD, SlotState.PUBLISHED)

    def rearm(self, slot: int) -> None:
        """The worker that was told of the slot gave it back, or is proved gone (HR-13)."""
        self._move(slot, SlotState.ARMED, SlotState.PUBLISHED, SlotState.HELD)

    def free(self, slot: int) -> None:
        self._move(slot, SlotState.FREE, SlotState.ARMED, SlotState.HELD)
        heapq.heappush(self._free, slot)

    def state(self, slot: int) -> SlotState:
        return self._states[slot]

    def count(self, state: SlotState) -> int:
        return self._counts[state]

    @property
    def free_count(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        """Slots that are not free: armed or published chunks that are not settled (HR-17)."""
        return self.slots - len(self._free)

    def _move(self, slot: int, to: SlotState, *sources: SlotState) -> None:
        now = self._states[slot]
        if now not in sources:
            raise HeadraceError(f"slot {slot} is {now.name} and cannot become {to.name}")
        self._states[slot] = to
        self._counts[now] -= 1
        self._counts[to] += 1


class InFlight:
    """A chunk in a slot. Token, worker and times are those of its last publication, also after a loss."""

    __slots__ = (
        "_table",
        "abandoned",
        "attempt",
        "busy_since",
        "busy_stage",
        "chunk",
        "held_at",
        "lease",
        "published_at",
        "slot",
        "token",
        "worker",
    )

    token: CompletionToken
    worker: WorkerAttribution
    lease: LeaseHandoff
    published_at: float
    held_at: float | None
    busy_stage: Stage | None
    busy_since: float | None

    def __init__(self, chunk: EncodedChunk, slot: int, table: SlotTable) -> None:
        self.chunk = chunk
        self.slot = slot
        self.attempt = 1
        self.abandoned = False
        self._table = table

    @property
    def state(self) -> SlotState:
        return self._table.state(self.slot)

    @property
    def out(self) -> bool:
        """Whether a worker was told of it and has not given it back."""
        return self.state in (SlotState.PUBLISHED, SlotState.HELD)

    def published(self, lease: LeaseHandoff, now: float) -> None:
        self.lease = lease
        self.token = lease.token
        self.worker = lease.worker
        self.published_at = now
        self.held_at = self.busy_stage = self.busy_since = None
        self.abandoned = False

    def hold(self, now: float) -> None:
        self.held_at = now


class ShardPort(Protocol):
    """What the queue moves: the slab's bytes and the doorbells."""

    def fill(self, slot: int, chunk: EncodedChunk) -> None:
        """Copy the chunk into the slot."""
        ...

    def ring(self, worker: WorkerAttribution, bell: ChunkBell) -> bool:
        """Write the doorbell. False: it would block, or nobody is there."""
        ...


class ShardQueue:
    """The queue of one shard of one sink. It is closed until `open`, and refuses chunks while it is."""

    def __init__(
        self,
        sink: int,
        shard: int,
        table: SlotTable,
        port: ShardPort,
        *,
        fences: CompletionFences,
        seam: LeaseRecorderSeam,
        failures: LeaseFailures,
    ) -> None:
        self.sink = sink
        self.shard = shard
        self.table = table
        self.owner: WorkerAttribution | None = None
        self.closed = True
        self.in_flight: dict[ChunkId, InFlight] = {}
        self.in_flight_bytes = 0
        self._port = port
        self._fences = fences
        self._seam = seam
        self._failures = failures

    @property
    def quiet(self) -> bool:
        """Whether no worker has been told of a chunk that it has not given back: the shard may move."""
        return not any(map(self.table.count, (SlotState.PUBLISHED, SlotState.HELD)))

    @property
    def waiting(self) -> int:
        """Chunks in slots that are to be sent again."""
        return self.table.count(SlotState.ARMED)

    def assign(self, worker: WorkerAttribution) -> None:
        """Give the shard to a worker; it stays closed until `open`. Raises unless the shard is quiet (HR-12)."""
        if worker != self.owner and not self.quiet:
            raise HeadraceError(f"{self._where} is given to {worker.name} while {self._holders()} may write for it")
        self.owner = worker
        self.closed = True

    def open(self) -> None:
        """The owner is ready."""
        if self.owner is None:
            raise HeadraceError(f"{self._where} has no owner and cannot open")
        self.closed = False

    def close(self) -> None:
        """Refuse chunks: the owner is lost, or the shard is about to move."""
        self.closed = True

    def try_send(self, chunk: EncodedChunk, now: float) -> bool:
        """Copy the chunk into the lowest free slot and ring. Never waits.

        False: closed, full, chunks wait to be sent again, or the doorbell would block; all is as before.
        """
        if self.closed or self.waiting:
            return False
        if chunk.id in self.in_flight:
            raise HeadraceError(f"chunk {chunk.id} of {self._where} is in a slot already")
        slot = self.table.take()
        if slot is None:
            return False
        flight = InFlight(chunk, slot, self.table)
        sent = False
        try:
            self._port.fill(slot, chunk)
            sent = self._publish(flight, now)
        finally:
            if not sent:
                self.table.free(slot)
        if sent:
            self.in_flight[chunk.id] = flight
            self.in_flight_bytes += chunk.size
            chunk.let_go_of_frame()
        return sent

    def redispatch(self, now: float) -> int:
        """Send the waiting chunks again from their slots, in seal order; how many went.

        None goes while a chunk that was sealed after it is out: its write might begin first (HR-7).
        """
        if self.closed or not self.waiting:
            return 0
        flights = list(self.in_flight.values())
        first = next(at for at, flight in enumerate(flights) if flight.state is SlotState.ARMED)
        if any(flight.out for flight in flights[first:]):
            return 0
        sent = 0
        for flight in flights[first:]:
            if not self._publish(flight, now):
                break
            sent += 1
        return sent

    def hold(self, chunk: ChunkId, now: float) -> bool:
        """The worker holds the chunk: its lease is recorded and its gate opens. False: that was known.

        A completion that comes without it is preceded by this (HR-5).
        """
        flight = self._flight(chunk)
        if flight.state is not SlotState.PUBLISHED:
            return False
        self.table.hold(flight.slot)
        flight.lease.accepted(now)
        return True

    def busy(self, chunk: ChunkId, stage: Stage, now: float) -> None:
        """The worker begins the operators or a write attempt of the chunk, or has ended it."""
        flight = self._flight(chunk)
        flight.busy_stage, flight.busy_since = (stage, now) if stage is not Stage.NONE else (None, None)

    def abandon(self, chunk: ChunkId) -> None:
        """A write that ends its worker is still running: no chunk is taken, and at the loss this one counts a retry."""
        self._flight(chunk).abandoned = True
        self.closed = True

    def give_back(self, chunk: ChunkId, *, retry: bool = False) -> InFlight:
        """The worker gave the chunk back, unstarted or for another attempt; it waits to be sent again."""
        flight = self._flight(chunk)
        self._take_back(flight)
        flight.attempt += retry
        return flight

    def lose(self, worker: WorkerAttribution) -> list[InFlight]:
        """This process is proved gone and its ack pipe is read: what it was told of waits to be sent again.

        In seal order. Tokens are revoked; attempts stay, but for abandoned writes.
        """
        if self.owner == worker:
            self.owner = None
            self.closed = True
        lost = [flight for flight in self.in_flight.values() if flight.out and flight.worker == worker]
        for flight in lost:
            self._take_back(flight)
            flight.attempt += flight.abandoned
        return lost

    def check_settles(self, chunk: ChunkId) -> InFlight:
        """The chunk, if `settle` would take it: a worker's completion was accepted, or none has it."""
        flight = self._flight(chunk)
        if flight.state is SlotState.PUBLISHED or (
            flight.state is SlotState.HELD and self._fences.peek(flight.token) is not None
        ):
            raise HeadraceError(f"chunk {chunk} of {self._where} is settled while {flight.worker.name} may complete it")
        return flight

    def settle(self, chunk: ChunkId) -> InFlight:
        """Free the slot. Budget and acknowledgements belong to the same step: see `headrace.handoff.settlement`."""
        flight = self.check_settles(chunk)
        self.table.free(flight.slot)
        del self.in_flight[chunk]
        self.in_flight_bytes -= flight.chunk.size
        return flight

    def _publish(self, flight: InFlight, now: float) -> bool:
        worker, chunk = self.owner, flight.chunk
        if worker is None:
            return False
        token = self._fences.issue(ChunkKey(self.sink, self.shard, chunk.id))
        key = LeaseKey(self.sink, self.shard, chunk.id, flight.attempt)
        signal = LeaseSignal(flight.hold)
        lease = LeaseHandoff.arm(self._seam, key, worker, self._fences, token, signal, failures=self._failures)
        rang = False
        try:
            rang = self._port.ring(worker, self._bell(flight, token))
        finally:
            if not rang:
                lease.close()
                self._fences.revoke(token)
        if rang:
            flight.published(lease, now)
            self.table.publish(flight.slot)
        return rang

    def _bell(self, flight: InFlight, token: CompletionToken) -> ChunkBell:
        return ChunkBell(
            sink=self.sink,
            shard=self.shard,
            slot=flight.slot,
            length=flight.chunk.length,
            first_row=0,
            rows=flight.chunk.rows,
            attempt=flight.attempt,
            token=token,
            free_slots=self.table.free_count,
        )

    def _take_back(self, flight: InFlight) -> None:
        self.table.rearm(flight.slot)
        flight.lease.close()
        self._fences.revoke(flight.token)

    def _flight(self, chunk: ChunkId) -> InFlight:
        flight = self.in_flight.get(chunk)
        if flight is None:
            raise HeadraceError(f"chunk {chunk} is in no slot of {self._where}: it was settled, or never sent")
        return flight

    def _holders(self) -> str:
        return ", ".join(sorted({flight.worker.name for flight in self.in_flight.values() if flight.out}))

    @property
    def _where(self) -> str:
        return f"sink {self.sink}, shard {self.shard}"
