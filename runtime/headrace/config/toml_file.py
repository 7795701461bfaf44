"""A TOML file as it was read: its values with the environment expanded, and the line of each key."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from headrace.config.interpolate import interpolate
from headrace.errors import ConfigError

_TABLE = re.compile(r"\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?")
_ENTRY = re.compile(r"\s*([A-Za-z0-9_.\-\"' ]+?)\s*=")


class TomlFile(msgspec.Struct, frozen=True):
    """The parsed values of one file."""

    path: Path
    values: Mapping[str, object]
    text: str

    def line_of(self, key: str) -> int | None:
        """The line on which a dotted key is written, or None where that is not plain to see."""
        table = ""
        for number, line in enumerate(self.text.splitlines(), start=1):
            if found := _TABLE.fullmatch(line):
                table = _plain(found[1])
                if table == key:
                    return number
            elif (found := _ENTRY.match(line)) and _joined(table, _plain(found[1])) == key:
                return number
        return None

    def place(self, key: str) -> str:
        """``file PATH, line N`` for a message."""
        line = self.line_of(key)
        return f"file {self.path}" + (f", line {line}" if line else "")


def read_toml(path: Path, env: Mapping[str, str]) -> TomlFile:
    """Read and expand a file. Raises `ConfigError` naming the file and, for broken TOML, the line."""
    try:
        text = path.read_bytes().decode("utf-8")
        values = tomllib.loads(text)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise ConfigError(f"cannot read {path}: {reason}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start}); TOML files are") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    expanded = {key: interpolate(value, env, f"{path}: {key}") for key, value in values.items()}
    return TomlFile(path, expanded, text)


def _plain(key: str) -> str:
    return ".".join(word.strip().strip("\"'") for word in key.split("."))


def _joined(table: str, key: str) -> str:
    return f"{table}.{key}" if table else key
