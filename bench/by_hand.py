"""The same job as `bench_flights.py` without headrace: one process, one loop, no guarantee but a final fsync.

``python by_hand.py json|msgspec blackhole|ndjson|sqlite INPUT FOLDER`` prints the number of rows written.
"""

import json
import os
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

COLUMNS = ("carrier", "flight", "origin", "dest", "dep_delay", "distance", "time_hour")


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


def json_rows(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Rows as the standard library makes them."""
    for line in lines:
        flight = json.loads(line)
        if flight["dep_delay"] is not None:
            yield {name: flight[name] for name in COLUMNS}


def msgspec_rows(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Rows by way of a typed decoder."""
    decode = msgspec.json.Decoder(Flight).decode
    for line in lines:
        f = decode(line)
        if f.dep_delay is not None:
            yield {
                "carrier": f.carrier,
                "flight": f.flight,
                "origin": f.origin,
                "dest": f.dest,
                "dep_delay": f.dep_delay,
                "distance": f.distance,
                "time_hour": f.time_hour,
            }


def _json_bytes(row: object) -> bytes:
    return json.dumps(row).encode()


def to_lines(rows: Iterable[dict[str, Any]], library: str, target: Path) -> int:
    """Newline-delimited JSON into one file."""
    encode: Callable[[object], bytes] = msgspec.json.encode
    if library == "json":
        encode = _json_bytes
    count = 0
    with target.open("wb") as out:
        for row in rows:
            out.write(encode(row))
            out.write(b"\n")
            count += 1
        out.flush()
        if target.is_file():
            os.fsync(out.fileno())
    return count


def to_sqlite(rows: Iterable[dict[str, Any]], target: Path) -> int:
    """One table, 50,000 rows a transaction."""
    with closing(sqlite3.connect(target)) as db:
        db.execute("PRAGMA journal_mode = WAL").fetchone()
        db.execute(f"CREATE TABLE flights ({', '.join(COLUMNS)})")
        pending = (tuple(row.values()) for row in rows)
        while batch := list(islice(pending, 50_000)):
            with db:
                db.executemany("INSERT INTO flights VALUES (?, ?, ?, ?, ?, ?, ?)", batch)
        count: int = db.execute("SELECT count(*) FROM flights").fetchone()[0]
        return count


def main(library: str, sink: str, source: str, folder: str) -> int:
    """The whole job; the number of rows."""
    with open(source, "rb") as lines:
        rows = (msgspec_rows if library == "msgspec" else json_rows)(lines)
        if sink == "sqlite":
            return to_sqlite(rows, Path(folder) / "out.db")
        return to_lines(rows, library, Path(os.devnull) if sink == "blackhole" else Path(folder) / "out.ndjson")


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
