"""``headrace status``: what a run says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from headrace.cli.options import json_option, some_pipeline, state_option
from headrace.cli.output import COMPLETE, counts_line, print_json, table

SHARD_COLUMNS = ("sink", "shard", "worker", "slots_used", "parked", "in_flight", "oldest_seconds")
SHARD_HEADS = ("sink", "shard", "worker", "slots", "parked", "in flight", "oldest s")


@click.command("status", short_help="Say how a run is doing.")
@some_pipeline
@state_option
@json_option
@click.option("--timeout", default=5.0, show_default=True, help="Seconds from the question to the run's answer.")
def command(pipeline: Path | None, state: Path | None, as_json: bool, timeout: float) -> int:
    """Ask the run of PIPELINE, or the one on --state, how it is doing. Exit code 1: nothing runs there."""
    from headrace.admin.control import ask
    from headrace.cli.state_choice import state_for_client

    where = state_for_client(state, pipeline)
    status: Any = ask(where, {"verb": "status"}, timeout)["ok"]
    if as_json:
        print_json(status)
    else:
        click.echo("\n".join([*head_lines(status), "", *shard_lines(status)]))
    return COMPLETE


def head_lines(status: Mapping[str, Any]) -> list[str]:
    """The run in a line or two of text."""
    name = f"{status['pipeline']}: " if status.get("pipeline") else ""
    workers: list[object] = status.get("workers") or []
    ready = status.get("workers_ready", len(workers))
    wanted = status.get("workers_wanted", len(workers))
    return [
        f"{name}{status.get('state', 'unknown')} for {status.get('seconds', 0.0):.0f} s, {ready} of {wanted} workers",
        counts_line(status),
        *(str(reason) for reason in status.get("waiting") or ()),
    ]


def shard_lines(status: Mapping[str, Any]) -> list[str]:
    """One line for each shard."""
    shards: list[Mapping[str, Any]] = status.get("shards") or []
    return table(SHARD_HEADS, [[shard.get(column) for column in SHARD_COLUMNS] for shard in shards])
