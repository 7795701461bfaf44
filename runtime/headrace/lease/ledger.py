"""The rows of the ledger: what became of each attempt on a chunk, and what chunks lost their workers.

In the ledger a completion follows its lease, or a counted record failure stands in for it (HR-5). Times are wall-clock
seconds, for people; nothing is decided by them.
"""

from __future__ import annotations

import msgspec

from headrace.lease.fences import WorkerAttribution
from headrace.lease.handoff import LeaseKey
from headrace.record import PartitionId


class LeaseRow(msgspec.Struct, frozen=True, kw_only=True):
    """A worker holds an attempt. That a lease is missing proves nothing: the record, not the work, may have failed."""

    incarnation: int
    key: LeaseKey
    worker: WorkerAttribution
    token_digest: str
    recorded_at: float


class CompletionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A worker ended an attempt; ``outcome`` is `headrace.shm.records.Outcome` by name, in lower case."""

    incarnation: int
    key: LeaseKey
    token_digest: str
    outcome: str
    written: int
    filtered: int
    skipped: int
    dead_lettered: int
    recorded_at: float


class FailureRow(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk was settled as failed; its records replay."""

    incarnation: int
    key: LeaseKey
    cause: str
    recorded_at: float


class LossRow(msgspec.Struct, frozen=True, kw_only=True):
    """Workers died while they were busy with these rows.

    Known by what the chunk holds, so that a chunk that is re-formed after a restart inherits the count.
    """

    incarnation: int
    sink: int
    shard: int
    partition: PartitionId
    first: int
    last: int
    losses: int
    stage: str
    recorded_at: float
