"""The generated loops do what a plain interpreter of the operators does, failures and counts included."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.chain.fused import FusedChain, Targets
from headrace.chain.loop import Flow
from headrace.chain.operators import OperatorKind, Step
from headrace.chain.worker_chain import Carry, WorkerChain
from headrace.errors import RecordError
from headrace.record import OnError
from tests.unit.chain.random_chains import SINKS, K, chains, check_counts
from tests.unit.chain.reference_chain import Expected, Reference

values_strategy = st.lists(st.integers(0, 200), max_size=30)


def check_flow(flow: Flow, filtered: int, expected: Expected) -> None:
    if expected.fatal is not None:
        assert flow.fatal is not None
        assert (flow.fatal.record, flow.fatal.stage) == expected.fatal
        return
    assert flow.fatal is None
    rows = expected.rows
    assert flow.rows == [row.value for row in rows]
    index = list(flow.index) if flow.index is not None else list(range(len(flow.rows)))
    assert index == [row.record for row in rows]
    assert flow.keys is None or flow.keys == [row.key for row in rows]
    assert flow.targets is None or flow.targets == [row.targets for row in rows]
    assert sorted((one.record, one.stage, one.policy) for one in flow.failures) == expected.bad
    assert filtered == expected.filtered


@given(chains(ends=(K.SPLIT,)), values_strategy)
def test_a_chain_does_what_its_operators_do_one_by_one(steps: list[Step], values: list[int]) -> None:
    """HR-8"""
    chain = FusedChain(steps, "test", Targets(SINKS))
    expected = Reference(steps, SINKS).run(values)

    flow = chain.run(list(values))

    check_flow(flow, chain.filtered(flow, len(values)), expected)
    check_counts(chain.counts, expected)
    assert any(step.kind is K.SHARD_BY for step in steps) or flow.keys is None


@given(chains(keyed=False), st.lists(values_strategy, max_size=4))
def test_a_worker_chain_counts_over_all_that_it_is_given(steps: list[Step], groups: list[list[int]]) -> None:
    """HR-8"""
    chain = WorkerChain(steps, carry=Carry.RECORDS, record_type=None, policy=OnError.FAIL, title="test")
    reference = Reference(steps)
    for values in groups:
        given_values: list[object] = list(values)
        expected = reference.run(values)

        output = chain.run(given_values)

        assert given_values == values
        flow = Flow(rows=output.rows, index=output.index, failures=list(output.bad), fatal=output.fatal)
        check_flow(flow, output.filtered_records, expected)
        check_counts(chain.operators, expected)


def test_more_nesting_than_python_allows_is_split_over_functions() -> None:
    steps = [Step(K.FLAT_MAP, lambda value: [value, value + 1], f"{number}", OnError.FAIL) for number in range(11)]
    chain = FusedChain(steps, "test")

    flow = chain.run([0, 5])

    assert len(chain.sources) == 2
    assert len(flow.rows) == 2 * 2**11
    assert flow.index is not None
    assert list(flow.index) == [0] * 2**11 + [1] * 2**11
    assert all(counts.read + counts.made == counts.out for counts in chain.counts)


def steps_of(*functions: Any, policy: OnError = OnError.SKIP) -> list[Step]:
    return [Step(K.MAP, fn, f"{number}_map", policy) for number, fn in enumerate(functions, start=1)]


def raising(error: BaseException) -> Callable[[object], object]:
    def fail(value: object) -> object:
        raise error

    return fail


def test_one_exception_instance_raised_again_and_again_is_told_apart_and_does_not_grow() -> None:
    error = ValueError("shared")
    fail = raising(error)
    chain = FusedChain(steps_of(lambda value: value if value % 2 else fail(value), fail), "test")

    flow = chain.run(list(range(6)))

    assert [one.stage for one in flow.failures] == ["1_map", "2_map"] * 3
    assert len(traceback.extract_tb(error.__traceback__)) == 0


@pytest.mark.parametrize(
    ("broken", "cause"),
    [
        (int, "ValueError: invalid literal for int() with base 10: 'x'"),
        (raising(StopIteration(3)), "StopIteration: 3"),
        (raising(SystemExit(1)), "SystemExit: 1"),
        (raising(ValueError("\udcff")), "ValueError: \\udcff"),
        (raising(RecordError("too odd")), "too odd"),
        (raising(type("Panic", (BaseException,), {})("at src/lib.rs")), "Panic: at src/lib.rs"),
        (
            raising(type("Mute", (Exception,), {"__str__": lambda self: 1 / 0})()),
            "Mute: (its text cannot be made: Zero",
        ),
    ],
)
def test_whatever_an_operator_raises_is_the_cause_of_one_bad_record(broken: Any, cause: str) -> None:
    chain = FusedChain(steps_of(str, broken), "test")

    flow = chain.run(["x"])

    assert [(one.record, one.stage) for one in flow.failures] == [(0, "2_map")]
    assert flow.failures[0].cause.startswith(cause)


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("kind", [K.MAP, K.MAP_BATCH])
def test_no_memory_and_an_interrupt_are_no_record_s_fault(error: type[BaseException], kind: OperatorKind) -> None:
    chain = FusedChain([Step(kind, raising(error()), "1", OnError.SKIP)], "test")

    with pytest.raises(error):
        chain.run([1])


def test_a_long_cause_is_cut() -> None:
    chain = FusedChain(steps_of(raising(ValueError("x" * 1_000_000))), "test")

    flow = chain.run([1])

    assert len(flow.failures[0].cause) == 2_000


def test_a_traceback_shows_the_generated_line() -> None:
    shown: list[str] = []

    def note(value: object) -> None:
        shown.extend(traceback.format_stack())

    FusedChain([Step(K.INSPECT, note, "look", OnError.FAIL)], "flights").run([1])

    assert any("<headrace flights, loop from look>" in frame and "f0(x)" in frame for frame in shown)


def test_a_batch_that_raises_takes_all_its_records_along() -> None:
    chain = FusedChain(
        [
            Step(K.FLAT_MAP, lambda value: [value] * 2, "1", OnError.SKIP),
            Step(K.MAP_BATCH, lambda rows: rows[1:], "2", OnError.DEAD_LETTER),
        ],
        "test",
    )

    flow = chain.run(["x", "y"])

    cause = "it must return a row, or None, for each of 4 rows; it returned 3 (in a batch of 4 rows)"
    assert [(one.record, one.cause) for one in flow.failures] == [(0, cause), (1, cause)]
    assert flow.rows == []
    assert chain.counts[1].dead_lettered == 4


@pytest.mark.parametrize("answer", ["ab", b"ab", {1: 1, 2: 2}, {1, 2}, iter([1, 2]), None, 2])
def test_a_batch_operator_must_return_a_list(answer: object) -> None:
    chain = FusedChain([Step(K.MAP_BATCH, lambda rows: answer, "1", OnError.SKIP)], "test")

    flow = chain.run(["x", "y"])

    assert flow.failures[0].cause.startswith("it must return a list with a row, or None, for each row; it returned a ")


def test_rows_of_a_record_that_are_still_to_come_are_passed_over() -> None:
    seen: list[object] = []

    def check(value: int) -> int:
        seen.append(value)
        if value == 11:
            raise ValueError(value)
        return value

    chain = FusedChain(
        [
            Step(K.FLAT_MAP, lambda value: [value, value + 1, value + 2], "1", OnError.FAIL),
            Step(K.MAP_BATCH, list, "2", OnError.FAIL),
            Step(K.MAP, check, "3", OnError.SKIP),
        ],
        "test",
    )

    flow = chain.run([0, 10, 20])

    assert flow.rows == [0, 1, 2, 20, 21, 22]
    assert seen == [0, 1, 2, 10, 11, 20, 21, 22]
    assert flow.index is not None
    assert list(flow.index) == [0, 0, 0, 2, 2, 2]


def test_a_record_is_left_out_at_every_share_of_rejections() -> None:
    for rows, share in itertools.product((1, 7, 100), (0, 1, 2, 5, 50, 99)):
        chain = FusedChain([Step(K.FILTER, lambda value, share=share: value % 100 >= share, "1", OnError.FAIL)], "test")

        flow = chain.run(list(range(rows)))

        kept = list(flow.index) if flow.index is not None else list(range(rows))
        assert kept == flow.rows == [value for value in range(rows) if value % 100 >= share]
