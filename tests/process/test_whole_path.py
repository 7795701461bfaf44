"""The real flights through the real command: every answer exact, whatever the number of workers and the side."""

import json
import sqlite3
from pathlib import Path

import pytest

from tests.process import flights
from tests.process.run_headrace import Headrace

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("workers", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("side", ["supervisor", "workers"])
def test_every_flight_lands_exactly_once(headrace: Headrace, workers: int, side: str) -> None:
    chain = flights.DECODE_IN_SUPERVISOR if side == "supervisor" else flights.DECODE_IN_WORKERS
    pipeline = headrace.write("flights.py", flights.STRUCT + chain.format(path=str(flights.flights_data())))

    report = headrace.run_pipeline(pipeline, "--workers", str(workers)).expect(0).report

    assert report["state"] == "complete"
    assert report["records_in"] == report["rows_written"] == flights.RECORDS
    assert report["workers_lost"] == report["chunks_redelivered"] == 0
    flights.check_exactly(headrace.folder / "flights.db")


def test_the_example_lands_what_a_plain_loop_finds(headrace: Headrace) -> None:
    example = ROOT / "examples" / "flights.py"

    report = headrace.run_pipeline(example, "--workers", "2").expect(0).report

    expected = []
    filtered = 0
    import gzip

    with gzip.open(ROOT / "examples" / "data" / "flights-20000.ndjson.gz") as lines:
        for line in lines:
            flight = json.loads(line)
            if flight["dep_delay"] is None:
                filtered += 1
                continue
            columns = ("carrier", "flight", "origin", "dest", "dep_delay", "distance", "time_hour")
            expected.append(tuple(flight[column] for column in columns))
    db = sqlite3.connect(headrace.folder / "flights.db")
    landed = db.execute("SELECT * FROM flights").fetchall()
    db.close()
    assert sorted(landed) == sorted(expected)
    assert (report["records_in"], report["filtered"]) == (20_000, filtered)


def test_a_finished_pipeline_finds_nothing_new_and_a_grown_file_continues(headrace: Headrace) -> None:
    lines = [json.dumps({"n": n}) for n in range(1000)]
    headrace.write("in.ndjson", "".join(f"{line}\n" for line in lines[:600]))
    pipeline = headrace.write(
        "p.py",
        "from headrace import Pipeline\nfrom headrace.sources import Files\nfrom headrace.sinks import Sqlite\n"
        "pipeline = (Pipeline('p').source(Files('in.ndjson', decode=dict)).map(lambda r: (r['n'],))"
        ".sink(Sqlite('out.db', table='t', create=True, columns=['n'])))\n",
    )

    first = headrace.run_pipeline(pipeline, "--workers", "1").expect(0).report
    again = headrace.run_pipeline(pipeline, "--workers", "1").expect(0).report
    with (headrace.folder / "in.ndjson").open("a", encoding="utf-8") as grown:
        grown.write("".join(f"{line}\n" for line in lines[600:]))
    grown_report = headrace.run_pipeline(pipeline, "--workers", "2").expect(0).report

    assert [report["records_in"] for report in (first, again, grown_report)] == [600, 0, 400]
    assert grown_report["incarnation"] == 3
    db = sqlite3.connect(headrace.folder / "out.db")
    assert sorted(n for (n,) in db.execute("SELECT n FROM t")) == list(range(1000))
    db.close()
