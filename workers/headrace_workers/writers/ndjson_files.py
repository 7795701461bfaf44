"""Writes batches of lines into part files, each synced before the write returns, rolled by size, rows or age.

A write that fails is cut off again; when the file system does not let it, the part is left for adoption as it stands,
and lines of that write may be in it. The retry begins a new part then.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Iterator

from headrace.errors import SinkError
from headrace.sinks.ndjson_files import NdjsonFiles
from headrace_workers.writers.base import BlockingWriter, SealedBatch, WriterContext
from headrace_workers.writers.compression import STORAGES, Buffers
from headrace_workers.writers.failures import os_failure
from headrace_workers.writers.parts import Folder, OpenPart, adopt, part_name


class NdjsonFilesWriter(BlockingWriter):
    """One open part for each shard that has been written to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened: _Opened | None = None
        self._shards: dict[int, _Shard] = {}

    def open(self, context: WriterContext) -> None:
        """Make the directory, and finish what dead workers left open in it."""
        sink = context.sink
        if not isinstance(sink, NdjsonFiles):
            raise TypeError(f"the ndjson_files writer was given a {type(sink).__name__}")
        path = str(sink.directory)
        try:
            folder = Folder(path)
            self._opened = _Opened(sink, context, folder)
            named, left = adopt(folder)
        except OSError as error:
            self.close()
            raise os_failure(path, "the directory cannot be used", error) from error
        for name in named:
            context.log("a part that was left open has got its name", directory=path, part=name)
        for name in left:
            context.log("a part that was left open stays: another file has its name", directory=path, part=name)

    def write(self, batch: SealedBatch) -> None:
        if batch.blocks:
            opened = self._opened
            assert opened is not None, "write comes after open"
            self._shard(opened, batch.shard).write(opened.storage.encode(batch.blocks), batch.count)

    def close(self) -> None:
        """Give every part its name. Raises `SinkError` for the first that cannot have it, once all were tried."""
        failures = [failure for shard in self._shards.values() if (failure := shard.close()) is not None]
        self._shards.clear()
        if self._opened is not None:
            self._opened.folder.close()
            self._opened = None
        if failures:
            raise failures[0]

    def _shard(self, opened: _Opened, number: int) -> _Shard:
        with self._lock:
            if number not in self._shards:
                self._shards[number] = _Shard(opened, number)
            return self._shards[number]


class _Opened:
    """What all shards share."""

    def __init__(self, sink: NdjsonFiles, context: WriterContext, folder: Folder) -> None:
        self.sink = sink
        self.context = context
        self.folder = folder
        self.storage = STORAGES[sink.compress]
        self._identity = context.run_id + secrets.token_hex(4)

    def names(self, shard: int) -> Iterator[str]:
        """The names of a shard's parts."""
        for number in itertools.count():
            yield part_name(shard, self.context.incarnation, number, self._identity, self.storage)


class _Shard:
    """The parts of one shard, one after the other."""

    def __init__(self, opened: _Opened, number: int) -> None:
        self._opened = opened
        self._names = opened.names(number)
        self._lock = threading.Lock()
        self._part: OpenPart | None = None

    def write(self, buffers: Buffers, rows: int) -> None:
        """Raises `SinkError`."""
        with self._lock:
            try:
                self._append(buffers, rows)
            except OSError as error:
                raise self._failure("rows cannot be written", error) from error
            try:
                self._roll()
            except OSError as error:  # the rows are durable, and the next write tries again
                self._opened.context.log("a part could not get its name yet", cause=str(error))

    def close(self) -> SinkError | None:
        """Finish the open part; why it could not be. It is adopted later then."""
        part = self._part
        try:
            if part is not None:
                part.finish()
        except OSError as error:
            assert part is not None
            part.close()
            return self._failure("it keeps its hidden name until the directory is opened again", error)
        finally:
            self._part = None
        return None

    def _append(self, buffers: Buffers, rows: int) -> None:
        part = self._part
        if part is None:
            part = self._part = OpenPart.create(self._opened.folder, next(self._names), time.monotonic())
        try:
            part.append(buffers, rows)
        except OSError:
            if part.broken:
                part.close()
                self._part = None
            raise

    def _roll(self) -> None:
        part, sink = self._part, self._opened.sink
        if part is None:
            return
        if (
            part.length >= float(sink.roll_bytes)
            or (sink.roll_rows is not None and part.rows >= sink.roll_rows)
            or (sink.roll_age is not None and time.monotonic() - part.began >= float(sink.roll_age))
        ):
            part.finish()
            self._part = None

    def _failure(self, doing: str, error: OSError) -> SinkError:
        folder = self._opened.sink.directory
        return os_failure(folder if self._part is None else f"{folder}/{self._part.name}", doing, error)
