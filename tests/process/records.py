"""Small pipelines over numbers, what landed of them, and the books that must balance."""

import json
import sqlite3
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.process.run_headrace import Headrace, Running

HEAD: Final = """
import os, time
import msgspec
from headrace import Pipeline
from headrace.sources import Files, Stdin
from headrace.sinks import Blackhole, NdjsonFiles, Sqlite, Stdout

class Number(msgspec.Struct):
    n: int
    text: str = ""

SETTINGS = {"chunk.linger": "10ms", "batch.linger": "10ms"}
"""

TO_SQLITE: Final = 'Sqlite("out.db", table="t", create=True, columns=["n"])'


class LetterSeen(NamedTuple):
    """A row of ``letters.db``."""

    sink: str
    partition: str
    position: int
    child: int
    stage: str
    cause: str
    raw: bytes


def chain(*steps: str, source: str = 'Files("in.ndjson", decode=Number)', more: str = "") -> str:
    """A pipeline's text: the source, then these steps; ``more`` is code before it."""
    made = "".join(f"\n    .{step}" for step in steps)
    return f'{HEAD}{more}\npipeline = (\n    Pipeline("p", settings=SETTINGS)\n    .source({source}){made}\n)\n'


def lines_of_numbers(count: int, replaced: dict[int, str] | None = None) -> list[str]:
    """Lines of JSON with ``n`` from 0; those in ``replaced`` are others."""
    lines = [f'{{"n": {n}, "text": "{n}"}}' for n in range(count)]
    for at, line in (replaced or {}).items():
        lines[at] = line
    return lines


def write_lines(headrace: Headrace, lines: list[str], name: str = "in.ndjson") -> Path:
    return headrace.write(name, "".join(f"{line}\n" for line in lines))


def position_of(lines: list[str], at: int) -> int:
    """A line's position: the place of its last byte, its newline."""
    return sum(len(line.encode()) + 1 for line in lines[: at + 1]) - 1


def landed(headrace: Headrace, table: str = "t", column: str = "n", database: str = "out.db") -> list[Any]:
    """A column of what landed, in order; nothing where there is no table yet."""
    db = sqlite3.connect(headrace.folder / database)
    try:
        return [value for (value,) in db.execute(f'SELECT "{column}" FROM "{table}" ORDER BY 1')]
    except sqlite3.OperationalError:
        return []
    finally:
        db.close()


def letters(headrace: Headrace) -> list[LetterSeen]:
    """The dead letters of the run's state directory, by position."""
    path = headrace.state / "dead_letter" / "letters.db"
    if not path.exists():
        return []
    db = sqlite3.connect(path)
    try:
        rows = db.execute(
            "SELECT sink, partition, position, child, stage, cause, raw FROM letters"
            " ORDER BY partition, position, child"
        )
        return [LetterSeen(*row) for row in rows]
    finally:
        db.close()


def logged(running: Running, event: str) -> list[dict[str, Any]]:
    """The lines of the log that say ``event``."""
    return [json.loads(line) for line in running.stderr.splitlines() if f'"event": "{event}"' in line]


def written(report: dict[str, Any]) -> int:
    """The records that are written by the books, which are never below zero (HR-8)."""
    counts = [report[name] for name in ("records_in", "filtered", "skipped", "dead_letters", "in_flight")]
    assert min(counts) >= 0, report
    left = int(counts[0] - sum(counts[1:]))
    assert left >= 0, report
    return left
