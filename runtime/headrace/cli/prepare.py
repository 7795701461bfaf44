"""From a command line to a plan: the pipeline, its settings, its state directory and the number of workers."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from headrace.cli.options import RunOptions
from headrace.cli.state_choice import state_for_run
from headrace.config.cpu import auto_workers
from headrace.config.feasibility import Plan, check_plan
from headrace.config.load import EffectiveSettings, load_settings
from headrace.config.memory import memory_room
from headrace.config.pipeline_file import LoadedPipeline, load_pipeline
from headrace.config.settings import DEFAULT_SHARDS
from headrace.config.toml_file import read_toml


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A run that has been thought through, but nothing of it begun. ``reason`` says where ``workers`` comes from."""

    loaded: LoadedPipeline
    effective: EffectiveSettings
    state: Path
    workers: int
    reason: str

    @property
    def shards(self) -> int | None:
        """The number of shards that was asked for."""
        return self.effective.settings.shards

    @property
    def has_stdout_sink(self) -> bool:
        """Whether rows go to standard output."""
        return any(getattr(type(sink), "writer", None) == "stdout" for sink in self.loaded.pipeline.sinks.values())


def prepare(options: RunOptions) -> Prepared:
    """Read everything that says what is to be done. Raises `ConfigError`."""
    flags, sets = options.flags(), options.set_flags()
    file = read_toml(options.config, os.environ) if options.config is not None else None
    load_settings(file=file, env=os.environ, flags=flags, set_flags=sets)  # a typing error is told before any import
    loaded = load_pipeline(options.pipeline, os.environ)
    effective = load_settings(code=loaded.settings_from_code, file=file, env=os.environ, flags=flags, set_flags=sets)
    workers, reason = _workers(effective)
    return Prepared(
        loaded=loaded,
        effective=effective,
        state=state_for_run(options.state, loaded.pipeline.name),
        workers=workers,
        reason=reason,
    )


def plan_for(prepared: Prepared, shards: int | None = None) -> Plan:
    """The plan of a run on this machine. Raises `ConfigError` for one that cannot work."""
    return check_plan(
        prepared.effective.settings,
        sinks=len(prepared.loaded.pipeline.sinks),
        shards=shards or prepared.shards or DEFAULT_SHARDS,
        workers=prepared.workers,
        memory_limit=memory_room().limit,
    )


def refuse_before_making(prepared: Prepared) -> None:
    """Where the state directory is still to be made, refuse first what would be refused with it made."""
    if not prepared.state.exists():
        plan_for(prepared)


def _workers(effective: EffectiveSettings) -> tuple[int, str]:
    asked = effective.settings.workers
    if asked != "auto":
        return asked, effective.origins["workers"]
    chosen = auto_workers(shards=effective.settings.shards or DEFAULT_SHARDS)
    return chosen.count, f"auto: {chosen.reason}"
