"""A run from its first lock to its report: who is alive, what was left, everything opened, turned, and closed again."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sqlite3
import time
from collections.abc import Callable, Generator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

from headrace.admin.control import ControlServer
from headrace.config.feasibility import Plan, check_plan
from headrace.config.log import open_log
from headrace.config.memory import memory_room
from headrace.config.settings import DEFAULT_SHARDS
from headrace.errors import ConfigError, HeadraceError, SourceError, StateError, StateInUseError
from headrace.handoff.settlement import Settlement
from headrace.supervisor import journal as journals
from headrace.supervisor import process
from headrace.supervisor.acknowledgements import Acknowledgements
from headrace.supervisor.drain import Step
from headrace.supervisor.fleet import Fleet
from headrace.supervisor.journal import Journal, Recovered
from headrace.supervisor.launch import Launcher
from headrace.supervisor.loop import Loop
from headrace.supervisor.parts import Parts, default_policy, pack
from headrace.supervisor.report import RunReport, RunRequest, RunStatus
from headrace.supervisor.signals import SignalNotes
from headrace.supervisor.state_dir import StateDirectory, SupervisorEntry, WorkerEntry, open_state
from headrace.supervisor.status import status_of, totals_into

__all__ = ["RunReport", "RunRequest", "RunStatus", "run"]


def run(request: RunRequest) -> RunReport:
    """Run a pipeline to its end. Never raises `HeadraceError`: the report's ``exit_code`` and ``error`` say it.

    0 complete or cleanly drained, 1 failed, 2 refused before the first worker started, 3 stopped with data that will
    replay, 4 the state directory is in use, 130 forced.
    """
    began = time.monotonic()
    report = RunReport(pipeline=request.pipeline.name)
    signals = SignalNotes()
    try:
        _Run(request, report, signals).carry_out()
    except StateInUseError as error:
        report.exit_code, report.error = 4, str(error)
    except (ConfigError, StateError) as error:
        report.exit_code, report.error = 2, str(error)
    except HeadraceError as error:
        report.exit_code, report.error = 1, str(error)
    finally:
        signals.close()
        report.seconds = round(time.monotonic() - began, 3)
    return report


class _Run:
    """One run's set-up and tear-down, each step undone by the stack in reverse."""

    def __init__(self, request: RunRequest, report: RunReport, signals: SignalNotes) -> None:
        self._request = request
        self._report = report
        self._signals = signals
        self._settings = request.effective.settings
        self._log: Any = None

    def carry_out(self) -> None:
        request = self._request
        cwd = Path.cwd()
        sinks = [(name, sink.resolve(cwd)) for name, sink in request.pipeline.sinks.items()]
        source = request.pipeline.source_of.resolve(cwd)
        for _, sink in sinks:
            sink.check()
        _check_source(source)
        on_error = default_policy(request.pipeline, request.effective)
        built = request.pipeline.build(on_error=on_error)
        packed = pack(built, sinks, request.loaded.modules_root)
        with contextlib.ExitStack() as stack:
            state = open_state(request.state)
            stack.callback(state.close)
            self._log = open_log(
                self._settings.log, path=request.log_path if request.live else None, pipeline=request.pipeline.name
            )
            closing = stack.enter_context(contextlib.ExitStack())
            with _refusing(request.state):
                db, recovered = journals.begin_incarnation(state.database, request.pipeline.name)
                closing.callback(db.close)
                killed = state.take_fleet_lock(recovered.workers, recovered.helpers)
                state.clear_run()
                plan = self._plan(recovered, len(sinks), db)
                state.drop_spools()
            self._say_recovered(recovered, killed)
            closing.pop_all()
            journal = Journal(
                db, state.database, state.dead_letters / "letters.db", recovered.incarnation, socket.gethostname()
            )
            stack.callback(lambda: journal.close(self._settings.drain.timeout))
            parts = Parts(
                built, sinks, self._settings, plan, pipeline=request.pipeline.name,
                incarnation=recovered.incarnation, packed=packed, journal=journal, on_error=on_error, log=self._log,
            )  # fmt: skip
            stack.callback(parts.close)
            self._turn(stack, state, recovered, journal, parts, source)

    def _plan(self, recovered: Recovered, sinks: int, db: Any) -> Plan:
        """The number of shards belongs to the state directory; the rest must be able to work."""
        request = self._request
        shards = recovered.shards or request.shards or DEFAULT_SHARDS
        if request.shards is not None and recovered.shards not in (None, request.shards):
            raise StateError(
                f"{request.state} was begun with {recovered.shards} shards and keeps them; leave --shards out, or give"
                " another --state"
            )
        plan = check_plan(
            self._settings, sinks=sinks, shards=shards, workers=request.workers, memory_limit=memory_room().limit
        )
        for warning in plan.warnings:
            self._log.warning("the plan has a weakness", what=warning)
        if recovered.shards is None:
            db.execute("INSERT OR REPLACE INTO meta VALUES ('shards', ?)", (shards,))
        return plan

    def _say_recovered(self, recovered: Recovered, killed: int) -> None:
        """One line: what the state held, what was in flight and who held it."""
        shown = [
            {"sink": one.sink, "shard": one.shard, "chunk": one.chunk, "worker": one.worker, "pid": one.pid}
            for one in recovered.in_flight[:20]
        ]
        self._log.info(
            "starting", incarnation=recovered.incarnation, watermarks=recovered.watermarks,
            in_flight=len(recovered.in_flight), held=shown, survivors_killed=killed,
            losses=sum(recovered.losses.values()), workers=self._request.workers,
            workers_because=self._request.workers_reason,
        )  # fmt: skip

    def _turn(
        self, stack: contextlib.ExitStack, state: StateDirectory, recovered: Recovered, journal: Journal, parts: Parts,
        source: Any,
    ) -> None:  # fmt: skip
        selector = stack.enter_context(selectors.DefaultSelector())
        life_read, life_write = os.pipe2(os.O_CLOEXEC)
        stack.callback(os.close, life_read)
        stack.callback(os.close, life_write)
        stack.callback(state.clear_run)
        launcher = Launcher(state.run, life_read)
        stack.callback(launcher.close, self._settings.fleet.kill_timeout)
        loop = Loop(
            parts, journal, source,
            lambda: [life_read, state.fleet_fd, self._request.out_fd, *parts.slabs.descriptors],
            identities=recovered.identities, watermarks=dict(recovered.watermarks), signals=self._signals,
            selector=selector, on_fleet=lambda: self._write_supervisor(state, loop), log=self._log,
        )  # fmt: skip
        stack.callback(loop.close)
        loop.fleet = Fleet(
            loop, launcher, selector, self._settings,
            workers=self._request.workers, shards=parts.plan.shards, spools=state.dead_letters,
            incarnation=recovered.incarnation, machine=parts.host, version=_version(), digest=parts.digest,
            log=self._log,
        )  # fmt: skip
        loop.acks = Acknowledgements(
            loop, parts.queues, parts.sink_names, parts.fences, journal, parts.accounts, Settlement(parts.budget),
            dict(recovered.losses), self._log,
        )  # fmt: skip
        if self._request.on_status is not None:
            loop.on_status = lambda: self._request.on_status(msgspec.to_builtins(self._status(loop)))
        with _refusing(state.path):
            loop.control = ControlServer(state.control, self._answers(loop))
        stack.callback(loop.control.close)
        loop.control.register(selector)
        self._report.incarnation = recovered.incarnation
        loop.run()
        self._end(loop, journal)
        if loop.fleet.all_gone and not loop.acks.letters_pending:
            state.drop_spools()

    def _status(self, loop: Loop) -> RunStatus:
        return status_of(loop, self._request.pipeline.name)

    def _answers(self, loop: Loop) -> Callable[[dict[str, object]], dict[str, object]]:
        def answer(request: dict[str, object]) -> dict[str, object]:
            match request.get("verb"):
                case "status":
                    return {"ok": msgspec.to_builtins(self._status(loop))}
                case "stop":
                    loop.log.info("told to stop; draining", by="control socket")
                    loop.stop(time.monotonic())
                    return {"ok": {"drain_timeout": self._settings.drain.timeout}}
                case verb:
                    return {"error": f"unknown verb {verb!r}; known are status and stop"}

        return answer

    def _write_supervisor(self, state: StateDirectory, loop: Loop) -> None:
        me = process.identity_of(os.getpid())
        assert me is not None
        workers = [
            WorkerEntry(one.name, one.pid, one.identity.start_ticks, one.shards)
            for one in loop.fleet.workers
            if one.identity is not None
        ]
        entry = SupervisorEntry(
            self._request.pipeline.name, me.pid, me.start_ticks, me.boot_id, loop.parts.incarnation, workers
        )
        try:
            state.write_supervisor(entry)
        except OSError as error:
            self._log.warning("supervisor.json could not be written and will be later", cause=str(error))
            loop.later(loop.on_fleet_changed)

    def _end(self, loop: Loop, journal: Journal) -> None:
        """The final commit, and what the run comes to."""
        deadline = time.monotonic() + loop.ending.reserve
        loop.commits.harvest()
        while (journal.pending or (not loop.failure and not loop.commits.settled)) and time.monotonic() < deadline:
            _wait_readable(journal.wake_fd, deadline)
            journal.collect()
            loop.commits.tick(time.monotonic())
        report = self._report
        report.seconds = round(time.monotonic() - loop.began, 3)
        totals_into(report, loop)
        clean = loop.parts.checkpointer.quiet and loop.commits.settled
        if loop.ending.forced:
            report.state, report.exit_code = "forced", 130
        elif loop.failure is not None:
            report.state, report.exit_code, report.error = "failed", 1, loop.failure
        elif not clean or loop.ending.step is not Step.ENDED:
            report.state, report.exit_code = "incomplete", 3
            report.error = loop.commits.last_failure or "stopped with unacknowledged data, which will replay"
        else:
            report.state = "complete" if loop.drained and not loop.ending.requested else "drained"
            report.exit_code = 0
        self._log.info("ended", **{k: v for k, v in msgspec.to_builtins(report).items() if k != "pipeline"})


@contextlib.contextmanager
def _refusing(state: Path) -> Generator[None]:
    """A state directory that cannot be written to now is refused, whatever it was that could not be written."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise StateError(f"{state} cannot be written to: {error}; free some space, or give another --state") from None


def _check_source(source: Any) -> None:
    """What is named and cannot be read is refused before anything is started."""
    check = getattr(source, "check", None)
    if check is not None:
        try:
            check()
        except SourceError as error:
            raise ConfigError(f"source: {error}") from None


def _wait_readable(fd: int, deadline: float) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        selector.select(max(0.0, min(0.5, deadline - time.monotonic())))


def _version() -> str:
    try:
        return version("headrace")
    except PackageNotFoundError:
        return "0"
