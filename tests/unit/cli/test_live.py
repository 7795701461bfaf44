"""The live view on a real terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.cli.live import LiveView

STATUS: dict[str, Any] = {
    "pipeline": "flights",
    "state": "running",
    "seconds": 3.2,
    "workers": [{}, {}],
    "records_in": 12_345,
    "rows_written": 12_000,
    "total_bytes": 200,
    "read_bytes": 50,
    "shards": [
        {
            "sink": "main",
            "shard": 0,
            "worker": "w0",
            "slots_used": 3,
            "parked": 1,
            "in_flight": 2,
            "oldest_seconds": 0.5,
        }
    ],
}


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    master, slave = pty.openpty()
    yield master, slave
    os.close(master)
    os.close(slave)


def read_all(master: int) -> str:
    data = b""
    while select.select([master], [], [], 0.05)[0]:
        data += os.read(master, 65_536)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", data.decode())


def test_a_frame_shows_counts_bar_and_shards(terminal: tuple[int, int]) -> None:
    master, slave = terminal
    view = LiveView(slave)

    view.update(STATUS)
    shown = read_all(master)
    view.close()

    assert "flights: running for 3 s" in shown
    assert "12,345 records in" in shown
    assert " 25 %" in shown
    assert re.search(r"main\s+0\s+w0\s+3\s+1\s+2\s+0\.5", shown)


def test_many_shards_are_cut_to_the_terminal_with_the_oldest_kept(terminal: tuple[int, int]) -> None:
    master, slave = terminal
    shards = [STATUS["shards"][0] | {"shard": 1000 + n, "oldest_seconds": float(n)} for n in range(200)]
    view = LiveView(slave)

    view.update(STATUS | {"shards": shards})
    shown = read_all(master)
    view.close()

    assert "1199" in shown
    assert "1000" not in shown
    assert "more" in shown
    assert shown.count("\n") <= 24


def test_a_terminal_that_takes_nothing_holds_up_nobody(terminal: tuple[int, int]) -> None:
    """HR-2"""
    _, slave = terminal
    view = LiveView(slave)
    view.update(STATUS)
    begun = time.perf_counter()

    for _ in range(100):
        view.update(STATUS)
    view.close()

    assert (time.perf_counter() - begun) / 100 < 0.05
    assert os.get_blocking(slave)


def test_a_terminal_that_is_gone_ends_no_run() -> None:
    master, slave = pty.openpty()
    view = LiveView(slave)
    os.close(master)

    view.update(STATUS)
    view.close()
    os.close(slave)


def test_no_thread_is_started(terminal: tuple[int, int]) -> None:
    before = threading.active_count()
    view = LiveView(terminal[1])

    view.update(STATUS)

    assert threading.active_count() == before
    view.close()


def test_without_a_terminal_nothing_is_drawn(tmp_path: Any) -> None:
    with open(tmp_path / "out", "wb") as out:
        view = LiveView(out.fileno())
        view.update(STATUS)
        view.close()

    assert (tmp_path / "out").read_bytes() == b""
