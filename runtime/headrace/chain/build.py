"""Decides what runs where: which operators the supervisor runs and which the workers, and what chunks carry.

Operators before ``shard_by`` run in the supervisor and those after it in the shard's worker; without ``shard_by``, and
with ``split``, all run in the supervisor. A field named by ``shard_by`` before any operator is all that the supervisor
reads of a JSON record: its raw line travels, and the worker decodes it.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from headrace.chain.decode import DecodedSource, JsonDecoder, decoder_of, is_json, is_struct, json_decoder
from headrace.chain.fused import Targets
from headrace.chain.operators import FieldReader, Operator, OperatorCounts, OperatorKind, Step, UserFunction
from headrace.chain.output import ChainOutput, Emission, Failure, UndecodableRow, WorkerOutput
from headrace.chain.supervisor_chain import SupervisorChain
from headrace.chain.worker_chain import Carry, WorkerChain
from headrace.record import OnError

if TYPE_CHECKING:
    from headrace.sinks.base import Sink

__all__ = [
    "BuiltChain",
    "Carry",
    "ChainOutput",
    "Emission",
    "Failure",
    "OperatorCounts",
    "RouteBy",
    "SupervisorChain",
    "UndecodableRow",
    "WorkerChain",
    "WorkerOutput",
    "build_chain",
]

RouteBy = Literal["function", "field", "source"]

_CHANGES_TYPE = (OperatorKind.MAP, OperatorKind.FLAT_MAP, OperatorKind.MAP_BATCH)


class BuiltChain(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline's chain, ready to run.

    ``worker`` is None where rows reach the sink as they left the supervisor. ``record_type`` is what records that are
    carried as such are decoded into; None: plain values. ``fan_out``: a source record may become several rows before
    the hand-off.
    """

    supervisor: SupervisorChain
    worker: WorkerChain | None
    carry: Carry
    record_type: Any
    sinks: tuple[tuple[str, Sink], ...]
    route_by: RouteBy
    fan_out: bool

    @property
    def generated(self) -> tuple[tuple[str, str], ...]:
        """The generated functions: in which process each runs, and its source."""
        found = [("supervisor", source) for source in self.supervisor.sources]
        if self.worker is not None:
            found += [("worker", source) for source in self.worker.sources]
        return tuple(found)


def build_chain(
    *,
    title: str,
    source: DecodedSource,
    source_policy: OnError,
    operators: Sequence[Operator],
    sinks: Sequence[tuple[str, Sink]],
    policy: OnError,
) -> BuiltChain:
    """Build the chain of checked operators. ``policy`` is for those without one of their own. Raises `ConfigError`."""
    steps = [
        Step(one.kind, _function(one, operators[:place], source), one.name, one.on_error or policy)
        for place, one in enumerate(operators)
    ]
    kinds = [step.kind for step in steps]
    at = kinds.index(OperatorKind.SHARD_BY) if OperatorKind.SHARD_BY in kinds else len(steps)
    is_split = OperatorKind.SPLIT in kinds
    field = operators[at].fn if at < len(steps) else None
    route_by: RouteBy = "source" if field is None else "field" if isinstance(field, FieldReader) else "function"
    targets = Targets([name for name, _ in sinks]) if is_split else None

    def built(before: list[Step], worker: WorkerChain | None, carry: Carry, record_type: Any = None) -> BuiltChain:
        lines = carry is Carry.LINES
        decoder = (
            JsonDecoder(_key_struct(field, source), source_policy)
            if lines and isinstance(field, FieldReader)
            else decoder_of(source, source_policy)
        )
        return BuiltChain(
            supervisor=SupervisorChain(
                decoder, before, policy=source_policy, title=title, lines=lines, targets=targets
            ),
            worker=worker,
            carry=carry,
            record_type=record_type,
            sinks=tuple(sinks),
            route_by=route_by,
            fan_out=is_split or any(step.kind is OperatorKind.FLAT_MAP for step in before),
        )

    def worker(carry: Carry, record_type: Any) -> WorkerChain:
        return WorkerChain(steps[at + 1 :], carry=carry, record_type=record_type, policy=source_policy, title=title)

    if at == 0 and route_by == "field" and is_json(source) and not is_split:
        json_decoder(source.decode)
        return built([], worker(Carry.LINES, source.decode), Carry.LINES)
    if is_split or at >= len(steps) - 1:
        return built(steps, None, Carry.ROWS)
    record_type = None if any(kind in _CHANGES_TYPE for kind in kinds[:at]) else _carried_type(source)
    return built(steps[: at + 1], worker(Carry.RECORDS, record_type), Carry.RECORDS, record_type)


def _function(one: Operator, before: Sequence[Operator], source: DecodedSource) -> UserFunction:
    """Where the record is still what the source decoded, a field of it is known to be an attribute."""
    fn = one.fn
    unchanged = is_struct(source.decode) and not any(earlier.kind in _CHANGES_TYPE for earlier in before)
    return operator.attrgetter(fn.field) if isinstance(fn, FieldReader) and unchanged else fn


def _carried_type(source: DecodedSource) -> Any:
    return None if source.decode is dict or source.decode is Any else source.decode


def _key_struct(field: FieldReader, source: DecodedSource) -> type[msgspec.Struct]:
    """A type that reads one field of a JSON object; an object that lacks it is keyless."""
    return msgspec.defstruct(
        "Key", [("key", Any, None)], rename={"key": _encoded_name(field.field, source.decode)}, module=__name__
    )


def _encoded_name(field: str, decode: Any) -> str:
    if is_struct(decode):
        names = {one.name: one.encode_name for one in msgspec.structs.fields(decode)}
        return names.get(field, field)
    return field
