"""Files that are followed: growth, rotation, truncation."""

from __future__ import annotations

import gzip
import os
import shutil
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import SourceError
from headrace.record import LaneId
from headrace.sources import Files
from tests.unit.sources.source_context import FakeContext, Run


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def follow(paths: Path | list[Path], ctx: FakeContext | None = None, *, commit: bool = True) -> Run:
    return Run(Files(paths, format="lines", follow=True), ctx or FakeContext(), commit=commit).settle()


def numbered(start: int, stop: int, width: int = 20) -> bytes:
    return b"".join(b"%d %s\n" % (number, b"x" * width) for number in range(start, stop))


def test_what_is_appended_is_read_at_the_next_look(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"1\n")
    run = follow(path)
    append(path, b"2\n")

    at_once = list(run.settle().lines)
    later = run.wait().lines

    assert at_once == [b"1"]
    assert later == [b"1", b"2"]
    assert run.source.next_due() == pytest.approx(run.ctx.time + 0.2)
    run.close()


def test_an_unfinished_line_waits_for_its_newline(tmp_path: Path) -> None:
    """F08"""
    path = tmp_path / "a.log"
    path.write_bytes(b"1\n2")
    run = follow(path)

    for part in (b"2", b"2", b"2\n3"):
        append(path, part)
        run.wait()

    assert run.lines == [b"1", b"2222"]
    assert run.close().rejects == []


def test_a_pattern_without_a_match_waits_for_one(tmp_path: Path) -> None:
    run = follow(tmp_path / "*.log")
    (tmp_path / "a.log").write_bytes(b"1\n")

    assert run.wait().lines == [b"1"]
    run.close()


def test_a_path_that_is_not_there_is_refused_though_followed(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"missing\.log"):
        follow(tmp_path / "missing.log")


@pytest.mark.parametrize("pattern", ["app.log", "app.log*"])
def test_a_rotation_by_rename_loses_and_repeats_nothing(tmp_path: Path, pattern: str) -> None:
    """F03"""
    path = tmp_path / "app.log"
    path.write_bytes(b"1\n")
    run = follow(tmp_path / pattern)
    for number in range(2, 8):
        append(path, b"%d\n" % number)
        for old in (2, 1):
            if (tmp_path / f"app.log.{old}").exists():
                (tmp_path / f"app.log.{old}").rename(tmp_path / f"app.log.{old + 1}")
        path.rename(tmp_path / "app.log.1")
        append(tmp_path / "app.log.1", b"late %d\n" % number)
        path.write_bytes(b"after %d\n" % number)
        run.wait()

    expected = [b"1"]
    for number in range(2, 8):
        expected += [b"%d" % number, b"late %d" % number, b"after %d" % number]
    assert run.lines == expected
    assert run.close().ctx.warnings == []


def test_a_new_file_with_the_content_of_the_rotated_one_is_read(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    path.write_bytes(b"start\none\n")
    run = follow(path)
    path.rename(tmp_path / "app.log.1")
    path.write_bytes(b"start\none\n")

    run.wait()

    assert run.close().lines == [b"start", b"one"] * 2


def test_a_file_that_was_deleted_and_made_anew_is_read_from_its_start(tmp_path: Path) -> None:
    """F02"""
    path = tmp_path / "app.log"
    run = follow(tmp_path / "*.log")
    for number in range(20):
        path.write_bytes(b"line\n" * (number + 1))
        run.wait()
        path.unlink()
        if number % 2:
            run.wait()

    assert Counter(run.close().lines) == {b"line": 210}


def test_a_rotation_at_any_byte_gives_only_lines_that_were_written(tmp_path: Path) -> None:
    """F06"""
    content = b"first line\nsecond line\nthird line\n"
    for cut in range(len(content) + 1):
        path = tmp_path / f"{cut}.log"
        path.write_bytes(content[:cut])
        run = follow(path)
        path.rename(path.with_suffix(".log.1"))
        path.write_bytes(b"new line\n")
        run.wait()
        append(path.with_suffix(".log.1"), content[cut:])

        run.wait()

        assert sorted(run.close().lines) == sorted([*content.splitlines(), b"new line"])


def test_a_rotation_while_down_gives_the_rest_and_then_the_new_file(tmp_path: Path) -> None:
    """F03"""
    path = tmp_path / "app.log"
    path.write_bytes(b"1\n2\n")
    first = follow(path).close()
    append(path, b"3\n")
    path.rename(tmp_path / "app.log.1")
    path.write_bytes(b"4\n")

    again = follow(path, first.ctx.restarted())

    assert again.close().lines == [b"3", b"4"]
    assert again.ctx.warnings == []


def test_the_new_file_waits_until_the_rest_of_the_rotated_one_is_read(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    path.write_bytes(b"1\n")
    run = follow(path, FakeContext(block_bytes=100))
    append(path, numbered(0, 500))
    path.rename(tmp_path / "app.log.1")
    path.write_bytes(b"last\n")

    run.wait()

    assert run.close().lines == [b"1", *numbered(0, 500).splitlines(), b"last"]


def test_a_truncated_file_is_a_new_partition_and_a_warning_with_both_numbers(tmp_path: Path) -> None:
    """F05"""
    path = tmp_path / "app.log"
    path.write_bytes(b"1\n2\n3\n")
    run = follow(path)
    path.write_bytes(b"4\n")

    run.wait()

    assert run.close().lines == [b"1", b"2", b"3", b"4"]
    [(_, values)] = run.ctx.warnings
    assert (values["position"], values["size"]) == (6, 2)
    assert run.batches[0].partition != run.batches[-1].partition


def test_a_file_rewritten_to_a_greater_length_is_seen(tmp_path: Path) -> None:
    """F05 F06"""
    path = tmp_path / "app.log"
    path.write_bytes(b"1\n2\n3\n")
    run = follow(path)
    with path.open("r+b") as file:
        file.truncate(0)
        file.write(b"four\nfive\nsix\n")

    run.wait()

    assert run.close().lines == [b"1", b"2", b"3", b"four", b"five", b"six"]


@pytest.mark.parametrize("copy_is_named", [True, False])
def test_what_was_copied_before_a_truncation_is_read_from_the_copy(tmp_path: Path, copy_is_named: bool) -> None:
    """F18: lines that are in some file at the end are not lost."""
    path = tmp_path / "app.log"
    path.write_bytes(numbered(0, 300))
    run = follow(tmp_path / ("app.log*" if copy_is_named else "app.log"))
    append(path, numbered(300, 400))
    shutil.copy(path, tmp_path / "app.log.1")
    os.truncate(path, 0)
    append(path, numbered(400, 410))

    run.wait()

    assert run.close().lines == numbered(0, 410).splitlines()


def test_a_copy_in_the_making_is_not_read_a_second_time(tmp_path: Path) -> None:
    """F18"""
    path = tmp_path / "app.log"
    content = numbered(0, 1000)
    path.write_bytes(content)
    run = follow(tmp_path / "app.log*")
    for part in range(5):
        append(tmp_path / "app.log.1", content[part * len(content) // 5 : (part + 1) * len(content) // 5])
        run.wait()
    append(path, b"not in the copy\n")
    run.wait()
    os.truncate(path, 0)
    append(path, b"next\n")

    run.wait()

    assert run.close().lines == [*content.splitlines(), b"not in the copy", b"next"]


def test_a_copy_that_stays_beside_its_original_becomes_a_file_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    path.write_bytes(b"1\n")
    run = follow(tmp_path / "app.log*")
    shutil.copy(path, tmp_path / "app.log.1")

    at_first = list(run.wait().lines)
    run.wait(11.0)

    assert at_first == [b"1"]
    assert run.close().lines == [b"1", b"1"]


def test_files_that_begin_alike_are_read_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"name\n")
    run = follow(tmp_path / "*.csv")
    (tmp_path / "b.csv").write_bytes(b"name\n")

    assert run.wait().lines == [b"name", b"name"]
    run.close()


def test_zeros_left_by_a_writer_that_kept_its_place_are_skipped(tmp_path: Path) -> None:
    """F11"""
    path = tmp_path / "app.log"
    with path.open("wb", buffering=0) as writer:
        writer.write(b"1\n")
        run = follow(path)
        writer.seek(2**30)
        os.truncate(path, 0)
        run.wait()
        writer.write(b"2\n")
        run.wait()
        writer.write(b"3\n")
        run.wait()

    assert run.close().lines == [b"1", b"2", b"3"]
    events = [event for event, _ in run.ctx.warnings]
    assert len([event for event in events if "zero bytes" in event]) == 1


def test_three_rotations_with_packing_and_restarts_give_each_line_once(tmp_path: Path) -> None:
    """F12"""
    path = tmp_path / "app.log"
    path.write_bytes(numbered(0, 200))
    run = follow(tmp_path / "app.log*")
    lines: list[bytes] = []
    number = 200
    for rotation in range(3):
        append(path, numbered(number, number + 100))
        number += 100
        for old in range(rotation, 1, -1):
            (tmp_path / f"app.log.{old}.gz").rename(tmp_path / f"app.log.{old + 1}.gz")
        if (tmp_path / "app.log.1").exists():
            data = (tmp_path / "app.log.1").read_bytes()
            packed = gzip.compress(data)
            (tmp_path / "app.log.2.gz").write_bytes(packed[: len(packed) // 2])
            run.wait()
            append(tmp_path / "app.log.2.gz", packed[len(packed) // 2 :])
            if rotation % 2:
                run.wait()
            (tmp_path / "app.log.1").unlink()
        path.rename(tmp_path / "app.log.1")
        path.write_bytes(numbered(number, number + 50))
        number += 50
        run.wait()
        lines += run.lines
        run.close()
        run = follow(tmp_path / "app.log*", run.ctx.restarted())
    run.wait(30.0)

    lines += run.close().lines
    assert sorted(lines) == sorted(numbered(0, number).splitlines())


def test_a_packed_file_in_the_making_is_read_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "a.log.gz"
    packed = gzip.compress(os.urandom(50_000).hex("\n", 40).encode() + b"\n")
    run = follow(tmp_path / "*.gz")
    for part in range(10):
        append(path, packed[part * len(packed) // 10 : (part + 1) * len(packed) // 10])
        run.wait()
    append(path, gzip.compress(b"second member\n"))

    run.wait()

    assert run.close().content == gzip.decompress(packed) + b"second member\n"
    assert run.rejects == []


def test_a_file_that_was_rotated_away_is_given_up_when_it_is_quiet_and_committed(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    path.write_bytes(b"1\nunfinished")
    run = follow(path, commit=False)
    partition = run.batches[0].partition
    path.rename(tmp_path / "app.log.1")
    path.write_bytes(b"2\n")
    run.wait()
    descriptors = len(os.listdir("/proc/self/fd"))

    run.wait(61.0)
    before_commit = list(run.revoked)
    run.commit(partition, 2)
    run.wait()

    assert before_commit == []
    assert run.revoked == [LaneId(partition)]
    assert len(os.listdir("/proc/self/fd")) == descriptors - 1
    assert [values["bytes"] for _, values in run.ctx.warnings] == [len(b"unfinished")]
    run.close()


def test_paused_lanes_notice_a_truncation_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    path.write_bytes(b"1\n2\n")
    run = follow(path)
    run.source.pause(list(run.lanes))
    path.write_bytes(b"three\nfour\n")

    run.wait()

    assert run.close().lines == [b"1", b"2", b"three", b"four"]


def test_a_file_that_cannot_be_read_later_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = follow(tmp_path / "*.log")
    (tmp_path / "a.log").write_bytes(b"1\n")
    reading = "headrace.sources.watch.OpenFile"

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(reading, refuse)
        run.wait()
        run.wait()
    run.wait()

    assert len(run.ctx.warnings) == 1
    assert run.close().lines == [b"1"]


def test_a_packed_file_that_stays_unfinished_is_a_warning(tmp_path: Path) -> None:
    """F14: followed, the rest may still come."""
    path = tmp_path / "a.log.gz"
    path.write_bytes(gzip.compress(numbered(0, 10))[:-3])
    run = follow(path)

    run.wait(30.0)
    early = list(run.ctx.warnings)
    run.wait(31.0)
    run.wait()

    assert early == []
    assert run.close().lines == numbered(0, 10).splitlines()
    assert len(run.ctx.warnings) == 1


class Writer:
    """A log and what a rotating program does with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "app.log"
        self.path.touch()
        self.written = 0
        self.pending = b""

    def write(self, count: int) -> None:
        lines = b"".join(b"line %d\n" % number for number in range(self.written, self.written + count))
        self.written += count
        append(self.path, self.pending + lines)
        self.pending = b""

    def write_half(self) -> None:
        if not self.pending:
            line = b"line %d\n" % self.written
            self.written += 1
            append(self.path, line[:4])
            self.pending = line[4:]

    def _shift(self) -> None:
        rotated = sorted(self.folder.glob("app.log.*"), key=lambda path: -int(path.name.split(".")[2]))
        for path in rotated:
            parts = path.name.split(".")
            parts[2] = str(int(parts[2]) + 1)
            path.rename(self.folder / ".".join(parts))

    def rename(self) -> None:
        self.write(0)
        self._shift()
        self.path.rename(self.folder / "app.log.1")
        self.path.touch()

    def copy_and_truncate(self) -> None:
        self.write(0)
        self._shift()
        shutil.copy(self.path, self.folder / "app.log.1")
        os.truncate(self.path, 0)

    def pack(self) -> None:
        for path in self.folder.glob("app.log.?"):
            path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()


actions = st.lists(
    st.sampled_from(
        ["write", "write", "write much", "half", "rename", "copy", "pack", "look", "look", "long look", "restart"]
    ),
    max_size=25,
)


def play(folder: Path, paths: Path, script: list[str]) -> tuple[Writer, list[bytes], Run]:
    """What a writer wrote, and what was read of it over all runs."""
    writer = Writer(folder)
    run = follow(paths, FakeContext(block_bytes=100))
    lines: list[bytes] = []
    for action in script:
        match action:
            case "write":
                writer.write(3)
            case "write much":
                writer.write(60)
            case "half":
                writer.write_half()
            case "rename":
                writer.rename()
            case "copy":
                writer.copy_and_truncate()
            case "pack":
                writer.pack()
            case "look":
                run.wait()
            case "long look":
                run.wait(70.0)
            case _:
                lines += run.close().lines
                run = follow(paths, run.ctx.restarted())
    writer.write(1)
    run.wait()
    run.wait(15.0)
    return writer, lines + run.close().lines, run


@settings(max_examples=150, deadline=None)
@given(actions)
def test_whatever_a_rotating_writer_does_each_line_is_read_once(script: list[str]) -> None:
    """F03 F06 F08 F12 F18"""
    with TemporaryDirectory() as name:
        writer, lines, run = play(Path(name), Path(name, "app.log*"), script)

        assert sorted(lines) == sorted(b"line %d" % number for number in range(writer.written))
        assert run.rejects == []


steps = st.lists(st.sampled_from(["write", "write much", "half", "long look", "restart"]), max_size=5)
turns = st.sampled_from(["rename", "copy"])
rotations = st.tuples(steps, turns, st.sampled_from([[], ["pack"]]), st.sampled_from(["look", "restart"])).map(
    lambda parts: ["write", "look", *parts[0], parts[1], *parts[2], parts[3]]
)


@settings(max_examples=100, deadline=None)
@given(st.lists(rotations, max_size=5))
def test_each_line_is_read_once_though_rotated_files_have_names_that_no_path_matches(scripts: list[list[str]]) -> None:
    """F03 F18: of each file something was seen under its own name, and looks are no rarer than rotations."""
    with TemporaryDirectory() as name:
        script = [action for one in scripts for action in one]
        writer, lines, run = play(Path(name), Path(name, "app.log"), script)

        assert sorted(lines) == sorted(b"line %d" % number for number in range(writer.written))
        assert run.rejects == []


def test_a_watch_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for name in ("a.log", "b.log.gz", "c.log"):
        (tmp_path / name).write_bytes(b"" if name.endswith("gz") else b"1\n")

    run = follow(tmp_path / "*")
    (tmp_path / "a.log").rename(tmp_path / "d.log")
    (tmp_path / "c.log").write_bytes(b"")
    run.wait()
    run.close()

    assert len(os.listdir("/proc/self/fd")) == before
