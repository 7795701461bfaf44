"""A chain as a reader of the documentation would write it: record after record, with a `try` around each call."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from headrace.chain.operators import OperatorKind, Step
from headrace.record import OnError


class Row(NamedTuple):
    record: int
    value: Any
    key: Any
    targets: tuple[int, ...] = ()


class Expected(NamedTuple):
    rows: list[Row]
    bad: list[tuple[int, str, OnError]]
    fatal: tuple[int, str] | None
    filtered: int
    counts: dict[str, Counter[str]]


class _Bad(Exception):
    def __init__(self, step: Step, error: BaseException) -> None:
        super().__init__(str(error))
        self.step = step


class Reference:
    """Interprets steps over the values of records."""

    def __init__(self, steps: list[Step], sinks: tuple[str, ...] = ()) -> None:
        self.steps = steps
        self.sinks = sinks
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)

    def run(self, values: list[Any]) -> Expected:
        rows = [Row(record, value, None) for record, value in enumerate(values)]
        bad: list[tuple[int, str, OnError]] = []
        fatal: tuple[int, str] | None = None
        first = 0
        while first < len(self.steps) and fatal is None:
            step = self.steps[first]
            if step.kind is OperatorKind.MAP_BATCH:
                rows, newly_bad = self._batch(step, rows)
                first += 1
            else:
                end = first
                while end < len(self.steps) and self.steps[end].kind is not OperatorKind.MAP_BATCH:
                    end += 1
                rows, newly_bad = self._each(self.steps[first:end], rows)
                first = end
            for record, blamed in newly_bad:
                if blamed.policy is OnError.FAIL:
                    fatal = (record, blamed.name)
                else:
                    bad.append((record, blamed.name, blamed.policy))
        left = {row.record for row in rows}
        filtered = len(values) - len(left) - len(bad)
        return Expected(rows, sorted(bad), fatal, filtered, self.counts)

    def _each(self, steps: list[Step], rows: list[Row]) -> tuple[list[Row], list[tuple[int, Step]]]:
        out: list[Row] = []
        bad: list[tuple[int, Step]] = []
        for row in rows:
            if bad and bad[-1][0] == row.record:
                continue
            try:
                out.extend(self._walk(steps, row))
            except _Bad as error:
                out = [one for one in out if one.record != row.record]
                bad.append((row.record, error.step))
                if error.step.policy is OnError.FAIL:
                    break
        return out, bad

    def _walk(self, steps: list[Step], row: Row) -> list[Row]:
        if not steps:
            return [row]
        step, rest = steps[0], steps[1:]
        counts = self.counts[step.name]
        counts["read"] += 1
        out: list[Row] = []
        children = 0
        for child in self._children(step, row):
            children += 1
            counts["out"] += len(child.targets) if step.kind is OperatorKind.SPLIT else 1
            out += self._walk(rest, child)
        if not children:
            counts["filtered"] += 1
        return out

    def _children(self, step: Step, row: Row) -> Iterator[Row]:
        try:
            children = iter(self._apply(step, row))
        except BaseException as error:
            raise self._blame(step, error) from error
        while True:
            try:
                child = next(children)
            except StopIteration:
                return
            except BaseException as error:
                raise self._blame(step, error) from error
            yield child

    def _blame(self, step: Step, error: BaseException) -> _Bad:
        self.counts[step.name]["bad"] += 1
        return _Bad(step, error)

    def _apply(self, step: Step, row: Row) -> list[Row] | Iterator[Row]:
        match step.kind:
            case OperatorKind.MAP:
                return [row._replace(value=step.fn(row.value))]
            case OperatorKind.FILTER:
                return [row] if step.fn(row.value) else []
            case OperatorKind.INSPECT:
                step.fn(row.value)
                return [row]
            case OperatorKind.SHARD_BY:
                return [row._replace(key=step.fn(row.value))]
            case OperatorKind.FLAT_MAP:
                return (row._replace(value=value) for value in step.fn(row.value))
            case _:
                answer = step.fn(row.value)
                names = [] if answer is None else [answer] if isinstance(answer, str) else list(answer)
                targets = tuple(dict.fromkeys(self.sinks.index(name) for name in names))
                return [row._replace(targets=targets)] if targets else []

    def _batch(self, step: Step, rows: list[Row]) -> tuple[list[Row], list[tuple[int, Step]]]:
        counts = self.counts[step.name]
        counts["read"] += len(rows)
        if not rows:
            return [], []
        try:
            answers = list(step.fn([row.value for row in rows]))
            assert len(answers) == len(rows)
        except BaseException:
            counts["bad"] += len(rows)
            records = sorted({row.record for row in rows})
            return [], [(record, step) for record in records[: 1 if step.policy is OnError.FAIL else None]]
        out = [row._replace(value=answer) for row, answer in zip(rows, answers, strict=True) if answer is not None]
        counts["out"] += len(out)
        counts["filtered"] += len(rows) - len(out)
        return out, []
