"""Memory is bounded by settings, not by the length of the stream (HR-9)."""

import gzip
import time
from pathlib import Path

import pytest

from tests.process.run_headrace import Headrace
from tests.scale import scaled

PIPELINE = """
import msgspec
from headrace import Pipeline
from headrace.sources import Files
from headrace.sinks import NdjsonFiles

class Event(msgspec.Struct):
    user: str
    n: int
    text: str

pipeline = (
    Pipeline("events", settings={{"backpressure.max_inflight_bytes": "32MiB"}})
    .source(Files("events-{records}.ndjson.gz", decode=Event))
    .shard_by("user")
    .map(lambda e: {{"user": e.user, "n": e.n, "text": e.text}})
    .sink(NdjsonFiles("out-{records}"))
)
"""


def summed_pss(headrace: Headrace) -> int:
    total = 0
    for one in headrace.processes():
        try:
            rollup = Path(f"/proc/{one.pid}/smaps_rollup").read_text(encoding="ascii")
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))
    return total


def peak(headrace: Headrace, records: int) -> int:
    with gzip.open(headrace.folder / f"events-{records}.ndjson.gz", "wb", compresslevel=1) as out:
        for first in range(0, records, 10_000):
            out.write(
                b"".join(
                    b'{"user":"user-%d","n":%d,"text":"%s"}\n' % (n * 7919 % 100_003, n, b"x" * (n % 64))
                    for n in range(first, min(first + 10_000, records))
                )
            )
    pipeline = headrace.write(f"p{records}.py", PIPELINE.format(records=records))
    running = headrace.start(
        "run", pipeline, "--state", headrace.folder / f"state-{records}", "--json", "--workers", "2"
    )
    highest = 0
    while not running.has_ended:
        highest = max(highest, summed_pss(headrace))
        time.sleep(0.05)  # the rate at which the peak is sampled
    report = running.wait().expect(0).report
    assert report["rows_written"] == records
    return highest


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_ten_times_the_stream_takes_no_more_memory(headrace: Headrace) -> None:
    """B01, B02: the peak of the summed PSS at 10^7 records is within 10 % of that at 10^6."""
    short, long = peak(headrace, 1_000_000), peak(headrace, scaled(10_000_000, least=3_000_000))

    assert long <= 1.1 * short, f"{short / 2**20:.1f} MiB at 10^6, {long / 2**20:.1f} MiB at 10^7"
