"""The queue against workers that hold, end, give back and die in any order."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.lease.fences import WorkerAttribution
from headrace.record import ChunkId
from headrace.shm.queue import InFlight, SlotState
from headrace.shm.token import CompletionToken
from tests.unit.shm.parts import Bench, chunk

SLOTS = 4


class QueueModel(RuleBasedStateMachine):
    """One worker at a time. It begins chunks in the order in which it was told of them."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(SLOTS)
        self.queue = self.bench.queue
        self.sealed = 0
        self.parked: list[int] = []
        self.worker: WorkerAttribution | None = None
        self.told: list[tuple[int, CompletionToken]] = []  # what the living worker may still read, in bell order
        self.attempts: dict[int, int] = {}
        self.settled: list[int] = []
        self.tokens: set[CompletionToken] = set()
        self.born = 0

    def hear(self, before: int) -> None:
        """The worker reads its new bells."""
        for worker, bell in self.bench.port.bells[before:]:
            number = int(self.bench.port.slots[bell.slot].split()[1])
            assert worker == self.worker
            assert bell.token not in self.tokens
            assert bell.attempt == self.attempts[number]
            assert all(earlier < number for earlier, _ in self.told), "a later chunk is out"
            self.tokens.add(bell.token)
            self.told.append((number, bell.token))

    @rule(room=st.integers(0, 3))
    def doorbell_has_room(self, room: int) -> None:
        self.bench.port.room = room

    @precondition(lambda self: self.worker is None)
    @rule()
    def worker_starts(self) -> None:
        self.born += 1
        self.worker = WorkerAttribution("w", self.born, self.born, "h", "1")
        self.queue.assign(self.worker)
        self.queue.open()

    @precondition(lambda self: self.worker is not None)
    @rule()
    def worker_dies(self) -> None:
        worker, self.worker = self.worker, None
        assert worker is not None
        lost = self.queue.lose(worker)
        assert [flight.chunk.id for flight in lost] == [number for number, _ in self.told]
        for flight in lost:
            self.attempts[flight.chunk.id] = flight.attempt
        self.told.clear()

    @rule()
    def seal(self) -> None:
        self.sealed += 1
        self.attempts[self.sealed] = 1
        self.parked.append(self.sealed)

    @rule()
    def turn(self) -> None:
        """What the loop does: send again first, then relieve."""
        before = len(self.bench.port.bells)
        self.queue.redispatch(0.0)
        while self.parked and self.queue.try_send(chunk(self.parked[0]), 0.0):
            self.parked.pop(0)
        self.hear(before)

    @rule()
    def send_without_redispatch(self) -> None:
        before = len(self.bench.port.bells)
        if self.parked and self.queue.try_send(chunk(self.parked[0]), 0.0):
            self.parked.pop(0)
        self.hear(before)

    def flight(self, at: int) -> InFlight:
        number, token = self.told[at]
        flight = self.queue.in_flight[ChunkId(number)]
        assert flight.token == token
        return flight

    @precondition(lambda self: self.told)
    @rule(data=st.data())
    def held(self, data: st.DataObject) -> None:
        flight = self.flight(data.draw(st.integers(0, len(self.told) - 1)))
        unheld = flight.state is SlotState.PUBLISHED
        assert self.queue.hold(flight.chunk.id, 1.0) is unheld

    @precondition(lambda self: self.told)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.told) - 1))
        flight = self.flight(at)
        self.queue.hold(flight.chunk.id, 1.0)
        self.bench.fences.accept(flight.token)
        self.queue.settle(flight.chunk.id)
        self.settled.append(flight.chunk.id)
        del self.told[at]

    @precondition(lambda self: self.told)
    @rule(data=st.data(), retry=st.booleans())
    def given_back(self, data: st.DataObject, retry: bool) -> None:
        at = data.draw(st.integers(0, len(self.told) - 1))
        flight = self.flight(at)
        self.queue.hold(flight.chunk.id, 1.0)
        self.bench.fences.accept(flight.token)
        self.queue.give_back(flight.chunk.id, retry=retry)
        self.attempts[flight.chunk.id] += retry
        del self.told[at]

    @precondition(lambda self: self.told)
    @rule()
    def a_write_is_abandoned(self) -> None:
        flight = self.flight(0)
        self.queue.hold(flight.chunk.id, 1.0)
        self.bench.fences.accept(flight.token)
        self.queue.abandon(flight.chunk.id)
        before = self.attempts[flight.chunk.id]
        self.worker_dies()
        assert flight.attempt == before + 1

    @invariant()
    def every_chunk_is_in_one_place(self) -> None:
        """(HR-4, HR-17)"""
        in_slots = list(self.queue.in_flight)
        assert in_slots == sorted(in_slots)
        assert sorted([*in_slots, *self.parked, *self.settled]) == list(range(1, self.sealed + 1))
        assert self.queue.table.used == len(in_slots)
        assert len({flight.slot for flight in self.queue.in_flight.values()}) == len(in_slots)
        assert self.queue.in_flight_bytes == sum(flight.chunk.size for flight in self.queue.in_flight.values())

    @invariant()
    def a_slot_keeps_its_bytes_until_it_is_freed(self) -> None:
        """(HR-13)"""
        for flight in self.queue.in_flight.values():
            held = self.bench.port.slots[flight.slot]
            assert (int(held.split()[1]), len(held)) == (flight.chunk.id, flight.chunk.length)
            assert flight.chunk.frame == b"", "the bytes are kept twice"

    @invariant()
    def tokens_live_and_gates_are_closed_just_where_they_must(self) -> None:
        """(HR-5)"""
        out = [flight for flight in self.queue.in_flight.values() if flight.out]
        assert [flight.chunk.id for flight in out] == sorted(number for number, _ in self.told)
        assert self.bench.fences.outstanding == len(out)
        unheld = {flight.token for flight in out if flight.state is SlotState.PUBLISHED}
        assert self.bench.fences._gates == unheld


QueueModel.TestCase.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)
TestQueueAgainstWorkers = QueueModel.TestCase
