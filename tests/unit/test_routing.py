"""A key always goes to the same shard: in every process, on every Python, after every restart."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.handoff import routing
from headrace.handoff.routing import Router, shard_of
from headrace.record import PartitionId

GOLDEN = Path(__file__).parent / "golden" / "routing.json"
PARTITION = PartitionId("p#1")


def key_of(written: list[Any]) -> Any:
    """A key as the golden file writes it: the name of its type, and a value that JSON can hold."""
    kind, value = written
    match kind:
        case "bytes":
            return bytes.fromhex(value)
        case "float":
            return float.fromhex(value)
        case "int":
            return int(value)
        case "tuple":
            return tuple(map(key_of, value))
        case "list":
            return list(map(key_of, value))
        case "dict":
            return {name: key_of(item) for name, item in value}
        case _:
            return value


def mistakes(path: str) -> list[str]:
    """The golden keys that are routed elsewhere: one at a time, in one batch, and in batches of one type."""
    golden = json.loads(Path(path).read_text(encoding="utf-8"))
    partition = PartitionId(golden["partition"])
    wrong: list[str] = []
    for place, shards in enumerate(golden["shards"], start=1):
        keys: list[Any] = [key_of(one[0]) for one in golden["keys"]]
        wanted: list[int] = [one[place] for one in golden["keys"]]
        batches = [list(range(len(keys)))]
        batches += [[at for at, key in enumerate(keys) if type(key) is kind] for kind in set(map(type, keys))]
        batches += [
            [at for at, key in enumerate(keys) if type(key) in (kind, type(None))] for kind in (str, int, bytes)
        ]
        for batch in batches:
            found = Router(shards).shards_of([keys[at] for at in batch], len(batch), partition)
            wrong += [repr(keys[at]) for at, shard in zip(batch, found, strict=True) if shard != wanted[at]]
        wrong += [
            repr(key) for key, shard in zip(keys, wanted, strict=True) if shard_of(key, shards, partition) != shard
        ]
    return wrong


def test_the_golden_keys_go_where_they_always_went() -> None:
    """K02 K04"""
    assert len(json.loads(GOLDEN.read_text(encoding="utf-8"))["keys"]) >= 1_000

    assert mistakes(str(GOLDEN)) == []


@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_the_golden_keys_do_not_depend_on_the_process(seed: str) -> None:
    """K02 K04"""
    code = f"import runpy; print(runpy.run_path({str(__file__)!r})['mistakes']({str(GOLDEN)!r}))"

    done = subprocess.run(
        [sys.executable, "-bb", "-c", code],
        env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, timeout=50, check=True,
    )  # fmt: skip

    assert done.stdout.strip() == "[]"


class Level(enum.StrEnum):
    HIGH = "high"


class Name(str):
    """A string that is not quite one."""

    __slots__ = ()

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        return True


KEYS = st.one_of(
    st.text(max_size=4), st.binary(max_size=4), st.integers(-5, 5), st.integers(), st.floats(), st.booleans(),
    st.none(), st.tuples(st.text(max_size=2), st.integers(-5, 5)), st.lists(st.booleans(), max_size=2), st.uuids(),
    st.decimals(), st.just(Level.HIGH), st.text(max_size=3).map(Name), st.dates(),
    st.frozensets(st.integers(0, 9), max_size=3),
    st.dictionaries(st.text(max_size=2), st.integers(0, 3), max_size=2),
)  # fmt: skip


@given(st.lists(st.lists(KEYS, max_size=8), max_size=4), st.integers(1, 20))
def test_a_batch_is_routed_as_its_keys_are_one_by_one(batches: list[list[object]], shards: int) -> None:
    router = Router(shards)

    for number, keys in enumerate(batches):
        partition = PartitionId(f"p{number}")
        found = router.shards_of(keys, len(keys), partition)

        assert found == [shard_of(key, shards, partition) for key in keys]


@given(st.sampled_from([str, bytes, int]), st.data())
def test_a_batch_of_one_type_is_routed_as_its_keys_are_one_by_one(kind: type, data: st.DataObject) -> None:
    one: Any = {str: st.text(max_size=3), bytes: st.binary(max_size=3), int: st.integers(-3, 3) | st.integers()}[kind]
    router = Router(7)

    for number in range(3):
        keys: list[object] = data.draw(st.lists(one | st.none(), max_size=10))
        partition = PartitionId(f"p{number}")

        assert router.shards_of(keys, len(keys), partition) == [shard_of(key, 7, partition) for key in keys]


def test_one_and_true_and_a_float_are_keys_of_their_own() -> None:
    router = Router(1_000_003)

    batches: list[list[object]] = [[1], [True], [1.0], [True, 1], [1.0, 1]]
    found = [router.shards_of(keys, len(keys), PARTITION) for keys in batches]

    one, true, real = (shard_of(key, 1_000_003) for key in (1, True, 1.0))
    assert len({one, true, real}) == 3
    assert found == [[one], [true], [real], [true, one], [real, one]]


def test_text_and_its_bytes_are_one_key_and_composed_text_is_another() -> None:
    assert shard_of("é", 10**9) == shard_of("é".encode(), 10**9)
    assert shard_of("é", 10**9) != shard_of("e\u0301", 10**9)


def test_the_order_of_a_dict_and_of_a_set_does_not_matter() -> None:
    assert shard_of({"a": 1, "b": 2}, 10**9) == shard_of({"b": 2, "a": 1}, 10**9)
    assert shard_of(frozenset({"x", "y", "z"}), 10**9) == shard_of(frozenset({"z", "y", "x"}), 10**9)


def test_rows_without_keys_go_by_their_partition() -> None:
    """K04"""
    router = Router(1_000_003)

    found = [router.shards_of(None, 2, PartitionId("p")), router.shards_of([None, None], 2, PartitionId("p"))]

    assert found == [[shard_of("p", 1_000_003)] * 2] * 2
    assert router.shards_of(None, 1, PartitionId("q")) != found[0][:1]
    assert router.shards_of([], 0, PARTITION) == []


@pytest.mark.parametrize("key", ["\ud800", object(), pytest.param(10**5000, id="huge"), {1: 2, "a": 3}, [object()]])
def test_what_has_no_bytes_is_refused_and_spoils_nothing(key: object) -> None:
    router = Router(8)

    with pytest.raises((TypeError, ValueError, UnicodeError)):
        router.shards_of(["a", key], 2, PARTITION)

    assert router.shards_of(["a", "b"], 2, PARTITION) == [shard_of("a", 8), shard_of("b", 8)]


@pytest.mark.parametrize(
    "key", [decimal.Decimal("1.50"), uuid.UUID(int=5), dt.date(2013, 1, 1), ("a", decimal.Decimal(1))]
)
def test_values_that_msgpack_writes_as_text_are_keys(key: object) -> None:
    assert Router(8).shards_of([key], 1, PARTITION) == [shard_of(key, 8)]


def test_the_tables_of_known_keys_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """HR-9"""
    monkeypatch.setattr(routing, "_CACHED_KEYS", 50)
    router = Router(8)

    for begin in range(0, 1_000, 30):
        keys: list[object] = [f"k{number}" for number in range(begin, begin + 30)] + [None, "x" * 300]
        assert router.shards_of(keys, 32, PARTITION) == [shard_of(key, 8, PARTITION) for key in keys]

    held = [len(table) for table in router._tables.values()]
    assert max(held) <= 50
    assert all(len(key) <= 256 for key in router._tables[str])
