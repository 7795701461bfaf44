"""Every writer with a sink, batches of numbered rows for it, and a way to read back what it kept.

Run as a program it is a worker that writes until it is killed; its arguments are those of `write_until_killed`. It
says ``opened`` and then each batch's number once its write has returned. ``kill`` is ``-`` or ``CALL:N``: it kills
itself as it is about to make its N-th call of ``os.CALL``.
"""

import gzip
import json
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

import zstandard

from headrace.sinks import Blackhole, NdjsonFiles, Sink, Sqlite, Stdout
from headrace_workers.writers.base import BlockingWriter, SealedBatch, WriterContext, open_writer

TEXT: Final = "x" * 40
SHARDS: Final = (0, 1)


class Case(NamedTuple):
    """A writer under test.

    ``keeps``: what it wrote can be read back. ``takes_back``: a write that fails leaves nothing. ``whole``: a
    write that is killed leaves all or nothing.
    """

    name: str
    sink: Callable[[Path], Sink]
    read: Callable[[Path], list[int]]
    lines: bool = True
    keeps: bool = True
    takes_back: bool = True
    whole: bool = False

    def batch(self, shard: int, ids: range | list[int]) -> SealedBatch:
        """Rows with these ids."""
        if not self.lines:
            rows: list[Any] = [(number, TEXT) for number in ids]
            return SealedBatch(shard, rows, None, len(rows), 50 * len(rows))
        halves = ids[: len(ids) // 2], ids[len(ids) // 2 :]
        blocks: list[memoryview | bytes] = [b"".join(map(_line, half)) for half in halves]
        return SealedBatch(shard, None, blocks, len(ids), sum(map(len, blocks)))

    def open(self, folder: Path, incarnation: int = 1, stdout: int = -1) -> BlockingWriter:
        """A writer that is ready."""
        sink = self.sink(folder)
        sink.check()
        writer: BlockingWriter = open_writer(sink.writer)()
        writer.open(
            WriterContext(
                sink=sink,
                shards=SHARDS,
                worker="worker-0",
                run_id=f"{os.getpid():08x}",
                incarnation=incarnation,
                stdout_fd=stdout,
            )
        )
        return writer


def _line(number: int) -> bytes:
    return b'{"id":%d,"text":"%s"}\n' % (number, TEXT.encode())


def read_sqlite(folder: Path) -> list[int]:
    """Over connections of our own."""
    found: list[int] = []
    for file in sorted(folder.glob("*.db")):
        with closing(sqlite3.connect(f"file:{file}?mode=rw", uri=True)) as db:
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            for number, text in db.execute("SELECT id, text FROM rows ORDER BY rowid"):
                assert text == TEXT
                found.append(number)
    return found


def read_parts(folder: Path) -> list[int]:
    """Of all parts, the open ones included. Every line must be whole."""
    return [number for file in sorted(folder.rglob("*.ndjson*")) for number in _ids(_unpacked(file))]


def _unpacked(file: Path) -> bytes:
    data = file.read_bytes()
    if file.suffix == ".gz":
        return gzip.decompress(data) if data else b""
    if file.suffix == ".zst":
        return zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
    return data


def _ids(text: bytes) -> Iterator[int]:
    assert text == b"" or text.endswith(b"\n")
    for line in text.splitlines():
        row = json.loads(line)
        assert row["text"] == TEXT
        yield row["id"]


def read_output(folder: Path) -> list[int]:
    """Of the file that is standard output. A kill may tear one line of it, which then stands alone."""
    lines = (folder / "stdout").read_bytes().splitlines(keepends=True)
    whole = [line for line in lines if line.endswith(b'"}\n')]
    assert len(lines) - len(whole) <= 1
    return list(_ids(b"".join(whole)))


def _nothing(_: Path) -> list[int]:
    return []


def _sqlite(name: str, **settings: Any) -> Callable[[Path], Sink]:
    return lambda folder: Sqlite(
        folder / name, table="rows", create=True, columns={"id": "int", "text": "str"}, **settings
    )


def _parts(**settings: Any) -> Callable[[Path], Sink]:
    return lambda folder: NdjsonFiles(folder / "out", **settings)


CASES: Final = {
    case.name: case
    for case in (
        Case("sqlite", _sqlite("rows.db"), read_sqlite, lines=False, whole=True),
        Case("sqlite-shards", _sqlite("rows-{shard}.db"), read_sqlite, lines=False, whole=True),
        Case("ndjson", _parts(), read_parts),
        Case("ndjson-rolling", _parts(roll_rows=1), read_parts),
        Case("ndjson-gzip", _parts(compress="gzip"), read_parts, whole=True),
        Case("ndjson-zstd", _parts(compress="zstd"), read_parts, whole=True),
        Case("stdout", lambda _: Stdout(), read_output, takes_back=False),
        Case("blackhole", lambda _: Blackhole(), _nothing, keeps=False),
    )
}


def open_output(folder: Path) -> int:
    """The file that stands for standard output."""
    return os.open(folder / "stdout", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _kill_at(call: str, count: int) -> None:
    real = getattr(os, call)
    left = [count]

    def dying(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)

    setattr(os, call, dying)


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def write_until_killed(name: str, folder: Path, kill: str, rows: int, batches: int) -> None:
    """Batches of ``rows`` rows, numbered on; then close, and wait for the end of standard input."""
    case = CASES[name]
    if kill != "-":
        call, _, count = kill.partition(":")
        _kill_at(call, int(count))
    writer = case.open(folder, stdout=open_output(folder))
    _say("opened")
    for number in range(batches):
        writer.write(case.batch(number % 2, range(number * rows, (number + 1) * rows)))
        _say(str(number))
    sys.stdin.read(1)
    writer.close()
    _say("closed")


if __name__ == "__main__":
    write_until_killed(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
