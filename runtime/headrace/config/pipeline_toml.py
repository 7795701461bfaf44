"""A pipeline written as TOML.

::

    [pipeline]            name, shard_by = "field", on_error, version, route = "module:function" (several sinks)
    [source]              type = "files", and the source's own parameters; decode = "dict" | "bytes" | "module:Type"
    [[transform]]         op = "map" | "filter" | "flat_map" | "inspect" | "map_batch", call = "module:function",
                          name, on_error
    [sinks.NAME]          type = "sqlite", and the sink's own parameters
    [batch] …             any settings

Modules are looked for beside the file first. ``shard_by`` comes before the transforms, so these run in the workers.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from headrace.config.connectors import SINKS, SOURCES, connector
from headrace.config.toml_file import TomlFile
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.pipeline import Pipeline

_TABLES = ("pipeline", "source", "transform", "sinks")
_OPERATORS = ("map", "filter", "flat_map", "inspect", "map_batch")
_PLAIN_TYPES: Mapping[str, type] = {"dict": dict, "bytes": bytes}


def pipeline_from_toml(file: TomlFile) -> tuple[Pipeline, dict[str, object]]:
    """The pipeline of a file, and the settings beside it. Raises `ConfigError` naming file, key and line."""
    from headrace.pipeline import Pipeline  # noqa: PLC0415 - a --config file needs none

    if "source" not in file.values:
        raise ConfigError(
            f"{file.path} has no [source], so it is a --config file and no pipeline; add [source], or give it by "
            "--config"
        )
    head = _table(file, "pipeline", ("name", "shard_by", "on_error", "version", "route"))
    name = _text(file, "pipeline.name", head.get("name"))
    policy = _optional_text(file, "pipeline.on_error", head.get("on_error"))
    version = _optional_text(file, "pipeline.version", head.get("version"))
    settings = {key: value for key, value in file.values.items() if key not in _TABLES}
    pipeline: Any = Pipeline(name, on_error=cast(Any, policy), version=version)
    pipeline = _with_source(file, pipeline)
    if "shard_by" in head:
        pipeline = pipeline.shard_by(_text(file, "pipeline.shard_by", head["shard_by"]))
    for number, transform in enumerate(_transforms(file)):
        pipeline = _with_transform(file, pipeline, transform, f"transform[{number}]")
    if policy is not None:
        settings.setdefault("on_error", policy)
    return _with_sinks(file, pipeline, head), settings


def _with_source(file: TomlFile, pipeline: Any) -> Any:
    table = dict(_table(file, "source", None))
    kind = _text(file, "source.type", table.pop("type", None))
    if "decode" in table:
        table["decode"] = _decode(file, table["decode"])
    on_error = table.pop("on_error", None)
    source = _made(file, "source", connector(SOURCES, kind).load(), table)
    return pipeline.source(source, on_error=on_error) if on_error is not None else pipeline.source(source)


def _decode(file: TomlFile, value: object) -> object:
    text = _text(file, "source.decode", value)
    return _PLAIN_TYPES.get(text) or _named(file, "source.decode", text)


def _transforms(file: TomlFile) -> list[Mapping[str, object]]:
    found = file.values.get("transform", [])
    if not isinstance(found, list) or not all(isinstance(one, Mapping) for one in cast("list[object]", found)):
        raise ConfigError(f"{file.place('transform')}: transform must be written as [[transform]]")
    return cast("list[Mapping[str, object]]", found)


def _with_transform(file: TomlFile, pipeline: Any, transform: Mapping[str, object], where: str) -> Any:
    _check_keys(file, "transform", transform, ("op", "call", "name", "on_error"))
    op = _text(file, f"{where}.op", transform.get("op"))
    if op not in _OPERATORS:
        raise ConfigError(f"{file.place('transform')}: {where}.op is {op!r}; expected one of {', '.join(_OPERATORS)}")
    call = _named(file, f"{where}.call", _text(file, f"{where}.call", transform.get("call")))
    if not callable(call):
        raise ConfigError(f"{file.place('transform')}: {where}.call names a {type(call).__name__}, not a function")
    options = {key: transform[key] for key in ("name", "on_error") if key in transform}
    return getattr(pipeline, op)(call, **options)


def _with_sinks(file: TomlFile, pipeline: Any, head: Mapping[str, object]) -> Pipeline:
    tables = _table(file, "sinks", None)
    sinks = {name: _sink(file, name, table) for name, table in tables.items()}
    if not sinks:
        raise ConfigError(f"{file.path} has no sink; add [sinks.main] with a type")
    if "route" in head:
        route = _named(file, "pipeline.route", _text(file, "pipeline.route", head["route"]))
        return cast("Pipeline", pipeline.split(route, sinks))
    if len(sinks) > 1:
        raise ConfigError(
            f'{file.path} has several sinks ({", ".join(sinks)}); say which rows go where with route = "module:'
            'function" in [pipeline]'
        )
    (name, sink), *_ = sinks.items()
    return cast("Pipeline", pipeline.sink(sink, name=name))


def _sink(file: TomlFile, name: str, table: object) -> object:
    where = f"sinks.{name}"
    if not isinstance(table, Mapping):
        raise ConfigError(f"{file.place(where)}: {where} is {table!r}; write it as [sinks.{name}]")
    parameters = dict(cast("Mapping[str, object]", table))
    kind = _text(file, f"{where}.type", parameters.pop("type", None))
    return _made(file, where, connector(SINKS, kind).load(), parameters)


def _made(file: TomlFile, where: str, maker: object, parameters: Mapping[str, object]) -> object:
    """Call a connector's class with the table's keys as its parameters."""
    if not callable(maker):
        raise ConfigError(f"{file.place(where)}: {where}.type names a {type(maker).__name__}, not a class")
    signature = inspect.signature(maker)
    names = [name for name in signature.parameters if name not in ("self", "args", "kwargs")]
    _check_keys(file, where, parameters, ("type", *names))
    missing = [
        name
        for name, parameter in signature.parameters.items()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        and name not in parameters
    ]
    if missing:
        raise ConfigError(f"{file.place(where)}: {where} needs {missing[0]}; write {missing[0]} = … into [{where}]")
    positional = [
        parameters[name]
        for name, parameter in signature.parameters.items()
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY and name in parameters
    ]
    named = {
        name: value
        for name, value in parameters.items()
        if signature.parameters[name].kind is not inspect.Parameter.POSITIONAL_ONLY
    }
    try:
        return maker(*positional, **named)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{file.place(where)}: {where}: {error}") from None


def _named(file: TomlFile, where: str, target: str) -> object:
    module_name, colon, attribute = target.partition(":")
    if not colon or not module_name or not attribute:
        raise ConfigError(f'{file.place(where)}: {where} is {target!r}; expected "module:name"')
    from headrace.config.pipeline_file import import_named  # noqa: PLC0415 - that module imports this one

    module = import_named(module_name, f"{file.place(where)}: {where}")
    found: object = module
    for word in attribute.split("."):
        found = getattr(found, word, None)
    if found is None:
        near = difflib.get_close_matches(attribute, dir(module), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"{file.place(where)}: {where}: {module_name} has no {attribute}{hint}")
    return found


def _table(file: TomlFile, name: str, keys: Iterable[str] | None) -> Mapping[str, object]:
    table = file.values.get(name)
    if not isinstance(table, Mapping):
        problem = f"there is no [{name}]" if table is None else f"{name} must be a table"
        raise ConfigError(f"{file.place(name)}: {problem}; a pipeline has [pipeline], [source] and [sinks.NAME]")
    found = cast("Mapping[str, object]", table)
    if keys is not None:
        _check_keys(file, name, found, keys)
    return found


def _check_keys(file: TomlFile, where: str, table: Mapping[str, object], known: Iterable[str]) -> None:
    names = list(known)
    for key in table:
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known here: {', '.join(names)}"
            raise ConfigError(f"{file.place(f'{where}.{key}')}: there is no {where}.{key}{hint}")


def _text(file: TomlFile, where: str, value: object) -> str:
    if isinstance(value, str) and value:
        return str(value)
    problem = "is missing" if value is None else f"is {value!r}"
    raise ConfigError(f"{file.place(where)}: {where} {problem}; expected a text")


def _optional_text(file: TomlFile, where: str, value: object) -> str | None:
    return None if value is None else _text(file, where, value)
