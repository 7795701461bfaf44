"""The control socket, with real sockets."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import selectors
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.admin.control import ControlServer, NoLiveRun, ask, is_trusted
from headrace.admin.conversation import IDLE_LIMIT, ControlError
from headrace.errors import ConfigError

TURN_LIMIT = 0.05
TURNED_AWAY = 7
BIG = "x" * 4_000_000


def handle(request: dict[str, object]) -> dict[str, object]:
    match request["verb"]:
        case "status":
            return {"ok": {"state": "running"}}
        case "big":
            return {"ok": BIG}
        case "refused":
            raise ConfigError("no such thing; do another")
        case _:
            raise ZeroDivisionError("a fault of ours")


class Loop:
    """A loop around one server, turned by hand; it remembers its longest turn."""

    def __init__(self, path: Path, **options: int) -> None:
        self.now = 0.0
        self.longest = 0.0
        self.turns = 0
        self.selector = selectors.DefaultSelector()
        self.server = ControlServer(path, handle, clock=lambda: self.now, **options)
        self.server.register(self.selector)

    def turn(self, timeout: float = 0.0) -> int:
        ready = self.selector.select(timeout)
        begun = time.perf_counter()
        for key, _ in ready:
            assert key.data is self.server
            self.server.on_ready(key)
        self.longest = max(self.longest, time.perf_counter() - begun)
        self.turns += 1
        return len(ready)

    def settle(self) -> None:
        while self.turn():
            pass

    def close(self) -> None:
        self.server.close()
        self.selector.close()


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    made = Loop(tmp_path / "control.sock")
    yield made
    made.close()


@pytest.fixture
def turning(loop: Loop) -> Iterator[Loop]:
    """The loop turns on a thread of its own until the test ends."""
    ended = threading.Event()

    def turn() -> None:
        while not ended.is_set():
            loop.turn(0.01)

    thread = threading.Thread(target=turn)
    thread.start()
    yield loop
    ended.set()
    thread.join()


@contextlib.contextmanager
def client(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(5)
        connection.connect(str(path))
        yield connection


def read_answers(connection: socket.socket, count: int) -> list[dict[str, object]]:
    data = b""
    while data.count(b"\n") < count:
        got = connection.recv(65_536)
        if not got:
            break
        data += got
    return [json.loads(line) for line in data.splitlines()]


def test_a_question_gets_its_answer(turning: Loop, tmp_path: Path) -> None:
    assert ask(tmp_path, {"verb": "status"}, 5.0) == {"ok": {"state": "running"}}


@pytest.mark.parametrize(("verb", "message"), [("refused", "no such thing; do another"), ("boom", "ZeroDivisionError")])
def test_what_the_run_cannot_answer_is_an_error_and_the_run_goes_on(
    turning: Loop, tmp_path: Path, verb: str, message: str
) -> None:
    with pytest.raises(ControlError, match=message):
        ask(tmp_path, {"verb": verb}, 5.0)

    assert "ok" in ask(tmp_path, {"verb": "status"}, 5.0)


def test_a_large_answer_arrives_whole(turning: Loop, tmp_path: Path) -> None:
    assert ask(tmp_path, {"verb": "big"}, 5.0) == {"ok": BIG}
    assert turning.longest < TURN_LIMIT


def test_the_socket_is_ours_alone_and_gone_after_close(loop: Loop, tmp_path: Path) -> None:
    path = tmp_path / "control.sock"

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    loop.close()
    assert not path.exists()


def test_a_stale_socket_is_replaced_and_another_file_is_not(tmp_path: Path) -> None:
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(tmp_path / "control.sock"))
    stale.close()
    (tmp_path / "file").write_text("precious")

    loop = Loop(tmp_path / "control.sock")
    loop.close()

    with pytest.raises(Exception, match="is not a socket"):
        Loop(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "precious"


def test_close_leaves_a_successors_socket_alone(loop: Loop, tmp_path: Path) -> None:
    successor = Loop(tmp_path / "control.sock")

    loop.server.close()

    assert (tmp_path / "control.sock").exists()
    successor.close()


@pytest.mark.parametrize("length", [107, 108, 250])
def test_a_path_of_any_length_is_reached(tmp_path: Path, length: int) -> None:
    name = length - len(str(tmp_path)) - len("//control.sock")
    if name < 1:
        pytest.skip("the temporary directory's own path is too long for this case")
    state = tmp_path / ("d" * name)
    state.mkdir()
    loop = Loop(state / "control.sock")
    answers: list[object] = []
    asking = threading.Thread(target=lambda: answers.append(ask(state, {"verb": "status"}, 5.0)))

    asking.start()
    while asking.is_alive():
        loop.turn(0.01)
    loop.close()

    assert answers == [{"ok": {"state": "running"}}]


@pytest.mark.parametrize("state_is", ["empty", "missing", "left behind"])
def test_without_a_live_run_asking_says_so(tmp_path: Path, state_is: str) -> None:
    state = tmp_path / "state"
    if state_is != "missing":
        state.mkdir()
    if state_is == "left behind":
        _left_behind(state)

    with pytest.raises(NoLiveRun, match="nothing runs on"):
        ask(state, {"verb": "status"}, 1.0)


def _left_behind(state: Path) -> None:
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(state / "control.sock"))
    stale.close()


def test_a_listener_that_is_no_run_is_found_out(tmp_path: Path) -> None:
    """Somebody holds the socket open, nobody holds the lock."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "control.sock"))
        listener.listen()

        with pytest.raises(NoLiveRun):
            ask(tmp_path, {"verb": "status"}, 0.1)


def test_a_client_that_closes_its_half_still_gets_its_answer(loop: Loop, tmp_path: Path) -> None:
    with client(tmp_path / "control.sock") as connection:
        connection.sendall(b'{"verb": "status"}')
        connection.shutdown(socket.SHUT_WR)

        loop.settle()

        assert read_answers(connection, 2) == [{"ok": {"state": "running"}}]
    assert len(loop.server.sockets) == 1


def test_many_requests_at_once_are_answered_one_a_turn(loop: Loop, tmp_path: Path) -> None:
    with client(tmp_path / "control.sock") as connection:
        connection.sendall(b'{"verb": "status"}\n' * 200)

        answers = b""
        while answers.count(b"\n") < 200:
            loop.settle()
            answers += connection.recv(65_536)

    assert loop.turns >= 200
    assert loop.longest < TURN_LIMIT


def test_a_client_that_never_reads_blocks_nobody_and_is_closed_in_time(loop: Loop, tmp_path: Path) -> None:
    with client(tmp_path / "control.sock") as deaf, client(tmp_path / "control.sock") as other:
        deaf.sendall(b'{"verb": "big"}\n' * 100)
        loop.settle()

        other.sendall(b'{"verb": "status"}\n')
        loop.settle()

        assert read_answers(other, 1) == [{"ok": {"state": "running"}}]
        assert loop.longest < TURN_LIMIT
        loop.now = IDLE_LIMIT - 1
        loop.server.sweep(loop.now)
        assert len(loop.server.sockets) == 3
        loop.now = IDLE_LIMIT
        loop.server.sweep(loop.now)
        assert len(loop.server.sockets) == 1


def test_a_client_that_sends_a_byte_now_and_then_is_closed_in_time(loop: Loop, tmp_path: Path) -> None:
    with client(tmp_path / "control.sock") as slow:
        loop.settle()
        while loop.now < IDLE_LIMIT:
            slow.sendall(b" ")
            loop.settle()
            assert loop.server.next_due() == IDLE_LIMIT
            loop.now += 3.0

        loop.server.sweep(loop.now)

        assert slow.recv(1) == b""


def test_a_client_that_floods_is_told_and_closed(loop: Loop, tmp_path: Path) -> None:
    with client(tmp_path / "control.sock") as flood:
        flood.setblocking(False)
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            for _ in range(100):
                flood.send(b"x" * 65_536)
                loop.settle()
        flood.settimeout(5)

        assert "at most" in str(read_answers(flood, 1)[0]["error"])
    assert len(loop.server.sockets) == 1


def test_a_client_that_vanishes_leaves_nothing(loop: Loop, tmp_path: Path) -> None:
    for request in (b"", b'{"verb"', b'{"verb": "big"}\n', b'{"verb": "status"}\n' * 5):
        with client(tmp_path / "control.sock") as connection:
            connection.sendall(request)
            loop.turn()
        loop.settle()

    assert len(loop.server.sockets) == 1
    assert len(loop.selector.get_map()) == 1


def test_too_many_clients_are_turned_away(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "control.sock", max_clients=3)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(client(tmp_path / "control.sock")) for _ in range(5)]

        loop.settle()

        assert len(loop.server.sockets) == 4
        assert clients[4].recv(1) == b""
    loop.settle()
    loop.close()


def test_without_a_descriptor_to_spare_the_loop_does_not_spin(loop: Loop, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with client(tmp_path / "control.sock") as waiting:
        top = os.dup(0)
        os.close(top)
        resource.setrlimit(resource.RLIMIT_NOFILE, (top, hard))
        try:
            loop.turn()
            loop.server.sweep(loop.now)
            assert loop.turn() == 0
            assert loop.server.next_due() == 1.0
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

        loop.now = 1.0
        loop.server.sweep(loop.now)
        waiting.sendall(b'{"verb": "status"}\n')
        loop.settle()

        assert read_answers(waiting, 1) == [{"ok": {"state": "running"}}]


def test_only_our_user_and_root_are_trusted() -> None:
    assert is_trusted(1000, 1000)
    assert is_trusted(0, 1000)
    assert not is_trusted(1001, 1000)
    assert not is_trusted(1000, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_user_is_turned_away_without_an_answer(loop: Loop, tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    (tmp_path / "control.sock").chmod(0o666)
    stranger = os.fork()
    if stranger == 0:
        os._exit(_ask_as_nobody(tmp_path / "control.sock"))

    ended = (0, 0)
    while ended[0] == 0:
        loop.turn(0.01)
        ended = os.waitpid(stranger, os.WNOHANG)

    assert os.waitstatus_to_exitcode(ended[1]) == TURNED_AWAY


def _ask_as_nobody(path: Path) -> int:
    try:
        os.setresuid(65534, 65534, 65534)
        with client(path) as connection:
            connection.sendall(b'{"verb": "status"}\n')
            return 0 if connection.recv(1) else TURNED_AWAY
    except (ConnectionResetError, BrokenPipeError):
        return TURNED_AWAY
    except BaseException:
        return 1
