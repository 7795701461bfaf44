"""What a chain is made of: its operators, each a function of the user's and what is done when it raises."""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import Callable
from typing import Any, cast

import msgspec

from headrace.errors import ConfigError
from headrace.record import OnError

UserFunction = Callable[..., Any]


class OperatorKind(enum.StrEnum):
    """What is done with the function's answer."""

    MAP = "map"
    FILTER = "filter"
    FLAT_MAP = "flat_map"
    INSPECT = "inspect"
    MAP_BATCH = "map_batch"
    SHARD_BY = "shard_by"
    SPLIT = "split"


class Operator(msgspec.Struct, frozen=True, kw_only=True):
    """An operator as the pipeline was given it. ``name`` is the stage that bad records and counts carry."""

    kind: OperatorKind
    fn: UserFunction
    name: str
    on_error: OnError | None = None


class Step(msgspec.Struct, frozen=True):
    """An operator with its policy decided."""

    kind: OperatorKind
    fn: UserFunction
    name: str
    policy: OnError


class OperatorCounts(msgspec.Struct, kw_only=True):
    """An operator's counts: read + made = out + filtered + skipped + dead_lettered + failed (HR-8).

    They count what the operator saw and gave on. Rows that were taken back afterwards, because another row of the same
    record went bad further down, stay counted as given on.
    """

    name: str
    read: int = 0
    made: int = 0
    out: int = 0
    filtered: int = 0
    skipped: int = 0
    dead_lettered: int = 0
    failed: int = 0

    @property
    def bad(self) -> int:
        return self.skipped + self.dead_lettered + self.failed

    def add_bad(self, policy: OnError, rows: int = 1) -> None:
        match policy:
            case OnError.SKIP:
                self.skipped += rows
            case OnError.DEAD_LETTER:
                self.dead_lettered += rows
            case OnError.FAIL:
                self.failed += rows


class FieldReader:
    """Reads one field of a record, be it a dict's or an attribute; a dict that lacks it is keyless."""

    def __init__(self, field: str) -> None:
        self.field = field

    def __call__(self, record: Any) -> object:
        if isinstance(record, dict):
            return cast("dict[str, object]", record).get(self.field)
        return getattr(record, self.field)


def check_function(kind: OperatorKind, fn: object) -> UserFunction:
    """The function, if the operator can use it. Raises `ConfigError` saying what to do."""
    if not callable(fn):
        raise ConfigError(f"{kind}(…) takes a function, not {fn!r}")
    code = _unwrapped(fn)
    if inspect.iscoroutinefunction(code) or inspect.isasyncgenfunction(code):
        raise ConfigError(
            f"{kind}({_label(fn)}): an operator cannot be `async def`; write it as a plain function, or do what waits "
            "in the sink"
        )
    if inspect.isgeneratorfunction(code) and kind in (
        OperatorKind.FILTER,
        OperatorKind.INSPECT,
        OperatorKind.MAP_BATCH,
        OperatorKind.SHARD_BY,
    ):
        raise ConfigError(
            f"{kind}({_label(fn)}): the function has a `yield`, so calling it runs nothing of it; only flat_map takes "
            "a generator function"
        )
    return fn


def _unwrapped(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The code behind partials, bound methods and objects with a ``__call__``."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if not (inspect.isroutine(fn) or inspect.isclass(fn)):
        return type(fn).__call__
    return fn


def _label(fn: object) -> str:
    return str(getattr(fn, "__qualname__", None) or type(fn).__qualname__)
