"""Whether a plan can work: slots, shared memory and budget against each other and against the memory there is."""

from __future__ import annotations

import math

import msgspec

from headrace.config.settings import Settings
from headrace.config.units import format_duration, format_size
from headrace.config.worker_plan import MAX_SLABS
from headrace.errors import ConfigError

MAX_SLOTS = 4096
SUPERVISOR_BYTES = 64 * 2**20
"""What the supervisor's process takes without any data, about."""

WORKER_BYTES = 24 * 2**20
"""What a worker's process takes of its own without any data, about."""


class MemoryLine(msgspec.Struct, frozen=True):
    """One line of the memory map: what it is, how much, and how that comes about."""

    name: str
    bytes: int
    formula: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that can work. ``slab_bytes`` is one shard's shared memory, ``shared_bytes`` that of all of them."""

    sinks: int
    shards: int
    workers: int
    slots: int
    slab_bytes: int
    shared_bytes: int
    memory: tuple[MemoryLine, ...]
    memory_limit: int | None
    warnings: tuple[str, ...]

    def memory_map(self) -> list[str]:
        """The memory map as lines of text."""
        lines = [f"{line.name:<22} {format_size(line.bytes):>10}  {line.formula}" for line in self.memory]
        total = sum(line.bytes for line in self.memory)
        limit = f"of {about(self.memory_limit)}" if self.memory_limit is not None else "(limit unknown)"
        return [*lines, f"{'at most':<22} {about(total):>10}  {limit}"]


def check_plan(settings: Settings, *, sinks: int, shards: int, workers: int, memory_limit: int | None) -> Plan:
    """Work out slots and memory. Raises `ConfigError` with the numbers for a plan that cannot work."""
    _check_order(settings)
    slots = settings.shm.slots if settings.shm.slots is not None else derived_slots(settings)
    _check_slabs(sinks, shards)
    _check_batch(settings, slots)
    _check_budget(settings, sinks, shards)
    _check_pending(settings)
    memory = _memory(settings, sinks, shards, workers, slots)
    _check_memory(settings, memory, sinks, shards, slots, memory_limit)
    slab = slots * settings.shm.slot_bytes
    return Plan(
        sinks=sinks,
        shards=shards,
        workers=workers,
        slots=slots,
        slab_bytes=slab,
        shared_bytes=sinks * shards * slab,
        memory=memory,
        memory_limit=memory_limit,
        warnings=tuple(_warnings(settings, shards, workers, memory, memory_limit)),
    )


def derived_slots(settings: Settings) -> int:
    """As many slots as let ``inflight.max_per_shard`` + 1 write batches fit, within a shard's share of the budget."""
    writes = settings.inflight.max_per_shard
    wanted = math.ceil((writes + 1) * settings.batch.max_bytes / settings.chunk.target_bytes)
    share = math.ceil(_share_bytes(settings) / settings.chunk.target_bytes)
    return min(MAX_SLOTS, max(min(wanted, share), writes + 2))


def about(size: int) -> str:
    """A size to read, not to read back: three digits and a unit."""
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:.3g}{unit}" if size / factor < 999.5 else f"{size / factor:.0f}{unit}"
    return f"{size}B"


def _share_bytes(settings: Settings) -> float:
    return settings.backpressure.shard_share * settings.backpressure.max_inflight_bytes


def _check_order(settings: Settings) -> None:
    """Settings that are ordered among themselves."""
    _require_at_most("chunk.target_bytes", settings.chunk.target_bytes, "shm.slot_bytes", settings.shm.slot_bytes)
    _require_less("backpressure.low", settings.backpressure.low, "backpressure.high", settings.backpressure.high)
    _require_at_most("retry.initial", settings.retry.initial, "retry.max", settings.retry.max, time=True)
    _require_less(
        "fleet.beat_interval",
        settings.fleet.beat_interval,
        "fleet.heartbeat_timeout",
        settings.fleet.heartbeat_timeout,
        time=True,
    )


def _require_at_most(name: str, value: float, limit_name: str, limit: float, *, time: bool = False) -> None:
    if value > limit:
        shown = _shown(value, time), _shown(limit, time)
        raise ConfigError(f"{name} ({shown[0]}) is more than {limit_name} ({shown[1]}); lower it or raise {limit_name}")


def _require_less(name: str, value: float, limit_name: str, limit: float, *, time: bool = False) -> None:
    if value >= limit:
        shown = _shown(value, time), _shown(limit, time)
        raise ConfigError(f"{name} ({shown[0]}) must be less than {limit_name} ({shown[1]})")


def _shown(value: float, time: bool) -> str:
    if time:
        return format_duration(value)
    return format_size(value) if isinstance(value, int) else f"{value:g}"


def _check_slabs(sinks: int, shards: int) -> None:
    if sinks * shards > MAX_SLABS:
        raise ConfigError(
            f"{sinks} sink(s) × {shards} shards = {sinks * shards} shared memory regions, and a worker can be given "
            f"at most {MAX_SLABS}; use at most {MAX_SLABS // sinks} shards"
        )


def _check_batch(settings: Settings, slots: int) -> None:
    """A write batch is made of chunks that lie in slots, all at once."""
    room = slots * settings.chunk.target_bytes
    if room < settings.batch.max_bytes:
        raise ConfigError(
            f"a write batch of batch.max_bytes = {about(settings.batch.max_bytes)} can never fill: a shard's {slots} "
            f"slots × chunk.target_bytes ({about(settings.chunk.target_bytes)}) hold {about(room)}; lower "
            f"batch.max_bytes, or raise "
            + ("shm.slots" if settings.shm.slots is not None else "backpressure.max_inflight_bytes")
        )


def _check_budget(settings: Settings, sinks: int, shards: int) -> None:
    """Every shard must be able to have a chunk under way while one block of the source is being cut up."""
    floor = sinks * shards * settings.chunk.target_bytes + settings.source.block_bytes
    high = int(settings.backpressure.high * settings.backpressure.max_inflight_bytes)
    if floor > high:
        needed = math.ceil(floor / settings.backpressure.high)
        raise ConfigError(
            f"backpressure.high × backpressure.max_inflight_bytes = {about(high)} is below the in-flight floor of "
            f"{about(floor)} ({sinks} sink(s) × {shards} shards × chunk.target_bytes "
            f"({about(settings.chunk.target_bytes)}) + source.block_bytes ({about(settings.source.block_bytes)})); "
            f"raise backpressure.max_inflight_bytes to {about(needed)} or more"
        )


def _check_pending(settings: Settings) -> None:
    """With all rows going to one stalled shard, its share must be full before its partition is skipped."""
    batches = math.ceil(_share_bytes(settings) / settings.source.block_bytes)
    if settings.checkpoint.max_pending_batches < batches:
        raise ConfigError(
            f"checkpoint.max_pending_batches = {settings.checkpoint.max_pending_batches} is reached before a stalled "
            f"shard has its share: backpressure.shard_share × backpressure.max_inflight_bytes = "
            f"{about(int(_share_bytes(settings)))} are {batches} batches of source.block_bytes "
            f"({about(settings.source.block_bytes)}); raise it to {batches} or more"
        )


def _memory(settings: Settings, sinks: int, shards: int, workers: int, slots: int) -> tuple[MemoryLine, ...]:
    slot_bytes, batch = settings.shm.slot_bytes, settings.batch.max_bytes
    writes = min(settings.inflight.max_per_shard, 2) + 1
    budget = settings.backpressure.max_inflight_bytes
    return (
        MemoryLine(
            "shared memory",
            sinks * shards * slots * slot_bytes,
            f"{sinks} sink(s) × {shards} shards × {slots} slots × {about(slot_bytes)}, touched only when used",
        ),
        MemoryLine("parked and unsettled", budget, "backpressure.max_inflight_bytes"),
        MemoryLine("supervisor", SUPERVISOR_BYTES, "the process itself"),
        MemoryLine(
            "workers",
            workers * (WORKER_BYTES + writes * batch),
            f"{workers} × ({about(WORKER_BYTES)} + {writes} write batches of {about(batch)})",
        ),
    )


def _check_memory(
    settings: Settings, memory: tuple[MemoryLine, ...], sinks: int, shards: int, slots: int, limit: int | None
) -> None:
    """Shared memory filled as chunks fill it, and the processes, are needed whatever the stream does."""
    chunk = settings.chunk.target_bytes
    filled = sinks * shards * slots * chunk
    processes = sum(line.bytes for line in memory[2:])
    if limit is not None and filled + processes > limit:
        raise ConfigError(
            f"shared memory of {about(filled)} ({sinks} sink(s) × {shards} shards × {slots} slots × {about(chunk)}) "
            f"and {about(processes)} for the processes do not fit the memory limit of {about(limit)}; lower "
            "batch.max_bytes, shm.slots, shards or workers"
        )


def _warnings(
    settings: Settings, shards: int, workers: int, memory: tuple[MemoryLine, ...], limit: int | None
) -> list[str]:
    warnings: list[str] = []
    total = sum(line.bytes for line in memory)
    if limit is not None and total > limit:
        warnings.append(
            f"at most {about(total)} may come into use and the memory limit is {about(limit)}; lower "
            "backpressure.max_inflight_bytes, batch.max_bytes or shards"
        )
    if workers > shards:
        warnings.append(f"{workers} workers for {shards} shards: {workers - shards} will have nothing to do")
    batches = math.ceil(shards * _share_bytes(settings) / settings.source.block_bytes)
    if settings.checkpoint.max_pending_batches < batches and shards > 1:
        warnings.append(
            f"with rows spread evenly, one stalled shard stops its partition at checkpoint.max_pending_batches = "
            f"{settings.checkpoint.max_pending_batches}, before its share ({batches} batches)"
        )
    held = shards * settings.batch.max_bytes
    low = int(settings.backpressure.low * settings.backpressure.max_inflight_bytes)
    if low < held:
        warnings.append(
            f"a pause may end only when write batches are sealed by batch.linger: {shards} shards may hold "
            f"{about(held)} unwritten, and the source is resumed below {about(low)}"
        )
    if settings.fleet.max_rss is not None and settings.fleet.max_rss < WORKER_BYTES:
        warnings.append(f"fleet.max_rss is below what a worker takes without data ({about(WORKER_BYTES)})")
    return warnings
