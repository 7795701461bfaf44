"""Runs one generated loop over the rows of a batch, and finds out which operator and record an exception belongs to."""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, cast

import msgspec

from headrace.chain.cause import FATAL, cause_of
from headrace.chain.generate import Compiled, Shape, compile_program, generate
from headrace.chain.operators import OperatorCounts, OperatorKind, Step
from headrace.chain.output import Failure
from headrace.record import OnError

_OFTEN: Final = 8
"""One rejected row in so many is often: from then on it is cheaper to carry the records' numbers along."""


class Flow(msgspec.Struct, kw_only=True):
    """The rows on their way through the chain.

    ``index`` is each row's record, never falling; None: row i is record i. ``keys`` and ``targets`` run parallel to
    ``rows`` once their operator has run. After ``fatal`` nothing else is of use but ``failures``.
    """

    rows: list[object]
    index: array[int] | None = None
    keys: list[object] | None = None
    targets: list[tuple[int, ...]] | None = None
    failures: list[Failure] = []
    fatal: Failure | None = None

    def blame(self, record: int, step: Step, cause: str) -> None:
        failure = Failure(record, step.name, cause, step.policy)
        if step.policy is OnError.FAIL:
            self.fatal = failure
        else:
            self.failures.append(failure)


class Loop:
    """Steps in one generated function, in one of two shapes.

    ``shape.tracked`` says that rows may share a record. Where they do not, records are numbered only while many are
    rejected.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        counts: list[OperatorCounts],
        shape: Shape,
        targets: Callable[[object], tuple[int, ...]] | None,
        title: str,
    ) -> None:
        self.steps = steps
        self.counts = counts
        self.shape = shape
        self._targets = targets
        self._title = title
        flat_maps = [number for number, step in enumerate(steps) if step.kind is OperatorKind.FLAT_MAP]
        self.last_flat_map = flat_maps[-1] if flat_maps else None
        self.gives_keys = shape.keyed or any(step.kind is OperatorKind.SHARD_BY for step in steps)
        self.gives_targets = steps[-1].kind is OperatorKind.SPLIT
        self.compiled = self._compile(shape)
        self._tracking = self.compiled if shape.tracked else None
        self._rejects_often = False
        self._numbers: array[int] = array("I")

    @property
    def source(self) -> str:
        """The generated function."""
        return self.compiled.program.source

    def run(self, flow: Flow) -> None:
        rows = len(flow.rows)
        _LoopRun(self, flow, self._fastest()).run()
        if not self.shape.tracked:
            self._rejects_often = (rows - len(flow.rows)) * _OFTEN > rows

    def _fastest(self) -> Compiled:
        if not self._rejects_often:
            return self.compiled
        if self._tracking is None:
            self._tracking = self._compile(Shape(tracked=True, keyed=self.shape.keyed))
        return self._tracking

    def _compile(self, shape: Shape) -> Compiled:
        title = self._title if shape == self.shape else f"{self._title}, numbering records"
        return compile_program(generate(self.steps, shape), self.steps, self._targets, title)

    def without(self, index: array[int] | None, rows: int, gone: list[int]) -> array[int]:
        """The records of ``rows`` rows when those at the places ``gone``, in order, are left out."""
        if index is None and len(self._numbers) < rows:
            self._numbers = array("I", range(rows))
        left = self._numbers[:rows] if index is None else index[:]
        for place in reversed(gone):
            del left[place]
        return left


class _LoopRun:
    """One batch in a loop."""

    __slots__ = (
        "_bad",
        "_bad_places",
        "_compiled",
        "_deliveries_taken_back",
        "_flow",
        "_hint",
        "_index",
        "_keys",
        "_keys_in",
        "_loop",
        "_made",
        "_numbers",
        "_out",
        "_passed_over",
        "_rejected",
        "_rows",
        "_taken_back",
        "_targets",
    )

    def __init__(self, loop: Loop, flow: Flow, compiled: Compiled) -> None:
        steps = loop.steps
        self._loop = loop
        self._flow = flow
        self._compiled = compiled
        self._rows = iter(flow.rows)
        self._hint: Callable[[], int] = cast(Any, self._rows).__length_hint__
        self._numbers: Iterator[int] = itertools.count() if flow.index is None else iter(flow.index)
        self._keys_in: Iterator[object] = iter(flow.keys or ())
        self._out: list[object] = []
        self._keys: list[object] = []
        self._index: array[int] = array("I")
        self._targets: list[tuple[int, ...]] = []
        self._rejected: list[list[int]] = [[] for _ in steps]
        self._made = [itertools.count() for _ in steps] if loop.last_flat_map is not None else []
        self._bad = [0] * len(steps)
        self._bad_places: list[int] = []
        self._passed_over = self._taken_back = self._deliveries_taken_back = 0

    def run(self) -> None:
        arguments = (
            self._rows,
            self._hint,
            self._numbers,
            self._keys_in,
            self._out.append,
            self._keys.append,
            self._index.append,
            self._targets.append,
            [rejected.append for rejected in self._rejected],
            [made.__next__ for made in self._made],
        )
        while self._flow.fatal is None:
            try:
                self._compiled.call(*arguments)
                break
            except FATAL:
                raise
            except BaseException as error:  # noqa: BLE001 (whatever it is, a user function raised it for one record)
                self._on_error(error)
        self._count()
        if self._flow.fatal is None:
            self._finish()

    def _on_error(self, error: BaseException) -> None:
        number = self._compiled.step_of(error)
        if number is None:
            raise error
        flow, place = self._flow, len(self._flow.rows) - self._hint() - 1
        record = place if flow.index is None else flow.index[place]
        cause = cause_of(error)
        error.__traceback__ = None  # an instance that is raised for each record would collect one for each
        self._bad[number] += 1
        self._loop.counts[number].add_bad(self._loop.steps[number].policy)
        flow.blame(record, self._loop.steps[number], cause)
        if self._compiled.shape.tracked:
            self._take_back(record)
            self._pass_over(record, place)
        else:
            self._bad_places.append(place)

    def _take_back(self, record: int) -> None:
        """Rows of the record that were given out already."""
        first = bisect_left(self._index, record)
        self._taken_back += len(self._out) - first
        self._deliveries_taken_back += sum(map(len, self._targets[first:]))
        for column in (self._out, self._keys, self._index, self._targets):
            del column[first:]

    def _pass_over(self, record: int, place: int) -> None:
        """Rows of the record that are still to come."""
        index = self._flow.index
        if index is None:
            return
        more = bisect_right(index, record) - place - 1
        self._passed_over += more
        for column in (self._rows, self._numbers, self._keys_in):
            next(itertools.islice(column, more, more), None)

    def _finish(self) -> None:
        loop, flow = self._loop, self._flow
        if self._compiled.shape.tracked:
            flow.index = self._index
        elif gone := self._gone():
            flow.index = loop.without(flow.index, len(flow.rows), gone)
        flow.rows = self._out
        if loop.gives_keys:
            flow.keys = self._keys
        if loop.gives_targets:
            flow.targets = self._targets

    def _gone(self) -> list[int]:
        last = len(self._flow.rows) - 1
        rejected = [last - left for hints in self._rejected for left in hints]
        return sorted(rejected + self._bad_places)

    def _count(self) -> None:
        bad, rejected = self._bad, self._rejected
        read = len(self._flow.rows) - self._hint() - self._passed_over
        for number, (step, counts) in enumerate(zip(self._loop.steps, self._loop.counts, strict=True)):
            filtered = len(rejected[number])
            lost = filtered + bad[number]
            out = read - lost
            if step.kind is OperatorKind.FLAT_MAP:
                out = self._children(number)
            elif step.kind is OperatorKind.SPLIT:
                out = sum(map(len, self._targets)) + self._deliveries_taken_back
            counts.read += read
            counts.filtered += filtered
            counts.made += out + lost - read
            counts.out += out
            read = out

    def _children(self, number: int) -> int:
        if number != self._loop.last_flat_map:
            return next(self._made[number])
        after = slice(number + 1, None)
        return len(self._out) + self._taken_back + sum(map(len, self._rejected[after])) + sum(self._bad[after])
