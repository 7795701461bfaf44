"""What a worker is told when it starts: the plan, sent once through an inherited pipe."""

from __future__ import annotations

import msgspec

from headrace.config.settings import BatchSettings, FleetSettings, InflightSettings, LogSettings, RetrySettings
from headrace.record import OnError


class SinkPlan(msgspec.Struct, frozen=True):
    """A sink as its writers need to know it; the sink itself travels packed, beside the operators."""

    name: str
    on_error: OnError


class WorkerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """All that a worker needs, but for its descriptors.

    ``packed`` holds the worker's chain (or None) and the sinks, by value. ``descriptors`` arrive beside it, in this
    order: doorbell, ack pipe, life pipe, fleet lock, standard output for rows, then one slab for each sink and shard.
    """

    pipeline: str
    name: str
    number: int
    incarnation: int
    run_id: str
    packed: bytes
    digest: bytes
    sinks: list[SinkPlan]
    shards: int
    owned: list[int]
    slots: int
    slot_bytes: int
    fan_out: bool
    spool: str
    host: str
    batch: BatchSettings
    inflight: InflightSettings
    retry: RetrySettings
    fleet: FleetSettings
    log: LogSettings


FIXED_DESCRIPTORS = 5
"""How many descriptors come before the slabs."""

MAX_SLABS = 240
"""One message carries at most 253 descriptors, a few of which are the fork server's and ours."""
