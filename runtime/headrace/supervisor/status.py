"""The status object: read off the loop's parts, derived anew each time."""

from __future__ import annotations

import os

from headrace.supervisor.drain import Step
from headrace.supervisor.loop import Loop
from headrace.supervisor.report import RunReport, RunStatus, ShardStatus
from headrace.supervisor.state_dir import WorkerEntry
from headrace.supervisor.worker_handle import Phase

_STATES = {Step.STARTING: "starting", Step.RUNNING: "running", Step.FINISHING: "running"}


def totals_into(report: RunReport, loop: Loop) -> None:
    """Fill in the counts."""
    totals = loop.parts.accounts.totals
    report.incarnation = loop.parts.incarnation
    report.records_in = totals.records_in
    report.filtered = totals.filtered
    report.skipped = totals.skipped
    report.dead_letters = totals.dead_letters
    report.in_flight = totals.in_flight
    report.rows_written = totals.rows_written
    report.left_out = dict(sorted(loop.parts.accounts.left_out_at.items()))
    report.workers_lost = loop.fleet.lost
    report.chunks_redelivered = loop.acks.redelivered
    report.acks_refused = sum(loop.parts.fences.refusals.values()) + loop.acks.foreign
    report.lease_record_failures = loop.parts.lease_failures.count + loop.journal.record_failures
    report.watermarks = {str(partition): position for partition, position in loop.commits.watermarks.items()}


def status_of(loop: Loop, pipeline: str) -> RunStatus:
    """The run as it is now."""
    status = RunStatus(pipeline=pipeline, exit_code=0)
    totals_into(status, loop)
    state = _STATES.get(loop.ending.step, "draining")
    status.pid = os.getpid()
    status.state = "paused" if state == "running" and loop.hysteresis.paused else state
    status.seconds = round(loop.now - loop.began, 3)
    status.error = loop.failure
    me = loop.fleet.workers
    status.workers = [
        WorkerEntry(one.name, one.pid, one.identity.start_ticks, one.shards) for one in me if one.identity is not None
    ]
    status.workers_ready = sum(one.phase is Phase.SERVING for one in me)
    status.workers_wanted = len(loop.fleet.seats)
    status.shards = _shards(loop)
    status.oldest_unacked_seconds = round(loop.parts.checkpointer.oldest_unacked(loop.now), 3)
    status.inflight_bytes = loop.parts.budget.used
    status.max_inflight_bytes = loop.parts.budget.limit
    progress = getattr(loop.source, "progress", None)
    done = progress() if progress is not None and loop.source_open else None
    if done is not None:
        status.read_bytes, status.total_bytes = done
    status.waiting = [
        f"sink {loop.parts.sink_names[sink]}, shard {shard}: {why}"
        for one in me
        for sink, shard, why in one.beat.get("waiting", ())
    ]
    return status


def _shards(loop: Loop) -> list[ShardStatus]:
    handoffs = loop.handoffs
    shards: list[ShardStatus] = []
    for (sink, shard), queue in loop.parts.queues.items():
        owner = loop.fleet.owner(shard)
        oldest = next(iter(queue.in_flight.values()), None)
        shards.append(
            ShardStatus(
                sink=loop.parts.sink_names[sink],
                shard=shard,
                worker=owner.name if owner else None,
                slots_used=queue.table.used,
                slots=queue.table.slots,
                parked=handoffs[sink].parked(shard) if handoffs else 0,
                in_flight=sum(one.out for one in queue.in_flight.values()),
                oldest_seconds=round(loop.now - oldest.chunk.sealed_at, 3) if oldest else 0.0,
                losses=max((loop.acks.losses_of(one.chunk) for one in queue.in_flight.values()), default=0),
            )
        )
    return shards
