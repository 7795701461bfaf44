"""Which value each setting has, and where it came from: flag, environment, file, pipeline or default."""

from __future__ import annotations

import difflib
import enum
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import cast

import msgspec

from headrace.config.interpolate import Expanded
from headrace.config.settings import Kind, Knob, Settings, knobs, value_of
from headrace.config.toml_file import TomlFile
from headrace.config.units import UnitError, format_duration, format_size, parse_duration, parse_size
from headrace.errors import ConfigError

ENV_PREFIX = "HEADRACE_"
RESERVED_ENV = frozenset({"HEADRACE_STATE", "HEADRACE_LIFE"})
"""Variables of ours that are no settings."""

# What Kubernetes puts into every container once a Service is named "headrace".
_SERVICE_LINK = re.compile(r"HEADRACE_(?:SERVICE_(?:HOST|PORT)|PORT)(?:_[A-Z0-9_]+)?")

_FLAGS = {"workers": "--workers", "shards": "--shards", "admin.listen": "--admin"}
_PIPELINE_TABLES = frozenset({"pipeline", "source", "transform", "sinks"})


class EffectiveSettings(msgspec.Struct, frozen=True):
    """The settings of a run and, by dotted key, the origin of each."""

    settings: Settings
    origins: dict[str, str]


def load_settings(
    *,
    code: Mapping[str, object] | None = None,
    file: TomlFile | Mapping[str, object] | None = None,
    env: Mapping[str, str],
    flags: Mapping[str, object],
    set_flags: Mapping[str, str] | None = None,
) -> EffectiveSettings:
    """Merge all places where a setting may be written; a flag wins over all, the defaults over nothing.

    Mappings are nested, or have dotted keys. ``flags`` holds what has a flag of its own, ``set_flags`` what came by
    ``--set``. An origin is ``default``, ``pipeline``, ``file PATH``, the variable's name, or the flag. Raises
    `ConfigError` for an unknown key (with the nearest valid one), a wrong type, and a value out of bounds.
    """
    known = knobs()
    values: dict[str, object] = {}
    origins = dict.fromkeys(known, "default")
    for key, value, origin in _all_values(known, code or {}, file, env, flags, set_flags or {}):
        values[key] = value
        origins[key] = origin
    return EffectiveSettings(_build(values), origins)


def _all_values(
    known: Mapping[str, Knob],
    code: Mapping[str, object],
    file: TomlFile | Mapping[str, object] | None,
    env: Mapping[str, str],
    flags: Mapping[str, object],
    set_flags: Mapping[str, str],
) -> Iterator[tuple[str, object, str]]:
    yield from _from_mapping(known, code, "pipeline", lambda _: "the pipeline's settings")
    if isinstance(file, TomlFile):
        _refuse_pipeline_tables(file)
        yield from _from_mapping(known, file.values, f"file {file.path}", file.place)
    elif file is not None:
        yield from _from_mapping(known, file, "file", lambda _: "the file")
    yield from _from_environment(known, env)
    for key, text in set_flags.items():
        yield key, _parsed(_knob(known, key, "--set"), key, text, "--set", as_text=True), "--set"
    for key, value in flags.items():
        flag = _FLAGS.get(key, "--set")
        yield key, _parsed(_knob(known, key, flag), key, value, flag, as_text=isinstance(value, str)), flag


def _refuse_pipeline_tables(file: TomlFile) -> None:
    for table in _PIPELINE_TABLES.intersection(file.values):
        raise ConfigError(
            f"{file.place(table)}: [{table}] belongs to a pipeline; give the file as PIPELINE, or keep only settings "
            "in a --config file"
        )


def _from_mapping(
    known: Mapping[str, Knob], values: Mapping[str, object], origin: str, place: Callable[[str], str]
) -> Iterator[tuple[str, object, str]]:
    seen: set[str] = set()
    for key, value in _leaves(known, values, "", place):
        if key in seen:
            raise ConfigError(f"{place(key)}: {key} is written twice; keep one")
        seen.add(key)
        parsed = _parsed(_knob(known, key, place(key)), key, value, place(key), as_text=isinstance(value, Expanded))
        yield key, parsed, origin


def _leaves(
    known: Mapping[str, Knob], values: Mapping[str, object], prefix: str, place: Callable[[str], str]
) -> Iterator[tuple[str, object]]:
    for word, value in values.items():
        key = f"{prefix}{word}"
        if key in known:
            yield key, value
        elif isinstance(value, Mapping) and value:
            yield from _leaves(known, cast("Mapping[str, object]", value), f"{key}.", place)
        elif any(name.startswith(f"{key}.") for name in known):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{place(key)}: {key} is {value!r}; expected a table of settings such as {_in(key)}")
        else:
            _knob(known, key, place(key))


def _in(group: str) -> str:
    return next(name for name in knobs() if name.startswith(f"{group}."))


def _from_environment(known: Mapping[str, Knob], env: Mapping[str, str]) -> Iterator[tuple[str, object, str]]:
    names = {environment_name(key): key for key in known}
    for name in sorted(env):
        if not name.startswith(ENV_PREFIX) or name in RESERVED_ENV or _SERVICE_LINK.fullmatch(name):
            continue
        key = names.get(name)
        if key is None:
            raise ConfigError(f"environment: there is no setting {name}{_did_you_mean(_nearest(name, names))}")
        yield key, _parsed(known[key], key, env[name], name, as_text=True), name


def environment_name(key: str) -> str:
    """The variable that holds a setting: ``HEADRACE_BATCH__MAX_ROWS`` for ``batch.max_rows``."""
    return ENV_PREFIX + key.upper().replace(".", "__")


def _knob(known: Mapping[str, Knob], key: str, where: str) -> Knob:
    knob = known.get(key)
    if knob is None:
        raise ConfigError(f"{where}: there is no setting {key}{_did_you_mean(nearest_key(key, known))}")
    return knob


def nearest_key(key: str, known: Iterable[str]) -> str | None:
    """The valid key that was most likely meant: the same word in another table, else the most similar key."""
    names = list(known)
    last = key.rpartition(".")[2]
    close = _nearest(key, names)
    if close is not None and difflib.SequenceMatcher(None, key, close).ratio() > 0.8:
        return close
    same_word = [name for name in names if name.rpartition(".")[2] == last]
    similar_word = _nearest(last, {name.rpartition(".")[2]: name for name in names})
    if same_word:
        return _nearest(key, same_word, cutoff=0.0)
    return close or next((name for name in names if name.rpartition(".")[2] == similar_word), None)


def _nearest(word: str, words: Iterable[str], cutoff: float = 0.6) -> str | None:
    return next(iter(difflib.get_close_matches(word, list(words), n=1, cutoff=cutoff)), None)


def _did_you_mean(name: str | None) -> str:
    return f"; did you mean {name}?" if name else "; `headrace check` lists all settings"


def _parsed(knob: Knob, key: str, value: object, where: str, *, as_text: bool) -> object:
    try:
        parsed = _parse(knob, value, as_text)
        _check_bounds(knob, parsed)
    except UnitError as error:
        raise ConfigError(f"{where}: {key} is {_shown(value)}; {error}") from None
    return parsed


def _parse(knob: Knob, value: object, as_text: bool) -> object:
    plain = value.value if isinstance(value, enum.Enum) else value
    if knob.optional and (plain is None or plain == "none"):
        return None
    if knob.word is not None and plain == knob.word:
        return plain
    if knob.kind is Kind.CHOICE and plain in knob.choices:
        return str(plain)
    if knob.kind is Kind.TEXT and isinstance(plain, str) and plain:
        return str(plain)
    number = _number(knob, str(plain), as_text) if isinstance(plain, str) else plain
    if isinstance(number, bool) or not _fits(knob, number):
        raise UnitError(f"expected {expectation(knob)}")
    return float(number) if knob.kind in (Kind.SECONDS, Kind.RATIO) else number  # type: ignore[arg-type]


def _number(knob: Knob, text: str, as_text: bool) -> object:
    if knob.kind is Kind.BYTES:
        return parse_size(text)
    if knob.kind is Kind.SECONDS:
        return parse_duration(text)
    try:
        if as_text and knob.kind is Kind.COUNT:
            return int(text)
        if as_text and knob.kind is Kind.RATIO:
            return float(text)
    except ValueError:
        pass
    return None


def _fits(knob: Knob, number: object) -> bool:
    if knob.kind in (Kind.COUNT, Kind.BYTES):
        return isinstance(number, int)
    if knob.kind in (Kind.SECONDS, Kind.RATIO):
        return isinstance(number, int | float) and math.isfinite(number)
    return False


def _check_bounds(knob: Knob, value: object) -> None:
    if not isinstance(value, int | float):
        return
    if knob.low is not None and value < knob.low:
        raise UnitError(f"the least is {_written(knob, knob.low)}")
    if knob.high is not None and value > knob.high:
        raise UnitError(f"the most is {_written(knob, knob.high)}")


def expectation(knob: Knob) -> str:
    """What a setting's value looks like, for a message: ``a whole number, "auto"``."""
    if knob.kind is Kind.CHOICE:
        return "one of " + ", ".join(knob.choices)
    words = [word for word in (knob.word, "none" if knob.optional else None) if word]
    return str(knob.kind.value) + "".join(f' or "{word}"' for word in words)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _build(values: Mapping[str, object]) -> Settings:
    nested: dict[str, object] = {}
    for key, value in values.items():
        group, _, word = key.rpartition(".")
        table = nested.setdefault(group, {}) if group else nested
        table[word] = value  # type: ignore[index]
    return msgspec.convert(nested, Settings)


def written(settings: Settings) -> dict[str, str]:
    """Every setting as text that `load_settings` reads back to the same value; by dotted key."""
    return {key: _written(knob, value_of(settings, key)) for key, knob in knobs().items()}


def _written(knob: Knob, value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, str):
        return str(value)
    if knob.kind is Kind.BYTES and isinstance(value, int | float):
        return format_size(int(value))
    if knob.kind is Kind.SECONDS and isinstance(value, int | float):
        return format_duration(float(value))
    return repr(int(value)) if knob.kind is Kind.COUNT and isinstance(value, int | float) else repr(value)
