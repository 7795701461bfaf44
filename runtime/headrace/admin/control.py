"""The control socket: a unix stream socket (0600) in the state directory, for our own user and root.

The server belongs to the supervisor's loop and never waits for a client: a turn reads once, answers one request and
writes once. Its file is removed at `close`; a stale one is replaced at the next start.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import stat
import struct
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path

import msgspec

from headrace.admin.conversation import MAX_REQUEST, ControlError, Conversation
from headrace.errors import HeadraceError

MAX_CLIENTS = 64
MAX_ANSWER = 64 * 2**20
_ACCEPTS_A_TURN = 16
_READ_BYTES = 65_536
_PAUSE = 1.0
_LONGEST_PATH = 107
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

Handler = Callable[[dict[str, object]], dict[str, object]]


class NoLiveRun(HeadraceError):
    """No supervisor runs on this state directory."""


class ControlTimeout(HeadraceError):
    """The supervisor did not answer in time."""


class _Client:
    def __init__(self, connection: socket.socket, now: float) -> None:
        self.connection = connection
        self.talk = Conversation(now)
        self.events = selectors.EVENT_READ


class ControlServer:
    """Listens at ``path`` and answers each request with what ``handle`` returns for it.

    ``handle`` must not wait. What it raises becomes the answer ``{"error": …}``. After `register`, the selector's
    keys whose ``data`` is this server are handed to `on_ready`; `sweep` closes those whose time is over.
    """

    def __init__(
        self,
        path: Path,
        handle: Handler,
        *,
        clock: Callable[[], float] = time.monotonic,
        uid: int | None = None,
        max_clients: int = MAX_CLIENTS,
    ) -> None:
        self._path = path
        self._handle = handle
        self._clock = clock
        self._uid = os.geteuid() if uid is None else uid
        self._max_clients = max_clients
        self._clients: dict[int, _Client] = {}
        self._selector: selectors.BaseSelector | None = None
        self._listening = False
        self._listen_at = 0.0
        self._listener = _listen(path)
        self._inode = path.lstat().st_ino

    def fileno(self) -> int:
        """The listening socket's descriptor."""
        return self._listener.fileno()

    @property
    def sockets(self) -> list[socket.socket]:
        """The listener and all clients."""
        return [self._listener, *(client.connection for client in self._clients.values())]

    def register(self, selector: selectors.BaseSelector) -> None:
        """Take part in a loop; every key of ours has this server as its ``data``."""
        self._selector = selector
        self._start_listening()

    def on_ready(self, key: selectors.SelectorKey) -> None:
        """Do one step for a key that is ready."""
        if key.fd == self._listener.fileno():
            self._accept()
        elif (client := self._clients.get(key.fd)) is not None:
            self._step(client)

    def sweep(self, now: float) -> None:
        """Close clients whose time is over."""
        for client in [one for one in self._clients.values() if one.talk.deadline <= now]:
            self._drop(client)
        if not self._listening and now >= self._listen_at:
            self._start_listening()

    def next_due(self) -> float | None:
        """When `sweep` has something to do."""
        due = [client.talk.deadline for client in self._clients.values()]
        if self._selector is not None and not self._listening:
            due.append(self._listen_at)
        return min(due, default=None)

    def close(self) -> None:
        """Close everything and remove the socket's file."""
        for client in list(self._clients.values()):
            with contextlib.suppress(OSError):
                self._send(client)
            self._drop(client)
        self._stop_listening()
        self._listener.close()
        with contextlib.suppress(OSError):
            if self._path.lstat().st_ino == self._inode:
                self._path.unlink()

    # -- the listener

    def _start_listening(self) -> None:
        if self._selector is not None and not self._listening:
            self._selector.register(self._listener, selectors.EVENT_READ, self)
            self._listening = True

    def _stop_listening(self) -> None:
        if self._selector is not None and self._listening:
            self._selector.unregister(self._listener)
            self._listening = False

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_A_TURN):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_RESOURCES:
                    raise
                self._listen_at = self._clock() + _PAUSE  # else the loop would spin on what it cannot take
                self._stop_listening()
                return
            connection.setblocking(False)
            if len(self._clients) >= self._max_clients or not is_trusted(peer_uid(connection), self._uid):
                connection.close()
                continue
            self._clients[connection.fileno()] = client = _Client(connection, self._clock())
            if self._selector is not None:
                self._selector.register(connection, client.events, self)

    # -- the clients

    def _step(self, client: _Client) -> None:
        try:
            self._receive(client)
            self._answer_one(client)
            self._send(client)
        except OSError:
            self._drop(client)
            return
        if client.talk.is_over:
            self._drop(client)
        else:
            self._watch(client)

    def _receive(self, client: _Client) -> None:
        if client.talk.wants_to_send:
            return
        with contextlib.suppress(BlockingIOError, InterruptedError):
            client.talk.received(client.connection.recv(_READ_BYTES))

    def _answer_one(self, client: _Client) -> None:
        try:
            request = client.talk.next_request()
            if request is not None:
                client.talk.answer(self._handle(request))
        except HeadraceError as error:
            client.talk.answer({"error": str(error)})
        except Exception as error:  # noqa: BLE001 - what a request stumbles on must not end the run it asks about
            client.talk.answer({"error": f"{type(error).__name__}: {error}"})

    def _send(self, client: _Client) -> None:
        data = client.talk.outgoing
        if data:
            with contextlib.suppress(BlockingIOError, InterruptedError):
                client.talk.sent(client.connection.send(data, socket.MSG_NOSIGNAL), self._clock())

    def _watch(self, client: _Client) -> None:
        events = selectors.EVENT_WRITE if client.talk.wants_to_send else selectors.EVENT_READ
        if self._selector is not None and events != client.events:
            self._selector.modify(client.connection, events, self)
        client.events = events

    def _drop(self, client: _Client) -> None:
        del self._clients[client.connection.fileno()]
        if self._selector is not None:
            self._selector.unregister(client.connection)
        client.connection.close()


def peer_uid(connection: socket.socket) -> int:
    """The user at the other end when it connected."""
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(uid)


def is_trusted(uid: int, ours: int) -> bool:
    """Whether this user may control the run: our own, or root."""
    return uid in (ours, 0)


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        os.fchmod(listener.fileno(), 0o600)  # the file is born with this mode
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise HeadraceError(f"{path} is not a socket; move it away")
            path.unlink()
        with _address(path) as address:
            listener.bind(address)
        listener.listen(MAX_CLIENTS)
    except BaseException:
        listener.close()
        raise
    return listener


@contextlib.contextmanager
def _address(path: Path) -> Generator[str]:
    """A name for ``path`` that fits a socket's address: through its folder's descriptor where it is too long."""
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def ask(state: Path, request: Mapping[str, object], timeout: float) -> dict[str, object]:
    """Send one request to the run on a state directory and wait for its answer, at most ``timeout`` seconds.

    Raises `NoLiveRun` when none runs there, `ControlTimeout` when it does not answer, `ControlError` when it refuses.
    """
    deadline = time.monotonic() + timeout
    line = msgspec.json.encode(request) + b"\n"
    if len(line) > MAX_REQUEST:
        raise ControlError(f"a request may have at most {MAX_REQUEST} bytes")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.settimeout(timeout)
            with _address(state / "control.sock") as address:
                connection.connect(address)
            connection.sendall(line)
            answer = _read_line(connection, deadline)
        except (FileNotFoundError, NotADirectoryError, ConnectionError):
            raise NoLiveRun(f"nothing runs on {state}") from None
        except TimeoutError:
            raise _silent(state, timeout) from None
        except OSError as error:
            raise ControlError(f"{state}/control.sock cannot be used: {error.strerror or error}") from None
    return _checked(answer, state)


def _read_line(connection: socket.socket, deadline: float) -> bytes:
    received = bytearray()
    while not received.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        data = connection.recv(_READ_BYTES)
        if not data:
            raise ConnectionResetError
        received += data
        if len(received) > MAX_ANSWER:
            raise ControlError("the answer is too long")
    return bytes(received)


def _checked(line: bytes, state: Path) -> dict[str, object]:
    try:
        answer = msgspec.json.decode(line, type=dict[str, object])
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise ControlError(f"{state}/control.sock gave an answer that makes no sense: {error}") from None
    if "error" in answer:
        raise ControlError(str(answer["error"]))
    return answer


def _silent(state: Path, timeout: float) -> HeadraceError:
    from headrace.supervisor.state_dir import is_locked  # noqa: PLC0415 - the supervisor imports this module

    if not is_locked(state):
        return NoLiveRun(f"nothing runs on {state}")
    return ControlTimeout(f"the run on {state} did not answer within {timeout:g} s; look at its log")
