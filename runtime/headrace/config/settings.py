"""Every setting, once: its type, unit, default, bounds and what it means."""

# No `from __future__ import annotations`: the knobs below are read from the annotations at run time.

import enum
from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from headrace.record import OnError

_KIB = 2**10
_MIB = 2**20


class Kind(enum.Enum):
    """How a setting's value is written."""

    COUNT = "a whole number"
    BYTES = 'a size such as "256KiB"'
    SECONDS = 'a duration such as "200ms"'
    RATIO = "a number"
    CHOICE = "one of"
    TEXT = "a text"


class Knob(msgspec.Struct, frozen=True):
    """What is known of a setting beside its type: how it is written, its bounds (inclusive), and its meaning."""

    kind: Kind
    doc: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    optional: bool = False
    word: str | None = None
    """A word that stands for a value that is not of the kind, as ``auto`` for ``workers``."""


def _count(doc: str, low: int = 1, high: int | None = None, *, optional: bool = False, word: str | None = None) -> Knob:
    return Knob(Kind.COUNT, doc, low, high, optional=optional, word=word)


def _size(doc: str, low: int = 1, *, optional: bool = False) -> Knob:
    return Knob(Kind.BYTES, doc, low, 2**46, optional=optional)


def _time(doc: str, low: float = 0.0, *, optional: bool = False) -> Knob:
    return Knob(Kind.SECONDS, doc, low, 10 * 366 * 86400.0, optional=optional)


def _ratio(doc: str, low: float, high: float) -> Knob:
    return Knob(Kind.RATIO, doc, low, high)


def _choice(doc: str, *choices: str) -> Knob:
    return Knob(Kind.CHOICE, doc, choices=choices)


class _Group(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that share the first word of their key."""


class ChunkSettings(_Group, frozen=True, kw_only=True):
    """Rows on their way to a worker."""

    target_bytes: Annotated[int, _size("A shard's open chunk is sealed once it holds this much.", 64)] = 256 * _KIB
    linger: Annotated[
        float, _time("From a chunk's first row: when this time is over the chunk is sealed, full or not.")
    ] = 0.05


class ShmSettings(_Group, frozen=True, kw_only=True):
    """Shared memory towards the workers."""

    slot_bytes: Annotated[int, _size("Room for one chunk; the largest row must fit into it.", 512)] = 512 * _KIB
    slots: Annotated[
        int | None,
        _count(
            "Slots of each shard and sink. Without it: as many as let inflight.max_per_shard + 1 write batches fit.",
            2,
            4096,
            optional=True,
        ),
    ] = None


class BatchSettings(_Group, frozen=True, kw_only=True):
    """Write batches in a worker."""

    max_rows: Annotated[int, _count("A write batch is sealed at this many rows.")] = 50_000
    max_bytes: Annotated[int, _size("A write batch is sealed once its chunks hold this much.", 64)] = 8 * _MIB
    linger: Annotated[
        float, _time("From a write batch's first chunk: when this time is over the batch is written, full or not.")
    ] = 0.2


class InflightSettings(_Group, frozen=True, kw_only=True):
    """Writes under way."""

    max_per_shard: Annotated[
        int, _count("Writes of one shard at the same time; always 1 where order matters.", 1, 64)
    ] = 2


class RetrySettings(_Group, frozen=True, kw_only=True):
    """What a worker does when a write fails and may be tried again."""

    initial: Annotated[float, _time("The wait after the first failed attempt of a write.", 0.001)] = 0.1
    max: Annotated[float, _time("The longest wait between two attempts.", 0.001)] = 30.0
    multiplier: Annotated[float, _ratio("Each wait is the one before times this.", 1.0, 100.0)] = 2.0
    jitter: Annotated[float, _ratio("A wait is shortened at random by up to this part of it.", 0.0, 0.99)] = 0.2
    attempt_timeout: Annotated[
        float,
        _time(
            "From the start of one write attempt: when this time is over the attempt counts as failed and is retried; "
            "a blocking writer's process is replaced.",
            0.01,
        ),
    ] = 60.0
    max_attempts: Annotated[
        int | None, _count("After this many attempts the write has failed. Without it: no limit.", optional=True)
    ] = None
    give_up_after: Annotated[
        float | None,
        _time(
            "From a write's first attempt: when this time is over the write has failed, which is how long a sink may "
            "be down. Without it: no limit.",
            0.01,
            optional=True,
        ),
    ] = None


class BreakerSettings(_Group, frozen=True, kw_only=True):
    """The circuit breaker of each endpoint of a sink."""

    failures: Annotated[int, _count("Failed attempts in a row that open the breaker.")] = 3
    open_for: Annotated[
        float, _time("From the breaker's opening: no attempt is made until this time is over.", 0.001)
    ] = 5.0
    probes: Annotated[int, _count("Attempts let through to find out whether the endpoint is back.")] = 1


class SourceSettings(_Group, frozen=True, kw_only=True):
    """Reading."""

    block_bytes: Annotated[int, _size("A file is read in blocks of about this size.", 64)] = 256 * _KIB
    max_records: Annotated[int, _count("A broker's poll returns at most this many records.")] = 4096
    follow_interval: Annotated[
        float, _time("From one look at a followed file to the next: new lines are found after at most this time.", 0.01)
    ] = 0.2


class BackpressureSettings(_Group, frozen=True, kw_only=True):
    """When the source is paused and resumed."""

    max_inflight_bytes: Annotated[
        int, _size("The budget: bytes and positions of sealed chunks that are not settled.", 1 * _KIB)
    ] = 256 * _MIB
    high: Annotated[float, _ratio("The source is paused at this part of the budget.", 0.01, 1.0)] = 0.8
    low: Annotated[float, _ratio("The source is resumed below this part of the budget.", 0.0, 0.99)] = 0.5
    shard_share: Annotated[
        float, _ratio("One shard's slots and parked chunks may hold this part of the budget.", 0.01, 1.0)
    ] = 0.4
    min_pause: Annotated[float, _time("From a pause: the source is not resumed before this time is over.")] = 0.1


class CheckpointSettings(_Group, frozen=True, kw_only=True):
    """Watermarks."""

    interval: Annotated[
        float, _time("From one commit of the watermarks to the next; what was acknowledged since may replay.", 0.01)
    ] = 1.0
    max_pending_batches: Annotated[
        int, _count("A partition with this many unresolved source batches is not polled, the others are.")
    ] = 4096
    stalled_fail_after: Annotated[
        float,
        _time(
            "From the moment nobody works on, retries or waits to retry a partition's oldest batch: when this time is "
            "over the run fails. A sink that is down is waited for and does not count.",
            0.1,
        ),
    ] = 120.0


class FleetSettings(_Group, frozen=True, kw_only=True):
    """The worker processes."""

    beat_interval: Annotated[float, _time("From one sign of life of a worker to the next.", 0.01)] = 1.0
    heartbeat_timeout: Annotated[
        float,
        _time(
            "From a worker's last sign of life: when this time is over the worker is killed and replaced. An idle "
            "worker goes on beating and is never killed by it.",
            0.1,
        ),
    ] = 10.0
    start_timeout: Annotated[
        float, _time("From the start of a worker to its READY: when this time is over the start has failed.", 0.1)
    ] = 60.0
    kill_timeout: Annotated[
        float,
        _time(
            "From SIGKILL of a worker until it is proved gone: when this time is over the run fails, and nothing of "
            "that worker is given to another.",
            0.1,
        ),
    ] = 10.0
    max_restarts: Annotated[
        int, _count("More deaths than this of one worker that settled nothing, in restart_window, fail the run.", 0)
    ] = 10
    restart_window: Annotated[
        float, _time("The time in which max_restarts is counted; older deaths are forgotten.", 0.1)
    ] = 60.0
    max_rss: Annotated[
        int | None,
        _size("A worker whose resident memory is above this is replaced between writes. Without it: no limit.", 1,
              optional=True),
    ] = None  # fmt: skip


class LeaseSettings(_Group, frozen=True, kw_only=True):
    """Chunks in the hands of workers."""

    timeout: Annotated[
        float,
        _time(
            "From the start of one stage, the operators on a chunk or one write attempt: when this time is over the "
            "worker is killed and its chunks go to another. Waiting to write or to retry is no stage.",
            0.1,
        ),
    ] = 300.0
    max_losses: Annotated[int, _count("Deaths of workers that were busy with a chunk before it is a suspect.")] = 3


class DrainSettings(_Group, frozen=True, kw_only=True):
    """Stopping."""

    timeout: Annotated[
        float,
        _time(
            "From SIGTERM, SIGINT or `headrace stop`: when this time is over the process has ended, with status 3 if "
            "data is left that will replay. Writing may take it less 5 s.",
            0.1,
        ),
    ] = 25.0


class AdminSettings(_Group, frozen=True, kw_only=True):
    """The HTTP server for metrics, health and status."""

    listen: Annotated[str, Knob(Kind.TEXT, "HOST:PORT of the HTTP server; `off` for none.")] = "127.0.0.1:9464"


class LogSettings(_Group, frozen=True, kw_only=True):
    """The log."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        _choice("The least level that is logged.", "debug", "info", "warning", "error"),
    ] = "info"
    format: Annotated[
        Literal["auto", "json", "text"],
        _choice("JSON lines or text; auto: text on a terminal, else JSON.", "auto", "json", "text"),
    ] = "auto"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of a run. Durations are seconds, sizes are bytes."""

    workers: Annotated[
        int | Literal["auto"],
        _count("Worker processes; auto: one for each CPU that this process may use.", 1, 1024, word="auto"),
    ] = "auto"
    shards: Annotated[
        int | None,
        _count(
            "Ordered streams of rows towards each sink. Chosen at the first start of a state directory (8 without it) "
            "and kept there.",
            1,
            4096,
            optional=True,
        ),
    ] = None
    on_error: Annotated[
        OnError,
        _choice("What is done about a record that cannot go on, where nothing nearer says so.", *OnError),
    ] = OnError.FAIL
    chunk: ChunkSettings = ChunkSettings()
    shm: ShmSettings = ShmSettings()
    batch: BatchSettings = BatchSettings()
    inflight: InflightSettings = InflightSettings()
    retry: RetrySettings = RetrySettings()
    breaker: BreakerSettings = BreakerSettings()
    source: SourceSettings = SourceSettings()
    backpressure: BackpressureSettings = BackpressureSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    fleet: FleetSettings = FleetSettings()
    lease: LeaseSettings = LeaseSettings()
    drain: DrainSettings = DrainSettings()
    admin: AdminSettings = AdminSettings()
    log: LogSettings = LogSettings()


DEFAULT_SHARDS = 8
"""The number of shards of a state directory that is started without a word about it."""


def knobs() -> dict[str, Knob]:
    """Every setting's dotted key, in the order of the reference, with what is known of it."""
    return dict(_knobs_of(Settings(), ""))


def _knobs_of(group: msgspec.Struct, prefix: str) -> Iterator[tuple[str, Knob]]:
    for name, hint in type(group).__annotations__.items():
        value = getattr(group, name)
        if isinstance(value, _Group):
            yield from _knobs_of(value, f"{prefix}{name}.")
        else:
            yield prefix + name, hint.__metadata__[0]


def value_of(settings: Settings, key: str) -> object:
    """The value under a dotted key."""
    value: object = settings
    for word in key.split("."):
        value = getattr(value, word)
    return value
