"""Wrong use of a pipeline is told at once, with what to do instead."""

from __future__ import annotations

import functools
import importlib.metadata
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace
from headrace import ConfigError, Delivery, OnError, Pipeline
from headrace.sinks import Blackhole, Sqlite, Stdout
from headrace.sources import Files


class Item(msgspec.Struct):
    key: str
    size: int = 0


class Row(msgspec.Struct):
    size: int


def start(decode: Any = dict) -> Any:
    return Pipeline("x").source(Files("in.ndjson", decode=decode))


def new(name: str) -> Any:
    """A pipeline for wrong use, which a type checker would tell."""
    return Pipeline(name)


def same(value: object) -> object:
    return value


async def later(value: object) -> object:
    return value


async def stream(value: object) -> AsyncIterator[object]:
    yield value


def each(value: object) -> Iterator[object]:
    yield value


class Later:
    async def __call__(self, value: object) -> object:
        return value

    async def method(self, value: object) -> object:
        return value


def test_each_call_returns_a_new_pipeline() -> None:
    first = start()

    second = first.map(same)
    third = second.sink(Stdout())

    assert (len(first.operators), len(second.operators)) == (0, 1)
    assert (second.sinks, list(third.sinks)) == ({}, ["main"])
    assert first.source_of is third.source_of


def test_stages_are_numbered_in_order_and_may_be_named() -> None:
    pipeline = start().map(same).filter(same, name="keep").shard_by("k").flat_map(each).map_batch(list).inspect(same)

    names = [one.name for one in pipeline.operators]

    assert names == ["1_map", "keep", "shard_by", "3_flat_map", "4_map_batch", "5_inspect"]
    assert repr(pipeline) == "<Pipeline 'x': 1_map → keep → shard_by → 3_flat_map → 4_map_batch → 5_inspect>"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda: Pipeline(""), "a pipeline needs a name of 1 to 200 printable characters"),
        (lambda: Pipeline("a\nb"), "a pipeline needs a name"),
        (lambda: Pipeline("x", on_error="ignore"), "on_error='ignore' is no policy; use 'fail', 'skip', 'dead_letter'"),
        (lambda: Pipeline("x", on_error="dead-letter"), "did you mean 'dead_letter'?"),
        (lambda: start().map(same, on_error="skipp"), "1_map: on_error='skipp' is no policy; did you mean 'skip'?"),
        (lambda: Pipeline("x").map(same), r"map comes before a source; call .source(Files(…)) first"),
        (lambda: Pipeline("x").shard_by("k"), "shard_by comes before a source"),
        (lambda: Pipeline("x").sink(Stdout()), "sink comes before a source"),
        (lambda: start().source(Files("b")), "the pipeline x already has a source"),
        (lambda: new("x").source("in.ndjson"), "source('in.ndjson') is no source; give one of headrace.sources"),
        (lambda: new("x").source(Files), "source(Files) is given the class; make one: Files(…)"),
        (lambda: start().map(3), "map(…) takes a function, not 3"),
        (lambda: start().map(later), "map(later): an operator cannot be `async def`"),
        (lambda: start().flat_map(stream), "flat_map(stream): an operator cannot be `async def`"),
        (lambda: start().map(Later()), "map(Later): an operator cannot be `async def`"),
        (lambda: start().filter(Later().method), "filter(Later.method): an operator cannot be `async def`"),
        (lambda: start().map(functools.partial(functools.partial(later), 1)), "an operator cannot be `async def`"),
        (lambda: start().shard_by(later), "shard_by(later): an operator cannot be `async def`"),
        (lambda: start().split(later, {"a": Stdout()}), "split(later): an operator cannot be `async def`"),
        (lambda: start().filter(each), "filter(each): the function has a `yield`"),
        (lambda: start().inspect(each), "only flat_map takes a generator function"),
        (lambda: start().shard_by("k").shard_by("j"), "the pipeline x has two shard_by"),
        (lambda: start().shard_by(""), "shard_by('') names no field"),
        (lambda: start(bytes).shard_by("k"), "records of decode=bytes have no fields; give a function of the record"),
        (lambda: start(Item).shard_by("kee"), "shard_by('kee'): Item has no such field; did you mean 'key'?"),
        (lambda: start(Item).filter(same).shard_by("zzz"), "Item has no such field; it has key, size"),
        (lambda: start().map(same, name="decode"), "map: the name 'decode' is taken"),
        (lambda: start().map(same, name="a").filter(same, name="a"), "filter: the name 'a' is taken"),
        (lambda: start().sink(Stdout()).map(same), "map comes after the sink, where the pipeline x ends; put it"),
        (lambda: start().sink(Stdout()).sink(Stdout()), "for several sinks use .split(route, {name: sink, …})"),
        (lambda: start().split(same, {"a": Stdout()}).shard_by("k"), "shard_by comes after the sink"),
        (lambda: start().split(same, {}), "split needs sinks"),
        (lambda: start().split(same, {"": Stdout()}), "a sink needs a name"),
        (lambda: start().sink("out.db"), "sink('out.db') is no sink; give one of headrace.sinks"),
        (lambda: start().sink(Stdout), "sink(Stdout) is given the class; make one: Stdout(…)"),
        (lambda: Pipeline("x").build(on_error=OnError.FAIL), "the pipeline x has no source; call .source(Files(…))"),
        (lambda: start().build(on_error=OnError.FAIL), "the pipeline x has no sink; call .sink(…) and use what"),
        (
            lambda: start().sink(Stdout(delivery=Delivery.EXACTLY_ONCE)).build(on_error=OnError.FAIL),
            "sink main: Stdout cannot give delivery='exactly_once'",
        ),
    ],
)  # fmt: skip
def test_wrong_use_is_refused_with_what_to_do(wrong: Callable[[], object], told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        wrong()

    assert told in str(refused.value)


def test_a_class_and_a_builtin_are_functions_too() -> None:
    built = start(bytes).map(bytes.decode).map(str).map(functools.partial(int, base=16)).sink(Stdout())

    assert len(built.build(on_error=OnError.FAIL).supervisor.operators) == 3


def test_a_policy_is_the_operator_s_own_or_the_one_that_build_is_given() -> None:
    pipeline = start().map(same, on_error="skip").map(same).sink(Blackhole(), on_error="dead_letter")

    built = pipeline.build(on_error=OnError.DEAD_LETTER)

    stages = built.supervisor._chain._stages
    policies = [step.policy for stage in stages for step in getattr(stage, "steps", ())]
    assert policies == [OnError.SKIP, OnError.DEAD_LETTER]
    assert pipeline.sinks["main"].on_error is OnError.DEAD_LETTER


@pytest.mark.parametrize(
    ("pipeline", "columns"),
    [
        (start(Item), ("key", "size")),
        (start(Item).filter(same).shard_by("key"), ("key", "size")),
        (start(Item).map(same), None),
        (start(Item).flat_map(each), None),
        (start(dict), None),
    ],
)
def test_a_sink_learns_the_type_of_its_rows_while_it_is_known(pipeline: Pipeline, columns: object) -> None:
    def sized(item: Item) -> Row:
        return Row(item.size)

    sink = Sqlite("x.db", table="t")

    as_it_is = pipeline.sink(sink).sinks["main"].declared_columns()
    mapped = pipeline.map(sized).split(same, {"a": sink}).sinks["a"].declared_columns()

    assert (as_it_is.names if as_it_is is not None else None) == columns
    assert mapped is not None
    assert mapped.names == ("size",)


def test_settings_and_version_are_kept() -> None:
    settings = {"batch": {"max_rows": 5}}

    pipeline = Pipeline("x", on_error="skip", version="2", settings=settings).source(Files("a")).map(same)

    assert (pipeline.on_error, pipeline.version, pipeline.settings) == (OnError.SKIP, "2", settings)


def test_a_mapping_says_the_same_as_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "shapes_of_this_test.py").write_text(
        "import msgspec\nclass Box(msgspec.Struct):\n    id: int\ndef double(box):\n    return box.id * 2\n"
    )
    mapping: dict[str, object] = {
        "pipeline": {"name": "boxes", "shard_by": "id", "on_error": "skip"},
        "source": {"type": "files", "paths": "in.ndjson", "decode": "shapes_of_this_test:Box"},
        "transform": [{"op": "map", "call": "shapes_of_this_test:double", "on_error": "dead_letter"}],
        "sinks": {"out": {"type": "blackhole"}},
        "batch": {"max_rows": 7},
    }

    pipeline = Pipeline.from_mapping(mapping, tmp_path)

    built = pipeline.build(on_error=OnError.FAIL)
    assert (pipeline.name, list(pipeline.sinks), pipeline.on_error) == ("boxes", ["out"], OnError.SKIP)
    assert pipeline.settings == {"batch": {"max_rows": 7}, "on_error": "skip"}
    assert built.worker is not None
    records, _ = built.worker.decode_group(memoryview(b'{"id":4}\n'), 1)
    assert built.worker.run(records).rows == [8]


def test_a_mapping_with_an_unknown_key_names_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    mapping: dict[str, object] = {
        "pipeline": {"name": "x", "shard_bye": "id"},
        "source": {"type": "files"},
        "sinks": {},
    }

    with pytest.raises(ConfigError, match=r"there is no pipeline.shard_bye; did you mean shard_by\?"):
        Pipeline.from_mapping(mapping, tmp_path)


def test_the_version_is_the_distribution_s() -> None:
    assert headrace.__version__ == importlib.metadata.version("headrace")
    assert set(headrace.__all__) <= set(dir(headrace))


def test_importing_headrace_imports_no_connector_and_no_driver() -> None:
    code = "import sys, headrace; print(*sorted(sys.modules))"

    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=50, check=True)

    loaded = set(done.stdout.split())
    heavy = {"dill", "multiprocess", "asyncio", "sqlite3", "psutil", "rich", "click", "structlog"}
    assert not loaded & heavy
    assert not {
        name for name in loaded if name.startswith(("headrace.sources", "headrace.sinks", "headrace.supervisor"))
    }
