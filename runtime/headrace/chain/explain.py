"""What a built chain does where, for people: the decode, each side's operators, and the generated code."""

from __future__ import annotations

from headrace.chain.build import BuiltChain, Carry

_CARRIED = {
    Carry.ROWS: "rows, as the operators left them",
    Carry.LINES: "the raw lines of the source; of each the supervisor reads the one field, the worker decodes the rest",
    Carry.RECORDS: "records, as they stand at shard_by, in msgpack",
}
_ROUTED = {
    "function": "by the function given to shard_by",
    "field": "by the field given to shard_by",
    "source": "by the source's key, else by its partition",
}


def explain(built: BuiltChain) -> str:
    """Lines of text."""
    supervisor = [one.name for one in built.supervisor.operators]
    worker = [one.name for one in built.worker.operators] if built.worker is not None else []
    lines = [
        f"decode:        {'in the workers, in shard order' if built.carry is Carry.LINES else 'in the supervisor'}",
        f"supervisor:    {', '.join(supervisor) or 'no operator'}",
        f"routed:        {_ROUTED[built.route_by]}",
        f"chunks carry:  {_CARRIED[built.carry]}",
        f"worker:        {', '.join(worker) or 'no operator'}",
        f"sinks:         {', '.join(name for name, _ in built.sinks)}",
    ]
    for side, source in built.generated:
        lines += ["", f"# generated for the {side}", source.rstrip()]
    return "\n".join(lines)
