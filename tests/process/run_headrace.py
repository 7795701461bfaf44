"""The real `headrace` command in a folder of a test: started, watched with limits, and always ended.

Output goes to files, so that nobody blocks on a pipe and a worker that outlives its supervisor holds none of ours.
Every process of a run carries the run's mark in its environment; by it they are found and ended, each by its own id.
"""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import psutil

T = TypeVar("T")

COMMAND: Final = Path(sys.executable).with_name("headrace")
LIMIT: Final = 50.0
"""Seconds that a run may take where the test says nothing; less than the time-out of a test."""
_MARK: Final = "RUN_OF_TEST"


class WorkerSeen(msgspec.Struct, frozen=True):
    """A worker as ``supervisor.json`` names it."""

    name: str
    pid: int
    start_time: int
    shards: tuple[int, ...]


class SupervisorSeen(msgspec.Struct, frozen=True):
    """What ``supervisor.json`` says."""

    pid: int
    start_time: int
    incarnation: int
    workers: tuple[WorkerSeen, ...] = ()


class Finished(msgspec.Struct, frozen=True):
    """How a command ended and what it printed."""

    code: int
    stdout: str
    stderr: str

    @property
    def report(self) -> dict[str, Any]:
        """The object that ``run --json`` ends with: the last line of standard output."""
        report: dict[str, Any] = json.loads(self.stdout.splitlines()[-1])
        return report

    def expect(self, code: int) -> "Finished":
        """Itself, after checking the exit code; a wrong one is shown with all that was printed."""
        assert self.code == code, f"exit code {self.code}, expected {code}\n{self}"
        return self

    def __str__(self) -> str:
        return f"--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"


def wait_until(condition: Callable[[], T], *, limit: float, what: str) -> T:
    """The first true answer of ``condition``; AssertionError naming ``what`` if there is none within ``limit`` s."""
    deadline = time.monotonic() + limit
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"not within {limit} s: {what}"
        time.sleep(0.005)
    return answer


class Running:
    """A started command. `Headrace.close` ends it if the test does not."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path, err: Path, state: Path) -> None:
        self.process = process
        self._out = out
        self._err = err
        self._state = state

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def stdout(self) -> str:
        return self._out.read_text(encoding="utf-8", errors="replace")

    @property
    def stderr(self) -> str:
        return self._err.read_text(encoding="utf-8", errors="replace")

    def signal(self, number: int) -> None:
        """Send a signal to this process alone."""
        self.process.send_signal(number)

    def kill(self) -> Finished:
        """SIGKILL the supervisor, and nobody else."""
        self.process.kill()
        return self.wait()

    def wait(self, limit: float = LIMIT) -> Finished:
        """Its end, which must come within ``limit`` seconds."""
        try:
            code = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {limit} s\n{self._printed(0)}") from None
        return self._printed(code)

    def wait_until(self, condition: Callable[[], T], what: str, limit: float = 30.0) -> T:
        """The first true answer of ``condition``, while the command runs."""

        def answer() -> T:
            found = condition()
            assert found or not self.has_ended, f"ended before: {what}\n{self._printed(self.process.returncode)}"
            return found

        try:
            return wait_until(answer, limit=limit, what=what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._printed(0)}") from None

    def wait_for_workers(self, count: int, limit: float = 30.0) -> SupervisorSeen:
        """What ``supervisor.json`` says once it names ``count`` workers of this very process."""

        def named() -> SupervisorSeen | None:
            seen = self.supervisor()
            return seen if seen is not None and len(seen.workers) == count else None

        found = self.wait_until(named, f"{count} workers in supervisor.json", limit)
        assert found is not None
        return found

    def supervisor(self) -> SupervisorSeen | None:
        """What ``supervisor.json`` says of this process; None if it is missing or another's."""
        try:
            seen = msgspec.json.decode((self._state / "supervisor.json").read_bytes(), type=SupervisorSeen)
        except FileNotFoundError:
            return None
        return seen if seen.pid == self.pid else None

    def _printed(self, code: int) -> Finished:
        return Finished(code, self.stdout, self.stderr)


class Headrace:
    """Runs `headrace` in ``folder``; the state directory is ``state`` in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self._mark = uuid.uuid4().hex
        self._started: list[Running] = []

    def write(self, name: str, text: str) -> Path:
        """A file beside the pipeline, or the pipeline itself."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def run(
        self,
        *arguments: str | Path,
        limit: float = LIMIT,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        under: Sequence[str] = (),
    ) -> Finished:
        """Any verb, to its end."""
        return self.start(*arguments, env=env, stdin=stdin, under=under).wait(limit)

    def run_pipeline(self, pipeline: Path, *more: str | Path, limit: float = LIMIT) -> Finished:
        """``run PIPELINE`` on this folder's state directory with a report, to its end."""
        return self.start_pipeline(pipeline, *more).wait(limit)

    def start_pipeline(self, pipeline: Path, *more: str | Path) -> Running:
        """``run PIPELINE`` on this folder's state directory, with a report."""
        return self.start("run", pipeline, "--state", self.state, "--json", *more)

    def start(
        self,
        *arguments: str | Path,
        env: Mapping[str, str] | None = None,
        stdin: bytes | int = b"",
        under: Sequence[str] = (),
        command: bool = True,
        stderr: int | None = None,
    ) -> Running:
        """Any verb. ``stdin`` is what it can read, or a descriptor; ``stderr`` a descriptor, else a file.

        ``under`` is a command that becomes it; without ``command`` it is all that is started.
        """
        number = len(self._started)
        out, err, given = (self.folder / f"{name}.{number}" for name in ("stdout", "stderr", "stdin"))
        if isinstance(stdin, bytes):
            given.write_bytes(stdin)
        with out.open("wb") as stdout, err.open("wb") as errors, given.open("a+b") as read:
            read.seek(0)
            process = subprocess.Popen(
                [*under, *([COMMAND] if command else []), *map(str, arguments)],
                cwd=self.folder,
                env={**os.environ, _MARK: self._mark, **(env or {})},
                stdin=stdin if isinstance(stdin, int) else read,
                stdout=stdout,
                stderr=errors if stderr is None else stderr,
            )
        running = Running(process, out, err, self.state)
        self._started.append(running)
        return running

    def processes(self) -> list[psutil.Process]:
        """Every living process of these runs, whoever its parent is now; zombies have no environment, so none."""
        return [one for one in psutil.process_iter() if _environment(one).get(_MARK) == self._mark]

    def close(self) -> None:
        """End what still runs."""
        for running in self._started:
            if not running.has_ended:
                running.kill()
        while left := self.processes():
            for one in left:
                _kill(one)
            psutil.wait_procs(left, timeout=5)


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}


def _kill(process: psutil.Process) -> None:
    try:
        process.send_signal(signal.SIGKILL)  # psutil compares the start time first
    except psutil.NoSuchProcess:
        return
