"""The pipeline that `path.py` measures: flights that departed, seven fields of each, into the sink that it names.

The variables come from `path.py`: BENCH_INPUT, BENCH_SINK (blackhole, ndjson, sqlite), BENCH_DECODE (supervisor: every
operator runs there; workers: the supervisor routes raw lines by one field).
"""

import os
from collections.abc import Callable

import msgspec

from headrace import Pipeline
from headrace.sinks import Blackhole, NdjsonFiles, Sqlite
from headrace.sinks.base import Sink
from headrace.sources import Files


class Flight(msgspec.Struct):
    """What is decoded of a flight."""

    carrier: str
    flight: int
    tailnum: str | None
    origin: str
    dest: str
    dep_delay: int | None
    distance: int
    time_hour: str


class Departure(msgspec.Struct):
    """What is written of a flight."""

    carrier: str
    flight: int
    origin: str
    dest: str
    dep_delay: int | None
    distance: int
    time_hour: str


def departed(flight: Flight) -> bool:
    """Whether the flight left."""
    return flight.dep_delay is not None


def shortened(flight: Flight) -> Departure:
    """The fields that are kept."""
    return Departure(
        flight.carrier,
        flight.flight,
        flight.origin,
        flight.dest,
        flight.dep_delay,
        flight.distance,
        flight.time_hour,
    )


def _pipeline() -> Pipeline:
    read = Pipeline("bench").source(Files(os.environ["BENCH_INPUT"], decode=Flight))
    if os.environ["BENCH_DECODE"] == "workers":
        return read.shard_by("tailnum").filter(departed).map(shortened)
    return read.filter(departed).map(shortened).shard_by(lambda row: row.dest)


SINKS: dict[str, Callable[[], Sink]] = {
    "blackhole": Blackhole,
    "ndjson": lambda: NdjsonFiles("out"),
    "sqlite": lambda: Sqlite("out.db", table="flights", create=True),
}

pipeline = _pipeline().sink(SINKS[os.environ["BENCH_SINK"]]())
