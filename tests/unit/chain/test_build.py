"""What runs where, what chunks carry, and what a batch becomes on its way through the supervisor and a worker."""

from __future__ import annotations

import gzip
from array import array
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import ConfigError, OnError, Pipeline
from headrace.chain.build import BuiltChain, Carry, ChainOutput
from headrace.codec.records import LinesCodec, RecordsCodec
from headrace.errors import CorruptFrameError
from headrace.record import BadRecord, PartitionId, PayloadBatch
from headrace.sinks import Blackhole, Stdout
from headrace.sources import Files
from tests.unit.chain.random_chains import SINKS, chains, check_counts
from tests.unit.chain.reference_chain import Reference

PARTITION = PartitionId("p#1")
SAMPLE = Path(__file__).parents[3] / "examples" / "data" / "flights-20000.ndjson.gz"


class Item(msgspec.Struct, rename={"key": "the key"}):
    key: str | None
    v: int = 0


def start(decode: Any = dict, **options: Any) -> Pipeline:
    return Pipeline("x").source(Files("in.ndjson", decode=decode, **options))


def built(pipeline: Pipeline, policy: OnError = OnError.SKIP) -> BuiltChain:
    return pipeline.build(on_error=policy)


def block(data: bytes, begin: int = 0, rejects: list[BadRecord] | None = None) -> PayloadBatch:
    return PayloadBatch(partition=PARTITION, start=begin, end=begin + len(data), block=data, rejects=rejects or [])


def rows_of(output: ChainOutput, sink: int = 0) -> list[tuple[int, object, object]]:
    """Record, row and key of each row for a sink."""
    found: list[tuple[int, object, object]] = []
    for one in output.emissions:
        if one.sink == sink:
            index = range(len(one.rows)) if one.index is None else one.index
            found += zip(index, one.rows, one.keys or [None] * len(one.rows), strict=True)
    return found


def same(value: Any) -> Any:
    return value


@pytest.mark.parametrize(
    ("pipeline", "carry", "supervisor", "worker", "route_by"),
    [
        (start().map(same), Carry.ROWS, ["1_map"], None, "source"),
        (start().map(same).shard_by(same), Carry.ROWS, ["1_map", "shard_by"], None, "function"),
        (start().map(same).shard_by("k").map(same), Carry.RECORDS, ["1_map", "shard_by"], ["2_map"], "field"),
        (start().shard_by(same).filter(same), Carry.RECORDS, ["shard_by"], ["1_filter"], "function"),
        (start().shard_by("k"), Carry.LINES, [], [], "field"),
        (start(Item).shard_by("key").map(same), Carry.LINES, [], ["1_map"], "field"),
        (start(format="csv").shard_by("k"), Carry.ROWS, ["shard_by"], None, "field"),
        (start(format="csv").shard_by("k").map(same), Carry.RECORDS, ["shard_by"], ["1_map"], "field"),
        (start(bytes).shard_by(len).map(same), Carry.RECORDS, ["shard_by"], ["1_map"], "function"),
    ],
)
def test_operators_before_shard_by_run_in_the_supervisor_and_the_rest_in_workers(
    pipeline: Pipeline, carry: Carry, supervisor: list[str], worker: list[str] | None, route_by: str
) -> None:
    chain = built(pipeline.sink(Stdout()))

    assert (chain.carry, chain.route_by, chain.fan_out) == (carry, route_by, False)
    assert [one.name for one in chain.supervisor.operators] == supervisor
    assert (None if chain.worker is None else [one.name for one in chain.worker.operators]) == worker


def test_split_keeps_every_operator_in_the_supervisor() -> None:
    pipeline = start(Item).shard_by("key").map(lambda item: item.v).split(lambda v: None, {"a": Stdout()})

    chain = built(pipeline)

    assert (chain.carry, chain.worker, chain.fan_out, chain.route_by) == (Carry.ROWS, None, True, "field")
    assert [name for name, _ in chain.sinks] == ["a"]


@pytest.mark.parametrize(
    ("before", "record_type"),
    [
        (start(Item), Item),
        (start(Item).filter(same).inspect(same), Item),
        (start(Item).map(same), None),
        (start(Item).flat_map(same), None),
        (start(Item).map_batch(same), None),
        (start(dict), None),
        (start(bytes), bytes),
    ],
)
def test_records_are_carried_as_the_source_s_type_until_an_operator_makes_another(
    before: Pipeline, record_type: object
) -> None:
    chain = built(before.shard_by(lambda record: 1).map(same).sink(Stdout()))

    assert chain.record_type is record_type


def test_a_fan_out_counts_only_before_the_hand_off() -> None:
    before = built(start().flat_map(same).shard_by(same).map(same).sink(Stdout()))
    after = built(start().shard_by(same).flat_map(same).sink(Stdout()))

    assert (before.fan_out, after.fan_out) == (True, False)


@given(chains(), st.lists(st.sampled_from([*map(str, range(60)), "x", "", '"s"']), max_size=25), st.data())
def test_the_supervisor_s_output_is_that_of_its_operators_one_by_one(
    steps: list[Any], lines: list[str], data: st.DataObject
) -> None:
    """HR-8"""
    pipeline = start(on_error="skip")
    for step in steps:
        name = {} if step.kind == "shard_by" else {"name": step.name}
        pipeline = getattr(pipeline, step.kind)(step.fn, on_error=step.policy, **name)
    is_split = data.draw(st.booleans())
    pipeline = (
        pipeline.split(lambda value: SINKS[value % 3], {name: Blackhole() for name in SINKS})
        if is_split
        else pipeline.shard_by(lambda value: value % 5)
        if not any(step.kind == "shard_by" for step in steps)
        else pipeline
    )
    chain = built(pipeline if is_split else pipeline.split(lambda value: "only", {"only": Blackhole()}), OnError.SKIP)
    text = "".join(f"{line}\n" for line in lines).encode()
    values = [(number, int(line)) for number, line in enumerate(lines) if line.isdigit()]
    not_numbers = [number for number, line in enumerate(lines) if line == '"s"']
    records = sorted([*values, *((number, "s") for number in not_numbers)])
    ends = array("q", [len("".join(f"{one}\n" for one in lines[: number + 1])) for number, _ in records])
    reference = Reference([*_steps(chain)], SINKS if is_split else ("only",))

    output = chain.supervisor.run(block(text))

    expected = reference.run([value for _, value in records])
    assert output.records == sum(bool(line) for line in lines)
    assert output.ends == ends
    if expected.fatal is not None:
        assert output.fatal is not None
        assert (output.fatal.position, output.fatal.stage) == (ends[expected.fatal[0]] - 1, expected.fatal[1])
        assert output.emissions == []
        return
    assert output.fatal is None
    assert output.filtered == expected.filtered
    has_key = any(operator.kind == "shard_by" for operator in pipeline.operators)
    for number in range(len(chain.sinks)):
        rows = [(row.record, row.value, row.key) for row in expected.rows if number in row.targets]
        assert rows_of(output, number) == rows
    assert all((one.keys is not None) == has_key and one.rows for one in output.emissions)
    undecodable = [(None, "decode", OnError.SKIP)] * lines.count("x")
    blamed = [(one.position, one.stage, one.policy) for one in output.bad if one.stage != "decode"]
    assert blamed == [(ends[record] - 1, stage, policy) for record, stage, policy in expected.bad]
    assert len(output.bad) == len(blamed) + len(undecodable)
    assert [one.position for one in output.bad] == sorted(one.position for one in output.bad)
    for bad in output.bad:
        assert text[: bad.position].endswith(bad.raw)
    check_counts(chain.supervisor.operators, expected)


def _steps(chain: BuiltChain) -> list[Any]:
    """The steps as the chain runs them."""
    steps: list[Any] = []
    for stage in chain.supervisor._chain._stages:
        steps += vars(stage).get("steps") or [vars(stage)["_step"]]
    return steps


def test_a_field_route_forwards_raw_lines_and_the_worker_decodes_them() -> None:
    chain = built(start(Item).shard_by("key").map(lambda item: (item.key, item.v)).sink(Stdout()))
    lines = [b'{"the key":"a","v":1}', b'{"v":2,"the key":null}', b'{"v":3}', b'{"the key":"b","v":"x"}', b"[1]"]

    output = chain.supervisor.run(block(b"\r\n".join(lines)))
    rows = rows_of(output)
    assert chain.worker is not None
    body = LinesCodec().encode([row for _, row, _ in rows])
    records, bad = chain.worker.decode_group(memoryview(body), len(rows))
    made = chain.worker.run(records)

    assert [key for _, _, key in rows] == ["a", None, None, "b"]
    assert [one.raw for one in output.bad] == [b"[1]"]
    assert made.rows == [("a", 1), (None, 2)]
    assert [(one.row, one.stage, one.policy) for one in bad] == [
        (2, "decode", OnError.SKIP),
        (3, "decode", OnError.SKIP),
    ]
    assert bad[1].raw.strip() == lines[3]


def test_router_and_sink_see_the_same_of_two_equal_keys() -> None:
    """J08"""
    chain = built(start().shard_by("user").sink(Stdout()))
    line = b'{"user":1,"user":2}'

    output = chain.supervisor.run(block(line + b"\n"))

    assert rows_of(output) == [(0, line, 2)]
    assert chain.worker is not None
    assert chain.worker.decode_group(memoryview(line + b"\n"), 1)[0] == [{"user": 2}]


def test_a_payload_written_over_several_lines_travels_as_one() -> None:
    chain = built(start().shard_by("k").sink(Stdout()))
    payloads = [b'{\n "k": 1\n}', b'{"k": 2}']
    batch = PayloadBatch(partition=PARTITION, start=0, end=2, payloads=payloads, ends=array("q", [1, 2]))

    output = chain.supervisor.run(batch)

    rows = [row for _, row, _ in rows_of(output)]
    assert chain.worker is not None
    assert chain.worker.decode_group(memoryview(LinesCodec().encode(rows)), 2)[0] == [{"k": 1}, {"k": 2}]


def test_a_group_with_another_number_of_lines_is_corrupt() -> None:
    chain = built(start().shard_by("k").sink(Stdout()))
    assert chain.worker is not None

    with pytest.raises(CorruptFrameError, match="a group of 2 rows holds 1 lines"):
        chain.worker.decode_group(memoryview(b"{}\n"), 2)


def test_a_carried_record_that_is_none_of_its_type_is_bad_alone() -> None:
    chain = built(start(Item).shard_by(lambda item: 1).map(same).sink(Stdout()))
    body = RecordsCodec().encode([{"the key": "a", "v": 1}, {"the key": "b", "v": "x"}, {"the key": None}])
    assert chain.worker is not None

    records, bad = chain.worker.decode_group(memoryview(body), 3)

    assert records == [Item("a", 1), Item(None, 0)]
    assert [(one.row, one.stage, one.raw) for one in bad] == [(1, "decode", b'{"the key":"b","v":"x"}')]


def test_a_carried_record_may_raise_whatever_it_likes_while_it_is_made() -> None:
    class Picky(msgspec.Struct):
        v: int

        def __post_init__(self) -> None:
            if self.v == 2:
                raise ZeroDivisionError("two")

    bodies = {
        Carry.RECORDS: RecordsCodec().encode([{"v": 1}, {"v": 2}, {"v": 3}]),
        Carry.LINES: b'{"v":1}\n{"v":2}\n{"v":3}\n',
    }
    pipelines = [start(Picky).shard_by(lambda one: one.v).map(same), start(Picky).shard_by("v").map(same)]
    for pipeline in pipelines:
        chain = built(pipeline.sink(Stdout()))
        assert chain.worker is not None

        records, bad = chain.worker.decode_group(memoryview(bodies[chain.carry]), 3)

        assert records == [Picky(1), Picky(3)]
        assert [(one.row, one.cause, one.raw) for one in bad] == [(1, "ZeroDivisionError: two", b'{"v":2}')]


def test_a_group_that_is_no_group_is_corrupt() -> None:
    for pipeline in (start(Item), start(dict)):
        chain = built(pipeline.shard_by(lambda item: 1).map(same).sink(Stdout()))
        assert chain.worker is not None

        for body in (b"\xc1", RecordsCodec().encode([{}]), b""):
            with pytest.raises(CorruptFrameError):
                chain.worker.decode_group(memoryview(body), 2)


def test_what_is_generated_can_be_read() -> None:
    chain = built(start().map(same).shard_by(same).filter(same).sink(Stdout()))

    (first, supervisor), (second, worker) = chain.generated

    assert (first, second) == ("supervisor", "worker")
    assert "x = f0(x)" in supervisor
    assert "add_key(f1(x))" in supervisor
    assert "if not f0(x):" in worker


def test_the_source_s_keys_go_with_their_records() -> None:
    chain = built(start().filter(lambda record: record["v"] != 3).flat_map(lambda r: [r["v"]] * r["v"]).sink(Stdout()))
    payloads = [b'{"v":1}', b"bad", b'{"v":2}', b'{"v":3}', b'{"v":0}', b'{"v":1}']
    batch = PayloadBatch(
        partition=PARTITION, start=0, end=6, payloads=payloads, ends=array("q", range(1, 7)),
        keys=[b"a", b"b", b"c", None, b"e", None],
    )  # fmt: skip

    output = chain.supervisor.run(batch)

    assert rows_of(output) == [(0, 1, b"a"), (1, 2, b"c"), (1, 2, b"c"), (4, 1, None)]
    assert (output.records, output.filtered, len(output.bad)) == (6, 2, 1)


def reject(position: int) -> BadRecord:
    return BadRecord(partition=PARTITION, position=position, stage="read", cause="too long", raw=b"x")


def test_what_the_source_rejected_is_told_in_its_place_with_the_source_s_policy() -> None:
    chain = built(start(on_error="dead_letter").sink(Stdout()), OnError.FAIL)

    output = chain.supervisor.run(block(b"{}\nx\n", 10, [reject(20), reject(5)]))

    assert [(one.position, one.stage, one.policy) for one in output.bad] == [
        (5, "read", OnError.DEAD_LETTER),
        (14, "decode", OnError.DEAD_LETTER),
        (20, "read", OnError.DEAD_LETTER),
    ]
    assert output.records == 4


def test_a_source_that_fails_names_the_first_bad_record_and_runs_no_operator() -> None:
    seen: list[object] = []
    chain = built(start().inspect(seen.append).sink(Stdout()), OnError.FAIL)

    output = chain.supervisor.run(block(b"{}\nx\ny\n", 10, [reject(20)]))

    assert output.fatal is not None
    assert (output.fatal.position, output.fatal.stage, output.fatal.raw) == (14, "decode", b"x")
    assert (output.emissions, seen) == ([], [])


def test_a_name_that_no_sink_has_is_a_bad_record_of_the_split() -> None:
    chain = built(start().split(lambda record: record["to"], {"a": Blackhole(), "b": Blackhole()}))
    data = b'{"to":"a"}\n{"to":"c"}\n{"to":["b","c"]}\n{"to":["b","a"]}\n{"to":null}\n'

    output = chain.supervisor.run(block(data))

    assert [record for record, _, _ in rows_of(output, 0)] == [0, 3]
    assert [record for record, _, _ in rows_of(output, 1)] == [3]
    assert [(one.stage, one.cause) for one in output.bad] == [
        ("split", "the route answered 'c'; the sinks are a, b"),
        ("split", "the route answered 'c'; the sinks are a, b"),
    ]
    assert output.filtered == 1
    counts = chain.supervisor.operators[0]
    assert (counts.read, counts.made, counts.out, counts.filtered, counts.skipped) == (5, 1, 3, 1, 2)


@pytest.mark.parametrize("record", [{"k": 1}, Item("a")])
def test_a_field_is_read_of_whatever_the_record_has_become(record: Any) -> None:
    name = "k" if isinstance(record, dict) else "key"
    chain = built(start().map(lambda _: record).shard_by(name).sink(Stdout()))

    output = chain.supervisor.run(block(b"{}\n"))

    assert [key for _, _, key in rows_of(output)] == [1 if name == "k" else "a"]


def test_a_dict_that_lacks_the_field_is_keyless_and_an_object_that_lacks_it_is_bad() -> None:
    chain = built(start().map(lambda record: record.get("as")).shard_by("k").sink(Stdout()))

    output = chain.supervisor.run(block(b'{"as":{}}\n{"as":5}\n'))

    assert rows_of(output) == [(0, {}, None)]
    assert [(one.stage, one.cause) for one in output.bad] == [
        ("shard_by", "AttributeError: 'int' object has no attribute 'k'")
    ]


def test_every_flight_keeps_its_line_key_and_position() -> None:
    data = gzip.decompress(SAMPLE.read_bytes())
    typed = msgspec.defstruct("Flight", [("tailnum", str | None)])
    by_field = built(start(typed).shard_by("tailnum").sink(Stdout())).supervisor.run(block(data))
    by_function = built(start(typed).shard_by(lambda f: f.tailnum).sink(Stdout())).supervisor.run(block(data))

    lines = data.split(b"\n")[:-1]
    assert [row for _, row, _ in rows_of(by_field)] == lines
    assert [key for _, _, key in rows_of(by_field)] == [key for _, _, key in rows_of(by_function)]
    assert by_field.ends == by_function.ends
    assert all(data[end - 1] == 0x0A for end in by_field.ends)
    assert by_field.ends[-1] == len(data)


def test_a_type_that_no_json_can_become_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="decode=complex is no type that JSON can be decoded into"):
        built(start(complex).sink(Stdout()))
    with pytest.raises(ConfigError, match="decode=complex"):
        built(start(complex).shard_by("real").sink(Stdout()))
