"""``headrace leases``: the ledger, newest first."""

from __future__ import annotations

from pathlib import Path

import click

from headrace.cli.options import json_option, some_pipeline, state_option
from headrace.cli.output import COMPLETE, print_json, table
from headrace.errors import StateError

# A lost chunk is leased again with the same attempt: what ended a lease is the first word after it.
_QUERY = """
SELECT lease.incarnation, lease.sink, lease.shard, lease.chunk, lease.attempt, lease.worker, lease.pid, lease.host,
       ending.kind AS ended, ending.outcome, ending.rows, ending.wall - lease.wall AS seconds
FROM ledger AS lease
LEFT JOIN ledger AS ending ON ending.seq = (
    SELECT min(seq) FROM ledger AS later
    WHERE later.incarnation = lease.incarnation AND later.chunk = lease.chunk AND later.kind <> 'lease'
      AND later.sink = lease.sink AND later.shard = lease.shard AND later.seq > lease.seq)
WHERE lease.kind = 'lease' ORDER BY lease.seq DESC LIMIT ?
"""


@click.command("leases", short_help="List which worker held which chunk.")
@some_pipeline
@state_option
@json_option
@click.option("--limit", default=50, show_default=True, type=click.IntRange(min=1), help="How many rows, newest first.")
def command(pipeline: Path | None, state: Path | None, as_json: bool, limit: int) -> int:
    """List leases and how they ended, from the journal of PIPELINE's state directory; a run may go on meanwhile."""
    from headrace.cli.state_choice import state_for_client

    rows = read_leases(state_for_client(state, pipeline), limit)
    if as_json:
        print_json({"leases": rows})
    elif rows:
        click.echo("\n".join(table(list(rows[0]), [list(row.values()) for row in rows])))
    else:
        click.echo("no leases")
    return COMPLETE


def read_leases(state: Path, limit: int) -> list[dict[str, object]]:
    """The newest leases, each with what ended it; None where it has not ended, or its supervisor died first."""
    import sqlite3

    from headrace.cli.state_reading import open_unchanged
    from headrace.supervisor.state_dir import is_locked

    database = state / "state.db"
    if not database.exists():
        raise StateError(f"{state} holds no journal: nothing ever ran there; give PIPELINE or --state")
    try:
        with open_unchanged(database, live=is_locked(state)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(_QUERY, (limit,))]
    except sqlite3.Error as error:
        raise StateError(f"{database} cannot be read: {error}") from None
