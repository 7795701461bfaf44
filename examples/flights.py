"""Flights that departed, from newline-delimited JSON into an SQLite table."""

import os
from pathlib import Path

import msgspec

from headrace import Pipeline
from headrace.sinks import Sqlite
from headrace.sources import Files

SAMPLE = Path(__file__).with_name("data") / "flights-20000.ndjson.gz"


class Flight(msgspec.Struct):
    """The fields of a flight that this pipeline looks at; the others are skipped while decoding."""

    carrier: str
    flight: int
    tailnum: str | None
    origin: str
    dest: str
    dep_delay: int | None
    distance: int
    time_hour: str


pipeline = (
    Pipeline("flights")
    .source(Files(os.environ.get("FLIGHTS", SAMPLE), decode=Flight))
    .filter(lambda f: f.dep_delay is not None)
    .shard_by(lambda f: f.tailnum)
    .map(lambda f: (f.carrier, f.flight, f.origin, f.dest, f.dep_delay, f.distance, f.time_hour))
    .sink(
        Sqlite(
            "flights.db",
            table="flights",
            create=True,
            columns=["carrier", "flight", "origin", "dest", "dep_delay", "distance", "time_hour"],
        )
    )
)
