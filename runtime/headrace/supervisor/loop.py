"""The supervisor's loop: one thread, one wait, and in each turn everything that may have come due (HR-2)."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable
from typing import Any

from headrace.admin.control import ControlServer
from headrace.codec.columns import Columns
from headrace.errors import HeadraceError
from headrace.handoff.sink_handoff import SinkHandoff
from headrace.record import PartitionIdentity, Source
from headrace.shm.records import Ack, ColumnsAre, Flush, Stop
from headrace.supervisor.acknowledgements import Acknowledgements
from headrace.supervisor.backpressure import Hysteresis
from headrace.supervisor.commits import Commits
from headrace.supervisor.drain import Ending, Step
from headrace.supervisor.fleet import Fleet
from headrace.supervisor.intake import Intake
from headrace.supervisor.journal import Journal, JournalFailure
from headrace.supervisor.parts import Parts
from headrace.supervisor.process import ProcessIdentity
from headrace.supervisor.signals import SignalNotes
from headrace.supervisor.turning import TurningClock
from headrace.supervisor.worker_handle import Phase, WorkerHandle

_RETRY_SOURCE = 1.0
_ASK_PAUSE = 0.02
_STALL_CHECK = 1.0
_LONGEST_WAIT = 3600.0


class SourcePort:
    """What the source is given at `open`."""

    def __init__(self, loop: Loop, positions: dict[Any, int], identities: list[PartitionIdentity]) -> None:
        settings = loop.parts.settings
        self.positions = positions
        self.identities = identities
        self.block_bytes = settings.source.block_bytes
        self.max_record_bytes = settings.shm.slot_bytes
        self.follow_interval = settings.source.follow_interval
        self._loop = loop

    def remember(self, identity: PartitionIdentity) -> None:
        self._loop.journal.remember(identity)

    def wake(self) -> None:
        os.eventfd_write(self._loop.wake_fd, 1)

    def warn(self, event: str, /, **values: object) -> None:
        self._loop.log.warning(event, **values)

    def now(self) -> float:
        return time.monotonic()


class Loop:
    """Turns until the run has ended. What it decides is in the parts; what it does is told to them in order."""

    def __init__(
        self,
        parts: Parts,
        journal: Journal,
        source: Source,
        descriptors: Callable[[], list[int]],
        *,
        identities: list[PartitionIdentity],
        watermarks: dict[Any, int],
        signals: SignalNotes,
        selector: selectors.BaseSelector,
        on_fleet: Callable[[], None],
        log: Any,
    ) -> None:
        self.parts = parts
        self.journal = journal
        self.source = source
        self.log = log
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.ending = Ending(parts.settings.drain.timeout)
        self.failure: str | None = None
        self.fleet: Fleet
        self.acks: Acknowledgements
        self.control: ControlServer | None = None
        self.on_status: Callable[[], None] | None = None
        self.source_open = False
        self._descriptors = descriptors
        self._identities = identities
        self._signals = signals
        self._selector = selector
        self._on_fleet = on_fleet
        self._fleet_changed = True
        self._columns: dict[int, bytes] = {}
        self._columns_part: dict[tuple[str, int], bytes] = {}
        self._handoffs: list[SinkHandoff] = []
        self._intake: Intake | None = None
        self._flushed: dict[tuple[int, int], tuple[int, int]] = {}
        self._again: list[tuple[float, Callable[[], None]]] = []
        self._has_terminal = os.isatty(0)  # asked now: of a terminal that was closed it would not be true
        self._next_status = 0.0
        self._ask_source_at = 0.0
        self._next_stall_check = 0.0
        self._lost_at: dict[int, tuple[float, int]] = {}
        self.hysteresis = Hysteresis(parts.settings.backpressure)
        self.commits = Commits(
            parts.checkpointer, journal, watermarks, parts.settings.checkpoint.interval, self.fail, log
        )
        now = time.monotonic()
        self.began = now
        self._clock = TurningClock(now)
        self.now = now
        for fd, name in ((self.wake_fd, "wake"), (signals.fd, "signals"), (journal.wake_fd, "journal")):
            selector.register(fd, selectors.EVENT_READ, (name, None))

    # -- one turn

    def run(self) -> None:
        """Turn until the run has ended or its time is over."""
        while self.ending.step is not Step.ENDED:
            self._turn()
            if self.ending.overdue(time.monotonic()):
                self.log.error("the drain took its whole time; what is left will replay")
                break

    def _turn(self) -> None:
        planned = self._wait()
        ready = self._selector.select(planned)
        real = time.monotonic()
        now = self.now = self._clock.turn(real, planned)
        for key, _ in ready:
            self._hear(key, now, real)
        self.journal.collect()
        self.fleet.tick(now)
        self._end_steps(now, real)
        self.commits.tick(now)
        self._run_again(now)
        self._check_heads(now)
        if self._handoffs:
            self._move(now)
        self._tell(now)

    def _wait(self) -> float:
        """Seconds until something comes due; 0 when a lane may have a batch now."""
        if self._may_poll() and self._intake is not None and self._intake.has_work():
            return 0.0
        now = self._clock.at(time.monotonic())
        due = [self.fleet.next_due(), self.commits.next_due(), *(when for when, _ in self._again)]
        due += [handoff.next_due() for handoff in self._handoffs]
        if self.source_open and self.ending.step is Step.RUNNING:
            rested = self.hysteresis.next_due()
            due += [rested if rested is not None and rested > now else None, self._source_due()]
        if self.on_status is not None:
            due.append(self._next_status)
        waits = [when - now for when in due if when is not None]
        if (ending := self.ending.next_due()) is not None:
            waits.append(ending - time.monotonic())
        if self.control is not None and (sweep := self.control.next_due()) is not None:
            waits.append(sweep - time.monotonic())
        return min(max(0.0, min(waits, default=_LONGEST_WAIT)), _LONGEST_WAIT)

    def _source_due(self) -> float | None:
        """When the source wants to be asked; not at once again after it had nothing, or its lanes may not be polled."""
        due = self.source.next_due()
        return None if due is None else max(due - self._clock.skipped, self._ask_source_at)

    def _hear(self, key: selectors.SelectorKey, now: float, real: float) -> None:
        if isinstance(key.data, ControlServer):
            key.data.on_ready(key)
            return
        name, worker = key.data
        match name:
            case "acks" if worker.ack_fd == key.fd:
                self.fleet.heard(worker, now)
            case "pidfd" if worker.pidfd == key.fd:
                self.fleet.ended(worker, now)
            case "launcher":
                self.fleet.answers(now)
            case "signals":
                for number in self._signals.read():
                    self._signal(number, real)
            case "wake":
                os.eventfd_read(self.wake_fd)
                if self._intake is not None:
                    self._intake.look()
            case _:
                pass

    def _signal(self, number: signal.Signals, real: float) -> None:
        if number is signal.SIGHUP and not self._has_terminal:
            self.log.warning("SIGHUP is ignored: settings are read at start")
            return
        if self.ending.requested and not self.failure:
            self.log.error("a second signal: the run ends at once", signal=number.name)
            self.ending.force()
            return
        self.log.info("told to stop; draining", signal=number.name)
        self.stop(real)

    def stop(self, real: float) -> None:
        """Begin a drain."""
        self.ending.request(real)

    # -- data

    def _may_poll(self) -> bool:
        return self.source_open and self.ending.step is Step.RUNNING and not self.hysteresis.paused

    def _move(self, now: float) -> None:
        """Hand out what waits, oldest first, then take one batch more."""
        parts = self.parts
        if not self.acks.losses_pending:  # a chunk that was blamed runs again once its count is durable
            for queue in parts.queues.values():
                if queue.waiting:
                    queue.redispatch(now)
            if self._lost_at:
                self._say_handed_out()
        for handoff in self._handoffs:
            handoff.seal_due(now)
            handoff.relieve(now)
        if self.ending.step is not Step.RUNNING or self._intake is None:
            return
        paused = self.hysteresis.update(parts.budget.used, self._fullest(), now)
        self._intake.set_paused(paused)
        due = self.source.next_due()  # before it is asked, for then it has another due
        if due is not None and due <= time.monotonic():
            self._intake.look()
        self._intake.events(now)
        if self._intake.poll(now):
            self._ask_source_at = now
            return
        self._ask_source_at = now + _ASK_PAUSE
        if not paused:
            self._idle(now)

    def _say_handed_out(self) -> None:
        """How long the chunks of a lost worker waited, from its death until the last doorbell rang for them."""
        for number, (since, chunks) in list(self._lost_at.items()):
            worker = self.fleet.seats[number].worker
            if worker is None or worker.phase is not Phase.SERVING:
                continue
            if any(queue.waiting for (_, shard), queue in self.parts.queues.items() if shard in worker.shards):
                continue
            del self._lost_at[number]
            if chunks:
                seconds = round(time.monotonic() - since, 4)
                self.log.info(
                    "chunks of a lost worker were handed out again", worker=worker.name, chunks=chunks, seconds=seconds
                )

    def _idle(self, now: float) -> None:
        """Nothing to read: a shard with nothing under way need not wait for more rows."""
        intake = self._intake
        assert intake is not None
        if intake.drained and not intake.has_work():
            for handoff in self._handoffs:
                handoff.flush_terminal(now)
            self.ending.source_drained()

    def _fullest(self) -> int:
        parked = [
            handoff.parked_bytes_of(shard) + self.parts.queues[handoff.sink, shard].in_flight_bytes
            for handoff in self._handoffs
            for shard in range(handoff.shards)
        ]
        return max(parked, default=0)

    # -- the end

    def _end_steps(self, now: float, real: float) -> None:
        ending = self.ending
        ending.tick(real)
        match ending.step:
            case Step.FINISHING | Step.DRAINING:
                self._flush(now)
                if ending.step is Step.DRAINING:
                    self.fleet.may_start = False
                if self._is_quiet():
                    ending.quiet(real)
                elif ending.step is Step.DRAINING and self._is_hopeless():
                    self._kill_rest(now)
            case Step.STOPPING:
                self._stop_workers(now)
            case Step.KILLING:
                self._kill_rest(now)
            case _:
                pass
        if ending.step in (Step.STOPPING, Step.KILLING) and self.fleet.all_gone:
            ending.gone()

    def _flush(self, now: float) -> None:
        """Seal all, and tell each shard's worker not to linger over what it has."""
        for handoff in self._handoffs:
            handoff.flush_terminal(now)
        for (sink, shard), queue in self.parts.queues.items():
            newest = max(queue.in_flight, default=0)
            worker = self.fleet.owner(shard)
            if not newest or worker is None or self._flushed.get((sink, shard)) == (newest, worker.serial):
                continue
            if worker.ring(Flush(sink, shard)):
                self._flushed[sink, shard] = (newest, worker.serial)

    def _is_quiet(self) -> bool:
        """Whether nothing is left to write, but in shards that a failed row has halted."""
        if self.acks.letters_pending or any(self._has_work(sink, shard) for sink, shard in self.parts.queues):
            return False
        if self.ending.step is Step.FINISHING:
            if not self.parts.checkpointer.quiet:
                return False
            self.commits.harvest()
            return self.commits.settled
        return True

    def _has_work(self, sink: int, shard: int) -> bool:
        queue = self.parts.queues[sink, shard]
        if (sink, shard) in self.acks.halted:
            return not queue.quiet
        if queue.in_flight:
            return True
        return bool(self._handoffs) and (
            self._handoffs[sink].parked(shard) > 0 or self._handoffs[sink].open_since(shard) is not None
        )

    def _is_hopeless(self) -> bool:
        """Whether what is left lies in shards that nobody will write for any more."""
        seats = self.fleet.seats
        return all(
            seats[shard % len(seats)].worker is None for sink, shard in self.parts.queues if self._has_work(sink, shard)
        )

    def _stop_workers(self, now: float) -> None:
        self.fleet.may_start = False
        for worker in self.fleet.workers:
            if worker.phase is Phase.OPENING:
                worker.told_to_stop = True
                self.fleet.lose(worker, "the run ends before it was ready", now)
            elif worker.phase is Phase.SERVING and not worker.told_to_stop and worker.ring(Stop()):
                worker.told_to_stop = True

    def _kill_rest(self, now: float) -> None:
        self.ending.step = Step.KILLING
        self.fleet.kill_rest(now)

    def fail(self, reason: str) -> None:
        """The first reason is the run's; what is in flight is still written, within ``drain.timeout``."""
        if self.failure is None:
            self.failure = reason
            self.log.error("the run failed", reason=reason)
        self.ending.request(time.monotonic())

    def _check_heads(self, now: float) -> None:
        checkpointer, settings = self.parts.checkpointer, self.parts.settings
        if self.failure is None:
            for partition, cause in checkpointer.failed_heads().items():
                self.fail(f"partition {partition} cannot go on: {cause}")
        if self.ending.step not in (Step.RUNNING, Step.FINISHING) or now < self._next_stall_check:
            return
        self._next_stall_check = now + _STALL_CHECK
        if checkpointer.oldest_unacked(now) > settings.checkpoint.stalled_fail_after:
            self._check_stall(now)

    def _check_stall(self, now: float) -> None:
        """A head that is old is fine while somebody works on it, retries it or waits for its sink."""
        idle = [worker for worker in self.fleet.workers if worker.beat.get("holding") == 0]
        limit = self.parts.settings.checkpoint.stalled_fail_after
        for (sink, shard), queue in self.parts.queues.items():
            worker = self.fleet.owner(shard)
            oldest = next(iter(queue.in_flight.values()), None)
            if worker is None or worker not in idle or oldest is None:
                continue
            if oldest.out and now - oldest.published_at > limit:
                self.fail(
                    f"stalled: chunk {oldest.chunk.id} of sink {self.parts.sink_names[sink]}, shard {shard} was sent to"
                    f" {worker.name} (pid {worker.pid})"
                    f" {now - oldest.published_at:.0f} s ago and it holds nothing"
                )
        nothing = not any(queue.in_flight for queue in self.parts.queues.values())
        if nothing and not self.acks.letters_pending and not any(handoff.parked_bytes for handoff in self._handoffs):
            self.fail("stalled: a batch is unacknowledged and no chunk of it is left")

    # -- what the parts ask for

    def on_ack(self, worker: WorkerHandle, record: Ack, now: float) -> None:
        if isinstance(record, ColumnsAre):
            self._take_columns(worker, record)
        else:
            self.acks.on_ack(worker, record, now)

    def _take_columns(self, worker: WorkerHandle, record: ColumnsAre) -> None:
        whole = self._columns_part.pop((worker.name, record.sink), b"") + record.columns
        if record.more:
            self._columns_part[worker.name, record.sink] = whole
            return
        known = self._columns.setdefault(record.sink, whole)
        if known != whole:
            name = self.parts.sink_names[record.sink]
            self.fail(
                f"{worker.name} reports other columns of sink {name} than the first worker: was the table altered?"
            )

    def on_serving(self, worker: WorkerHandle) -> None:
        assert worker.attribution is not None
        self.parts.doorbells.add(worker)
        for (_, shard), queue in self.parts.queues.items():
            if shard in worker.shards:
                queue.assign(worker.attribution)
                if (queue.sink, shard) not in self.acks.halted:
                    queue.open()
        self.log.info("a worker is ready", worker=worker.name, pid=worker.pid, shards=worker.shards)
        if not self.source_open and self.ending.step is Step.STARTING:
            self._open_source()

    def _open_source(self) -> None:
        columns = [_columns(self._columns.get(sink, b"")) for sink in range(len(self.parts.sinks))]
        self._handoffs = self.parts.handoffs(columns)
        self.source_open = True
        try:
            self.source.open(SourcePort(self, dict(self.commits.watermarks), self._identities))
        except HeadraceError as error:
            self.fail(f"source: {error}")
            return
        self.commits.source = self.source
        settings = self.parts.settings
        self._intake = Intake(
            self,
            self.source,
            self.parts.built.supervisor,
            self._handoffs,
            self.parts.sink_names,
            self.parts.checkpointer,
            self.parts.accounts,
            self.acks,
            self.commits.watermarks,
            max_records=settings.source.max_records,
            max_pending=settings.checkpoint.max_pending_batches,
        )
        self.ending.started()

    def on_closing(self, worker: WorkerHandle) -> None:
        for (_, shard), queue in self.parts.queues.items():
            if shard in worker.shards:
                queue.close()

    def on_gone(self, worker: WorkerHandle) -> None:
        self._lost_at[worker.number] = (time.monotonic(), self.acks.on_gone(worker))
        self.parts.doorbells.remove(worker)

    def on_fleet_changed(self) -> None:
        self._fleet_changed = True

    def record_process(self, kind: str, name: str, identity: ProcessIdentity, done: Callable[[], None] | None) -> None:
        """However often it takes; a worker that is not recorded gets no chunk."""

        def submit() -> None:
            self.journal.process(kind, name, identity, done, failed)

        def failed(failure: JournalFailure) -> None:
            self.log.error("a process could not be recorded and will be later", process=name, pid=identity.pid,
                           path=str(failure.path), cause=failure.reason)  # fmt: skip
            if failure.lost:
                self.fail(f"{failure.path}: {failure.reason}")
            self.later(submit)

        submit()

    def forget_process(self, identity: ProcessIdentity) -> None:
        self.journal.gone(identity)

    def plan_for(self, worker: WorkerHandle) -> tuple[list[int], bytes]:
        return self._descriptors(), self.parts.plan_for(worker)

    def lose_worker(self, worker: WorkerHandle, reason: str) -> None:
        self.fleet.lose(worker, reason, self.now)

    def letters_failed(self, failure: JournalFailure, again: Callable[[], None]) -> None:
        self.log.error("dead letters could not be written and will be tried again", path=str(failure.path),
                       cause=failure.reason)  # fmt: skip
        if failure.lost:
            self.fail(f"{failure.path}: {failure.reason}")
        self.later(again)

    def source_fault(self, reason: str, now: float) -> None:
        self.log.warning("the source failed and will be asked again", cause=reason)
        if self._intake is not None:
            self._again.append((now + _RETRY_SOURCE, self._intake.look))

    def later(self, call: Callable[[], None]) -> None:
        """Try this again in a while."""
        self._again.append((self.now + _RETRY_SOURCE, call))

    def _run_again(self, now: float) -> None:
        due = [call for when, call in self._again if when <= now]
        self._again = [(when, call) for when, call in self._again if when > now]
        for call in due:
            call()

    def _tell(self, now: float) -> None:
        if self._fleet_changed:
            self._fleet_changed = False
            self._on_fleet()
        if self.control is not None:
            self.control.sweep(time.monotonic())
        if self.on_status is not None and now >= self._next_status:
            self._next_status = now + 0.25
            self.on_status()

    @property
    def handoffs(self) -> list[SinkHandoff]:
        return self._handoffs

    @property
    def drained(self) -> bool:
        """Whether the source has handed out everything."""
        return self._intake is not None and self._intake.drained

    def close(self) -> None:
        """Fail what is left, so that it replays, and close the source."""
        for handoff in self._handoffs:
            handoff.close()
        for queue in self.parts.queues.values():
            for flight in queue.in_flight.values():
                flight.chunk.acks.close("the run ended before it was settled")
        if self.source_open:
            self.source.close()
        os.close(self.wake_fd)


def _columns(wire: bytes) -> Columns | None:
    return Columns.from_wire(wire) if wire else None
