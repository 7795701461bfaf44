"""Starting worker processes: the fork server, and the thread that waits for it so that the loop never does (HR-2).

Processes come from ``multiprocess``' fork server, under these rules, each of which answers a trap:

* Descriptors travel with the spawn message. `Inherited` asks for them while the process object is pickled; made any
  other way they go through a hidden thread and a second connection.
* ``__main__`` is hidden while a process object is pickled, else every worker imports the command line again.
* The server starts with TERM, INT, HUP and QUIT blocked and ignores them from its preload on; the mask crosses exec,
  so there is no moment at which a signal to the group ends it, and the supervisor loses none of its own.
* The server's preload arms the life pipe, so that it dies with the supervisor even while stopped.
* A process is taken out of ``multiprocess``' children at once: its exit handler would join it for ever.
* ``is_alive``, ``exitcode`` and ``sentinel`` decide nothing: without its server they call living workers dead.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import queue
import select
import signal
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from headrace.supervisor import process
from headrace.supervisor.process import ProcessIdentity

PRELOAD = "headrace_workers.preload"
_STATUS_WAIT_MS = 20
_SWITCH_INTERVAL = 0.0005
_MASKED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}


# `multiprocess` says nothing of its types, and the server's state has no public face; its names are looked up here, so
# that a version that has others fails when this module is loaded and not at the first death of a worker.
_multiprocess: Any = importlib.import_module("multiprocess")
_forkserver: Any = importlib.import_module("multiprocess.forkserver")
_resource_tracker: Any = importlib.import_module("multiprocess.resource_tracker")
_mp_process: Any = importlib.import_module("multiprocess.process")
_reduction: Any = importlib.import_module("multiprocess.context").reduction
_server: Any = _forkserver._forkserver
_tracker: Any = _resource_tracker._resource_tracker
_children: set[object] = _mp_process._children
_dangling: set[object] = _mp_process._dangling


class Inherited:
    """Descriptors that a worker gets with its first message, in this order."""

    def __init__(self, descriptors: Sequence[int]) -> None:
        self.descriptors = list(descriptors)

    def __reduce__(self) -> tuple[Callable[..., list[int]], tuple[list[Any]]]:
        return _detach_all, ([_reduction.DupFd(fd) for fd in self.descriptors],)


def _detach_all(passed: list[Any]) -> list[int]:
    return [int(one.detach()) for one in passed]


def enter(descriptors: list[int], body: bytes) -> None:
    """A worker's first call: what it is belongs to the other package, which is found by name."""
    importlib.import_module("headrace_workers.entry").main(descriptors, body)


class Started(msgspec.Struct, frozen=True):
    """A process was forked: its pidfd, who it is, and where the fork server will say how it ended."""

    ticket: int
    pidfd: int
    identity: ProcessIdentity
    status_fd: int


class StartFailed(msgspec.Struct, frozen=True):
    """No process came of it, and why."""

    ticket: int
    reason: str


class _Request(msgspec.Struct, frozen=True):
    ticket: int
    name: str
    descriptors: list[int]
    body: bytes


class Launcher:
    """Forks workers on a thread of its own. Answers come through `collect`, announced by ``wake_fd``."""

    def __init__(self, run: Path, life_read_fd: int) -> None:
        self._run_fd = os.open(run, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._life_read_fd = life_read_fd
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._answers: deque[Started | StartFailed] = deque()
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        _forkserver.set_forkserver_preload([PRELOAD])
        # Starting a process is two dozen system calls, and after each this thread waits for the busy loop to let go.
        sys.setswitchinterval(_SWITCH_INTERVAL)
        self._thread = threading.Thread(target=self._serve, name="headrace-launcher", daemon=True)
        self._thread.start()

    def ensure_server(self) -> ProcessIdentity | None:
        """See to it that a fork server runs; its identity when a new one was started. On the main thread, brief."""
        server = _server
        before = server._forkserver_pid
        _resource_tracker.ensure_running()
        with self._server_environment():
            _forkserver.ensure_running()
        pid = server._forkserver_pid
        return process.identity_of(pid) if pid is not None and pid != before else None

    @contextlib.contextmanager
    def _server_environment(self) -> Generator[None]:
        # The tracker must run before the mask is set: starting it would unblock TERM and INT again.
        config = _mp_process.current_process()._config
        config["tempdir"] = f"/proc/self/fd/{self._run_fd}"  # any length of path fits a socket address this way
        os.environ["HEADRACE_LIFE"] = f"{os.getpid()}:{self._life_read_fd}"
        safe_path = os.environ.get("PYTHONSAFEPATH")
        os.environ["PYTHONSAFEPATH"] = "1"  # else a queue.py in the working directory would be the server's
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _MASKED)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            del os.environ["HEADRACE_LIFE"]
            if safe_path is None:
                del os.environ["PYTHONSAFEPATH"]
            else:
                os.environ["PYTHONSAFEPATH"] = safe_path
            config.pop("tempdir", None)

    def kill_server(self) -> None:
        """End a fork server that does not answer; `ensure_server` starts the next. Its workers live on."""
        pid = _server._forkserver_pid
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # our own child, not yet reaped: the number is still its

    def start(self, ticket: int, name: str, descriptors: Sequence[int], body: bytes) -> None:
        """Ask for a worker. The descriptors must stay open until the answer."""
        self._requests.put(_Request(ticket, name, list(descriptors), body))

    def collect(self) -> list[Started | StartFailed]:
        """What the thread has to say."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.wake_fd)
        answers = list(self._answers)
        for _ in answers:
            self._answers.popleft()
        return answers

    def close(self, timeout: float) -> None:
        """Stop the thread and the fork server, so that nothing of either outlives the run."""
        self._requests.put(None)
        self._thread.join(min(timeout, 1.0))
        self.kill_server()
        self._thread.join(timeout)
        _reap_server()
        _stop_tracker()
        for answer in self._answers:
            if isinstance(answer, Started):
                process.kill_pidfd(answer.pidfd)
                os.close(answer.pidfd)
                os.close(answer.status_fd)
        os.close(self._run_fd)
        if not self._thread.is_alive():
            os.close(self.wake_fd)

    # -- the thread

    def _serve(self) -> None:
        while (request := self._requests.get()) is not None:
            try:
                answer: Started | StartFailed = _fork(request)
            except Exception as error:  # noqa: BLE001 - whatever it was, the loop decides what becomes of it
                answer = StartFailed(request.ticket, f"{type(error).__name__}: {error}")
            self._answers.append(answer)
            os.eventfd_write(self.wake_fd, 1)


def _fork(request: _Request) -> Started | StartFailed:
    context = _multiprocess.get_context("forkserver")
    worker: Any = context.Process(target=enter, name=request.name, args=(Inherited(request.descriptors), request.body))
    try:
        with _hidden_main():
            worker.start()
    finally:
        _children.discard(worker)
        _dangling.discard(worker)
    pid: int = worker.pid
    server = _server._forkserver_pid
    identity = process.identity_of(pid)
    if identity is None or process.parent_pid(pid) != server:
        return StartFailed(request.ticket, f"process {pid} ended before it could be watched")
    pidfd = process.open_pidfd(identity)
    if pidfd is None:
        return StartFailed(request.ticket, f"process {pid} ended before it could be watched")
    return Started(request.ticket, pidfd, identity, os.dup(worker._popen.sentinel))


def exit_words(status_fd: int) -> str:
    """How a process that is gone ended, as its fork server says: for people only, nothing is decided by it."""
    poll = select.poll()
    poll.register(status_fd, select.POLLIN)
    if not poll.poll(_STATUS_WAIT_MS):
        return "how is not known"
    try:
        status = _forkserver.read_signed(status_fd)
    except (OSError, EOFError):
        return "how is not known: its fork server is gone"
    if status >= 0:
        return f"exit {status}"
    try:
        return f"signal {-status}, {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"


@contextlib.contextmanager
def _hidden_main() -> Generator[None]:
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _reap_server() -> None:
    server = _server
    pid = server._forkserver_pid
    if pid is None:
        return
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
    with contextlib.suppress(OSError):
        os.close(server._forkserver_alive_fd)
    server._forkserver_pid = server._forkserver_alive_fd = server._forkserver_address = None


def _stop_tracker() -> None:
    """End the tracker too: it goes by itself when nobody holds its pipe, but is not waited for beyond a moment."""
    tracker = _tracker
    pid, fd = tracker._pid, tracker._fd
    if pid is None:
        return
    tracker._pid = tracker._fd = None
    os.close(fd)
    pidfd = os.pidfd_open(pid)
    try:
        if not process.wait_gone(pidfd, 1.0):
            process.kill_pidfd(pidfd)
    finally:
        os.close(pidfd)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
