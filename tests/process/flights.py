"""The 336,776 flights, their right answers, and pipelines over them."""

import sqlite3
from pathlib import Path
from typing import Final

import pytest

from tests.scale import IN_CI

DATA: Final = Path(__file__).resolve().parents[3] / "shared" / "data" / "flights.ndjson.gz"

RECORDS: Final = 336_776
CANCELLED: Final = 8_255
BY_ORIGIN: Final = {"EWR": 120_835, "JFK": 111_279, "LGA": 104_662}
TAILNUMS: Final = 4_043
WITHOUT_TAILNUM: Final = 2_512
DISTANCE: Final = 350_217_607

COLUMNS: Final = ("carrier", "flight", "tailnum", "origin", "dest", "dep_time", "dep_delay", "distance", "time_hour")

STRUCT: Final = """
import msgspec, time
from headrace import Pipeline
from headrace.sources import Files
from headrace.sinks import Sqlite, NdjsonFiles, Blackhole

class Flight(msgspec.Struct):
    carrier: str
    flight: int
    tailnum: str | None
    origin: str
    dest: str
    dep_time: int | None
    dep_delay: int | None
    distance: int
    time_hour: str

COLUMNS = ["carrier", "flight", "tailnum", "origin", "dest", "dep_time", "dep_delay", "distance", "time_hour"]

def row(f):
    return (f.carrier, f.flight, f.tailnum, f.origin, f.dest, f.dep_time, f.dep_delay, f.distance, f.time_hour)
"""

DECODE_IN_SUPERVISOR: Final = """
pipeline = (
    Pipeline("flights")
    .source(Files({path!r}, decode=Flight))
    .shard_by(lambda f: f.tailnum)
    .map(row)
    .sink(Sqlite("flights.db", table="flights", create=True, columns=COLUMNS))
)
"""

DECODE_IN_WORKERS: Final = """
pipeline = (
    Pipeline("flights")
    .source(Files({path!r}, decode=Flight))
    .shard_by("tailnum")
    .map(row)
    .sink(Sqlite("flights.db", table="flights", create=True, columns=COLUMNS))
)
"""


def flights_data() -> Path:
    """The data, which lies beside the checkout; a checkout without it tests on the bundled sample elsewhere."""
    if not DATA.exists():
        missing = f"{DATA} is missing: all flights lie in shared/, beside the checkout"
        if IN_CI:
            pytest.fail(missing)
        pytest.skip(missing)
    return DATA


def check_exactly(database: Path) -> None:
    """Every answer, to the unit: nothing lost, nothing twice."""
    with_answers = _answers(database)
    assert with_answers == (RECORDS, CANCELLED, TAILNUMS, WITHOUT_TAILNUM, DISTANCE)
    assert _by_origin(database) == BY_ORIGIN


def check_at_least(database: Path, copies: int = 1) -> int:
    """Every flight is there, at least ``copies`` times; the number of rows beyond."""
    db = sqlite3.connect(database)
    try:
        # A flight is told apart by all of its columns: the whole year has no two alike.
        kinds, fewest, rows = db.execute(
            "SELECT count(*), min(times), sum(times) FROM"
            f" (SELECT count(*) AS times FROM flights GROUP BY {', '.join(COLUMNS)})"
        ).fetchone()
    finally:
        db.close()
    assert kinds == RECORDS
    assert fewest >= copies
    return int(rows) - copies * RECORDS


def _answers(database: Path) -> tuple[int, ...]:
    db = sqlite3.connect(database)
    try:
        row = db.execute(
            "SELECT count(*), sum(dep_time IS NULL), count(DISTINCT tailnum), sum(tailnum IS NULL), sum(distance)"
            " FROM flights"
        ).fetchone()
    finally:
        db.close()
    return tuple(row)


def _by_origin(database: Path) -> dict[str, int]:
    db = sqlite3.connect(database)
    try:
        return dict(db.execute("SELECT origin, count(*) FROM flights GROUP BY origin"))
    finally:
        db.close()
