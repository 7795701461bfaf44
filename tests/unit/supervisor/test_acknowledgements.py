"""What acknowledgements do: chunks settle once, and what is stale, torn or foreign changes nothing."""

import os
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from headrace.checkpoint.ack import AckRef, AckSet
from headrace.checkpoint.checkpointer import Checkpointer
from headrace.handoff.budget import Budget
from headrace.handoff.chunk import EncodedChunk, Segment
from headrace.handoff.settlement import Settlement
from headrace.lease.fences import CompletionFences, RefusalReason, WorkerAttribution
from headrace.lease.handoff import LeaseFailures
from headrace.record import BatchOrigin, ChunkId, OnError, PartitionId
from headrace.shm.queue import ShardQueue, SlotTable
from headrace.shm.records import (
    Ack,
    Busy,
    ChunkBell,
    Done,
    Failed,
    Held,
    Outcome,
    Released,
    RowOutcome,
    Stage,
    encode,
)
from headrace.shm.token import MISSING, CompletionToken
from headrace.supervisor.accounts import Accounts
from headrace.supervisor.acknowledgements import Acknowledgements
from headrace.supervisor.journal import Journal, JournalFailure, begin_incarnation, read_leases
from headrace.supervisor.parts import JournalSeam
from headrace.supervisor.worker_handle import WorkerHandle

PARTITION = PartitionId("p#1")


class Port:
    """Slots that hold nothing and doorbells that always ring."""

    def __init__(self) -> None:
        self.bells: list[ChunkBell] = []

    def fill(self, slot: int, chunk: EncodedChunk) -> None:
        pass

    def ring(self, worker: WorkerAttribution, bell: ChunkBell) -> bool:
        self.bells.append(bell)
        return True


class Host:
    def __init__(self) -> None:
        self.lost: list[tuple[str, str]] = []
        self.failures: list[str] = []

    def lose_worker(self, worker: WorkerHandle, reason: str) -> None:
        self.lost.append((worker.name, reason))

    def fail(self, reason: str) -> None:
        self.failures.append(reason)

    def letters_failed(self, failure: JournalFailure, again: Callable[[], None]) -> None:
        again()


class Rig:
    """One shard of one sink, two workers, a real journal."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        db, recovered = begin_incarnation(folder / "state.db", "p")
        self.journal = Journal(db, folder / "state.db", folder / "letters.db", recovered.incarnation, "here")
        self.fences = CompletionFences(1, lambda: 7)
        self.port = Port()
        self.queue = ShardQueue(
            0, 0, SlotTable(4), self.port, fences=self.fences, seam=JournalSeam(self.journal),
            failures=LeaseFailures(lambda key, error: None),
        )  # fmt: skip
        self.budget = Budget(1 << 20)
        self.accounts = Accounts(fan_out=False)
        self.checkpointer = Checkpointer()
        self.checkpointer.begin(PARTITION, 1, 0)
        self.host = Host()
        self.acks = Acknowledgements(
            self.host, {(0, 0): self.queue}, ["main"], self.fences, self.journal, self.accounts,
            Settlement(self.budget), {}, structlog.get_logger(),
        )  # fmt: skip
        self.workers = [self.worker(0), self.worker(1)]
        self.mine = self.workers[0]
        assert self.mine.attribution is not None
        self.queue.assign(self.mine.attribution)
        self.queue.open()
        self.sent = 0

    def worker(self, number: int) -> WorkerHandle:
        handle = WorkerHandle(number, 0, [number], self.folder / f"{number}.spool", 0.0)
        handle.attribution = WorkerAttribution(handle.name, 100 + number, 1, "here", "1")
        return handle

    def send(self, rows: int = 3) -> CompletionToken:
        """Seal and publish a chunk of a batch of its own; the token that its doorbell carried."""
        self.sent += 1
        ack = self.checkpointer.issue(PARTITION, self.sent * 100, 0.0)
        origin = BatchOrigin(
            PARTITION, 1, self.sent - 1, array("q", [self.sent * 100 - rows + 1 + i for i in range(rows)])
        )
        chunk = EncodedChunk(
            id=ChunkId(self.sent), sink=0, shard=0, frame=b"frame", acks=_held(ack), sealed_at=0.0,
            segments=(Segment(origin, array("I", range(rows))),),
        )  # fmt: skip
        ack.deliver()
        self.accounts.read((PARTITION, 1, self.sent - 1), records=rows, decoded=rows, filtered=0, skipped=0, dead=0)
        self.budget.charge(chunk.size)
        assert self.queue.try_send(chunk, 0.0)
        return self.port.bells[-1].token

    def say(self, record: Ack, worker: WorkerHandle | None = None) -> None:
        self.acks.on_ack(worker or self.mine, record, 1.0)

    def settle_journal(self) -> None:
        deadline = time.monotonic() + 10
        while self.journal.pending:
            assert time.monotonic() < deadline
            time.sleep(0.001)
            self.journal.collect()

    def state(self) -> tuple[object, ...]:
        """Everything that a refused record must not change."""
        return (
            self.checkpointer.watermarks,
            self.budget.used,
            [(one.chunk.id, one.state, one.attempt) for one in self.queue.in_flight.values()],
            self.accounts.totals.written,
            self.fences.outstanding,
            self.host.failures,
        )

    def close(self) -> None:
        for flight in self.queue.in_flight.values():
            flight.chunk.acks.close()
        for worker in self.workers:
            worker.close()
        assert self.journal.close(10.0)


def _held(ack: AckRef) -> AckSet:
    held = AckSet()
    held.add(ack)
    return held


def delivered(token: CompletionToken, written: int = 3) -> Done:
    return Done(token=token, outcome=Outcome.DELIVERED, written=written)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


def test_a_delivered_chunk_settles_slot_budget_and_batch_in_one_step(rig: Rig) -> None:
    """HR-4."""
    token = rig.send()

    rig.say(Held(token))
    rig.say(Busy(token, Stage.WRITE))
    rig.say(delivered(token))

    assert rig.queue.table.used == 0
    assert rig.budget.used == 0
    assert rig.checkpointer.harvest() == {PARTITION: 100}
    assert rig.accounts.totals.written == 3
    assert rig.mine.settled


def test_a_completion_without_its_hold_records_the_lease_first(rig: Rig) -> None:
    """HR-5."""
    rig.say(delivered(rig.send()))
    rig.settle_journal()

    assert [row["kind"] for row in reversed(read_leases(rig.folder / "state.db", 10))] == ["lease", "done"]


@pytest.mark.parametrize("again", [Held, Released, delivered])
def test_a_stale_record_of_the_same_worker_is_counted_and_changes_nothing(
    rig: Rig, again: Callable[[CompletionToken], Ack]
) -> None:
    """C02: an ack that comes twice."""
    token = rig.send()
    rig.say(delivered(token))
    rig.send()
    before = rig.state()

    rig.say(again(token))

    assert rig.state() == before
    assert rig.fences.refusals[RefusalReason.CONSUMED] == 1
    assert rig.host.lost == []


def test_a_token_of_another_worker_is_refused_and_its_carrier_replaced(rig: Rig) -> None:
    """C09: only what one was given may one complete."""
    token = rig.send()
    before = rig.state()

    rig.say(delivered(token), rig.workers[1])

    assert rig.state() == before
    assert rig.acks.foreign == 1
    assert [name for name, _ in rig.host.lost] == ["worker-1"]
    rig.say(delivered(token))
    assert rig.accounts.totals.written == 3


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (MISSING, RefusalReason.MISSING),
        (CompletionToken(9, 1, 7), RefusalReason.WRONG_INCARNATION),
        (CompletionToken(1, 999, 7), RefusalReason.UNKNOWN),
        (CompletionToken(1, 1, 8), RefusalReason.UNKNOWN),
    ],
)
def test_a_token_that_was_never_given_is_refused_by_its_reason(
    rig: Rig, token: CompletionToken, reason: RefusalReason
) -> None:
    """S02: nothing of an earlier incarnation, of zeroed memory, or guessed, completes anything."""
    rig.send()
    before = rig.state()

    rig.say(delivered(token))

    assert rig.state() == before
    assert rig.fences.refusals[reason] == 1
    assert len(rig.host.lost) == 1


def test_a_torn_record_is_dropped_and_what_came_before_it_counts(rig: Rig) -> None:
    first, second = rig.send(), rig.send()
    _, write_end = rig.mine.childs_ends
    os.write(write_end, encode(delivered(first)) + encode(delivered(second))[:-5])
    rig.mine.close_childs_ends()

    for record in rig.mine.hear_all():
        rig.say(record)  # type: ignore[arg-type]  # nothing malformed was written

    assert rig.accounts.totals.written == 3
    assert rig.mine.torn > 0
    assert list(rig.queue.in_flight) == [2]


def test_a_lost_worker_s_chunks_go_out_again_in_order_with_new_tokens(rig: Rig) -> None:
    """HR-7; a loss raises no attempt."""
    tokens = [rig.send(), rig.send()]
    rig.say(Held(tokens[0]))
    rig.say(Busy(tokens[0], Stage.WRITE))
    rig.mine.to_blame = True
    rig.queue.close()

    held = rig.acks.on_gone(rig.mine)
    heir = rig.workers[1].attribution
    assert heir is not None
    rig.queue.assign(heir)
    rig.queue.open()
    sent = rig.queue.redispatch(2.0)

    assert (held, sent) == (2, 2)
    bells = rig.port.bells[-2:]
    assert [bell.attempt for bell in bells] == [1, 1]
    assert not {bell.token for bell in bells} & set(tokens)
    assert sum(rig.acks.blamed.values()) == 1, "only what was busy is blamed"
    rig.say(delivered(bells[0].token), rig.workers[1])
    assert rig.acks.blamed == {}


def test_a_row_that_fails_halts_its_shard_and_names_itself(rig: Rig) -> None:
    token = rig.send()

    rig.say(Failed(token, (RowOutcome(1, OnError.FAIL, "sink", "NOT NULL constraint failed"),)))
    rig.say(Done(token=token, outcome=Outcome.FAILED))

    (failure,) = rig.host.failures
    assert "position 98" in failure
    assert "NOT NULL constraint failed" in failure
    assert rig.checkpointer.harvest() == {}
    assert not rig.queue.try_send(EncodedChunk.__new__(EncodedChunk), 0.0)


def test_a_chunk_given_back_goes_out_again(rig: Rig) -> None:
    released, retried = rig.send(), rig.send()

    rig.say(Released(released))
    rig.say(Done(token=retried, outcome=Outcome.RETRY))
    rig.queue.redispatch(1.0)

    assert [bell.attempt for bell in rig.port.bells[-2:]] == [1, 2]
