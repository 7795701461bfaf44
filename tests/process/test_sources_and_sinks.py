"""Each kind of input, operator and output through the real command, read back as what was put in."""

import gzip
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from headrace.supervisor import process
from headrace.supervisor.process import ProcessIdentity, boot_id
from tests.process.records import TO_SQLITE, chain, landed, lines_of_numbers, write_lines, written
from tests.process.run_headrace import Headrace, wait_until

COUNT = 300
STEPS = ("map(lambda r: (r.n,))", f"sink({TO_SQLITE})")


def packed(lines: list[str], how: str) -> bytes:
    """The lines as a file's bytes: two members or frames where it is compressed."""
    halves = ["".join(f"{line}\n" for line in part).encode() for part in (lines[:100], lines[100:])]
    match how:
        case "gzip":
            return b"".join(map(gzip.compress, halves))
        case "zstd":
            return b"".join(map(zstandard.compress, halves))
        case _:
            return b"".join(halves)


@pytest.mark.parametrize("side", ["supervisor", "workers"])
def test_files_of_every_compression_are_read_as_one_input(headrace: Headrace, side: str) -> None:
    lines = lines_of_numbers(3 * COUNT)
    for number, how in enumerate(("plain", "gzip", "zstd")):
        part = lines[number * COUNT : (number + 1) * COUNT]
        (headrace.folder / f"in-{number}").write_bytes(packed(part, how))
    before = ('shard_by("n")',) if side == "workers" else ()
    pipeline = headrace.write("p.py", chain(*before, *STEPS, source='Files("in-*", decode=Number)'))

    report = headrace.run_pipeline(pipeline, "--workers", "2").expect(0).report

    assert landed(headrace) == list(range(3 * COUNT))
    assert len(report["watermarks"]) == 3
    assert sorted(report["watermarks"].values()) == sorted(
        sum(len(line) + 1 for line in lines[at : at + COUNT]) for at in range(0, 3 * COUNT, COUNT)
    )


@pytest.mark.parametrize("decode", ["Number", pytest.param("dict", marks=pytest.mark.slow)])
def test_csv_is_read_with_its_header_and_its_quotes(headrace: Headrace, decode: str) -> None:
    rows = "".join(f'"line {n}\nof ""two""",{n}\r\n' for n in range(COUNT))
    (headrace.folder / "in.csv.gz").write_bytes(gzip.compress(f"text,n\r\n{rows}".encode()))
    made = "(r.n, r.text)" if decode == "Number" else "(int(r['n']), r['text'])"
    sink = 'sink(Sqlite("out.db", table="t", create=True, columns=["n", "text"]))'
    source = f'Files("in.csv.gz", decode={decode})'
    pipeline = headrace.write("p.py", chain('shard_by("n")', f"map(lambda r: {made})", sink, source=source))

    headrace.run_pipeline(pipeline, "--workers", "2").expect(0)
    again = headrace.run_pipeline(pipeline, "--workers", "1").expect(0).report

    assert landed(headrace) == list(range(COUNT))
    assert landed(headrace, column="text") == sorted(f'line {n}\nof "two"' for n in range(COUNT))
    assert again["records_in"] == 0


def test_lines_are_carried_as_they_are(headrace: Headrace) -> None:
    given = [b"\xff\xfe raw", b"", b"a\tb", b"  spaces  "]
    (headrace.folder / "in.log").write_bytes(b"\n".join(given))
    sink = 'sink(Sqlite("out.db", table="t", create=True, columns=["line"]))'
    source = 'Files("in.log", decode=bytes)'
    pipeline = headrace.write("p.py", chain("map(lambda line: (line,))", sink, source=source))

    headrace.run_pipeline(pipeline, "--workers", "1").expect(0)

    assert landed(headrace, column="line") == sorted(line for line in given if line)


OPERATORS = """
seen = []

def total(rows):
    return [(n, len(rows)) if n % 2 else None for n in rows]

def fan(r):
    yield r.n
    if r.n % 3 == 0:
        yield 1000 + r.n

def look(r):
    os.write(2, b"looked\\n")
"""


@pytest.mark.parametrize("before", [(), ("shard_by(lambda r: r.n)",)], ids=["supervisor", "workers"])
def test_operators_work_together_on_either_side(headrace: Headrace, before: tuple[str, ...]) -> None:
    write_lines(headrace, lines_of_numbers(COUNT))
    sink = 'sink(Sqlite("out.db", table="t", create=True, columns=["n", "rows"]))'
    steps = (*before, "inspect(look)", "filter(lambda r: r.n % 5)", "flat_map(fan)", "map_batch(total)", sink)
    pipeline = headrace.write("p.py", chain(*steps, more=OPERATORS))

    finished = headrace.run_pipeline(pipeline, "--workers", "2").expect(0)

    fanned = [n for n in range(COUNT) if n % 5] + [1000 + n for n in range(COUNT) if n % 5 and n % 3 == 0]
    expected = sorted(n for n in fanned if n % 2)
    assert landed(headrace) == expected
    assert finished.stderr.count("looked") == COUNT
    report = finished.report
    odd = {n % 1000 for n in expected}
    assert (report["records_in"], report["rows_written"]) == (COUNT, len(expected))
    assert (report["filtered"], written(report)) == (COUNT - len(odd), len(odd))


def rows_of_parts(folder: Path) -> Iterator[int]:
    """What a directory of parts holds, each of which must end with a whole line."""
    for path in sorted(folder.iterdir()):
        raw = path.read_bytes()
        match path.suffix:
            case ".gz":
                raw = gzip.decompress(raw)
            case ".zst":
                with zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True) as reader:
                    raw = reader.read()
            case _:
                pass
        assert raw.endswith(b"\n"), path
        for line in raw.splitlines():
            yield json.loads(line)["n"]


PARTS = """
def work(r):
    time.sleep(0.0005)
    return {"n": r.n}

SETTINGS |= {"checkpoint.interval": "50ms", "batch.linger": "20ms", "source.max_records": 200}
"""


@pytest.mark.parametrize("compress", [None, *(pytest.param(how, marks=pytest.mark.slow) for how in ("gzip", "zstd"))])
def test_parts_hold_whole_lines_and_every_row_after_kills(headrace: Headrace, compress: str | None) -> None:
    """Adopted by the next that opens the folder: what a killed writer left open is cut and named."""
    count = 2000
    write_lines(headrace, lines_of_numbers(count))
    sink = f'sink(NdjsonFiles("out", roll_rows=150, compress={compress!r}))'
    pipeline = headrace.write("p.py", chain('shard_by("n")', "map(work)", sink, more=PARTS))
    out = headrace.folder / "out"
    first = headrace.start_pipeline(pipeline, "--workers", "2")
    seen = first.wait_for_workers(2)
    first.wait_until(lambda: out.exists() and len(list(out.iterdir())) > 2, "parts")
    process.kill(ProcessIdentity(boot_id(), seen.workers[0].pid, seen.workers[0].start_time))
    first.wait_until(lambda: "a worker was lost" in first.stderr, "the loss")
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    wait_until(lambda: not headrace.processes(), limit=2.0, what="no process of the killed run is left")

    headrace.run_pipeline(pipeline, "--workers", "2").expect(0)

    assert set(rows_of_parts(out)) == set(range(count))
    assert not [path.name for path in out.iterdir() if path.name.startswith(".")]


def test_parts_of_an_undisturbed_run_hold_every_row_once(headrace: Headrace) -> None:
    write_lines(headrace, lines_of_numbers(COUNT))
    sink = 'sink(NdjsonFiles("out", roll_rows=20))'
    pipeline = headrace.write("p.py", chain("map(lambda r: {'n': r.n})", sink))

    headrace.run_pipeline(pipeline, "--workers", "2").expect(0)

    assert sorted(rows_of_parts(headrace.folder / "out")) == list(range(COUNT))


FOLLOWED = 'Files("log/in.ndjson", decode=Number, follow=True)'


def append(path: Path, numbers: range) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines(f'{{"n": {n}}}\n' for n in numbers)


def test_a_followed_file_is_read_through_rotations_truncation_and_a_restart(headrace: Headrace) -> None:
    """F01, F02: nothing lost, nothing twice, whoever renames or truncates meanwhile."""
    log = headrace.folder / "log"
    log.mkdir()
    path = log / "in.ndjson"
    append(path, range(100))
    pipeline = headrace.write(
        "p.py", chain(*STEPS, source=FOLLOWED, more='SETTINGS["source.follow_interval"] = "20ms"\n')
    )
    running = headrace.start_pipeline(pipeline, "--workers", "2")

    def all_landed(count: int) -> None:
        running.wait_until(lambda: landed(headrace) == list(range(count)), f"{count} rows")

    all_landed(100)
    path.rename(log / "in.ndjson.1")
    append(log / "in.ndjson.1", range(100, 150))
    append(path, range(150, 200))
    all_landed(200)
    (log / "in.ndjson.2").write_bytes(path.read_bytes())
    os.truncate(path, 0)
    append(path, range(200, 250))
    all_landed(250)
    with path.open("a", encoding="utf-8") as file:
        file.write('{"n": 25')
    running.signal(signal.SIGTERM)
    first = running.wait().expect(0).report
    with path.open("a", encoding="utf-8") as file:
        file.write("0}\n")
    append(path, range(251, 300))
    running = headrace.start_pipeline(pipeline, "--workers", "2")
    all_landed(300)
    running.signal(signal.SIGTERM)
    second = running.wait().expect(0).report

    assert first["records_in"] + second["records_in"] == 300
    assert landed(headrace) == list(range(300))


def test_files_that_come_and_go_while_they_are_followed_are_read(headrace: Headrace) -> None:
    append(headrace.folder / "in-0.ndjson", range(10))
    source = 'Files("in-*.ndjson", decode=Number, follow=True)'
    pipeline = headrace.write(
        "p.py", chain(*STEPS, source=source, more='SETTINGS["source.follow_interval"] = "20ms"\n')
    )
    running = headrace.start_pipeline(pipeline, "--workers", "1")
    running.wait_until(lambda: landed(headrace) == list(range(10)), "10 rows")

    (headrace.folder / "in-0.ndjson").unlink()
    (headrace.folder / "in-1.ndjson").mkdir()
    (headrace.folder / "in-2.ndjson").symlink_to("nowhere")
    append(headrace.folder / "in-3.ndjson", range(10, 20))
    running.wait_until(lambda: landed(headrace) == list(range(20)), "20 rows")
    running.signal(signal.SIGTERM)

    assert running.wait().expect(0).report["records_in"] == 20


def test_standard_input_is_read_as_it_comes(headrace: Headrace) -> None:
    pipeline = headrace.write("p.py", chain(*STEPS, source="Stdin(decode=Number)"))
    reading, writing = os.pipe()
    try:
        running = headrace.start("run", pipeline, "--state", headrace.state, "--json", stdin=reading)
        os.close(reading)
        for n in range(3):
            os.write(writing, b'{"n": %d}\n' % n)
            running.wait_until(lambda n=n: landed(headrace) == list(range(n + 1)), f"row {n}")  # type: ignore[misc]
        os.write(writing, b'{"n": 3}')
    finally:
        os.close(writing)
    report = running.wait().expect(0).report

    assert (report["state"], report["records_in"]) == ("complete", 4)
    assert landed(headrace) == list(range(4))
