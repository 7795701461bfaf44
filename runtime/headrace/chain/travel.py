"""By-value travel of a pipeline's operators to its workers: the modules they come from, and the objects themselves.

A parcel is a msgpack map::

    modules   array of (name, path, is package, source or nil): what `headrace.chain.carried_modules` installs
    body      the objects as a pickle, which refers to those modules by name

It goes through inherited pipes only and is never kept (HR-21).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, Final, Protocol, cast, runtime_checkable

import msgspec

from headrace.chain import by_value
from headrace.chain.carried_modules import CarriedModule, install, own_modules
from headrace.chain.cause import FATAL, cause_of
from headrace.errors import ConfigError

_DEPTH: Final = 5
"""How far the culprit is looked for in what a captured function captures."""


class Parcel(msgspec.Struct, frozen=True):
    """What is sent."""

    modules: list[CarriedModule]
    body: bytes


@runtime_checkable
class Traveller(Protocol):
    """Something whose parts have names for the user."""

    def travelling(self) -> Iterable[tuple[str, object]]: ...


def pack(modules_root: Path | None, objects: object) -> bytes:
    """The objects, and the modules under ``modules_root`` that they come from.

    Raises `ConfigError` naming the operator and the captured variable that cannot travel.
    """
    modules = [] if modules_root is None else own_modules(modules_root)
    try:
        body = by_value.dumps(objects)
    except FATAL:
        raise
    except BaseException as error:
        raise ConfigError(
            _culprit(objects) or f"the pipeline cannot travel to its workers: {cause_of(error)}"
        ) from error
    return msgspec.msgpack.encode(Parcel(modules, body))


def unpack(data: bytes) -> Any:
    """The objects; their modules are imported from the parcel. Raises what importing them raises."""
    parcel = msgspec.msgpack.decode(data, type=Parcel)
    install(parcel.modules)
    return by_value.loads(parcel.body)


def _culprit(objects: object) -> str | None:
    for name, part in _parts(objects):
        reason = _obstacle(part)
        if reason is None:
            continue
        path, reason = _deepest([], part, reason, _DEPTH)
        if not path:
            return f"{name}: it cannot travel to the workers: {reason}"
        return (
            f"{name}: the captured variable {'.'.join(path)} cannot travel to the workers: {reason}; make it inside "
            "the function when it is first needed, or at the top of the pipeline's module, which each worker imports"
        )
    return None


def _parts(objects: object) -> Iterator[tuple[str, object]]:
    if isinstance(objects, Traveller):
        yield from objects.travelling()
    elif isinstance(objects, list | tuple):
        for one in cast("Iterable[object]", objects):
            yield from _parts(one)
    else:
        yield type(objects).__name__, objects


def _obstacle(value: object) -> str | None:
    try:
        by_value.dumps(value)
    except FATAL:
        raise
    except BaseException as error:  # noqa: BLE001 - a value's own methods may raise anything
        return str(error) if isinstance(error, by_value.CannotTravelError) else cause_of(error)
    return None


def _deepest(path: list[str], value: object, reason: str, depth: int) -> tuple[list[str], str]:
    for name, captured in _captures(value) if depth else ():
        found = _obstacle(captured)
        if found is not None:
            return _deepest([*path, name], captured, found, depth - 1)
    return path, reason


def _captures(value: Any) -> Iterator[tuple[str, object]]:
    """What a callable object holds, by the names the user knows."""
    if isinstance(value, functools.partial):
        yield from _captures(value.func)
        yield from ((f"args[{number}]", one) for number, one in enumerate(value.args))
        yield from cast("dict[str, object]", value.keywords).items()
    elif isinstance(value, MethodType):
        yield "self", value.__self__
    elif isinstance(value, FunctionType):
        yield from _variables(value)
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        yield from cast("dict[str, object]", vars(value)).items()


def _variables(function: FunctionType) -> Iterator[tuple[str, object]]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue  # not assigned yet
    defaults = function.__defaults__ or ()
    yield from zip(code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()
    if function.__module__ == "__main__":
        yield from ((name, function.__globals__[name]) for name in code.co_names if name in function.__globals__)
