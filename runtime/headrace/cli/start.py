"""``headrace start``: a run in the background, answered for once its fleet is ready."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from headrace.cli.options import RunOptions, options_of, run_options
from headrace.cli.output import COMPLETE, FAILED, print_error, print_json
from headrace.errors import ConfigError, StateError, StateInUseError

_LOOK_EVERY_MS = 100
_TAIL_LINES = 20
_TAIL_BYTES = 16 * 1024
_AFTER_START = 30.0


@click.command("start", short_help="Run a pipeline in the background.")
@run_options
def command(as_json: bool, **values: Any) -> int:
    """Run PIPELINE in the background, in a session of its own, with STATE/headrace.log as its output.

    Returns 0 when the workers are ready, and the run's own exit code if it ends before that. Gives up waiting, with
    exit code 1, when fleet.start_timeout and 30 s have gone by since the start.
    """
    from headrace.cli.prepare import prepare, refuse_before_making
    from headrace.cli.streams import prints_to_stderr

    if os.getpid() == 1:
        raise ConfigError(
            "headrace start as process 1: a container ends with its first process, and the run would be killed with "
            "it; use `headrace run`"
        )
    options = options_of(values)
    with prints_to_stderr():
        prepared = prepare(options)
    refuse_before_making(prepared)
    _refuse_if_in_use(prepared.state)
    log = _open_log(prepared.state)
    with os.fdopen(log, "rb") as tail:
        before = os.fstat(log).st_size
        child = _detach(options, prepared.state, log)
        limit = prepared.effective.settings.fleet.start_timeout + _AFTER_START
        code = _wait_until_ready(child, prepared.state, limit)
        tail.seek(before)
        return _tell(child, prepared.state, code, tail.read(), as_json)


def _refuse_if_in_use(state: Path) -> None:
    from headrace.supervisor.state_dir import is_locked, live_supervisor

    if is_locked(state):
        entry = live_supervisor(state)
        who = f"pid {entry.pid}" if entry is not None else "another process"
        raise StateInUseError(f"{state} is in use by {who}; `headrace stop` ends it")


def _open_log(state: Path) -> int:
    """Make the state directory, which the log lies in, and open the log."""
    from headrace.cli.state_choice import make_default_root

    make_default_root(state)
    try:
        state.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(state / "headrace.log", flags, 0o600)
    except OSError as error:
        raise StateError(f"cannot write to {state}: {os.strerror(error.errno or 0)} (uid {os.geteuid()})") from None


def _detach(options: RunOptions, state: Path, log: int) -> subprocess.Popen[bytes]:
    arguments = options.arguments()
    given = [f"--state={state}", *(one for one in arguments if not one.startswith("--state="))]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "headrace", "run", *given],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


def _wait_until_ready(child: subprocess.Popen[bytes], state: Path, limit: float) -> int | None:
    """None when the fleet is ready, the exit code of a run that ended. Raises `TimeoutError`-like on the limit."""
    deadline = time.monotonic() + limit
    pidfd = os.pidfd_open(child.pid)
    try:
        waiting = select.poll()
        waiting.register(pidfd, select.POLLIN)
        while time.monotonic() < deadline:
            if waiting.poll(_LOOK_EVERY_MS):
                return child.wait()
            if _is_ready(state):
                return None
        raise StateError(f"the run (pid {child.pid}) is not ready after {limit:.0f} s; see {state}/headrace.log")
    finally:
        os.close(pidfd)
        if child.returncode is None:
            child.returncode = 0  # it outlives this process, and is nobody's to wait for


def _is_ready(state: Path) -> bool:
    from headrace.admin.control import ControlTimeout, NoLiveRun, ask
    from headrace.admin.conversation import ControlError

    try:
        status: Any = ask(state, {"verb": "status"}, 2.0)["ok"]
    except (NoLiveRun, ControlTimeout, ControlError):
        return False
    return fleet_is_ready(status)


def fleet_is_ready(status: Mapping[str, Any]) -> bool:
    """Whether a run has left its start behind, with every worker in its place."""
    ready, wanted = status.get("workers_ready", 0), status.get("workers_wanted", 0)
    return status.get("state") == "draining" or (status.get("state") in ("running", "paused") and ready >= wanted)


def _tell(child: subprocess.Popen[bytes], state: Path, code: int | None, log: bytes, as_json: bool) -> int:
    log_path = state / "headrace.log"
    if code is None:
        if as_json:
            print_json({"state": "running", "exit_code": COMPLETE, "pid": child.pid, "log": str(log_path)})
        else:
            click.echo(f"running as pid {child.pid}, log {log_path}; `headrace stop --state {state}` ends it")
        return COMPLETE
    shown = FAILED if code < 0 else code
    ended = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    if as_json:
        print_json({"state": "ended", "exit_code": shown, "pid": child.pid, "log": str(log_path)})
    elif code == COMPLETE:
        click.echo(f"the run has already ended, with exit code 0, log {log_path}")
    if code != COMPLETE:
        print_error(f"the run {ended} before it was ready", f"the end of {log_path}:")
        lines = log[-_TAIL_BYTES:].decode(errors="replace").splitlines()[-_TAIL_LINES:]
        click.echo("\n".join(lines), err=True)
    return shown
