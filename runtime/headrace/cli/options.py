"""The options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from headrace.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
state_option = click.option(
    "--state",
    "state",
    envvar="HEADRACE_STATE",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The state directory. [env: HEADRACE_STATE; default: ./.headrace/NAME]",
)
some_pipeline = click.argument("pipeline", required=False, type=click.Path(path_type=Path))
the_pipeline = click.argument("pipeline", type=click.Path(path_type=Path))


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What ``run``, ``start`` and ``check`` are told."""

    pipeline: Path
    state: Path | None
    workers: str | None
    shards: str | None
    admin: str | None
    config: Path | None
    sets: tuple[str, ...]

    def flags(self) -> dict[str, str]:
        """The settings that have a flag of their own."""
        given = {"workers": self.workers, "shards": self.shards, "admin.listen": self.admin}
        return {key: value for key, value in given.items() if value is not None}

    def set_flags(self) -> dict[str, str]:
        """The settings given by ``--set``; the last one counts. Raises `ConfigError` for what is no ``key=value``."""
        found: dict[str, str] = {}
        for one in self.sets:
            key, equals, value = one.partition("=")
            if not equals or not key.strip():
                raise ConfigError(f"--set {one}: expected KEY=VALUE, such as --set batch.max_rows=1000")
            found[key.strip()] = value.strip()
        return found

    def arguments(self) -> list[str]:
        """The same as a command line, with paths that hold in any directory."""
        named = {
            "--state": self.state.absolute() if self.state else None,
            "--workers": self.workers,
            "--shards": self.shards,
            "--admin": self.admin,
            "--config": self.config.absolute() if self.config else None,
        }
        given = [f"{name}={value}" for name, value in named.items() if value is not None]
        return [*given, *(f"--set={one}" for one in self.sets), "--", str(self.pipeline.absolute())]


def run_options(function: F) -> F:
    """Add PIPELINE and the options of a run."""
    for decorate in reversed(
        (
            the_pipeline,
            state_option,
            click.option("--workers", metavar="N|auto", help="Worker processes. [default: auto, one a CPU]"),
            click.option("--shards", metavar="N", help="Shards; chosen at the first start, then kept. [default: 8]"),
            click.option("--config", metavar="FILE", type=click.Path(path_type=Path), help="Settings as TOML."),
            click.option("--set", "sets", metavar="K=V", multiple=True, help="One setting; may be repeated."),
            click.option("--admin", metavar="HOST:PORT", help="Where metrics, health and status are served."),
            json_option,
        )
    ):
        function = decorate(function)
    return function


def options_of(values: Mapping[str, Any]) -> RunOptions:
    """The options out of click's keyword arguments."""
    return RunOptions(**{name: values[name] for name in RunOptions.__struct_fields__})
