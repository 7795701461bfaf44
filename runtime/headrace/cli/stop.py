"""``headrace stop``: asks a run to drain and waits for its end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from pathlib import Path
from typing import Any

import click

from headrace.cli.options import json_option, some_pipeline, state_option
from headrace.cli.output import COMPLETE, FAILED, is_terminal, print_error, print_json

_ANSWER_TIMEOUT = 5.0
_AFTER_DRAIN = 15.0
_DEFAULT_DRAIN = 25.0
_TICK = 1.0


@click.command("stop", short_help="Drain a run and wait until it has ended.")
@some_pipeline
@state_option
@json_option
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    help="Seconds from the request to the run's end; when they are over, stop gives up with exit code 1 and the run "
    "goes on draining. [default: the run's drain.timeout and 15]",
)
def command(pipeline: Path | None, state: Path | None, as_json: bool, timeout: float | None) -> int:
    """Tell the run of PIPELINE, or the one on --state, to drain, and wait until it has ended.

    Exit code 0 when it has ended, or nothing ran.
    """
    from headrace.cli.state_choice import state_for_client

    where = state_for_client(state, pipeline)
    started = time.monotonic()
    outcome = _stop(where, timeout)
    if as_json:
        print_json({"state": outcome, "exit_code": _code(outcome), "seconds": round(time.monotonic() - started, 3)})
    elif outcome == "not_running":
        click.echo(f"nothing runs on {where}")
    elif outcome == "stopped":
        click.echo(f"stopped after {time.monotonic() - started:.1f} s")
    else:
        print_error(f"the run on {where} goes on draining", "`headrace status` says what it waits for")
    return _code(outcome)


def _code(outcome: str) -> int:
    return FAILED if outcome == "draining" else COMPLETE


def _stop(state: Path, timeout: float | None) -> str:
    from headrace.supervisor.state_dir import is_locked

    if not is_locked(state):
        return "not_running"
    limit = timeout if timeout is not None else _DEFAULT_DRAIN + _AFTER_DRAIN
    deadline = time.monotonic() + limit
    pidfd = _pidfd_of(state, deadline)
    if pidfd is None:
        return "draining" if is_locked(state) else "stopped"
    try:
        drain = _ask_to_stop(state, pidfd, deadline)
        if timeout is None and drain is not None:
            deadline += drain - _DEFAULT_DRAIN
        return "stopped" if _wait_for_end(pidfd, deadline) else "draining"
    finally:
        os.close(pidfd)


def _pidfd_of(state: Path, deadline: float) -> int | None:
    """The supervisor's process. One that has just begun has not yet said who it is."""
    from headrace.supervisor.process import ProcessIdentity, open_pidfd
    from headrace.supervisor.state_dir import is_locked, live_supervisor

    while True:
        entry = live_supervisor(state)
        if entry is not None:
            pidfd = open_pidfd(ProcessIdentity(entry.boot_id, entry.pid, entry.start_time))
            if pidfd is not None:
                return pidfd
        if time.monotonic() >= deadline or not is_locked(state):
            return None
        select.select([], [], [], 0.05)


def _ask_to_stop(state: Path, pidfd: int, deadline: float) -> float | None:
    """Ask over the socket, else by signal, as a service manager does; the run's drain.timeout if it says so."""
    from headrace.admin.control import ControlTimeout, NoLiveRun, ask

    try:
        limit = max(0.1, min(_ANSWER_TIMEOUT, deadline - time.monotonic()))
        answer: Any = ask(state, {"verb": "stop"}, limit).get("ok") or {}
        drain = answer.get("drain_timeout")
        return float(drain) if isinstance(drain, int | float) else None
    except (NoLiveRun, ControlTimeout):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        return None


def _wait_for_end(pidfd: int, deadline: float) -> bool:
    waiting = select.poll()
    waiting.register(pidfd, select.POLLIN)
    show = is_terminal(2)
    begun = time.monotonic()
    try:
        while (left := deadline - time.monotonic()) > 0:
            if waiting.poll(min(_TICK, left) * 1000):
                return True
            if show:
                click.echo(f"\rdraining, {time.monotonic() - begun:.0f} s", nl=False, err=True)
        return bool(waiting.poll(0))
    finally:
        if show:
            click.echo("\r\x1b[K", nl=False, err=True)
