"""The fleet: starts workers, watches them, ends them, and starts others in their place.

A worker is lost when its process ends, its ack pipe ends, it is silent, or one stage of it is over its limit. Then, in
this order: its shards refuse; it is killed, with any child of it that holds the fleet lock; its pidfd says that it is
gone; only then its ack pipe is read to the end and what it says is settled; and what it still held is handed out
again. A process that does not go within ``fleet.kill_timeout`` fails the run: its work is never given to another.
"""

from __future__ import annotations

import selectors
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from headrace.config.settings import Settings
from headrace.lease.fences import WorkerAttribution
from headrace.shm.records import Ack, Beat, Broken, Busy, Malformed, Ready
from headrace.supervisor import process
from headrace.supervisor.launch import Launcher, Started, StartFailed, exit_words
from headrace.supervisor.process import ProcessIdentity
from headrace.supervisor.restart import RestartPolicy
from headrace.supervisor.worker_handle import Phase, WorkerHandle

_DUMP_SIGNAL = signal.SIGUSR1
_START_AGAIN = 1.0
"""Seconds after which a start is tried again that failed for want of descriptors or processes."""

_DUMP_PAUSE = 0.25
"""Seconds that a hung worker has to write its stacks before it is killed."""


class FleetHost(Protocol):
    """What the fleet tells the loop. Every call is on the loop's thread."""

    def on_ack(self, worker: WorkerHandle, record: Ack, now: float) -> None: ...
    def on_serving(self, worker: WorkerHandle) -> None: ...
    def on_closing(self, worker: WorkerHandle) -> None:
        """Step 1: the worker's shards refuse from now on."""
        ...

    def on_gone(self, worker: WorkerHandle) -> None:
        """Step 4: the worker is gone and everything it said is settled."""
        ...

    def on_fleet_changed(self) -> None: ...
    def record_process(
        self, kind: str, name: str, identity: ProcessIdentity, done: Callable[[], None] | None
    ) -> None: ...
    def forget_process(self, identity: ProcessIdentity) -> None: ...
    def plan_for(self, worker: WorkerHandle) -> tuple[list[int], bytes]:
        """The descriptors behind the pipes, and the plan."""
        ...

    def fail(self, reason: str) -> None: ...


class Seat:
    """A worker number: who sits there now, and how its deaths are counted."""

    def __init__(self, number: int, shards: list[int], policy: RestartPolicy) -> None:
        self.number = number
        self.shards = shards
        self.policy = policy
        self.worker: WorkerHandle | None = None
        self.serial = 0
        self.start_at: float | None = 0.0
        self.was_ready = False


class Fleet:
    """All workers of a run. `tick` and `ready` are called by the loop and never wait."""

    def __init__(
        self,
        host: FleetHost,
        launcher: Launcher,
        selector: selectors.BaseSelector,
        settings: Settings,
        *,
        workers: int,
        shards: int,
        spools: Path,
        incarnation: int,
        machine: str,
        version: str,
        digest: bytes,
        log: Any,
    ) -> None:
        self._host = host
        self._launcher = launcher
        self._selector = selector
        self._settings = settings.fleet
        self._lease_timeout = settings.lease.timeout
        self._spools = spools
        self._incarnation = incarnation
        self._machine = machine
        self._version = version
        self._digest = digest
        self._log = log
        self._tickets: dict[int, WorkerHandle] = {}
        self._next_ticket = 0
        self.seats = [
            Seat(
                number,
                [shard for shard in range(shards) if shard % workers == number],
                RestartPolicy(self._settings.max_restarts, self._settings.restart_window),
            )
            for number in range(workers)
        ]
        self.lost = 0
        self.may_start = True
        selector.register(launcher.wake_fd, selectors.EVENT_READ, ("launcher", None))

    # -- what is true now

    @property
    def workers(self) -> list[WorkerHandle]:
        """Those whose process exists or is being made."""
        return [seat.worker for seat in self.seats if seat.worker is not None]

    @property
    def all_serving(self) -> bool:
        return all(seat.worker is not None and seat.worker.phase is Phase.SERVING for seat in self.seats)

    @property
    def all_gone(self) -> bool:
        return not any(seat.worker for seat in self.seats)

    def owner(self, shard: int) -> WorkerHandle | None:
        """The worker that may write for this shard now."""
        worker = self.seats[shard % len(self.seats)].worker
        return worker if worker is not None and worker.phase is Phase.SERVING else None

    def next_due(self) -> float | None:
        """The next moment at which `tick` has something to do."""
        due = [when for seat in self.seats for when in self._deadlines(seat)]
        return min(due, default=None)

    def _deadlines(self, seat: Seat) -> list[float]:
        worker = seat.worker
        if worker is None:
            return [seat.start_at] if seat.start_at is not None and self.may_start else []
        match worker.phase:
            case Phase.STARTING | Phase.OPENING:
                return [worker.since + self._settings.start_timeout]
            case Phase.SERVING:
                return [worker.last_heard + self._settings.heartbeat_timeout]
            case _:
                return [when for when in (worker.kill_at, worker.kill_deadline) if when is not None]

    # -- the loop's calls

    def tick(self, now: float) -> None:
        """Start whom it is time to start, and end whom it is time to end."""
        for seat in self.seats:
            worker = seat.worker
            if worker is None:
                if self.may_start and seat.start_at is not None and seat.start_at <= now:
                    self._start(seat, now)
                continue
            self._check(worker, now)

    def _check(self, worker: WorkerHandle, now: float) -> None:
        limits = self._settings
        match worker.phase:
            case Phase.STARTING if now >= worker.since + limits.start_timeout:
                self._log.error("the fork server does not answer and is replaced", worker=worker.name)
                worker.since = now
                self._launcher.kill_server()
            case Phase.OPENING if now >= worker.since + limits.start_timeout:
                self.lose(worker, f"not ready within {limits.start_timeout:g} s", now, dump=True)
            case Phase.SERVING if now >= worker.last_heard + limits.heartbeat_timeout:
                self.lose(worker, f"silent for {now - worker.last_heard:.1f} s", now, dump=True, blame=True)
            case Phase.ENDING:
                self._check_end(worker, now)
            case _:
                pass

    def _check_end(self, worker: WorkerHandle, now: float) -> None:
        if worker.kill_at is not None and now >= worker.kill_at:
            worker.kill_at = None
            worker.kill_deadline = now + self._settings.kill_timeout
            self._kill(worker)
        elif worker.kill_deadline is not None and now >= worker.kill_deadline:
            worker.kill_deadline = None
            self._host.fail(
                f"{worker.name} (pid {worker.pid}) did not end within {self._settings.kill_timeout:g} s of its kill;"
                f" its shards {worker.shards} are given to nobody"
            )

    def answers(self, now: float) -> None:
        """Take what the launcher has to say."""
        for answer in self._launcher.collect():
            worker = self._tickets.pop(answer.ticket)
            worker.close_childs_ends()
            if isinstance(answer, StartFailed):
                self._not_started(worker, answer, now)
            else:
                self._started(worker, answer, now)

    def heard(self, worker: WorkerHandle, now: float) -> None:
        """The ack pipe is readable."""
        for record in worker.hear():
            self._take(worker, record, now)
        if worker.ack_ended:
            self._selector.unregister(worker.ack_fd)
            self.lose(worker, "it closed its ack pipe", now, blame=True)

    def ended(self, worker: WorkerHandle, now: float) -> None:
        """The pidfd is readable: the process is gone."""
        self._selector.unregister(worker.pidfd)
        if worker.phase is not Phase.ENDING:
            self._begin_end(worker, "its process ended", blame=not worker.told_to_stop)
        if not worker.ack_ended:
            self._selector.unregister(worker.ack_fd)
        for record in worker.hear_all():
            self._take(worker, record, now)
        if worker.torn:
            self._log.warning("dropped a torn ack record", worker=worker.name, bytes=worker.torn)
        worker.phase = Phase.GONE
        worker.end = exit_words(worker.status_fd)
        self._count(worker, now)
        self._host.on_gone(worker)
        if worker.identity is not None:
            self._host.forget_process(worker.identity)
        self._leave(worker)

    def lose(self, worker: WorkerHandle, reason: str, now: float, *, dump: bool = False, blame: bool = False) -> None:
        """End a worker that is not trusted to go on; what follows is decided once it is gone."""
        if worker.phase in (Phase.ENDING, Phase.GONE, Phase.STARTING):
            return
        self._begin_end(worker, reason, blame=blame)
        worker.kill_at = now + (_DUMP_PAUSE if dump else 0.0)
        if dump:
            self._log.error("a worker hangs; its stacks follow", worker=worker.name, pid=worker.pid, reason=reason,
                            stages=worker.beat.get("stages"))  # fmt: skip
            self._signal(worker, _DUMP_SIGNAL)
        self._check_end(worker, now)

    def stop(self, worker: WorkerHandle) -> None:
        """This worker was told to stop: its end is no loss."""
        worker.told_to_stop = True

    def kill_rest(self, now: float) -> None:
        """End every process that is left."""
        self.may_start = False
        for worker in self.workers:
            worker.told_to_stop = True
            self.lose(worker, "the run ends", now)

    # -- starting

    def _start(self, seat: Seat, now: float) -> None:
        try:
            server = self._launcher.ensure_server()
            worker = self._handle(seat, now)
        except OSError as error:
            seat.start_at = now + _START_AGAIN
            self._log.error("a worker cannot be started now and will be later", number=seat.number, cause=str(error))
            return
        if server is not None:
            self._host.record_process("helper", "fork-server", server, None)
        seat.serial += 1
        seat.worker = worker
        seat.start_at = None
        descriptors, plan = self._host.plan_for(worker)
        self._next_ticket += 1
        self._tickets[self._next_ticket] = worker
        self._launcher.start(self._next_ticket, worker.name, [*worker.childs_ends, *descriptors], plan)

    def _handle(self, seat: Seat, now: float) -> WorkerHandle:
        spool = self._spools / f"{self._incarnation}-{seat.number}.{seat.serial}.spool"
        return WorkerHandle(seat.number, seat.serial, seat.shards, spool, now)

    def _started(self, worker: WorkerHandle, answer: Started, now: float) -> None:
        worker.pidfd = answer.pidfd
        worker.status_fd = answer.status_fd
        worker.identity = answer.identity
        worker.attribution = WorkerAttribution(
            worker.name, answer.identity.pid, answer.identity.start_ticks, self._machine, self._version
        )
        worker.phase = Phase.OPENING
        worker.since = worker.last_heard = now
        self._selector.register(worker.pidfd, selectors.EVENT_READ, ("pidfd", worker))
        self._selector.register(worker.ack_fd, selectors.EVENT_READ, ("acks", worker))
        if not self.may_start:
            self.lose(worker, "the run ends", now)

    def _not_started(self, worker: WorkerHandle, answer: StartFailed, now: float) -> None:
        self._log.error("a worker could not be started", worker=worker.name, reason=answer.reason)
        worker.reason = answer.reason
        worker.phase = Phase.GONE
        self._count(worker, now)
        self._leave(worker)

    # -- what a worker says

    def _take(self, worker: WorkerHandle, record: Ack | Malformed, now: float) -> None:
        worker.last_heard = now
        match record:
            case Beat(body=body):
                self._beat(worker, body, now)
            case Ready():
                self._is_ready(worker, record)
            case Broken(text=text):
                worker.last_words = text
            case Malformed(reason=reason):
                self._log.error("an ack record made no sense and was refused", worker=worker.name, reason=reason)
                self.lose(worker, f"it wrote a malformed ack record: {reason}", now)
            case _:
                self._host.on_ack(worker, record, now)
                if isinstance(record, Busy):
                    return

    def _beat(self, worker: WorkerHandle, body: bytes, now: float) -> None:
        try:
            worker.beat = msgspec.msgpack.decode(body, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeError):
            return
        for sink, shard, stage, age in worker.beat.get("stages", ()):
            if age > self._lease_timeout:
                reason = f"stage {stage!r} of sink {sink} shard {shard} runs for {age:.0f} s"
                self.lose(worker, reason, now, dump=True, blame=True)
                return

    def _is_ready(self, worker: WorkerHandle, record: Ready) -> None:
        identity = worker.identity
        if identity is None or worker.phase is not Phase.OPENING:
            return
        if (record.pid, record.start_ticks) != (identity.pid, identity.start_ticks) or record.digest != self._digest:
            self._host.fail(f"{worker.name} is not the process that was started (pid {identity.pid})")
            return
        # Its identity is durable before its first chunk: a restart must find whoever may still write.
        self._host.record_process("worker", worker.name, identity, lambda: self._serve(worker))

    def _serve(self, worker: WorkerHandle) -> None:
        if worker.phase is not Phase.OPENING:
            return
        worker.phase = Phase.SERVING
        self.seats[worker.number].was_ready = True
        self._host.on_serving(worker)
        self._host.on_fleet_changed()

    # -- ending

    def _begin_end(self, worker: WorkerHandle, reason: str, *, blame: bool) -> None:
        worker.phase = Phase.ENDING if worker.phase is not Phase.GONE else worker.phase
        worker.reason = reason
        worker.to_blame = blame
        self._host.on_closing(worker)

    def _kill(self, worker: WorkerHandle) -> None:
        for child in process.descendants(worker.pid):
            process.kill(child)
        process.kill_pidfd(worker.pidfd)

    def _signal(self, worker: WorkerHandle, number: signal.Signals) -> None:
        try:
            signal.pidfd_send_signal(worker.pidfd, number)
        except ProcessLookupError:
            return

    def _count(self, worker: WorkerHandle, now: float) -> None:
        """Count an end, and decide when, and whether, another sits down."""
        seat = self.seats[worker.number]
        if worker.told_to_stop:
            return
        if worker.last_words and not seat.was_ready:
            self._host.fail(f"{worker.name} could not start:\n{worker.last_words}")
            return
        if worker.abandoning:
            seat.start_at = now
            return
        self.lost += 1
        if worker.settled:
            seat.policy.settled()
            seat.start_at = now
        else:
            pause = seat.policy.died(now)
            seat.start_at = None if pause is None else now + pause
        self._log.error(
            "a worker was lost", worker=worker.name, pid=worker.pid, reason=worker.reason, shards=worker.shards,
            end=worker.end, last_words=worker.last_words or None,
            again_in=None if seat.start_at is None else round(seat.start_at - now, 3),
        )  # fmt: skip
        if seat.start_at is None:
            self._host.fail(
                f"{worker.name}: {seat.policy.recent} workers of this number died within"
                f" {self._settings.restart_window:g} s without settling a chunk,"
                f" the last one because {worker.reason} ({worker.end})"
                + (f":\n{worker.last_words}" if worker.last_words else "")
            )

    def _leave(self, worker: WorkerHandle) -> None:
        worker.close()
        self.seats[worker.number].worker = None
        self._host.on_fleet_changed()
