"""What the verbs print: one JSON object with ``--json``, short text without, and errors on standard error."""

from __future__ import annotations

import enum
import sys
from collections.abc import Mapping, Sequence
from typing import cast

import click
import msgspec

from headrace.errors import ConfigError, HeadraceError, StateError, StateInUseError

COMPLETE = 0
FAILED = 1
REFUSED = 2
IN_USE = 4
FORCED = 130


def exit_code_of(error: HeadraceError) -> int:
    """The exit code of a verb that ended with this error."""
    if isinstance(error, StateInUseError):
        return IN_USE
    return REFUSED if isinstance(error, ConfigError | StateError) else FAILED


def print_error(message: str, hint: str | None = None) -> None:
    """``error: …`` and, where there is one, ``hint: …`` on standard error."""
    click.echo(f"error: {message}", err=True)
    if hint:
        click.echo(f"hint: {hint}", err=True)


def print_json(value: object) -> None:
    """One JSON object on standard output, on one line."""
    click.echo(msgspec.json.encode(value, enc_hook=_plain).decode())


def _plain(value: object) -> object:
    return value.value if isinstance(value, enum.Enum) else str(value)


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Lines with aligned columns; numbers to the right."""
    texts = [[_cell(cell) for cell in row] for row in rows]
    widths = [max(len(head), *(len(row[i]) for row in texts)) if texts else len(head) for i, head in enumerate(heads)]
    right = [bool(rows) and all(isinstance(row[i], int | float | None) for row in rows) for i in range(len(heads))]
    return [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in [list(heads), *texts]
    ]


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, cast("Sequence[object]", value)))
    return printable(str(value))


def printable(text: str) -> str:
    """A text of somebody else's, such as a file's name, without what a terminal would obey."""
    return "".join(char if char.isprintable() else "?" for char in text)


def counts_line(report: Mapping[str, object]) -> str:
    """The counts of a run as one line of text; those that are zero are left out, but for the first two."""
    names = (
        ("records_in", "records in"),
        ("rows_written", "rows written"),
        ("filtered", "filtered"),
        ("skipped", "skipped"),
        ("dead_letters", "dead letters"),
        ("workers_lost", "workers lost"),
        ("chunks_redelivered", "chunks redelivered"),
    )
    always = ("records_in", "rows_written")
    return ", ".join(f"{report.get(key, 0):,} {words}" for key, words in names if report.get(key) or key in always)


def is_terminal(fd: int) -> bool:
    """Whether a person may be looking."""
    stream = sys.stdout if fd == 1 else sys.stderr
    return stream is not None and not stream.closed and stream.isatty()
