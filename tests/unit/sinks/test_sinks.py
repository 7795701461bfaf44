"""Sinks as settings: their checks, paths and columns."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.codec.columns import Columns
from headrace.errors import ConfigError
from headrace.record import Delivery, OnError
from headrace.sinks import Blackhole, NdjsonFiles, Sink, Sqlite, Stdout


class Departure(msgspec.Struct):
    carrier: str
    delay: int | None


EVERY_SINK: list[Sink] = [Sqlite("a.db", table="t"), NdjsonFiles("out"), Stdout(), Blackhole()]


@pytest.mark.parametrize("sink", EVERY_SINK, ids=lambda sink: type(sink).__name__)
def test_a_sink_with_its_defaults_passes_its_check(sink: Sink) -> None:
    sink.check()

    assert sink.delivery is Delivery.AT_LEAST_ONCE
    assert sink.on_error is None


@pytest.mark.parametrize("sink", EVERY_SINK, ids=lambda sink: type(sink).__name__)
def test_exactly_once_is_refused_with_the_reason(sink: Sink) -> None:
    with pytest.raises(ConfigError, match="keeps no positions beside its rows; it gives at_least_once"):
        msgspec.structs.replace(sink, delivery=Delivery.EXACTLY_ONCE).check()


def test_texts_of_a_toml_file_become_what_they_name() -> None:
    texts: dict[str, Any] = {"delivery": "at_least_once", "on_error": "dead_letter"}

    sink = Blackhole(**texts)

    assert sink.delivery is Delivery.AT_LEAST_ONCE
    assert sink.on_error is OnError.DEAD_LETTER


def test_a_policy_that_does_not_exist_is_refused() -> None:
    wrong: Any = "ignore"
    with pytest.raises(ConfigError, match="on_error='ignore' is not known; one of 'fail', 'skip', 'dead_letter'"):
        Blackhole(on_error=wrong)


def test_relative_paths_are_resolved_where_it_is_said() -> None:
    assert Sqlite("a-{shard}.db", table="t").resolve(Path("/x")).path == "/x/a-{shard}.db"
    assert Sqlite("/y/a.db", table="t").resolve(Path("/x")).path == "/y/a.db"
    assert NdjsonFiles(Path("out"), compress="zstd").resolve(Path("/x")).directory == "/x/out"
    assert Stdout().resolve(Path("/x")) == Stdout()


@pytest.mark.parametrize(
    ("given", "types"),
    [
        (["carrier", "delay"], ("any", "any")),
        ({"carrier": str, "delay": "int?"}, ("str", "int?")),
        (Departure, ("str", "int?")),
    ],
)
def test_columns_are_given_as_names_types_or_a_struct(given: Any, types: tuple[str, ...]) -> None:
    sink = Sqlite("a.db", table="t", create=True, columns=given)

    sink.check()

    assert sink.declared_columns() == Columns(("carrier", "delay"), types)


def test_the_rows_struct_gives_the_columns_unless_they_are_given() -> None:
    unknown = Sqlite("a.db", table="t", create=True)
    known = Sqlite("a.db", table="t", create=True, columns=["x"])

    assert unknown.for_rows(Departure).declared_columns() == Columns(("carrier", "delay"), ("str", "int?"))
    assert unknown.for_rows(dict) == unknown
    assert unknown.for_rows(None) == unknown
    assert known.for_rows(Departure) == known


def test_each_shard_has_its_file_where_the_path_says_so() -> None:
    assert Sqlite("a-{shard}.db", table="t").file_of(3) == "a-3.db"
    assert Sqlite("a{b}.db", table="t").file_of(3) == "a{b}.db"


def anything(**values: Any) -> Any:
    return values


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (anything(path=""), "'' cannot be the path"),
        (anything(path="dir/"), "cannot be the path"),
        (anything(path=":memory:"), "ends with its worker"),
        (anything(table=""), "cannot be the name of a table"),
        (anything(timeout=0), "timeout=0"),
        (anything(timeout=float("inf")), "timeout=inf"),
        (anything(columns="carrier"), "is one text"),
        (anything(columns=[]), "at least one column"),
        (anything(columns=["a", "a"]), "named twice"),
        (anything(columns={"a": complex}), "table t: column a: .* is no column type"),
        (anything(columns=int), "only a Struct has columns"),
        (anything(create=True), "create=True needs to know the columns of t"),
    ],
)
def test_an_sqlite_sink_that_cannot_work_says_why(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Sqlite(**{"path": "a.db", "table": "t", **settings}).check()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (anything(directory=""), "cannot be the path of a directory"),
        (anything(roll_bytes=0), "roll_bytes=0; it must be above 0"),
        (anything(roll_rows=-1), "roll_rows=-1"),
        (anything(roll_age=float("nan")), "roll_age=nan"),
        (anything(compress="lz4"), "compress='lz4' is not known"),
        (anything(roll_bytes="10 apples"), "10 apples"),
    ],
)
def test_a_file_sink_that_cannot_work_says_why(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        NdjsonFiles(**{"directory": "out", **settings}).check()


def test_sizes_and_times_may_be_written_with_units() -> None:
    sink = NdjsonFiles("out", roll_bytes="64MiB", roll_age="10m")

    assert (sink.roll_bytes, sink.roll_age) == (64 * 2**20, 600.0)
