"""The words that every part shares: identities, batches of payloads, and what may happen to a record."""

from __future__ import annotations

import enum
from array import array
from collections.abc import Mapping, Sequence
from typing import NewType, Protocol, runtime_checkable

import msgspec

PartitionId = NewType("PartitionId", str)
"""A partition's checkpoint identity, the same across restarts (a file's: path as first seen, ``#``, 8 hex digits)."""

Position = NewType("Position", int)
"""An int64 that only grows within a partition. One past a record's position is where reading resumes."""

LaneId = NewType("LaneId", str)
SinkNo = NewType("SinkNo", int)
"""A sink's place in its pipeline, from 0."""

ShardNo = NewType("ShardNo", int)
ChunkId = NewType("ChunkId", int)
"""A chunk's number within its incarnation, from 1, in seal order over all shards."""


class Flow(enum.Enum):
    """What a stage answers to data. ``BLOCKED`` means: taken, now stop offering."""

    CONTINUE = "continue"
    BLOCKED = "blocked"


class OnError(enum.StrEnum):
    """What is done about a record that cannot go on."""

    FAIL = "fail"
    SKIP = "skip"
    DEAD_LETTER = "dead_letter"


class Delivery(enum.StrEnum):
    """The guarantee that a sink is asked for."""

    AT_LEAST_ONCE = "at_least_once"
    EXACTLY_ONCE = "exactly_once"


class BadRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record that cannot go on, and why.

    ``position`` is the record's own position; ``child`` counts the rows that a ``flat_map`` made of it, from 0.
    ``stage`` is ``read``, ``decode``, an operator's name (``2_map``), ``encode``, ``oversize``, ``sink`` or ``poison``.
    """

    partition: PartitionId
    position: int
    stage: str
    cause: str
    raw: bytes
    child: int = 0
    policy: OnError = OnError.FAIL


class PayloadBatch(msgspec.Struct, kw_only=True):
    """What one poll of a lane returns: the unit of acknowledgement.

    Either ``block`` is set, whole lines of bytes that begin at position ``start`` (each ends with a newline, but for
    the last of a bounded input), so that a decoder can take it whole; or ``payloads`` is set, one item a record, with
    ``ends``, the position one past each record.

    ``end`` is where reading resumes once the whole batch is acknowledged; it may lie past the last record (blank
    lines, lines left out). ``rejects`` are records that the source could not make: a line over the limit, a torn tail.
    ``header`` is the header line of a CSV file, its newline included, beside every block of that file.
    ``keys`` and ``event_times`` run parallel to ``payloads`` and are absent where the source has none.
    """

    partition: PartitionId
    start: int
    end: int
    block: bytes | None = None
    payloads: Sequence[bytes] | None = None
    ends: array[int] | None = None
    keys: Sequence[bytes | str | None] | None = None
    event_times: Sequence[float] | None = None
    header: bytes | None = None
    rejects: list[BadRecord] = msgspec.field(default_factory=list[BadRecord])


class BatchOrigin(msgspec.Struct, frozen=True):
    """Where the rows of one source batch came from. ``ends`` holds, for each record, one past its position."""

    partition: PartitionId
    epoch: int
    seq: int
    ends: array[int]

    def position(self, record: int) -> int:
        """The position of the batch's ``record``-th record."""
        return self.ends[record] - 1


class LanesAssigned(msgspec.Struct, frozen=True):
    """These lanes are to be polled from now on, beside those assigned before."""

    lanes: tuple[Lane, ...]


class LanesRevoked(msgspec.Struct, frozen=True):
    """These lanes are not ours any more."""

    lanes: tuple[LaneId, ...]


class Drained(msgspec.Struct, frozen=True):
    """A bounded source has handed out all it has. May be answered more than once."""


class Idle(msgspec.Struct, frozen=True):
    """Nothing to tell."""


SourceEvent = LanesAssigned | LanesRevoked | Drained | Idle


@runtime_checkable
class Lane(Protocol):
    """A pollable unit of a source."""

    @property
    def id(self) -> LaneId: ...
    @property
    def partition(self) -> PartitionId: ...
    def poll(self, max_records: int) -> PayloadBatch | None:
        """The next batch, or None when there is nothing now. Never waits. Raises `SourceError`."""
        ...


class PartitionIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """How a partition is recognised again, as the source wrote it down; kept in ``state.db``."""

    partition: PartitionId
    details: bytes


class SourceContext(Protocol):
    """What a source is given at ``open``."""

    @property
    def positions(self) -> Mapping[PartitionId, int]:
        """The watermark of each partition known to this state directory: where reading resumes."""
        ...

    @property
    def identities(self) -> Sequence[PartitionIdentity]: ...
    @property
    def block_bytes(self) -> int: ...
    @property
    def max_record_bytes(self) -> int: ...
    @property
    def follow_interval(self) -> float: ...
    def remember(self, identity: PartitionIdentity) -> None:
        """Keep this identity durably; it is durable before any position of its partition is."""
        ...

    def wake(self) -> None:
        """Bring the loop back; from any thread."""
        ...

    def warn(self, event: str, /, **values: object) -> None:
        """A warning in the run's log: a short sentence and named values."""
        ...

    def now(self) -> float:
        """Seconds on the monotonic clock."""
        ...


@runtime_checkable
class Source(Protocol):
    """Where records come from. No call waits: ``ctx.wake()`` or ``next_due()`` brings the loop back."""

    def open(self, ctx: SourceContext) -> None: ...
    def poll_events(self) -> SourceEvent: ...
    def next_due(self) -> float | None:
        """When to look again, on the monotonic clock; None: only when woken."""
        ...

    def pause(self, lanes: Sequence[LaneId]) -> None: ...
    def resume(self, lanes: Sequence[LaneId]) -> None: ...
    def commit(self, positions: Mapping[PartitionId, int]) -> None:
        """Told after the positions are durable in ``state.db``; sources that keep their own store them here."""
        ...

    def flush_commits(self) -> None: ...
    def close(self) -> None: ...
