"""The live view of a run on a terminal: a line for each shard, and a bar where the source has an end.

The loop calls `update`, so it must never wait for the terminal: a frame is drawn into memory and written through a
descriptor of our own that is non-blocking. A terminal that does not take a frame (stopped with ^S, a dead connection)
misses frames, and nobody waits (HR-2).
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headrace.cli.status import SHARD_COLUMNS, SHARD_HEADS, head_lines

_HIDE, _SHOW, _CLEAR_BELOW, _CLEAR_LINE = "\x1b[?25l", "\x1b[?25h", "\x1b[J", "\x1b[K"
_MOST_LINES = 40


class LiveView:
    """Draws status objects over each other on the terminal behind ``fd``."""

    def __init__(self, fd: int) -> None:
        self._fd = _reopened(fd)
        self._height = 0
        self._pending = b""
        self._seen: Mapping[str, Any] | None = None

    def update(self, status: Mapping[str, Any]) -> None:
        """Draw ``status``, the object of ``status --json``, if the terminal has taken the frame before."""
        self._seen = status
        if self._flush():
            self._pending = self._frame(status)
            self._flush()

    def close(self) -> None:
        """Give the cursor and the descriptor back; what the terminal does not take at once is lost."""
        if self._fd < 0:
            return
        if self._flush():
            self._pending = self._erased().encode() + _SHOW.encode()
            self._flush()
        os.close(self._fd)
        self._fd = -1

    def _flush(self) -> bool:
        """Whether nothing is pending any more."""
        if self._fd < 0:
            return False
        with contextlib.suppress(BlockingIOError):
            try:
                while self._pending:
                    self._pending = self._pending[os.write(self._fd, self._pending) :]
            except BlockingIOError:
                raise
            except OSError:  # the terminal is gone; the run is not
                self._pending = b""
        return not self._pending

    def _frame(self, status: Mapping[str, Any]) -> bytes:
        columns, rows = _size_of(self._fd)
        lines = _render(status, columns, min(rows - 1, _MOST_LINES))
        text = self._erased() + _HIDE + "\n".join(line + _CLEAR_LINE for line in lines) + "\n"
        self._height = len(lines)
        return text.encode(errors="replace")

    def _erased(self) -> str:
        up = f"\x1b[{self._height}A" if self._height else ""
        return f"\r{up}{_CLEAR_BELOW}"


def _reopened(fd: int) -> int:
    """The same terminal with an open file description of ours: O_NONBLOCK on the shared one would hit the shell."""
    try:
        return os.open(os.ttyname(fd), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return -1


def _size_of(fd: int) -> tuple[int, int]:
    try:
        found = os.get_terminal_size(fd)
    except OSError:
        return 80, 24
    return max(20, found.columns or 80), max(4, found.lines or 24)


def _render(status: Mapping[str, Any], columns: int, most: int) -> list[str]:
    parts: list[RenderableType] = [Text(line, no_wrap=True, overflow="ellipsis") for line in head_lines(status)]
    bar = _bar(status, columns)
    if bar is not None:
        parts.append(bar)
    parts.append(_shards(status, max(1, most - len(parts) - 2)))
    console = Console(file=io.StringIO(), force_terminal=True, width=columns, legacy_windows=False)
    with console.capture() as drawn:
        console.print(Group(*parts))
    return drawn.get().splitlines()[:most]


def _bar(status: Mapping[str, Any], columns: int) -> RenderableType | None:
    """How far the source is read, where it knows its end."""
    total, done = status.get("total_bytes"), status.get("read_bytes") or 0
    if not isinstance(total, int | float) or total <= 0:
        return None
    grid = Table.grid(padding=(0, 1))
    grid.add_row(ProgressBar(total=total, completed=min(done, total), width=max(10, columns - 8)),
                 Text(f"{100 * min(done, total) / total:3.0f} %"))  # fmt: skip
    return grid


def _shards(status: Mapping[str, Any], most: int) -> RenderableType:
    """The shards, the one that waits longest first once they are too many for the terminal."""
    shards: list[Mapping[str, Any]] = list(status.get("shards") or [])
    left_out = len(shards) - most
    if left_out > 0:
        shards = sorted(shards, key=lambda shard: -(shard.get("oldest_seconds") or 0.0))[: most - 1]
        left_out += 1
    table = Table(box=None, pad_edge=False, header_style="dim")
    for head in SHARD_HEADS:
        table.add_column(head, justify="left" if head == "sink" else "right", no_wrap=True)
    for shard in shards:
        table.add_row(*(_cell(shard.get(column)) for column in SHARD_COLUMNS))
    if left_out > 0:
        table.add_row(Text(f"… {left_out} more", style="dim"))
    return table


def _cell(value: object) -> Text:
    if value is None:
        return Text("-", style="dim")
    return Text(f"{value:.1f}" if isinstance(value, float) else str(value))
