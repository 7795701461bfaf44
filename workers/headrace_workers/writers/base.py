"""What a writer is: it is opened once in its worker, given write batches of the worker's shards, and closed.

The contract of every writer:

* ``write`` returns only when the batch is durable; a process that is killed after that has lost nothing.
* A ``write`` that raises has kept nothing, as far as its sink can take back what it took: `RejectedRows` names the rows
  that can never be written, every other error says by its class whether the same write is tried again.
* It keeps no view of the batch's bytes once it has returned or raised: they lie in memory that is used again.
* Writes of different shards may come at once from different threads, and so may several of one shard.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, Final

import msgspec

from headrace.codec.columns import Columns
from headrace.errors import ConfigError
from headrace.record import PartitionId, Position
from headrace.sinks.base import Sink

GROUP: Final = "headrace_workers.writers"

# Looked at first: reading the metadata of all installed packages would slow down every start of a worker.
_BUILT_IN: Final = {
    "sqlite": "headrace_workers.writers.sqlite:SqliteWriter",
    "ndjson_files": "headrace_workers.writers.ndjson_files:NdjsonFilesWriter",
    "stdout": "headrace_workers.writers.stdout:StdoutWriter",
    "blackhole": "headrace_workers.writers.blackhole:BlackholeWriter",
}


def _silent(_event: str, /, **_values: object) -> None:
    return None


class WriterContext(msgspec.Struct, kw_only=True):
    """What a writer is given at ``open``. ``shards`` are those that the worker owns now; more may come later.

    ``log`` takes a short sentence and named values. ``stdout_fd`` is the run's real standard output, -1 where none is.
    """

    sink: Sink
    shards: Sequence[int]
    worker: str
    run_id: str
    incarnation: int
    stdout_fd: int = -1
    log: Callable[..., object] = _silent


class SealedBatch(msgspec.Struct):
    """One write of one shard: ``count`` rows.

    Sinks of the codec ``msgpack`` get ``rows`` as tuples in column order, those of ``raw`` as bytes. Sinks of
    ``json_lines`` get ``blocks``, each of whole lines that end with a newline; they may be views into shared memory.
    """

    shard: int
    rows: list[Any] | None
    blocks: list[memoryview | bytes] | None
    count: int
    nbytes: int

    def release(self) -> None:
        """Let go of all rows and views."""
        self.rows = None
        self.blocks = None


class ShardWriter(ABC):
    """A writer that runs on the worker's event loop."""

    @abstractmethod
    async def open(self, context: WriterContext) -> Columns | None:
        """Make ready to write, and say the sink's columns; None: it has none."""

    async def take_over(self, shard: int, partitions: Sequence[PartitionId]) -> Mapping[PartitionId, Position]:  # noqa: ARG002
        """For exactly once: raise the fence and read the positions. Without positions of its own: none."""
        return {}

    @abstractmethod
    async def write(self, batch: SealedBatch) -> None:
        """Returns when the batch is durable. Raises `RejectedRows` or another `HeadraceError`, having kept nothing."""

    @abstractmethod
    async def close(self) -> None:
        """Finish what is open. Called when no write runs."""


class BlockingWriter(ABC):
    """A writer that runs on threads; the same methods, not async."""

    @abstractmethod
    def open(self, context: WriterContext) -> Columns | None:
        """As in `ShardWriter`."""

    def take_over(self, shard: int, partitions: Sequence[PartitionId]) -> Mapping[PartitionId, Position]:  # noqa: ARG002
        """As in `ShardWriter`."""
        return {}

    @abstractmethod
    def write(self, batch: SealedBatch) -> None:
        """As in `ShardWriter`."""

    @abstractmethod
    def close(self) -> None:
        """As in `ShardWriter`."""


def open_writer(name: str) -> Callable[[], Any]:
    """The class of this name: one of ours, else that of the entry point. Raises `ConfigError`."""
    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].partition(":")
        built_in: Callable[[], Any] = getattr(importlib.import_module(module), attribute)
        return built_in
    for entry in entry_points(group=GROUP, name=name):
        try:
            announced: Callable[[], Any] = entry.load()
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"the writer {name} ({entry.value}) cannot be used: {error}") from error
        return announced
    others = sorted({*_BUILT_IN, *entry_points(group=GROUP).names})
    raise ConfigError(f"there is no writer called {name!r}; known: {', '.join(others)}")
