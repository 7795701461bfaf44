"""``headrace connectors``: what is installed, from which package, and which guarantees each sink has."""

from __future__ import annotations

import click

from headrace.cli.options import json_option
from headrace.cli.output import COMPLETE, print_json, table
from headrace.config.connectors import GROUPS, SINKS, SOURCES, Connector, connectors
from headrace.errors import ConfigError


@click.command("connectors", short_help="List the sources, sinks and writers that are installed.")
@json_option
def command(as_json: bool) -> int:
    """List the sources, sinks and writers that are installed, with their packages and guarantees."""
    rows = [_row(one) for group in GROUPS for one in connectors(group)]
    if as_json:
        print_json({"connectors": rows})
    else:
        heads = ("kind", "name", "package", "guarantees", "problem")
        click.echo("\n".join(table(heads, [[row.get(head, "") for head in heads] for row in rows])))
    return COMPLETE


def _row(one: Connector) -> dict[str, object]:
    kind = {SOURCES: "source", SINKS: "sink"}.get(one.group, "writer")
    row: dict[str, object] = {"kind": kind, "name": one.name, "package": one.package, "target": one.target}
    if kind != "writer":
        try:
            row["guarantees"] = _guarantees(kind, one.load())
        except ConfigError as error:
            row["problem"] = str(error)
    return row


def _guarantees(kind: str, found: object) -> list[str]:
    """What a sink can promise; of a source, whether it can be read again."""
    if kind == "sink":
        return sorted(str(one) for one in getattr(found, "guarantees", ()))
    replayable = getattr(found, "replayable", None)
    return [] if not isinstance(replayable, bool) else ["replayable" if replayable else "not replayable"]
