"""Files that are read to their end."""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError, SourceError
from headrace.record import LanesAssigned, PartitionId
from headrace.sources import Files
from tests.unit.sources.source_context import FakeContext, Run, lines_of, run_to_end


def gz(data: bytes, members: int = 1) -> bytes:
    size = len(data) // members + 1
    return b"".join(gzip.compress(data[at : at + size]) for at in range(0, len(data) or 1, size))


def zst(data: bytes, members: int = 1) -> bytes:
    size = len(data) // members + 1
    pack = zstandard.ZstdCompressor()
    return b"".join(pack.compress(data[at : at + size]) for at in range(0, len(data) or 1, size))


def numbered(count: int, width: int = 0) -> bytes:
    return b"".join(b'{"n":%d,"pad":"%s"}\n' % (number, b"x" * width) for number in range(count))


PACK: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": lambda data: gz(data, 3),
    "zstd": lambda data: zst(data, 3),
}
SUFFIX = {"plain": "", "gzip": ".gz", "zstd": ".zst"}
kinds = st.sampled_from(["plain", "gzip", "zstd"])
contents = st.text(alphabet="ab\n\r é", max_size=300).map(str.encode)


@settings(max_examples=150, deadline=None)
@given(contents, kinds, st.integers(1, 50), st.integers(1, 30))
def test_the_lines_handed_out_are_the_lines_of_the_file(data: bytes, kind: str, block: int, max_records: int) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "data.ndjson" + SUFFIX[kind])
        path.write_bytes(PACK[kind](data))

        run = run_to_end(Files(path), FakeContext(block_bytes=block, max_record_bytes=1000), max_records=max_records)

        assert run.content == data
        assert run.rejects == []
        ends = [0, *(batch.end for batch in run.batches)]
        assert [batch.start for batch in run.batches] == ends[:-1]


@settings(max_examples=60, deadline=None)
@given(contents, kinds, st.integers(1, 50))
def test_resuming_at_every_watermark_loses_and_repeats_nothing(data: bytes, kind: str, block: int) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "data.ndjson" + SUFFIX[kind])
        path.write_bytes(PACK[kind](data))
        first = run_to_end(Files(path), FakeContext(block_bytes=block, max_record_bytes=1000), commit=False)

        for done, batch in enumerate(first.batches):
            again = run_to_end(Files(path), first.ctx.restarted({batch.partition: batch.end}))

            assert b"".join(one.block or b"" for one in first.batches[: done + 1]) + again.content == data
            assert {one.partition for one in again.batches} <= {batch.partition}
            assert (again.rejects, again.ctx.warnings) == ([], [])


@settings(max_examples=60, deadline=None)
@given(st.lists(contents.map(lambda data: data + b"\n"), min_size=1, max_size=6), st.integers(1, 50), st.data())
def test_a_file_that_grows_between_runs_goes_on_where_it_was(
    parts: list[bytes], block: int, data: st.DataObject
) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "data.ndjson")
        ctx = FakeContext(block_bytes=block, max_record_bytes=1000)
        got = b""
        for part in parts:
            with path.open("ab") as file:
                file.write(part)
            run = Run(Files(path), ctx)
            for _ in range(data.draw(st.integers(0, 4))):
                run.turn()
            got += run.close().content
            ctx = ctx.restarted()
        got += run_to_end(Files(path), ctx).content

        assert got == b"".join(parts)


def test_a_finished_run_finds_nothing_new(tmp_path: Path) -> None:
    for name, pack in PACK.items():
        (tmp_path / f"{name}.ndjson{SUFFIX[name]}").write_bytes(pack(numbered(100)))
    first = run_to_end(Files(tmp_path / "*"), FakeContext())

    again = run_to_end(Files(tmp_path / "*"), first.ctx.restarted())

    assert len(first.lines) == 300
    assert again.batches == []
    assert len(again.lanes) == 3


def test_each_file_is_a_partition_named_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "a.ndjson").write_bytes(b"1\n")
    (tmp_path / "b.ndjson").write_bytes(b"1\n")

    run = run_to_end(Files([tmp_path / "a.ndjson", tmp_path / "*.ndjson"]), FakeContext())

    names = [partition.rsplit("#", 1) for partition in sorted({batch.partition for batch in run.batches})]
    assert [name for name, _ in names] == [str(tmp_path / "a.ndjson"), str(tmp_path / "b.ndjson")]
    assert all(len(suffix) == 8 and int(suffix, 16) >= 0 for _, suffix in names)


def test_an_identity_is_remembered_before_the_first_batch_and_moves_with_commits(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    path.write_bytes(numbered(1000))
    ctx = FakeContext(block_bytes=1000)
    run = Run(Files(path), ctx, commit=False)
    before = dict(ctx.kept)

    run.turn()
    at_first = ctx.kept[run.batches[0].partition]
    run.settle()
    run.commit(run.batches[0].partition, run.batches[3].end)

    assert before == {}
    details = msgspec.msgpack.decode(at_first.details)
    assert (details["head_length"], details["tail_end"]) == (4096, 0)
    moved = msgspec.msgpack.decode(ctx.kept[at_first.partition].details)
    assert (moved["tail_end"], moved["tail_length"]) == (run.batches[3].end, run.batches[3].end)
    run.close()


@pytest.mark.parametrize("kind", ["plain", "gzip", "zstd"])
def test_an_identity_that_lags_behind_its_position_still_fits(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.ndjson{SUFFIX[kind]}"
    path.write_bytes(PACK[kind](numbered(1000)))
    ctx = FakeContext(block_bytes=1000)
    run = Run(Files(path), ctx, commit=False).settle()
    partition = run.batches[0].partition
    run.commit(partition, run.batches[5].end)

    for position in (run.batches[5].end, run.batches[9].end, run.batches[-1].end):
        again = run_to_end(Files(path), ctx.restarted({partition: position}))

        assert run.content[:position] + again.content == numbered(1000)
        assert {batch.partition for batch in again.batches} <= {partition}
    run.close()


def test_a_renamed_file_goes_on_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "a.ndjson").write_bytes(numbered(1000))
    ctx = FakeContext(block_bytes=1000)
    run = Run(Files(tmp_path / "*"), ctx)
    run.turn()
    run.close()
    (tmp_path / "a.ndjson").rename(tmp_path / "z.ndjson")

    again = run_to_end(Files(tmp_path / "*"), ctx.restarted())

    assert run.content + again.content == numbered(1000)
    assert again.batches[0].partition == run.batches[0].partition


@pytest.mark.parametrize("cut_tail", [True, False])
def test_a_position_past_the_file_is_a_new_partition_and_a_warning(tmp_path: Path, cut_tail: bool) -> None:
    """F05"""
    path = tmp_path / "a.ndjson"
    path.write_bytes(numbered(100))
    ctx = FakeContext(block_bytes=1000)
    first = run_to_end(Files(path), ctx)
    size = path.stat().st_size
    if cut_tail:
        path.write_bytes(numbered(50))
        size = path.stat().st_size
    past = first.batches[0].end + 1_000_000 if not cut_tail else ctx.positions[first.batches[0].partition]

    again = run_to_end(Files(path), ctx.restarted({first.batches[0].partition: past}))

    assert again.content == path.read_bytes()
    assert again.batches[0].partition != first.batches[0].partition
    [(event, values)] = again.ctx.warnings
    assert "truncated" in event
    assert (values["position"], values["size"], values["path"]) == (past, size, str(path))


def test_a_rewritten_file_is_a_new_partition_and_a_warning(tmp_path: Path) -> None:
    """F05 F06: same head, same length, other bytes before the position."""
    path = tmp_path / "a.ndjson"
    path.write_bytes(numbered(1000))
    first = run_to_end(Files(path), FakeContext(block_bytes=1000))
    rewritten = numbered(1000).replace(b'"n":99', b'"n":77')
    path.write_bytes(rewritten)

    again = run_to_end(Files(path), first.ctx.restarted())

    assert again.content == rewritten
    assert len(again.ctx.warnings) == 1


def test_a_recycled_inode_with_other_content_is_read_from_its_start(tmp_path: Path) -> None:
    """F02"""
    path = tmp_path / "a.ndjson"
    path.write_bytes(b"old 1\nold 2\n")
    first = run_to_end(Files(path), FakeContext())
    path.write_bytes(b"new 1\nnew 2\nnew 3\n")  # the same inode

    again = run_to_end(Files(path), first.ctx.restarted())

    assert again.lines == [b"new 1", b"new 2", b"new 3"]


def test_the_rest_of_a_rotated_file_is_read_and_then_the_new_one(tmp_path: Path) -> None:
    """F03"""
    path = tmp_path / "app.log"
    path.write_bytes(b"a\nb\n")
    first = run_to_end(Files(path), FakeContext())
    with path.open("ab") as file:
        file.write(b"c\n")
    path.rename(tmp_path / "app.log.1")
    path.write_bytes(b"d\n")

    for paths in (path, tmp_path / "app.log*"):
        again = run_to_end(Files(paths), first.ctx.restarted())

        assert again.lines == [b"c", b"d"]
        assert again.ctx.warnings == []


def test_a_rotation_that_left_no_rest_is_no_change(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    path.write_bytes(b"a\nb\n")
    ctx = run_to_end(Files(path), FakeContext()).ctx.restarted()
    path.rename(tmp_path / "app.log.1")
    path.write_bytes(b"c\n")
    second = run_to_end(Files(path), ctx)
    (tmp_path / "app.log.1").rename(tmp_path / "app.log.2")
    path.rename(tmp_path / "app.log.1")
    path.write_bytes(b"d\n")

    third = run_to_end(Files(path), second.ctx.restarted())

    assert (second.lines, third.lines) == ([b"c"], [b"d"])
    assert second.ctx.warnings == third.ctx.warnings == []


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
@pytest.mark.parametrize("read", [0, 3, 1000])
def test_a_plain_file_that_was_packed_is_the_same_content(tmp_path: Path, kind: str, read: int) -> None:
    """F12"""
    path = tmp_path / "app.log"
    path.write_bytes(numbered(1000))
    ctx = FakeContext(block_bytes=2000)
    run = Run(Files(tmp_path / "app.log*"), ctx)
    for _ in range(read):
        run.turn()
    run.close()
    path.unlink()
    (tmp_path / f"app.log.1{SUFFIX[kind]}").write_bytes(PACK[kind](numbered(1000)))
    path.write_bytes(b"next\n")

    again = run_to_end(Files(tmp_path / "app.log*"), ctx.restarted())

    assert sorted(run.lines + again.lines) == sorted([*numbered(1000).splitlines(), b"next"])


def test_packed_files_with_the_same_head_are_told_apart(tmp_path: Path) -> None:
    """F12: fingerprints that clash."""
    head = b"#" * 5000 + b"\n"
    (tmp_path / "a.gz").write_bytes(gz(head + b"a1\na2\n"))
    (tmp_path / "b.gz").write_bytes(gz(head + b"b1\nb2\nb3\n"))
    first = run_to_end(Files(tmp_path / "*.gz"), FakeContext(block_bytes=100))
    (tmp_path / "a.gz").rename(tmp_path / "c")
    (tmp_path / "b.gz").rename(tmp_path / "a.gz")
    copied = (tmp_path / "c").read_bytes()
    (tmp_path / "c").unlink()
    (tmp_path / "b.gz").write_bytes(copied)

    again = run_to_end(Files(tmp_path / "*.gz"), first.ctx.restarted())

    assert len(first.lines) == 7
    assert again.batches == []


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_truncated_file_gives_all_whole_lines_and_one_reject(tmp_path: Path, suffix: str) -> None:
    """F14"""
    data = numbered(9000, 20)
    packed = gz(data, 2) if suffix == ".gz" else zst(data)
    (tmp_path / "good.ndjson").write_bytes(numbered(3))
    path = tmp_path / f"cut.ndjson{suffix}"
    for cut in range(0, len(packed), len(packed) // 50):
        path.write_bytes(packed[:cut])

        run = run_to_end(Files(tmp_path / "*.ndjson*"), FakeContext(block_bytes=5000))

        assert len(run.rejects) == 1, cut
        [reject] = run.rejects
        got = b"".join(batch.block or b"" for batch in run.batches if batch.partition == reject.partition)
        assert data.startswith(got)
        assert got == b"" or got.endswith(b"\n")
        assert data[len(got) :].startswith(reject.raw[:100])
        assert reject.position >= len(got)
        assert (reject.stage, str(path) in reject.cause, "truncated" in reject.cause) == ("read", True, True)
        others = [batch.block or b"" for batch in run.batches if batch.partition != reject.partition]
        assert b"".join(others) == numbered(3)
        again = run_to_end(Files(tmp_path / "*.ndjson*"), run.ctx.restarted())
        assert again.batches == [], "the loss is told once"


@pytest.mark.parametrize("missing", [1, 9, 60, 300])
def test_a_truncated_file_that_was_made_whole_goes_on_with_its_torn_line(tmp_path: Path, missing: int) -> None:
    """F14 F06"""
    data = numbered(2000, 20)
    path = tmp_path / "a.ndjson.gz"
    path.write_bytes(gz(data)[:-missing])
    first = run_to_end(Files(path), FakeContext(block_bytes=5000))
    path.write_bytes(gz(data))

    again = run_to_end(Files(path), first.ctx.restarted())

    assert len(first.rejects) == 1
    assert first.content + again.content == data
    assert again.rejects == []


def test_corrupt_data_end_a_file_with_one_reject(tmp_path: Path) -> None:
    packed = bytearray(gz(numbered(5000, 20)))
    packed[len(packed) // 2] ^= 0xFF
    path = tmp_path / "a.ndjson.gz"
    path.write_bytes(packed)

    run = run_to_end(Files(path), FakeContext(block_bytes=5000))

    [reject] = run.rejects
    assert "corrupt" in reject.cause
    assert numbered(5000, 20).startswith(run.content[:100])
    assert len(run.lines) > 100
    assert run_to_end(Files(path), run.ctx.restarted()).batches == []


def test_bytes_after_packed_data_are_ignored_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson.gz"
    path.write_bytes(gz(b"1\n2\n") + b"garbage")

    run = run_to_end(Files(path), FakeContext())

    assert run.lines == [b"1", b"2"]
    assert len(run.ctx.warnings) == 1


@pytest.mark.parametrize("kind", ["plain", "gzip", "zstd"])
def test_a_line_over_the_limit_is_one_reject_and_the_next_is_read_right(tmp_path: Path, kind: str) -> None:
    """F09"""
    path = tmp_path / f"a.ndjson{SUFFIX[kind]}"
    path.write_bytes(PACK[kind](b"1\n" + b"x" * 20_000_000 + b"\n2\n" + b"y" * 2000))

    run = run_to_end(Files(path), FakeContext(block_bytes=256, max_record_bytes=1000))

    assert run.lines == [b"1", b"2"]
    long, last = run.rejects
    assert (long.stage, long.position, long.raw) == ("oversize", 20_000_002, b"x" * 1024)
    assert "shm.slot_bytes" in long.cause
    assert (last.stage, last.position, last.raw) == ("oversize", 20_000_004 + 2000, b"y" * 1024)
    assert run_to_end(Files(path), run.ctx.restarted()).batches == []


@pytest.mark.parametrize("length", [999, 1000, 1001])
def test_the_limit_counts_a_line_without_its_newline(tmp_path: Path, length: int) -> None:
    path = tmp_path / "a.ndjson"
    path.write_bytes(b"x" * length + b"\n")

    run = run_to_end(Files(path), FakeContext(block_bytes=100_000, max_record_bytes=1000))

    assert len(run.lines) == (length <= 1000)
    assert len(run.rejects) == (length > 1000)


def test_a_sparse_line_is_one_reject(tmp_path: Path) -> None:
    """F09: a file of 200 MB that is a hole."""
    path = tmp_path / "a.ndjson"
    with path.open("wb") as file:
        file.truncate(200_000_000)
        file.seek(0, 2)
        file.write(b"\nnext\n")

    run = run_to_end(Files(path), FakeContext(max_record_bytes=100_000))

    assert run.lines == [b"next"]
    assert [(reject.stage, reject.position) for reject in run.rejects] == [("oversize", 200_000_000)]


def test_a_hole_at_the_start_is_skipped_with_one_warning(tmp_path: Path) -> None:
    """F11"""
    path = tmp_path / "a.ndjson"
    with path.open("wb") as file:
        file.seek(2**30 + 123)
        file.write(b"1\n2\n")

    run = run_to_end(Files(path), FakeContext())

    assert run.lines == [b"1", b"2"]
    assert run.batches[0].start == 2**30 + 123
    assert [values["bytes"] for _, values in run.ctx.warnings] == [2**30 + 123]
    assert run_to_end(Files(path), run.ctx.restarted()).batches == []


def test_carriage_returns_and_blank_lines_are_left_to_the_decoder(tmp_path: Path) -> None:
    """F17 J05"""
    path = tmp_path / "a.ndjson"
    data = b"\n\r\n1\r\n   \n2\n\n"
    path.write_bytes(data)

    run = run_to_end(Files(path), FakeContext())

    assert run.content == data
    assert run.batches[-1].end == len(data)


@pytest.mark.parametrize("block", [64, 4096, 65536])
@pytest.mark.parametrize("kind", ["plain", "gzip", "zstd"])
def test_an_unfinished_last_line_is_a_record_whatever_the_size(tmp_path: Path, block: int, kind: str) -> None:
    """J07"""
    for count in itertools.chain(range(1, 12), range(330, 350, 3)):
        path = tmp_path / f"{count}.ndjson{SUFFIX[kind]}"
        path.write_bytes(PACK[kind](numbered(count) + b'{"syntaxerror'))

        run = run_to_end(Files(path), FakeContext(block_bytes=block))

        assert run.lines == [*numbered(count).splitlines(), b'{"syntaxerror']


def test_the_rest_of_a_line_that_was_read_unfinished_is_a_reject(tmp_path: Path) -> None:
    """F06"""
    path = tmp_path / "a.ndjson"
    path.write_bytes(b"1\n22")
    first = run_to_end(Files(path), FakeContext())
    with path.open("ab") as file:
        file.write(b"33\n4\n")

    again = run_to_end(Files(path), first.ctx.restarted())

    assert first.lines == [b"1", b"22"]
    assert again.lines == [b"4"]
    assert [(reject.stage, reject.raw, reject.position) for reject in again.rejects] == [("read", b"33", 6)]


@pytest.mark.parametrize("kind", ["plain", "gzip", "zstd"])
def test_csv_blocks_carry_the_header_and_whole_records(tmp_path: Path, kind: str) -> None:
    data = b"name,text\n" + b"".join(b'%d,"line one\nline ""two"", %d"\n' % (n, n) for n in range(200))
    path = tmp_path / f"a.csv{SUFFIX[kind]}"
    path.write_bytes(PACK[kind](data))

    first = run_to_end(Files(path), FakeContext(block_bytes=100), commit=False)

    assert b"name,text\n" + first.content == data
    assert {batch.header for batch in first.batches} == {b"name,text\n"}
    assert all(batch.block is not None and batch.block.count(b'"') % 6 == 0 for batch in first.batches)
    for done in (0, 7, len(first.batches) - 2):
        position = first.batches[done].end
        again = run_to_end(Files(path), first.ctx.restarted({first.batches[0].partition: position}))
        assert again.content == data[position:]
        assert {batch.header for batch in again.batches} == {b"name,text\n"}
        assert {batch.partition for batch in again.batches} == {first.batches[0].partition}


@pytest.mark.parametrize("content", [b"", b"\n", b"a,b", b"a,b\n", b"\na,b\n"])
def test_a_csv_file_without_records_is_at_its_end(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)

    assert run_to_end(Files(path), FakeContext()).batches == []


def test_lanes_can_be_paused(tmp_path: Path) -> None:
    (tmp_path / "a.ndjson").write_bytes(b"1\n")
    (tmp_path / "b.ndjson").write_bytes(b"2\n")
    run = Run(Files(tmp_path / "*"), FakeContext())
    event = run.source.poll_events()
    assert isinstance(event, LanesAssigned)
    run.lanes = {lane.id: lane for lane in event.lanes}
    first, second = event.lanes

    run.source.pause([first.id])
    while_paused = run.settle().lines
    run.source.resume([first.id])
    run.settle()

    assert while_paused == [b"2"]
    assert run.lines == [b"2", b"1"]
    assert run.drained
    run.close()
    assert second.poll(10) is None


def test_more_files_than_descriptors_are_read_in_turn(tmp_path: Path) -> None:
    for number in range(1500):
        (tmp_path / f"{number:04}.ndjson").write_bytes(b"%d\n" % number)

    run = run_to_end(Files(tmp_path / "*.ndjson"), FakeContext())
    again = run_to_end(Files(tmp_path / "*.ndjson"), run.ctx.restarted())

    assert sorted(map(int, run.lines)) == list(range(1500))
    assert again.batches == []


def test_paths_that_cannot_be_read_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path, reason in [
        ("missing.ndjson", "No such file"),
        ("nowhere/*.ndjson", "directory"),
        ("*.ndjson", "no file matches"),
        ("folder", "directory"),
    ]:
        with pytest.raises(SourceError, match=reason) as caught:
            Files(tmp_path / path).open(FakeContext())
        assert str(tmp_path / path) in str(caught.value)


@pytest.mark.parametrize(
    ("paths", "decode", "asked", "expected"),
    [
        ("a.ndjson", dict, "auto", "ndjson"),
        ("a.csv.gz", dict, "auto", "csv"),
        ("a.csv*", dict, "auto", "csv"),
        ("*.log", dict, "auto", "ndjson"),
        ("a.csv", bytes, "auto", "lines"),
        ("a.csv", dict, "ndjson", "ndjson"),
        ("a.log", dict, "lines", "lines"),
    ],
)
def test_the_format_goes_by_the_suffix(paths: str, decode: type, asked: str, expected: str) -> None:
    source = Files(paths, decode=decode, format=asked)  # type: ignore[arg-type]  # any of the literals

    assert source.format == expected
    assert source.decode is (bytes if expected == "lines" else decode)


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="one source for each"):
        Files(["a.csv", "b.ndjson"])
    with pytest.raises(ConfigError, match="parquet"):
        Files("a", format="parquet")  # type: ignore[arg-type]  # what a user may write
    with pytest.raises(ConfigError, match="bz2"):
        Files("a", compression="bz2")  # type: ignore[arg-type]  # what a user may write
    with pytest.raises(ConfigError, match="ignore"):
        Files("a", on_error="ignore")  # type: ignore[arg-type]  # what a user may write
    with pytest.raises(ConfigError, match="no file"):
        Files([])


def test_paths_are_resolved_against_a_directory(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"1\n")

    run = run_to_end(Files("*.log", format="lines").resolve(tmp_path), FakeContext())

    assert run.lines == [b"1"]
    assert run.batches[0].partition.startswith(str(tmp_path / "a.log#"))


def test_names_with_odd_characters_are_read(tmp_path: Path) -> None:
    (tmp_path / "data[1].ndjson").write_bytes(b"1\n")
    odd = Path(str(tmp_path), b"bad\xff.log".decode(errors="surrogateescape"))
    odd.write_bytes(b"2\n")

    one = run_to_end(Files(tmp_path / "data[1].ndjson"), FakeContext())
    other = run_to_end(Files(tmp_path / "*.log"), FakeContext())

    assert one.lines == [b"1"]
    assert other.lines == [b"2"]
    assert str(other.batches[0].partition.encode(), "utf-8")
    assert run_to_end(Files(tmp_path / "*.log"), other.ctx.restarted()).batches == []


def test_an_identity_of_another_source_is_ignored_with_a_warning(tmp_path: Path) -> None:
    from headrace.record import PartitionIdentity

    (tmp_path / "a.ndjson").write_bytes(b"1\n")
    ctx = FakeContext()
    ctx.remember(PartitionIdentity(partition=PartitionId("topic-0"), details=b"\x80"))

    assert lines_of(run_to_end(Files(tmp_path / "*"), ctx).batches[0]) == [b"1"]
    assert len(ctx.warnings) == 1


def test_a_file_that_shrinks_while_it_is_read_is_a_warning(tmp_path: Path) -> None:
    """F05"""
    path = tmp_path / "a.ndjson"
    path.write_bytes(numbered(100))
    run = Run(Files(path), FakeContext(block_bytes=1000))
    run.turn()
    path.write_bytes(b"1\n")

    run.settle().close()

    [(_, values)] = run.ctx.warnings
    assert (values["position"], values["size"]) == (run.batches[0].end, 2)
