"""What a worker's acknowledgements do: leases are recorded, chunks settle or are handed out again, once each.

An ack names a token and nothing else is believed of it. A token that completes nothing is refused and counted and
changes nothing; the worker that carried it is replaced, unless it was once sent to that very worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import msgspec

from headrace.checkpoint.ack import AckSet
from headrace.handoff.chunk import EncodedChunk
from headrace.handoff.settlement import Settlement
from headrace.lease.fences import Accepted, CompletionFences, Refused
from headrace.record import BadRecord, ChunkId, OnError, PartitionId
from headrace.shm.queue import InFlight, ShardQueue
from headrace.shm.records import Ack, Busy, Done, Failed, Filtered, Held, Outcome, Released, RowOutcome
from headrace.shm.token import CompletionToken
from headrace.supervisor.accounts import Accounts
from headrace.supervisor.journal import Journal, JournalFailure, Letter, Loss
from headrace.supervisor.worker_handle import WorkerHandle


class AcknowledgementsHost(Protocol):
    """What acknowledgements ask of the loop."""

    def lose_worker(self, worker: WorkerHandle, reason: str) -> None: ...
    def fail(self, reason: str) -> None: ...
    def letters_failed(self, failure: JournalFailure, again: Callable[[], None]) -> None: ...


class _Said(msgspec.Struct):
    """What a worker said about rows of a chunk before its `Done`."""

    outcomes: dict[int, RowOutcome] = msgspec.field(default_factory=dict[int, RowOutcome])
    filtered: set[int] = msgspec.field(default_factory=set[int])


class Acknowledgements:
    """Belongs to the loop; has no clock and waits for nothing."""

    def __init__(
        self,
        host: AcknowledgementsHost,
        queues: Mapping[tuple[int, int], ShardQueue],
        sink_names: list[str],
        fences: CompletionFences,
        journal: Journal,
        accounts: Accounts,
        settlement: Settlement,
        losses: dict[Loss, int],
        log: Any,
    ) -> None:
        self._host = host
        self._queues = queues
        self._sinks = sink_names
        self._fences = fences
        self._journal = journal
        self._accounts = accounts
        self._settlement = settlement
        self._losses = losses
        self._log = log
        self._said: dict[CompletionToken, _Said] = {}
        self.redelivered = 0
        self.foreign = 0
        self.halted: set[tuple[int, int]] = set()
        self.letters_pending = 0
        self.losses_pending = 0

    def on_ack(self, worker: WorkerHandle, record: Ack, now: float) -> None:
        """Take one record that carries a token."""
        match record:
            case Held(token=token):
                if (entry := self._find(worker, token, record)) is not None:
                    self._queue(entry).hold(entry.chunk.id, now)
            case Busy(token=token, stage=stage):
                if (entry := self._find(worker, token, record)) is not None:
                    self._queue(entry).busy(entry.chunk.id, stage, now)
            case Failed(token=token, entries=rows):
                if self._find(worker, token, record) is not None:
                    said = self._said.setdefault(token, _Said())
                    said.outcomes.update((row.row, row) for row in rows)
            case Filtered(token=token):
                if self._find(worker, token, record) is not None:
                    self._said.setdefault(token, _Said()).filtered.update(_rows_of(record))
            case Released(token=token):
                if (entry := self._accept(worker, token, record, now)) is not None:
                    self._said.pop(token, None)
                    self._queue(entry).give_back(entry.chunk.id, retry=False)
            case Done():
                self._take_done(worker, record, now)
            case _:
                pass

    def _take_done(self, worker: WorkerHandle, done: Done, now: float) -> None:
        if done.outcome is Outcome.ABANDONED:
            # The token stays: the chunk is taken back when the worker is proved gone, with one attempt more.
            if (entry := self._find(worker, done.token, done)) is not None:
                worker.abandoning = True
                self._queue(entry).abandon(entry.chunk.id)
        elif (entry := self._accept(worker, done.token, done, now)) is not None:
            self._done(worker, entry, done)

    def _queue(self, entry: InFlight) -> ShardQueue:
        return self._queues[entry.chunk.sink, entry.chunk.shard]

    def _find(self, worker: WorkerHandle, token: CompletionToken, record: Ack) -> InFlight | None:
        """The chunk that this token may still complete; None: the record was refused."""
        key = self._fences.peek(token)
        if key is not None and self._is_its(worker, token):
            return self._queues[key.sink, key.shard].in_flight[ChunkId(key.chunk)]
        self._refuse(worker, token, record)
        return None

    def _accept(self, worker: WorkerHandle, token: CompletionToken, record: Ack, now: float) -> InFlight | None:
        """Consume the token; the lease comes before its end even if the worker forgot to say that it holds (HR-5)."""
        entry = self._find(worker, token, record)
        if entry is None:
            return None
        self._queue(entry).hold(entry.chunk.id, now)
        accepted = self._fences.accept(token)
        return entry if isinstance(accepted, Accepted) else None

    def _is_its(self, worker: WorkerHandle, token: CompletionToken) -> bool:
        return worker.attribution is not None and self._fences.was_issued_to(token, worker.attribution)

    def _refuse(self, worker: WorkerHandle, token: CompletionToken, record: Ack) -> None:
        known = self._is_its(worker, token)
        reason = "foreign"
        if self._fences.peek(token) is None:
            refused = self._fences.accept(token)
            reason = refused.reason.value if isinstance(refused, Refused) else reason
        else:
            self.foreign += 1
        what = type(record).__name__
        self._log.warning("an ack was refused", worker=worker.name, record=what, reason=reason, once_its_own=known)
        if not known:
            self._host.lose_worker(worker, f"it wrote {what} with a token that it was never given ({reason})")

    # -- the end of a chunk

    def _done(self, worker: WorkerHandle, entry: InFlight, done: Done) -> None:
        said = self._said.pop(done.token, None) or _Said()
        match done.outcome:
            case Outcome.DELIVERED:
                self._delivered(worker, entry, done, said)
            case Outcome.FAILED:
                self._failed(worker, entry, said)
            case _:
                self._queue(entry).give_back(entry.chunk.id, retry=True)

    def _delivered(self, worker: WorkerHandle, entry: InFlight, done: Done, said: _Said) -> None:
        chunk = entry.chunk
        worker.settled = True
        self._journal.ended("done", entry.lease.key, worker.name, "delivered", chunk.rows)
        self._forget_losses(chunk)
        counts = Counter(
            rows=chunk.rows,
            written=done.written,
            filtered=done.filtered,
            skipped=done.skipped,
            dead_lettered=done.dead_lettered,
        )
        outcomes = {row: said_of.outcome for row, said_of in said.outcomes.items()}
        segments = [((s.origin.partition, s.origin.epoch, s.origin.seq), s.records) for s in chunk.segments]
        self._accounts.settled(segments, counts, outcomes, said.filtered)
        self._accounts.left_out_at.update(one.stage for one in said.outcomes.values())
        waiting = AckSet()
        if done.dead_lettered:
            waiting.absorb(chunk.acks)
        self._settlement.deliver(self._queue(entry), chunk.id)
        if done.dead_lettered:
            self._collect_letters(worker, chunk, done.spool_end, waiting)
        else:
            waiting.deliver()

    def _failed(self, worker: WorkerHandle, entry: InFlight, said: _Said) -> None:
        chunk = entry.chunk
        self._journal.ended("failed", entry.lease.key, worker.name, "failed", chunk.rows)
        cause = self._describe(chunk, said)
        self.halted.add((chunk.sink, chunk.shard))
        self._queue(entry).close()
        self._settlement.fail(self._queue(entry), chunk.id, cause)
        self._host.fail(cause)

    def _describe(self, chunk: EncodedChunk, said: _Said) -> str:
        where = f"sink {self._sinks[chunk.sink]}, shard {chunk.shard}, chunk {chunk.id}"
        for row in sorted(said.outcomes):
            outcome = said.outcomes[row]
            if outcome.outcome is OnError.FAIL:
                partition, position, _ = chunk.locate(min(row, chunk.rows - 1))
                return f"{where}: stage {outcome.stage}, partition {partition}, position {position}: {outcome.cause}"
        return f"{where}: the worker gave it up"

    # -- what is left out

    def _collect_letters(self, worker: WorkerHandle, chunk: EncodedChunk, spool_end: int, acks: AckSet) -> None:
        """Move the chunk's dead letters from the worker's spool; its batches wait until they are durable (HR-15)."""
        try:
            entries = worker.take_spooled(chunk.id, spool_end)
            cause = "" if entries else "they are not there"
        except OSError as error:
            entries, cause = [], error.strerror or str(error)
        if not entries:
            acks.fail(f"the dead letters of chunk {chunk.id} cannot be read from {worker.spool}: {cause}")
            self._host.fail(f"{worker.spool}: the dead letters of chunk {chunk.id} cannot be read: {cause}")
            return
        letters: list[Letter] = []
        for entry in entries:
            partition, position, child = chunk.locate(entry.row)
            # A row may be the child of a child: each side's flat_map has its half of the number.
            child = child + (entry.child << 32) if self._accounts.fan_out else entry.child
            record = BadRecord(
                partition=PartitionId(partition),
                position=position,
                child=child,
                stage=entry.stage,
                cause=entry.cause,
                raw=entry.raw,
                policy=OnError.DEAD_LETTER,
            )
            letters.append(Letter(self._sinks[chunk.sink], chunk.shard, record))
        self.write_letters(letters, acks.deliver)

    def write_letters(self, letters: list[Letter], done: Callable[[], None]) -> None:
        """Make letters durable, however often it takes, then call ``done``."""
        self.letters_pending += 1

        def durable() -> None:
            self.letters_pending -= 1
            done()

        def submit() -> None:
            self._journal.letters(letters, durable, lambda failure: self._host.letters_failed(failure, submit))

        submit()

    # -- the death of a worker

    def on_gone(self, worker: WorkerHandle) -> int:
        """Take back what a worker held that is proved gone; the number of chunks that will be handed out again.

        A loss counts only against chunks that were busy when a worker died of itself or hung.
        """
        held = blamed = 0
        if worker.attribution is None:
            return 0
        for (_, shard), queue in self._queues.items():
            if shard not in worker.shards:
                continue
            for entry in queue.lose(worker.attribution):
                held += 1
                self._said.pop(entry.token, None)
                self._journal.ended("lost", entry.lease.key, worker.name, worker.reason, entry.chunk.rows)
                if worker.to_blame and not worker.abandoning and entry.busy_stage is not None:
                    blamed += self._blame(entry.chunk)
        self.redelivered += held
        if held:
            self._log.warning("a lost worker held chunks", worker=worker.name, chunks=held, blamed=blamed)
        return held

    def _blame(self, chunk: EncodedChunk) -> int:
        losses = _loss_keys(chunk)
        for loss in losses:
            self._losses[loss] = self._losses.get(loss, 0) + 1
        self.losses_pending += 1
        self._journal.losses(losses, self._loss_is_kept, self._loss_is_not_kept)
        return 1

    def _loss_is_kept(self) -> None:
        self.losses_pending -= 1

    def _loss_is_not_kept(self, failure: JournalFailure) -> None:
        self._log.error("a loss could not be written down", path=str(failure.path), cause=failure.reason)
        self.losses_pending -= 1

    def _forget_losses(self, chunk: EncodedChunk) -> None:
        if self._losses:
            counted = [loss for loss in _loss_keys(chunk) if self._losses.pop(loss, 0)]
            if counted:
                self._journal.forget_losses(counted)

    def losses_of(self, chunk: EncodedChunk) -> int:
        """How many deaths are counted against a chunk, also by earlier incarnations."""
        return max((self._losses.get(loss, 0) for loss in _loss_keys(chunk)), default=0)

    @property
    def blamed(self) -> dict[Loss, int]:
        """Every counted loss."""
        return self._losses


def _rows_of(record: Filtered) -> Iterator[int]:
    bits = record.bitmap
    return (record.first_row + i for i in range(len(bits) * 8) if bits[i // 8] >> (i % 8) & 1)


def _loss_keys(chunk: EncodedChunk) -> list[Loss]:
    return [Loss(chunk.sink, chunk.shard, span.partition, span.first, span.last) for span in chunk.spans]
