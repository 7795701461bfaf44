"""Runs a chain over a batch: its generated loops, the batch operators between them, and what becomes of bad records.

A record is bad once: the first operator that raises decides, and all rows of the record are taken back. Loops that
``map_batch`` separates run one after the other over the whole batch.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from headrace.chain.cause import FATAL, cause_of, clean
from headrace.chain.generate import MAX_NESTING, Shape
from headrace.chain.loop import Flow, Loop
from headrace.chain.operators import OperatorCounts, OperatorKind, Step
from headrace.errors import RecordError
from headrace.record import OnError


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
        return [stage.source for stage in self._stages if isinstance(stage, Loop)]

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
) -> Iterator[Loop | _Batch]:
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
        yield Loop(loop, counts[first:end], Shape(tracked, keyed), targets, f"{title}, loop from {loop[0].name}")
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
