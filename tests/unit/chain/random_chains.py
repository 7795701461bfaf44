"""Random chains with random failures, and what their counts must say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

from headrace.chain.operators import OperatorCounts, OperatorKind, Step
from headrace.errors import RecordError
from headrace.record import OnError
from tests.unit.chain.reference_chain import Expected

ERRORS = (ValueError, KeyError, StopIteration, SystemExit, RecursionError, RecordError, GeneratorExit, AssertionError)
SINKS = ("a", "b", "c")
K = OperatorKind


class Trips:
    """A function that raises for some values: a class of its own, so that each step can hold another."""

    def __init__(self, remainder: int, error: type[BaseException], then: Callable[[int], Any]) -> None:
        self.remainder = remainder
        self.error = error
        self.then = then

    def __call__(self, value: int) -> Any:
        if value % 11 == self.remainder:
            raise self.error(f"no {value}")
        return self.then(value)


class Children:
    """A generator that gives ``value % 4`` children and may raise after some of them."""

    def __init__(self, remainder: int, error: type[BaseException]) -> None:
        self.remainder = remainder
        self.error = error

    def __call__(self, value: int) -> Iterator[int]:
        for child in range(value % 4):
            if value % 11 == self.remainder and child == self.remainder % 3:
                raise self.error(f"no child of {value}")
            yield value + child


def batch(values: list[int], fault: int) -> list[int | None]:
    if sum(values) % 6 == fault:
        raise ValueError("no such batch")
    if sum(values) % 6 == fault + 1:
        return [*values, 0]
    return [None if value % 5 == 4 else value + 1 for value in values]


def route(value: int) -> Any:
    return ("a", "b", ["c", "a", "c"], None, [], "nowhere", 5, ("b",), ["a", "nowhere"])[value % 9]


THEN: dict[OperatorKind, Callable[[int], Any]] = {
    K.MAP: lambda value: value * 3 + 1,
    K.FILTER: lambda value: value % 3,
    K.INSPECT: lambda value: "ignored",
    K.SHARD_BY: lambda value: None if value % 7 == 0 else value % 7,
    K.SPLIT: route,
}


def function_of(kind: OperatorKind, remainder: int, error: type[BaseException]) -> Any:
    if kind is K.MAP_BATCH:
        return lambda values: batch(values, remainder)
    if kind is K.FLAT_MAP:
        return Children(remainder, error) if remainder % 2 else lambda value: [value] * (value % 3)
    return Trips(remainder, error, THEN[kind])


@st.composite
def chains(draw: st.DrawFn, *, ends: tuple[OperatorKind, ...] = (), keyed: bool = True) -> list[Step]:
    kinds = draw(
        st.lists(st.sampled_from([K.MAP, K.FILTER, K.FLAT_MAP, K.INSPECT, K.MAP_BATCH]), min_size=0, max_size=6)
    )
    if keyed and draw(st.booleans()):
        kinds.insert(draw(st.integers(0, len(kinds))), K.SHARD_BY)
    kinds += draw(st.sampled_from([[], *([end] for end in ends)]))
    policies = [OnError.SKIP] * 3 + [OnError.DEAD_LETTER] * 3 + [OnError.FAIL]
    return [
        Step(
            kind,
            function_of(kind, draw(st.integers(0, 12)), draw(st.sampled_from(ERRORS))),
            f"{number}_{kind}",
            draw(st.sampled_from(policies)),
        )
        for number, kind in enumerate(kinds, start=1)
    ]


def check_counts(found: list[OperatorCounts], expected: Expected) -> None:
    for counts in found:
        wanted = expected.counts[counts.name]
        assert counts.read + counts.made == counts.out + counts.filtered + counts.bad, counts
        assert counts.made >= 0
        assert (counts.read, counts.out, counts.filtered, counts.bad) == (
            wanted["read"],
            wanted["out"],
            wanted["filtered"],
            wanted["bad"],
        ), counts
