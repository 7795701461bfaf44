"""Writes the one function that a run of operators becomes, and compiles it.

The function takes a list iterator and calls each user function directly, one source line an operator. It has no
``try`` and counts only what it rejects: which operator an exception belongs to follows from the line, which record
from how much of the iterator is left. Called again with the same iterator it goes on with the next record.

Two shapes. Where every row is a record of its own, a rejected row leaves the iterator's remaining length in the
operator's list, and nothing is done for the others. Where rows may share a record (after a ``flat_map``), or most are
rejected, the loop carries the record's number ``i`` along and gives it out beside each row.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType
from typing import Any, Final, cast

import msgspec

from headrace.chain.operators import OperatorKind, Step

MAX_NESTING: Final = 8
"""How many ``flat_map``s one function nests; Python allows 20 blocks in all."""

_ARGUMENTS: Final = (
    "rows",
    "hint",
    "numbers",
    "keys",
    "add_row",
    "add_key",
    "add_index",
    "add_target",
    "reject",
    "made",
)


class Shape(msgspec.Struct, frozen=True):
    """``tracked``: rows carry their record's number. ``keyed``: rows come in with their shard keys."""

    tracked: bool
    keyed: bool


class Program(msgspec.Struct, frozen=True):
    """A generated function's source, and the step of each of its lines that calls a user function."""

    source: str
    steps: dict[int, int]
    shape: Shape


class Compiled(msgspec.Struct, frozen=True):
    """The function itself; ``code`` tells its frames from all others in a traceback."""

    call: Callable[..., None]
    code: CodeType
    program: Program

    @property
    def shape(self) -> Shape:
        return self.program.shape

    def step_of(self, error: BaseException) -> int | None:
        """The step that raised: by our frame nearest the head, for one instance may be raised again."""
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code is self.code:
                return self.program.steps.get(trace.tb_lineno)
            trace = trace.tb_next
        return None


def generate(steps: Sequence[Step], shape: Shape) -> Program:
    """The source for these steps; ``map_batch`` is not among them."""
    return _Writer(steps, shape).write()


def compile_program(
    program: Program, steps: Sequence[Step], targets: Callable[[object], tuple[int, ...]] | None, title: str
) -> Compiled:
    """Compile, and let tracebacks show the source under ``<headrace TITLE>``."""
    filename = f"<headrace {title}>"
    namespace: dict[str, Any] = {f"f{number}": step.fn for number, step in enumerate(steps)}
    namespace["targets"] = targets
    exec(compile(program.source, filename, "exec"), namespace)  # noqa: S102 (the source above, no text of a stranger)
    lines = program.source.splitlines(keepends=True)
    linecache.cache[filename] = (len(program.source), None, lines, filename)
    function = cast(FunctionType, namespace["chain"])
    return Compiled(function, function.__code__, program)


class _Writer:
    def __init__(self, steps: Sequence[Step], shape: Shape) -> None:
        self._steps = steps
        self._shape = shape
        self._tracked = shape.tracked
        self._has_key = shape.keyed or any(step.kind is OperatorKind.SHARD_BY for step in steps)
        self._keyed = shape.keyed
        flat_maps = [number for number, step in enumerate(steps) if step.kind is OperatorKind.FLAT_MAP]
        self._counted = set(flat_maps[:-1])
        self._lines: list[str] = []
        self._depth = 0
        self._step_lines: dict[int, int] = {}

    def write(self) -> Program:
        functions = [f"f{number}=f{number}" for number in range(len(self._steps))]
        self._line(f"def chain({', '.join([*_ARGUMENTS, *functions, 'targets=targets'])}):")
        self._depth = 1
        for number, step in enumerate(self._steps):
            if step.kind in (OperatorKind.FILTER, OperatorKind.FLAT_MAP, OperatorKind.SPLIT):
                self._line(f"r{number} = reject[{number}]")
            if number in self._counted:
                self._line(f"m{number} = made[{number}]")
        self._line(self._head())
        self._depth = 2
        self._body(0)
        return Program("\n".join(self._lines) + "\n", self._step_lines, self._shape)

    def _head(self) -> str:
        names, iterators = ["x"], ["rows"]
        if self._tracked:
            names.append("i")
            iterators.append("numbers")
        if self._keyed:
            names.append("k")
            iterators.append("keys")
        over = iterators[0] if len(iterators) == 1 else f"zip({', '.join(iterators)})"
        return f"for {', '.join(names)} in {over}:"

    def _body(self, first: int) -> None:
        last = len(self._steps) - 1
        for number in range(first, len(self._steps)):
            step = self._steps[number]
            match step.kind:
                # The last call comes before anything is given out, so that a failure leaves the columns equally long.
                case OperatorKind.MAP if number == last:
                    self._call(number, f"add_row(f{number}(x))")
                    self._emit(row=False)
                    return
                case OperatorKind.SHARD_BY if number == last:
                    self._call(number, f"add_key(f{number}(x))")
                    self._emit(key=False)
                    return
                case OperatorKind.MAP:
                    self._call(number, f"x = f{number}(x)")
                case OperatorKind.INSPECT:
                    self._call(number, f"f{number}(x)")
                case OperatorKind.SHARD_BY:
                    self._call(number, f"k = f{number}(x)")
                case OperatorKind.FILTER:
                    self._call(number, f"if not f{number}(x):")
                    self._reject(number)
                case OperatorKind.SPLIT:
                    self._call(number, f"t = targets(f{number}(x))")
                    self._line("if not t:")
                    self._reject(number)
                case _:
                    self._flat_map(number)
                    return
        self._emit()

    def _flat_map(self, number: int) -> None:
        self._line(f"z{number} = True")
        self._call(number, f"for x in f{number}(x):")
        self._depth += 1
        self._line(f"z{number} = False")
        if number in self._counted:
            self._line(f"m{number}()")
        self._body(number + 1)
        self._depth -= 1
        self._line(f"if z{number}:")
        self._line(f"    r{number}(i)")

    def _reject(self, number: int) -> None:
        self._line(f"    r{number}({'i' if self._tracked else 'hint()'})")
        self._line("    continue")

    def _emit(self, *, row: bool = True, key: bool = True) -> None:
        if self._has_key and key:
            self._line("add_key(k)")
        if self._tracked:
            self._line("add_index(i)")
        if self._steps and self._steps[-1].kind is OperatorKind.SPLIT:
            self._line("add_target(t)")
        if row:
            self._line("add_row(x)")

    def _call(self, number: int, text: str) -> None:
        self._line(text)
        self._step_lines[len(self._lines)] = number

    def _line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)
