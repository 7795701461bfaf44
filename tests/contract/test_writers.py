"""What holds for every writer: delivery, durability, all or nothing, rejection by row, kills, and opening again."""

import errno
import os
import random
import resource
import select
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from headrace.errors import ConfigError, ErrorClass, RejectedRows, SinkError
from headrace_workers.writers.base import BlockingWriter, open_writer
from headrace_workers.writers.blackhole import BlackholeWriter
from tests.contract.writer_cases import CASES, Case, open_output

PROGRAM: Final = Path(__file__).with_name("writer_cases.py")

every = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
keeping = pytest.mark.parametrize("case", [case for case in CASES.values() if case.keeps], ids=lambda case: case.name)
taking_back = pytest.mark.parametrize(
    "case", [case for case in CASES.values() if case.keeps and case.takes_back], ids=lambda case: case.name
)
given_views = pytest.mark.parametrize(
    "case", [case for case in CASES.values() if case.lines], ids=lambda case: case.name
)


@contextmanager
def opened(case: Case, folder: Path, incarnation: int = 1) -> Iterator[BlockingWriter]:
    stdout = open_output(folder)
    try:
        writer = case.open(folder, incarnation, stdout)
        try:
            yield writer
        finally:
            writer.close()
    finally:
        os.close(stdout)


def hidden(folder: Path) -> list[Path]:
    """What must not be left after a close: open parts, lock files, WALs."""
    return [file for file in folder.rglob("*") if file.name.startswith(".") or file.suffix in (".lock", ".db-wal")]


# -- delivery


@keeping
def test_what_was_written_is_there_once_and_in_order_of_its_shard(case: Case, tmp_path: Path) -> None:
    with opened(case, tmp_path) as writer:
        for number in range(6):
            writer.write(case.batch(number % 2, range(number * 100, number * 100 + 100)))

    found = case.read(tmp_path)
    assert Counter(found) == Counter(range(600))
    for shard in (0, 1):
        mine = [one for one in found if one // 100 % 2 == shard]
        assert mine == sorted(mine)


@keeping
def test_it_can_be_read_by_others_before_the_writer_closes(case: Case, tmp_path: Path) -> None:
    """C04: what is acknowledged is out of the writer's hands."""
    with opened(case, tmp_path) as writer:
        for number in range(3):
            writer.write(case.batch(0, [number]))

            assert sorted(case.read(tmp_path)) == list(range(number + 1))


def test_a_blackhole_counts(tmp_path: Path) -> None:
    case = CASES["blackhole"]
    with opened(case, tmp_path) as writer:
        writer.write(case.batch(0, range(5)))
        writer.write(case.batch(1, range(7)))

    assert isinstance(writer, BlackholeWriter)
    assert writer.rows == 12


@every
def test_an_empty_batch_is_no_error(case: Case, tmp_path: Path) -> None:
    with opened(case, tmp_path) as writer:
        writer.write(case.batch(0, []))

    assert case.read(tmp_path) == []


@every
def test_shards_are_written_from_many_threads(case: Case, tmp_path: Path) -> None:
    with opened(case, tmp_path) as writer, ThreadPoolExecutor(4) as threads:
        batches = [case.batch(number % 2, range(number * 50, number * 50 + 50)) for number in range(24)]
        list(threads.map(writer.write, batches))

    assert not case.keeps or sorted(case.read(tmp_path)) == list(range(24 * 50))


@given_views
def test_no_view_of_the_batch_is_kept(case: Case, tmp_path: Path) -> None:
    with opened(case, tmp_path) as writer:
        batch = case.batch(0, range(10))
        assert batch.blocks is not None
        slot = bytearray(b"".join(batch.blocks))
        with memoryview(slot) as view:
            batch.blocks = [view]

            writer.write(batch)
            batch.release()
        slot.clear()


@pytest.mark.parametrize(
    "case", [case for case in CASES.values() if case.lines and case.keeps], ids=lambda case: case.name
)
def test_a_write_that_fails_keeps_no_view_either(case: Case, tmp_path: Path) -> None:
    with opened(case, tmp_path) as writer:
        batch = case.batch(0, range(5_000))
        assert batch.blocks is not None
        slot = bytearray(b"".join(batch.blocks))
        with memoryview(slot) as view:
            batch.blocks = [view]
            with files_at_most(tmp_path, 4_096), pytest.raises(SinkError):
                writer.write(batch)
            batch.release()
        slot.clear()


# -- all or nothing


@contextmanager
def files_at_most(folder: Path, more: int) -> Iterator[None]:
    """The largest file may grow by so many bytes: the next write to it ends short, then fails."""
    limit = max((file.stat().st_size for file in folder.rglob("*") if file.is_file()), default=0) + more
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@taking_back
def test_a_write_that_has_no_room_keeps_nothing_and_succeeds_later(case: Case, tmp_path: Path) -> None:
    """E01, C05: the error names the file and asks for another try; the same write is then delivered once."""
    rows = [*range(100, 20_100)]
    with opened(case, tmp_path) as writer:
        writer.write(case.batch(0, range(100)))

        for _ in range(3):
            with files_at_most(tmp_path, 4_096 if case.name != "ndjson-rolling" else 0):
                with pytest.raises(SinkError) as caught:
                    writer.write(case.batch(0, rows))
                assert caught.value.retryable
                assert str(tmp_path) in str(caught.value)
            assert sorted(case.read(tmp_path)) == list(range(100))
        writer.write(case.batch(0, rows))

    assert sorted(case.read(tmp_path)) == list(range(20_100))
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("name", ["ndjson", "ndjson-gzip", "ndjson-zstd", "stdout"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_failed_sync_is_never_ignored(
    name: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E01, E03: each errno is told as what it is."""
    case = CASES[name]

    def failing(_: int) -> None:
        raise OSError(number, os.strerror(number))

    with opened(case, tmp_path) as writer:
        writer.write(case.batch(0, range(10)))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", failing)
            with pytest.raises(SinkError, match=errno.errorcode[number]) as caught:
                writer.write(case.batch(0, range(10, 20)))
        assert caught.value.retryable
        if case.takes_back:
            assert case.read(tmp_path) == list(range(10))
        writer.write(case.batch(0, range(10, 20)))

    assert set(case.read(tmp_path)) == set(range(20))


def noting(calls: list[str], call: str) -> Callable[..., object]:
    """The system call, noted when it is made."""
    real: Callable[..., object] = getattr(os, call)

    def noted(*args: object) -> object:
        calls.append(call)
        return real(*args)

    return noted


@pytest.mark.parametrize("name", ["ndjson", "ndjson-gzip", "ndjson-zstd", "stdout"])
def test_a_write_returns_after_its_last_byte_was_synced(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C04: acknowledged means durable."""
    case = CASES[name]
    calls: list[str] = []
    for call in ("write", "pwrite", "pwritev", "fdatasync"):
        monkeypatch.setattr(os, call, noting(calls, call))

    with opened(case, tmp_path) as writer:
        for number in range(3):
            calls.clear()
            writer.write(case.batch(0, range(number, number + 1)))

            assert calls[-1] == "fdatasync"
            assert len(calls) > 1


# -- rejection


@pytest.mark.parametrize("name", ["sqlite", "sqlite-shards"])
def test_rows_that_cannot_be_stored_are_named_and_nothing_is_kept(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    with opened(case, tmp_path) as writer:
        writer.write(case.batch(0, [1]))
        batch = case.batch(0, range(10, 1_010))
        assert batch.rows is not None
        batch.rows[3] = (2**63, "x")
        batch.rows[500] = (5, "\ud800")
        batch.rows[999] = (6, None)

        with pytest.raises(RejectedRows) as caught:
            writer.write(batch)

        assert set(caught.value.reasons) == {3, 500, 999}
        assert "too large" in caught.value.reasons[3]
        assert "surrogates" in caught.value.reasons[500]
        assert "NOT NULL" in caught.value.reasons[999]
        assert case.read(tmp_path) == [1]
        writer.write(case.batch(0, [2]))
    assert sorted(case.read(tmp_path)) == [1, 2]


# -- kills


@contextmanager
def a_worker(case: Case, folder: Path, *, kill: str = "-", rows: int, batches: int) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, str(PROGRAM), case.name, str(folder), kill, str(rows), str(batches)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def said_until(child: subprocess.Popen[str], last: str | None) -> list[int]:
    """The batches that it acknowledged, up to ``last``; None: until its end."""
    assert child.stdout is not None
    acknowledged: list[int] = []
    for line in child.stdout:
        word = line.strip()
        if word.isdigit():
            acknowledged.append(int(word))
        if word == last:
            break
    return acknowledged


def check_after_kill(case: Case, folder: Path, acknowledged: list[int], rows: int) -> None:
    """A writer that opens again finds every acknowledged row, and of one other write all, a part or nothing."""
    with opened(case, folder, incarnation=2) as writer:
        writer.write(case.batch(0, [-1]))

    found = Counter(case.read(folder))
    sure = set(range(len(acknowledged) * rows)) | {-1}
    doubtful = set(range(len(acknowledged) * rows, (len(acknowledged) + 1) * rows))
    assert sure <= set(found) <= sure | doubtful
    assert set(found.values()) == {1}
    if case.whole:
        assert not doubtful & set(found) or doubtful <= set(found)
    assert hidden(folder) == []


@keeping
def test_a_kill_after_the_write_loses_nothing(case: Case, tmp_path: Path) -> None:
    """C04: killed while nothing is being written."""
    with a_worker(case, tmp_path, rows=100, batches=3) as child:
        acknowledged = said_until(child, "2")
        child.send_signal(signal.SIGKILL)
        child.wait()

    assert acknowledged == [0, 1, 2]
    check_after_kill(case, tmp_path, acknowledged, 100)


@keeping
@pytest.mark.parametrize("seed", range(3))
def test_a_kill_in_the_middle_of_a_write_loses_nothing_that_was_acknowledged(
    case: Case, tmp_path: Path, seed: int
) -> None:
    """C04: killed at any instant."""
    chance = random.Random(seed)
    rows = 20_000
    with a_worker(case, tmp_path, rows=rows, batches=100) as child:
        acknowledged = said_until(child, str(chance.randrange(3)))
        select.select([], [], [], chance.random() * 0.03)  # any instant of the next writes
        child.send_signal(signal.SIGKILL)
        acknowledged += said_until(child, None)
        child.wait()

    assert child.returncode == -signal.SIGKILL
    check_after_kill(case, tmp_path, acknowledged, rows)


STEPS: Final = [
    *((call, count) for call in ("open", "fsync", "pwritev", "fdatasync") for count in (1, 2, 3)),
    *((call, count) for call in ("link", "unlink") for count in (1, 2)),
]


@pytest.mark.parametrize("name", ["ndjson-rolling", "ndjson-zstd"])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{step[0]}-{step[1]}")
def test_a_kill_before_any_system_call_loses_nothing_and_leaves_nothing(
    name: str, step: tuple[str, int], tmp_path: Path
) -> None:
    """HR-6: whatever the last system call was, the next start alone puts it right."""
    case = CASES[name]
    with a_worker(case, tmp_path, kill=f"{step[0]}:{step[1]}", rows=10, batches=3) as child:
        assert child.stdin is not None
        child.stdin.close()
        acknowledged = said_until(child, None)
        child.wait()

    check_after_kill(case, tmp_path, acknowledged, 10)


# -- opening again


@keeping
def test_closing_and_opening_again_goes_on(case: Case, tmp_path: Path) -> None:
    for run in range(3):
        with opened(case, tmp_path, incarnation=run + 1) as writer:
            writer.write(case.batch(0, [run]))

        assert hidden(tmp_path) == []
    assert sorted(case.read(tmp_path)) == [0, 1, 2]


@keeping
def test_two_workers_write_side_by_side(case: Case, tmp_path: Path) -> None:
    """A second worker that opens while the first writes takes nothing of it."""
    with opened(case, tmp_path) as one:
        one.write(case.batch(0, [0]))
        with opened(case, tmp_path) as other:
            other.write(case.batch(1, [1]))
            one.write(case.batch(0, [2]))
        one.write(case.batch(0, [3]))

    assert sorted(case.read(tmp_path)) == [0, 1, 2, 3]


@every
def test_nothing_is_opened_for_a_writer_that_never_writes(case: Case, tmp_path: Path) -> None:
    with opened(case, tmp_path):
        pass

    assert case.read(tmp_path) == []
    assert hidden(tmp_path) == []


# -- names


def test_a_writer_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ConfigError, match=r"no writer called 'oracle'; known: blackhole, ndjson_files, sqlite, stdout"):
        open_writer("oracle")


def test_a_writer_without_positions_has_none_to_take_over(tmp_path: Path) -> None:
    with opened(CASES["blackhole"], tmp_path) as writer:
        assert writer.take_over(0, []) == {}


def test_a_failure_for_good_says_so(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file where the directory should be", encoding="utf-8")

    with pytest.raises(SinkError, match=r"ENOTDIR|EEXIST") as caught, opened(CASES["ndjson"], tmp_path):
        pass

    assert caught.value.error_class is ErrorClass.FATAL
