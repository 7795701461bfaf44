"""``${VAR}``, ``${VAR:-default}`` and ``${VAR:?message}`` in the parsed values of a file, never in its raw text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast

from headrace.errors import ConfigError

_REFERENCE = re.compile(r"\$(?:(\$)(?=\{)|\{([A-Za-z_][A-Za-z0-9_]*)(?::([-?])([^{}]*))?\}|(\{))")


class Expanded(str):
    """A text that came, in part at least, from the environment: a number may be written in it."""

    __slots__ = ()


def interpolate(value: object, env: Mapping[str, str], where: str = "") -> object:
    """``value`` with every text in it expanded; keys and other types stay as they are.

    ``$${`` stands for ``${`` itself. ``:-`` and ``:?`` count an empty variable as unset, as a shell does. Raises
    `ConfigError` naming the place for an unset variable without a default, and for ``${`` that is no reference.
    """
    if isinstance(value, str):
        return _expand(value, env, where)
    if isinstance(value, Mapping):
        table = cast("Mapping[str, object]", value)
        return {key: interpolate(item, env, f"{where}.{key}" if where else key) for key, item in table.items()}
    if isinstance(value, list):
        return [interpolate(item, env, f"{where}[{index}]") for index, item in enumerate(cast("list[object]", value))]
    return value


def _expand(text: str, env: Mapping[str, str], where: str) -> str:
    expanded = False

    def replaced(found: re.Match[str]) -> str:
        nonlocal expanded
        escaped, name, sign, rest, broken = found.groups()
        if escaped:
            return "$"
        if broken:
            raise ConfigError(
                f"{where}: {text!r} has a ${{ that is no ${{VAR}}, ${{VAR:-default}} or ${{VAR:?message}}; "
                "write $${ for the characters themselves"
            )
        expanded = True
        return _value(name, sign, rest, env, where)

    result = _REFERENCE.sub(replaced, text)
    return Expanded(result) if expanded else result


def _value(name: str, sign: str | None, rest: str | None, env: Mapping[str, str], where: str) -> str:
    value = env.get(name)
    if sign is None and value is None:
        raise ConfigError(f"{where}: the environment has no {name}; set it, or write ${{{name}:-default}}")
    if sign == "?" and not value:
        raise ConfigError(f"{where}: {name}: {rest or 'is not set in the environment'}")
    if sign == "-" and not value:
        return rest or ""
    return value or ""
