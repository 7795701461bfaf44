"""Everything a run is made of, put together once: the loop only turns it."""

from __future__ import annotations

import itertools
import secrets
import socket
from collections.abc import Callable
from typing import Any

import msgspec
import xxhash

from headrace.chain import travel
from headrace.chain.build import BuiltChain, Carry
from headrace.checkpoint.ack import AckRef
from headrace.checkpoint.checkpointer import Checkpointer
from headrace.codec.columns import Columns
from headrace.codec.records import LinesCodec, RecordsCodec
from headrace.codec.rows import Codec, JsonLines, MsgpackRows, RawRows
from headrace.config.feasibility import Plan
from headrace.config.load import EffectiveSettings
from headrace.config.settings import Settings
from headrace.config.worker_plan import SinkPlan, WorkerPlan
from headrace.errors import ConfigError
from headrace.handoff.budget import Budget
from headrace.handoff.grouping import RowEncoder
from headrace.handoff.routing import Router
from headrace.handoff.sink_handoff import HandoffSettings, SinkHandoff
from headrace.lease.fences import CompletionFences, WorkerAttribution
from headrace.lease.handoff import LeaseFailures, LeaseKey
from headrace.pipeline import Pipeline
from headrace.record import ChunkId, OnError
from headrace.shm.queue import ShardQueue, SlotTable
from headrace.sinks.base import Sink
from headrace.supervisor.accounts import Accounts
from headrace.supervisor.journal import Journal
from headrace.supervisor.slabs import Doorbells, Port, Slabs
from headrace.supervisor.worker_handle import WorkerHandle


class JournalSeam:
    """Leases go to the journal's queue: what is queued first is durable first."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def record(self, key: LeaseKey, worker: WorkerAttribution, token_digest: str, now: float) -> None:  # noqa: ARG002 - the protocol's
        self._journal.lease(key, worker, token_digest)


class Parts:
    """The state machines of a run and the memory they share. Made before the first worker starts."""

    def __init__(
        self,
        built: BuiltChain,
        sinks: list[tuple[str, Sink]],
        settings: Settings,
        plan: Plan,
        *,
        pipeline: str,
        incarnation: int,
        packed: bytes,
        journal: Journal,
        on_error: OnError,
        log: Any,
    ) -> None:
        self.built = built
        self.sinks = sinks
        self.sink_names = [name for name, _ in sinks]
        self.settings = settings
        self.plan = plan
        self.pipeline = pipeline
        self.incarnation = incarnation
        self.packed = packed
        self.digest = xxhash.xxh3_64_digest(packed)
        self.run_id = secrets.token_hex(8)
        self.host = socket.gethostname()
        self.policies = [sink.on_error or on_error for _, sink in sinks]
        self.budget = Budget(settings.backpressure.max_inflight_bytes)
        self.fences = CompletionFences(incarnation, lambda: secrets.randbits(64))
        self.accounts = Accounts(fan_out=built.fan_out)
        self.checkpointer = Checkpointer(self._resolved)
        self.lease_failures = LeaseFailures(
            lambda key, error: log.error(
                "a lease could not be recorded", chunk=key.chunk, shard=key.shard, cause=str(error)
            )
        )
        self.doorbells = Doorbells()
        self.slabs = Slabs(len(sinks), plan.shards, plan.slots, settings.shm.slot_bytes)
        seam = JournalSeam(journal)
        self.queues = {
            (sink, shard): ShardQueue(
                sink,
                shard,
                SlotTable(plan.slots),
                Port(self.slabs.of(sink, shard), self.doorbells, incarnation),
                fences=self.fences,
                seam=seam,
                failures=self.lease_failures,
            )
            for sink in range(len(sinks))
            for shard in range(plan.shards)
        }
        self._chunk_ids = itertools.count(1)

    def _resolved(self, ref: AckRef) -> None:
        self.accounts.resolved((ref.batch_id.partition, ref.batch_id.epoch, ref.batch_id.seq))

    def handoffs(self, columns: list[Columns | None]) -> list[SinkHandoff]:
        """The terminal stages, once the sinks' columns are known."""
        settings = HandoffSettings(
            target_bytes=self.settings.chunk.target_bytes,
            linger=self.settings.chunk.linger,
            slot_bytes=self.settings.shm.slot_bytes,
        )
        return [
            SinkHandoff(
                sink,
                self.plan.shards,
                _encoder(self.built, self.sinks[sink][1], columns[sink]),
                Router(self.plan.shards),
                [self.queues[sink, shard] for shard in range(self.plan.shards)],
                self.budget,
                settings,
                self.policies[sink],
                lambda: ChunkId(next(self._chunk_ids)),
            )
            for sink in range(len(self.sinks))
        ]

    def plan_for(self, worker: WorkerHandle) -> bytes:
        """The plan that this worker is sent."""
        settings = self.settings
        plan = WorkerPlan(
            pipeline=self.pipeline,
            name=worker.name,
            number=worker.number,
            incarnation=self.incarnation,
            run_id=self.run_id,
            packed=self.packed,
            digest=self.digest,
            sinks=[SinkPlan(name, policy) for name, policy in zip(self.sink_names, self.policies, strict=True)],
            shards=self.plan.shards,
            owned=worker.shards,
            slots=self.plan.slots,
            slot_bytes=settings.shm.slot_bytes,
            fan_out=self.built.fan_out,
            spool=str(worker.spool),
            host=self.host,
            batch=settings.batch,
            inflight=settings.inflight,
            retry=settings.retry,
            fleet=settings.fleet,
            log=settings.log,
        )
        return msgspec.msgpack.encode(plan)

    def close(self) -> None:
        """Give the shared memory back."""
        self.slabs.close()


def _encoder(built: BuiltChain, sink: Sink, columns: Columns | None) -> RowEncoder:
    if built.carry is Carry.LINES:
        return LinesCodec()
    if built.carry is Carry.RECORDS:
        return RecordsCodec(built.record_type)
    encoders: dict[Codec, Callable[[], RowEncoder]] = {
        Codec.MSGPACK: lambda: MsgpackRows(columns),
        Codec.JSON_LINES: JsonLines,
        Codec.RAW: RawRows,
    }
    return encoders[sink.codec]()


def default_policy(pipeline: Pipeline, effective: EffectiveSettings) -> OnError:
    """What is done about a bad record where nothing nearer says it: flag, environment and file before the pipeline."""
    if effective.origins.get("on_error", "default") != "default":
        return effective.settings.on_error
    return pipeline.on_error or effective.settings.on_error


def pack(built: BuiltChain, sinks: list[tuple[str, Sink]], modules_root: Any) -> bytes:
    """The worker's chain and the sinks, by value. Raises `ConfigError` naming what cannot travel."""
    try:
        return travel.pack(modules_root, (built.worker, [sink for _, sink in sinks]))
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"the pipeline cannot travel to its workers: {type(error).__name__}: {error}") from error
