"""What a run says of itself: the report at its end, and the same object while it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from headrace.config.load import EffectiveSettings
from headrace.config.pipeline_file import LoadedPipeline
from headrace.pipeline import Pipeline
from headrace.supervisor.state_dir import WorkerEntry


class RunReport(msgspec.Struct, kw_only=True):
    """How a run ended. Counts are of this incarnation, in records of the source; ``rows_written`` as sinks
    acknowledged them; ``left_out`` counts rows that were skipped or dead-lettered by the stage that they did not pass;
    ``watermarks`` are what is durable."""

    pipeline: str = ""
    state: str = "failed"
    exit_code: int = 1
    incarnation: int = 0
    records_in: int = 0
    filtered: int = 0
    skipped: int = 0
    dead_letters: int = 0
    in_flight: int = 0
    rows_written: int = 0
    left_out: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    workers_lost: int = 0
    chunks_redelivered: int = 0
    acks_refused: int = 0
    lease_record_failures: int = 0
    watermarks: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    seconds: float = 0.0
    error: str | None = None


class ShardStatus(msgspec.Struct, kw_only=True):
    """A shard now. ``oldest_seconds`` is the age of its oldest chunk that is not settled."""

    sink: str
    shard: int
    worker: str | None
    slots_used: int
    slots: int
    parked: int
    in_flight: int
    oldest_seconds: float
    losses: int = 0


class RunStatus(RunReport, kw_only=True):
    """The report while the run goes on: ``starting | running | paused | draining``."""

    pid: int = 0
    workers: list[WorkerEntry] = msgspec.field(default_factory=list[WorkerEntry])
    workers_ready: int = 0
    workers_wanted: int = 0
    shards: list[ShardStatus] = msgspec.field(default_factory=list[ShardStatus])
    oldest_unacked_seconds: float = 0.0
    inflight_bytes: int = 0
    max_inflight_bytes: int = 0
    waiting: list[str] = msgspec.field(default_factory=list[str])
    total_bytes: int | None = None
    read_bytes: int | None = None


class RunRequest(msgspec.Struct, kw_only=True):
    """What a run is to do; everything is resolved by the caller but the state directory's own number of shards."""

    pipeline: Pipeline
    loaded: LoadedPipeline
    effective: EffectiveSettings
    state: Path
    workers: int
    workers_reason: str = ""
    shards: int | None = None
    json: bool = False
    out_fd: int = 1
    live: bool = False
    log_path: Path | None = None
    on_status: Any = None
