"""Disks that are full or read-only: survived until there is room, or an end that says where; nothing is lost."""

import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.process.records import TO_SQLITE, chain, landed, letters, lines_of_numbers, logged, write_lines, written
from tests.process.run_headrace import Headrace, Running, wait_until
from tests.process.small_disks import SmallDisk, small_disk
from tests.process.test_sources_and_sinks import rows_of_parts

COUNT = 3000

PACED = """
def pace(r):
    if r.n % 50 == 0:
        time.sleep(0.02)

SETTINGS |= {
    "source.max_records": 50, "checkpoint.interval": "50ms", "retry.max": "100ms", "drain.timeout": "1500ms",
    "shm.slot_bytes": "16KiB", "chunk.target_bytes": "8KiB", "batch.max_bytes": "64KiB",
}
"""


@pytest.fixture
def disk(headrace: Headrace) -> Iterator[SmallDisk]:
    """A small disk in the run's folder; the command's processes are gone before it is."""
    with small_disk(headrace.folder / "disk") as disk:
        yield disk
        headrace.close()


@pytest.fixture
def paced(headrace: Headrace) -> Path:
    """A pipeline that reads for a second or two."""
    write_lines(headrace, lines_of_numbers(COUNT))
    return headrace.write("p.py", chain("inspect(pace)", "map(lambda r: (r.n,))", f"sink({TO_SQLITE})", more=PACED))


def stored(state: Path) -> int:
    """The sum of the durable watermarks."""
    try:
        with closing(sqlite3.connect(f"file:{state / 'state.db'}?mode=ro", uri=True, timeout=5)) as db:
            return sum(position for (position,) in db.execute("SELECT position FROM watermarks"))
    except sqlite3.OperationalError:  # it is not there yet
        return 0


def wait_for_a_watermark(running: Running, state: Path) -> None:
    running.wait_until(lambda: stored(state), "a durable watermark")


def test_a_full_disk_at_start_is_refused_and_the_next_start_runs(
    headrace: Headrace, disk: SmallDisk, paced: Path
) -> None:
    headrace.state = disk.path / "state"
    disk.fill()

    refused = headrace.run_pipeline(paced, "--workers", "1").expect(2)
    disk.free()
    report = headrace.run_pipeline(paced, "--workers", "1").expect(0).report

    assert str(headrace.state) in refused.report["error"]
    assert "full" in refused.report["error"] or "No space" in refused.report["error"]
    assert "fault of headrace" not in refused.stderr
    assert report["records_in"] == COUNT
    assert landed(headrace) == list(range(COUNT))


@pytest.mark.parametrize("pages", [20, *(pytest.param(pages, marks=pytest.mark.slow) for pages in (3, 22)), 23])
def test_a_disk_with_little_room_at_start_ends_the_run_with_its_path_or_is_survived(
    headrace: Headrace, disk: SmallDisk, pages: int
) -> None:
    """However far the start comes."""
    write_lines(headrace, lines_of_numbers(3))
    pipeline = headrace.write("p.py", chain("map(lambda r: (r.n,))", f"sink({TO_SQLITE})"))
    headrace.state = disk.path / "state"
    disk.fill(but_pages=pages)

    running = headrace.start_pipeline(pipeline, "--workers", "1")
    wait_until(lambda: running.has_ended or "could not be" in running.stderr, limit=10.0, what="no room")
    disk.free()
    finished = running.wait()

    assert "fault of headrace" not in finished.stderr
    if finished.code != 0:
        assert finished.code in (1, 2)
        assert str(headrace.state) in finished.report["error"]
        headrace.run_pipeline(pipeline, "--workers", "1").expect(0)
    assert sorted(set(landed(headrace))) == [0, 1, 2]


def test_a_state_disk_that_fills_is_survived_until_there_is_room(
    headrace: Headrace, disk: SmallDisk, paced: Path
) -> None:
    headrace.state = disk.path / "state"
    running = headrace.start_pipeline(paced, "--workers", "1")
    wait_for_a_watermark(running, headrace.state)

    disk.fill()
    running.wait_until(lambda: logged(running, "positions could not be written and will be tried again"), "no room")
    disk.free()
    report = running.wait().expect(0).report

    assert report["records_in"] == COUNT
    assert landed(headrace) == list(range(COUNT))
    assert headrace.run_pipeline(paced, "--workers", "1").expect(0).report["records_in"] == 0


def test_a_run_told_to_stop_on_a_full_state_disk_ends_with_what_will_replay(
    headrace: Headrace, disk: SmallDisk, paced: Path
) -> None:
    headrace.state = disk.path / "state"
    running = headrace.start_pipeline(paced, "--workers", "1")
    wait_for_a_watermark(running, headrace.state)
    disk.fill()
    running.wait_until(lambda: logged(running, "positions could not be written and will be tried again"), "no room")

    running.signal(signal.SIGTERM)
    finished = running.wait(10.0).expect(3)

    assert str(headrace.state / "state.db") in finished.report["error"]
    disk.free()
    headrace.run_pipeline(paced, "--workers", "1").expect(0)
    assert sorted(set(landed(headrace))) == list(range(COUNT))


def test_a_state_directory_on_a_read_only_disk_is_refused(headrace: Headrace, disk: SmallDisk) -> None:
    write_lines(headrace, lines_of_numbers(3))
    pipeline = headrace.write("p.py", chain("map(lambda r: (r.n,))", f"sink({TO_SQLITE})"))
    headrace.state = disk.path / "state"
    headrace.run_pipeline(pipeline, "--workers", "1").expect(0)
    disk.make_read_only()

    refused = headrace.run_pipeline(pipeline, "--workers", "1").expect(2)

    assert str(headrace.state) in refused.report["error"]
    assert "ead-only" in refused.report["error"]


def test_a_sink_whose_disk_fills_is_retried_until_there_is_room(
    headrace: Headrace, disk: SmallDisk, paced: Path
) -> None:
    paced.write_text(paced.read_text(encoding="utf-8").replace("out.db", "disk/out.db"), encoding="utf-8")
    running = headrace.start_pipeline(paced, "--workers", "1")
    wait_for_a_watermark(running, headrace.state)

    disk.fill()
    failed = running.wait_until(lambda: logged(running, "a write failed and will be tried again"), "no room")
    disk.free()
    report = running.wait().expect(0).report

    assert "the disk is full" in failed[0]["cause"]
    assert str(disk.path / "out.db") in failed[0]["cause"]
    assert (report["records_in"], report["workers_lost"]) == (COUNT, 0)
    assert landed(headrace, database="disk/out.db") == list(range(COUNT))


def test_a_run_told_to_stop_while_its_sink_has_no_room_ends_in_time(
    headrace: Headrace, disk: SmallDisk, paced: Path
) -> None:
    paced.write_text(paced.read_text(encoding="utf-8").replace("out.db", "disk/out.db"), encoding="utf-8")
    running = headrace.start_pipeline(paced, "--workers", "1")
    wait_for_a_watermark(running, headrace.state)
    disk.fill()
    running.wait_until(lambda: logged(running, "a write failed and will be tried again"), "no room")

    running.signal(signal.SIGTERM)
    finished = running.wait(5.0).expect(3)
    disk.free()
    report = headrace.run_pipeline(paced, "--workers", "1").expect(0).report

    assert finished.report["in_flight"] > 0
    assert written(report) > 0
    assert sorted(set(landed(headrace, database="disk/out.db"))) == list(range(COUNT))


@pytest.mark.parametrize("side", ["supervisor", "workers"])
def test_dead_letters_wait_for_room_and_nothing_passes_them(headrace: Headrace, disk: SmallDisk, side: str) -> None:
    """HR-15: what is left out is durable before the watermark passes it."""
    lines = lines_of_numbers(COUNT, {n: f'{{"n": {n}, "text": {n}}}' for n in range(100, COUNT, 10)})
    write_lines(headrace, lines)
    before = ('shard_by("n")',) if side == "workers" else ()
    steps = ("inspect(pace)", *before) if side == "supervisor" else (*before, "inspect(pace)")
    text = chain(*steps, "map(lambda r: (r.n,))", f"sink({TO_SQLITE})", more=PACED)
    pipeline = headrace.write("p.py", text)
    headrace.state = disk.path / "state"
    running = headrace.start_pipeline(pipeline, "--workers", "1", "--set", "on_error=dead_letter")
    wait_for_a_watermark(running, headrace.state)

    disk.fill()
    words = ("could not be written", "cannot be kept")
    running.wait_until(lambda: any(one in running.stderr for one in words), "no room")
    disk.free()
    report = running.wait().expect(0).report

    bad = set(range(100, COUNT, 10))
    assert landed(headrace) == [n for n in range(COUNT) if n not in bad]
    assert (report["dead_letters"], written(report)) == (len(bad), COUNT - len(bad))
    assert [letter.raw for letter in letters(headrace)] == [lines[n].encode() for n in sorted(bad)]


@pytest.mark.parametrize("compress", [None, pytest.param("gzip", marks=pytest.mark.slow)])
def test_parts_on_a_disk_that_fills_hold_whole_lines_and_each_row_once(
    headrace: Headrace, disk: SmallDisk, compress: str | None
) -> None:
    write_lines(headrace, lines_of_numbers(COUNT))
    sink = f'sink(NdjsonFiles("disk/out", compress={compress!r}))'
    pipeline = headrace.write("p.py", chain("inspect(pace)", "map(lambda r: {'n': r.n})", sink, more=PACED))
    running = headrace.start_pipeline(pipeline, "--workers", "1")
    wait_for_a_watermark(running, headrace.state)

    disk.fill()
    running.wait_until(lambda: logged(running, "a write failed and will be tried again"), "no room")
    disk.free()
    running.wait().expect(0)

    assert sorted(rows_of_parts(disk.path / "out")) == list(range(COUNT))
