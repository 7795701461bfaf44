"""The watch over what tests leave behind sees each kind of thing, and nothing where there is none."""

import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import leaks
from tests.leaks import Belongings, leaks_since


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "PATIENCE", 0.2)


@pytest.fixture
def cleanup() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def _descriptor(cleanup: ExitStack, _: Path) -> None:
    cleanup.callback(os.close, os.open("/dev/null", os.O_RDONLY))


def _memfd(cleanup: ExitStack, _: Path) -> None:
    cleanup.callback(os.close, os.memfd_create("left"))


def _mapping(cleanup: ExitStack, _: Path) -> None:
    fd = os.memfd_create("left")
    os.ftruncate(fd, mmap.PAGESIZE)
    cleanup.callback(mmap.mmap(fd, mmap.PAGESIZE).close)
    os.close(fd)


def _thread(cleanup: ExitStack, _: Path) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="left")
    thread.start()
    cleanup.callback(thread.join)
    cleanup.callback(stop.set)


def _file(cleanup: ExitStack, scratch: Path) -> None:
    left = scratch / "left"
    left.touch()
    cleanup.callback(left.unlink)


@pytest.mark.parametrize(
    ("leave", "named"),
    [
        (_descriptor, "/dev/null"),
        (_memfd, "/memfd:left"),
        (_mapping, "mapping"),
        (_thread, "thread left"),
        (_file, "temporary file"),
    ],
)
def test_what_a_test_leaves_behind_is_named(
    leave: Callable[[ExitStack, Path], None], named: str, cleanup: ExitStack, scratch: Path
) -> None:
    before = Belongings.now(scratch)

    leave(cleanup, scratch)

    assert named in "; ".join(leaks_since(before, scratch))


def test_an_orphan_is_named_and_ended(scratch: Path) -> None:
    before = Belongings.now(scratch)
    script = "import subprocess; print(subprocess.Popen(['sleep', '1000'], stdout=subprocess.DEVNULL).pid)"
    orphan = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()

    left = leaks_since(before, scratch)

    assert left == [f"process {orphan}: sleeping, sleep 1000"]
    assert not Path(f"/proc/{orphan}").exists()


def test_a_test_that_cleans_up_is_left_alone(scratch: Path) -> None:
    before = Belongings.now(scratch)
    subprocess.run(["true"], check=True)
    thread = threading.Thread(target=lambda: None)
    thread.start()

    assert leaks_since(before, scratch) == []
