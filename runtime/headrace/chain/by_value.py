"""Pickles the user's functions and classes by value, where no module has them; on top of ``dill``.

What ``dill`` does is kept, but for this:

* a `msgspec.Struct` or an `Enum` that was defined in a function or in ``__main__`` is made anew from its parts, and so
  is a `msgspec.Meta`;
* a function of ``__main__`` takes the globals that it uses along;
* a module goes by name;
* a lock, an open file and the like are refused: ``dill`` would send a copy that is connected to nothing.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import io
import sys
import threading
from collections.abc import Callable, Mapping
from types import FunctionType, ModuleType
from typing import Any, Final, Generic, cast

import dill  # pyright: ignore[reportMissingTypeStubs] - it has none
import msgspec
from msgspec import structs

_dill: Any = dill
_REFUSED: Final[tuple[type, ...]] = (
    type(threading.Lock()),
    type(threading.RLock()),
    threading.Thread,
    io.IOBase,
)
_META: Final = tuple(name for name in dir(msgspec.Meta) if not name.startswith("_"))
_HARMLESS: Final = (io.BytesIO, io.StringIO)


class CannotTravelError(Exception):
    """A value that has no meaning in another process."""


def dumps(value: object) -> bytes:
    """The value as a pickle. Raises `CannotTravelError`, and what ``pickle`` and the value's own methods raise."""
    buffer = io.BytesIO()
    _Pickler(buffer, recurse=False, byref=False).dump(value)
    return buffer.getvalue()


def loads(data: bytes) -> Any:
    """The value of a pickle that came through an inherited pipe (HR-21)."""
    return _dill.loads(data)


class _Pickler(_dill.Pickler):  # type: ignore[misc]  # dill has no types
    _recurse: bool
    dispatch: Any = type(_dill.Pickler.dispatch)(_dill.Pickler.dispatch)

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if isinstance(obj, _REFUSED) and not isinstance(obj, _HARMLESS):
            raise CannotTravelError(f"a {type(obj).__name__} cannot be given to another process")
        recurse = self._recurse
        if type(obj) is FunctionType:
            self._recurse = obj.__module__ == "__main__"
        try:
            _dill.Pickler.save(self, obj, save_persistent_id)
        finally:
            self._recurse = recurse


def _save_module(pickler: Any, module: ModuleType) -> None:
    pickler.save_reduce(importlib.import_module, (module.__name__,), obj=module)


def _save_struct(pickler: Any, cls: Any) -> None:
    if _has_a_name(cls):
        pickler.save_global(cls, name=cls.__qualname__)
        return
    pickler.save_reduce(_new_struct, _struct_parts(cls), _struct_body(cls), state_setter=_complete_struct, obj=cls)


def _save_enum(pickler: Any, cls: Any) -> None:
    if _has_a_name(cls):
        pickler.save_global(cls, name=cls.__qualname__)
        return
    pickler.save_reduce(_new_enum, _enum_parts(cls), _own_attributes(cls), state_setter=_set_attributes, obj=cls)


def _save_meta(pickler: Any, meta: msgspec.Meta) -> None:
    given = {name: value for name in _META if (value := getattr(meta, name)) is not None}
    pickler.save_reduce(_new_meta, (given,), obj=meta)


def _new_meta(given: dict[str, Any]) -> msgspec.Meta:
    return msgspec.Meta(**given)


_Pickler.dispatch[msgspec.Meta] = _save_meta
_Pickler.dispatch[ModuleType] = _save_module
_Pickler.dispatch[type(msgspec.Struct)] = _save_struct
_Pickler.dispatch[type(enum.Enum)] = _save_enum


def _has_a_name(cls: type) -> bool:
    """Whether another process finds it in its module."""
    if cls.__module__ == "__main__":
        return False
    found: object = sys.modules.get(cls.__module__)
    for word in cls.__qualname__.split("."):
        found = getattr(found, word, None)
    return found is cls


# -- Structs: first a class with the fields' names and defaults, then, for they may refer to it, types and methods.


def _struct_parts(cls: Any) -> tuple[object, ...]:
    if Generic in cls.__mro__:
        raise CannotTravelError(f"the generic Struct {cls.__qualname__} must be defined at the top of a module")
    config = {
        name: getattr(cls.__struct_config__, name) for name in dir(cls.__struct_config__) if not name.startswith("_")
    }
    if config["tag"] is None:
        del config["tag"], config["tag_field"]
    own = [name for name in inspect.get_annotations(cls) if name in cls.__struct_fields__]
    encoded = dict(zip(cls.__struct_fields__, cls.__struct_encode_fields__, strict=True))
    config["rename"] = {name: encoded[name] for name in own}
    config["kw_only"] = any(name not in cls.__match_args__ for name in own)
    fields = [_field(name, default) for name, default in _defaults(cls).items() if name in own]
    fields.sort(key=lambda field: own.index(field[0]))
    has_post_init = "__post_init__" in cls.__dict__
    return cls.__name__, cls.__qualname__, cls.__module__, cls.__bases__, fields, has_post_init, config


def _defaults(cls: Any) -> dict[str, object]:
    missing = (msgspec.NODEFAULT,) * (len(cls.__struct_fields__) - len(cls.__struct_defaults__))
    return dict(zip(cls.__struct_fields__, missing + cls.__struct_defaults__, strict=True))


def _field(name: str, default: Any) -> tuple[str, str, object]:
    """A field's name, which kind of default it has, and the default."""
    if default is msgspec.NODEFAULT:
        return name, "required", None
    factory = getattr(default, "factory", None) if type(default).__module__.startswith("msgspec") else None
    return (name, "value", default) if factory is None else (name, "factory", factory)


def _new_struct(
    name: str,
    qualname: str,
    module: str,
    bases: tuple[type, ...],
    fields: list[tuple[str, str, Any]],
    has_post_init: bool,
    config: dict[str, Any],
) -> type[msgspec.Struct]:
    made: list[Any] = []
    namespace: dict[str, Any] = {}
    if has_post_init:
        # msgspec remembers the function it sees now; the real one comes with the other methods.
        namespace["__post_init__"] = _forwarding(made)
    specified = [_specified(*field) for field in fields]
    cls = msgspec.defstruct(name, specified, bases=bases, module=module, namespace=namespace, **config)
    cls.__qualname__ = qualname
    made.append(cls)
    return cls


def _forwarding(made: list[type]) -> Callable[[object], None]:
    def __post_init__(self: object) -> None:  # noqa: N807 - it stands in for one
        made[0].__dict__["__post_init__"](self)

    return __post_init__


def _specified(name: str, kind: str, default: Any) -> Any:
    match kind:
        case "required":
            return (name, Any)
        case "factory":
            return (name, Any, msgspec.field(default_factory=default))
        case _:
            return (name, Any, default)


def _struct_body(cls: Any) -> tuple[dict[str, object], dict[str, object]]:
    annotations = inspect.get_annotations(cls)
    try:
        types = {field.name: field.type for field in structs.fields(cls)}
    except Exception:  # noqa: BLE001 - the types name what is not to be found; msgspec says so where they are needed
        types = {}
    return {name: types.get(name, raw) for name, raw in annotations.items()}, _own_attributes(cls)


def _complete_struct(cls: Any, body: tuple[dict[str, object], dict[str, object]]) -> None:
    cls.__annotations__, attributes = body
    _set_attributes(cls, attributes)


# -- Enums.


def _enum_parts(cls: Any) -> tuple[object, ...]:
    if _is_own(cls, cls.__dict__.get("_new_member_")):
        raise CannotTravelError(f"the Enum {cls.__qualname__} has its own __new__; define it at the top of a module")
    members = [(name, member.value) for name, member in cls.__members__.items()]
    init = cls.__dict__.get("__init__")
    return cls.__name__, cls.__qualname__, cls.__module__, cls.__bases__, members, init


def _new_enum(
    name: str, qualname: str, module: str, bases: tuple[type, ...], members: list[tuple[str, object]], init: object
) -> type[enum.Enum]:
    meta = type(bases[-1])
    namespace: Any = cast(Any, meta).__prepare__(name, bases)
    namespace["__module__"], namespace["__qualname__"] = module, qualname
    if init is not None:
        namespace["__init__"] = init
    for member, value in members:
        namespace[member] = value
    return cast("type[enum.Enum]", meta(name, bases, namespace))


# -- Both.


def _own_attributes(cls: Any) -> dict[str, object]:
    """What the class body defines beside fields and members."""
    taken = {*getattr(cls, "__struct_fields__", ()), *getattr(cls, "__members__", ())}
    return {
        name: value
        for name, value in cls.__dict__.items()
        if name not in taken and (_is_own(cls, value) or not (name.startswith("_") and name.endswith("_")))
    }


def _is_own(cls: type, value: Any) -> bool:
    """A function that was written in the class body, not one that a metaclass put there."""
    function = getattr(value, "__func__", value)
    return isinstance(function, FunctionType) and function.__qualname__.startswith(f"{cls.__qualname__}.")


def _set_attributes(cls: type, attributes: Mapping[str, object]) -> None:
    for name, value in attributes.items():
        setattr(cls, name, value)
