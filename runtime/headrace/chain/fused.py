"""Runs a chain over a batch: its generated loops, the batch operators between them, and what becomes of bad records.

A record is bad once: the first operator that raises decides, and all rows of the record are taken back. Loops that
``map_batch`` separates run one after the other over the whole batch.
"""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from headrace.chain.cause import FATAL, cause_of, clean
from headrace.chain.generate import MAX_NESTING, Compiled, Shape, compile_program, generate
from headrace.chain.operators import OperatorCounts, OperatorKind, Step
from headrace.chain.output import Failure
from headrace.errors import RecordError
from headrace.record import OnError


class Flow(msgspec.Struct, kw_only=True):
    """The rows on their way through the chain.

    ``index`` is each row's record, never falling; None: row i is record i. ``keys`` and ``targets`` run parallel to
    ``rows`` once their operator has run. After ``fatal`` nothing else is of use but ``failures``.
    """

    rows: list[object]
    index: array[int] | None = None
    keys: list[object] | None = None
    targets: list[tuple[int, ...]] | None = None
    failures: list[Failure] = msgspec.field(default_factory=list[Failure])
    fatal: Failure | None = None

    def blame(self, record: int, step: Step, cause: str) -> None:
        failure = Failure(record, step.name, cause, step.policy)
        if step.policy is OnError.FAIL:
            self.fatal = failure
        else:
            self.failures.append(failure)


class Targets:
    """What ``split``'s route answers, as numbers of sinks."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._known = {name: (number,) for number, name in enumerate(self.names)}

    def __call__(self, answer: Any) -> tuple[int, ...]:
        """The sinks of a name, of several, or of None. Raises `RecordError` for what names no sink."""
        if isinstance(answer, str):
            return self._one(answer)
        if answer is None:
            return ()
        if isinstance(answer, bytes | Mapping):
            raise self._unknown(cast(object, answer))
        return tuple(dict.fromkeys(number for name in answer for number in self._one(name)))

    def _one(self, name: object) -> tuple[int, ...]:
        found = self._known.get(name) if isinstance(name, str) else None
        if found is None:
            raise self._unknown(name)
        return found

    def _unknown(self, name: object) -> RecordError:
        return RecordError(f"the route answered {name!r:.200}; the sinks are {', '.join(self.names)}")


class FusedChain:
    """Steps, in order, as loops and batch operators; compiled when made."""

    def __init__(self, steps: Sequence[Step], title: str, targets: Targets | None = None) -> None:
        self.counts = [OperatorCounts(name=step.name) for step in steps]
        self._stages = list(_stages(steps, self.counts, title, targets))
        self._fans_out = any(step.kind is OperatorKind.FLAT_MAP for step in steps)

    @property
    def sources(self) -> list[str]:
        """The generated functions, in order."""
        return [stage.compiled.program.source for stage in self._stages if isinstance(stage, _Loop)]

    def run(self, rows: list[object]) -> Flow:
        """Run every step over the rows, each a record of its own. `MemoryError` and `KeyboardInterrupt` propagate."""
        flow = Flow(rows=rows)
        for stage in self._stages:
            stage.run(flow)
            if flow.fatal is not None:
                break
        return flow

    def filtered(self, flow: Flow, records: int) -> int:
        """Of so many records that went in, those of which no row is left, bad ones apart."""
        left = len(set(flow.index)) if self._fans_out and flow.index is not None else len(flow.rows)
        return records - left - len(flow.failures)


def _stages(
    steps: Sequence[Step], counts: list[OperatorCounts], title: str, targets: Targets | None
) -> Iterator[_Loop | _Batch]:
    tracked = keyed = False
    first = 0
    while first < len(steps):
        if steps[first].kind is OperatorKind.MAP_BATCH:
            yield _Batch(steps[first], counts[first])
            first += 1
            continue
        end = _end_of_loop(steps, first)
        loop = steps[first:end]
        tracked = tracked or any(step.kind is OperatorKind.FLAT_MAP for step in loop)
        yield _Loop(loop, counts[first:end], Shape(tracked, keyed), targets, f"{title}, loop from {loop[0].name}")
        keyed = keyed or any(step.kind is OperatorKind.SHARD_BY for step in loop)
        first = end


def _end_of_loop(steps: Sequence[Step], first: int) -> int:
    flat_maps = 0
    for number in range(first, len(steps)):
        kind = steps[number].kind
        flat_maps += kind is OperatorKind.FLAT_MAP
        if kind is OperatorKind.MAP_BATCH or flat_maps > MAX_NESTING:
            return number
    return len(steps)


class _Loop:
    """Steps in one generated function."""

    def __init__(
        self, steps: Sequence[Step], counts: list[OperatorCounts], shape: Shape, targets: Targets | None, title: str
    ) -> None:
        self.steps = steps
        self.counts = counts
        self.shape = shape
        self.compiled: Compiled = compile_program(generate(steps, shape), steps, targets, title)
        flat_maps = [number for number, step in enumerate(steps) if step.kind is OperatorKind.FLAT_MAP]
        self.last_flat_map = flat_maps[-1] if flat_maps else None
        self.gives_keys = shape.keyed or any(step.kind is OperatorKind.SHARD_BY for step in steps)
        self.gives_targets = steps[-1].kind is OperatorKind.SPLIT
        self._numbers: array[int] = array("I")

    def run(self, flow: Flow) -> None:
        _LoopRun(self, flow).run()

    def step_of(self, error: BaseException) -> int | None:
        """The step that raised: the line of our frame nearest the head, for one instance may be raised again."""
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code is self.compiled.code:
                return self.compiled.program.steps.get(trace.tb_lineno)
            trace = trace.tb_next
        return None

    def without(self, index: array[int] | None, rows: int, gone: list[int]) -> array[int]:
        """The records of ``rows`` rows when those at the places ``gone``, in order, are left out."""
        if 4 * len(gone) > rows:
            mask = bytearray(b"\1") * rows
            for place in gone:
                mask[place] = 0
            return array("I", itertools.compress(range(rows) if index is None else index, mask))
        if index is None and len(self._numbers) < rows:
            self._numbers = array("I", range(rows))
        left = self._numbers[:rows] if index is None else index[:]
        for place in reversed(gone):
            del left[place]
        return left


class _LoopRun:
    """One batch in a loop."""

    def __init__(self, loop: _Loop, flow: Flow) -> None:
        steps = len(loop.steps)
        self._loop = loop
        self._flow = flow
        self._rows = iter(flow.rows)
        self._hint: Callable[[], int] = cast(Any, self._rows).__length_hint__
        self._numbers: Iterator[int] = itertools.count() if flow.index is None else iter(flow.index)
        self._keys_in: Iterator[object] = iter(flow.keys or ())
        self._out: list[object] = []
        self._keys: list[object] = []
        self._index: array[int] = array("I")
        self._targets: list[tuple[int, ...]] = []
        self._rejected: list[list[int]] = [[] for _ in range(steps)]
        self._made = [itertools.count() for _ in range(steps)]
        self._bad = [0] * steps
        self._bad_places: list[int] = []
        self._passed_over = 0
        self._taken_back = 0
        self._deliveries_taken_back = 0

    def run(self) -> None:
        call = self._loop.compiled.call
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
                call(*arguments)
                break
            except FATAL:
                raise
            except BaseException as error:  # noqa: BLE001 (whatever it is, a user function raised it for one record)
                self._on_error(error)
        self._count()
        if self._flow.fatal is None:
            self._finish()

    def _on_error(self, error: BaseException) -> None:
        number = self._loop.step_of(error)
        if number is None:
            raise error
        flow, place = self._flow, len(self._flow.rows) - self._hint() - 1
        record = place if flow.index is None else flow.index[place]
        cause = cause_of(error)
        error.__traceback__ = None  # an instance that is raised for each record would collect one for each
        self._bad[number] += 1
        self._loop.counts[number].add_bad(self._loop.steps[number].policy)
        flow.blame(record, self._loop.steps[number], cause)
        if self._loop.shape.tracked:
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
        if loop.shape.tracked:
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
        rejected = [len(one) for one in self._rejected]
        read = len(self._flow.rows) - self._hint() - self._passed_over
        for number, (step, counts) in enumerate(zip(self._loop.steps, self._loop.counts, strict=True)):
            lost = rejected[number] + self._bad[number]
            out = read - lost
            if step.kind is OperatorKind.FLAT_MAP:
                out = self._children(number, rejected)
            elif step.kind is OperatorKind.SPLIT:
                out = sum(map(len, self._targets)) + self._deliveries_taken_back
            counts.read += read
            counts.filtered += rejected[number]
            counts.made += out + lost - read
            counts.out += out
            read = out

    def _children(self, number: int, rejected: list[int]) -> int:
        if number != self._loop.last_flat_map:
            return next(self._made[number])
        after = slice(number + 1, None)
        return len(self._out) + self._taken_back + sum(rejected[after]) + sum(self._bad[after])


class _Batch:
    """A ``map_batch``: one call for all rows."""

    def __init__(self, step: Step, counts: OperatorCounts) -> None:
        self._step = step
        self._counts = counts

    def run(self, flow: Flow) -> None:
        count = len(flow.rows)
        if not count:
            return
        self._counts.read += count
        try:
            answers = self._answers(flow.rows, count)
        except FATAL:
            raise
        except BaseException as error:  # noqa: BLE001 (whatever it is, the user's function raised it for this batch)
            cause = cause_of(error)
            error.__traceback__ = None
            self._fail(flow, count, cause)
            return
        left = [place for place, answer in enumerate(answers) if answer is not None]
        self._counts.filtered += count - len(left)
        self._counts.out += len(left)
        flow.rows = answers
        if len(left) < count:
            _keep(flow, left)

    def _answers(self, rows: list[object], count: int) -> list[object]:
        answer: Any = self._step.fn(rows)
        if isinstance(answer, str | bytes | Mapping | set | frozenset) or not hasattr(answer, "__len__"):
            kind = type(cast(object, answer)).__name__
            raise RecordError(f"it must return a list with a row, or None, for each row; it returned a {kind}")
        answers = list(answer)
        if len(answers) != count:
            raise RecordError(f"it must return a row, or None, for each of {count} rows; it returned {len(answers)}")
        return answers

    def _fail(self, flow: Flow, count: int, cause: str) -> None:
        """Which row was at fault is not known: all of them go."""
        cause = clean(f"{cause} (in a batch of {count} rows)" if count > 1 else cause)
        records = range(count) if flow.index is None else sorted(set(flow.index))
        policy = self._step.policy
        self._counts.add_bad(policy, count)
        if policy is OnError.FAIL:
            flow.blame(records[0], self._step, cause)
            return
        for record in records:
            flow.blame(record, self._step, cause)
        flow.rows = []
        _keep(flow, [])


def _keep(flow: Flow, places: list[int]) -> None:
    """Leave only the rows at these places."""
    flow.rows = [flow.rows[place] for place in places]
    flow.index = array("I", places if flow.index is None else [flow.index[place] for place in places])
    if flow.keys is not None:
        flow.keys = [flow.keys[place] for place in places]
