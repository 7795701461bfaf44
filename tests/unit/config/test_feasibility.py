"""Plans that can work, and those refused with their numbers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.feasibility import MAX_SLOTS, Plan, check_plan, derived_slots
from headrace.config.load import load_settings
from headrace.config.settings import Settings
from headrace.errors import ConfigError

MIB = 2**20


def made(values: dict[str, Any] | None = None) -> Settings:
    return load_settings(code=values or {}, env={}, flags={}).settings


def plan(values: dict[str, Any] | None = None, **options: Any) -> Plan:
    return check_plan(made(values), **{"sinks": 1, "shards": 8, "workers": 2, "memory_limit": None, **options})


def test_the_defaults_are_a_plan_without_a_warning() -> None:
    found = plan(memory_limit=2048 * MIB)

    assert found.slots == 96
    assert found.slab_bytes == 48 * MIB
    assert found.shared_bytes == 384 * MIB
    assert found.warnings == ()
    assert "1 sink(s) × 8 shards × 96 slots × 512KiB" in found.memory_map()[0]


@pytest.mark.parametrize(("sinks", "shards"), [(1, 1), (2, 8), (4, 8), (1, 64), (3, 32)])
def test_the_defaults_serve_any_usual_number_of_sinks_and_shards(sinks: int, shards: int) -> None:
    assert plan(sinks=sinks, shards=shards).slots == 96


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"shm.slots": 4}, r"batch.max_bytes = 8MiB can never fill: a shard's 4 slots × .*256KiB.* hold 1MiB"),
        ({"backpressure.max_inflight_bytes": "2MiB", "batch.max_bytes": "64KiB"}, r"= 1\.6MiB is below .* 2\.25MiB"),
        ({"checkpoint.max_pending_batches": 100}, r"= 100 is reached before .* 102MiB are 410 batches"),
        ({"chunk.target_bytes": "1MiB"}, r"chunk.target_bytes \(1MiB\) is more than shm.slot_bytes \(512KiB\)"),
        ({"backpressure.low": 0.9}, r"backpressure.low \(0.9\) must be less than backpressure.high \(0.8\)"),
        ({"retry.initial": "1m"}, r"retry.initial \(1m\) is more than retry.max \(30s\)"),
        ({"fleet.beat_interval": "10s"}, r"fleet.beat_interval \(10s\) must be less than fleet.heartbeat_timeout"),
    ],
)
def test_a_plan_that_cannot_work_is_refused_with_numbers(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(values)


def test_more_slabs_than_a_worker_can_be_given_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"2 sink\(s\) × 200 shards = 400 .* at most 240; use at most 120 shards"):
        plan(sinks=2, shards=200)


def test_shared_memory_over_the_limit_is_refused_with_the_formula() -> None:
    """M07"""
    with pytest.raises(ConfigError, match=r"192MiB \(1 sink.* × 8 shards × 96 slots × 256KiB\).* limit of 128MiB"):
        plan(memory_limit=128 * MIB)


def test_a_limit_that_could_be_passed_is_warned_of() -> None:
    """M15"""
    found = plan(memory_limit=500 * MIB)

    assert "memory limit is 500MiB" in found.warnings[0]


def test_workers_without_a_shard_are_warned_of() -> None:
    assert "1 will have nothing to do" in plan(workers=3, shards=2).warnings[0]


@given(
    st.integers(1, 8),
    st.integers(64, 2**30),
    st.integers(64, 2**24),
    st.integers(2**20, 2**40),
    st.floats(0.01, 1.0),
)
def test_derived_slots_stay_within_their_bounds(writes: int, batch: int, chunk: int, budget: int, share: float) -> None:
    values = {
        "inflight.max_per_shard": writes,
        "batch.max_bytes": batch,
        "chunk.target_bytes": chunk,
        "backpressure.max_inflight_bytes": budget,
        "backpressure.shard_share": share,
    }

    slots = derived_slots(made(values))

    assert min(writes + 2, MAX_SLOTS) <= slots <= MAX_SLOTS
    assert slots <= max(writes + 2, -(-(writes + 1) * batch // chunk))
