"""What users write: a source, operators, a shard key and sinks, checked as they are given.

A pipeline is never changed: each call returns a new one that has what the call added.
"""

from __future__ import annotations

import copy
import difflib
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, get_type_hints

import msgspec

from headrace.chain.build import BuiltChain, build_chain
from headrace.chain.decode import is_struct
from headrace.chain.operators import FieldReader, Operator, OperatorKind, check_function
from headrace.errors import ConfigError
from headrace.record import OnError, Source

if TYPE_CHECKING:
    from headrace.sinks.base import Sink

Policy: TypeAlias = OnError | str | None
"""``"fail"``, ``"skip"`` or ``"dead_letter"``; None: the pipeline's."""

_STAGES: Final = frozenset({"read", "decode", "encode", "oversize", "sink", "poison", "frame"})
"""Names under which records go bad outside the operators."""

_MAX_NAME: Final = 200


class PipelineSource(Source, Protocol):
    """A source as a pipeline takes it: ``decode``, the type of its records, and ``format``."""

    @property
    def decode(self) -> Any: ...
    @property
    def format(self) -> str: ...
    def resolve(self, cwd: Path) -> Source:
        """The source with its relative paths taken from ``cwd``."""
        ...


class _State(msgspec.Struct, frozen=True, kw_only=True):
    """What the calls so far have added."""

    settings: Mapping[str, object] | None
    source: PipelineSource | None = None
    source_on_error: OnError | None = None
    operators: tuple[Operator, ...] = ()
    sinks: Mapping[str, Sink] = {}


class Pipeline:
    """A stream from one source to one sink or several.

    ``on_error`` is what is done about a bad record where its operator, source or sink does not say. ``version`` names
    the meaning of the pipeline's positions. ``settings`` are as in a config file, ``{"batch": {"max_rows": 1000}}``.
    """

    def __init__(
        self,
        name: str,
        *,
        on_error: Policy = None,
        version: str | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self.name: Final = _checked_name(name)
        self.on_error: Final = _policy("Pipeline", on_error)
        self.version: Final = version
        self._state = _State(settings=settings)

    def __repr__(self) -> str:
        stages = [*(operator.name for operator in self.operators), *self._state.sinks]
        return f"<Pipeline {self.name!r}: {' → '.join(stages) or 'nothing yet'}>"

    @property
    def settings(self) -> Mapping[str, object] | None:
        return self._state.settings

    @property
    def source_of(self) -> PipelineSource:
        """The source. Raises `ConfigError` when there is none."""
        if self._state.source is None:
            raise ConfigError(f"the pipeline {self.name} has no source; {_RETURNS_NEW.format('.source(Files(…))')}")
        return self._state.source

    @property
    def operators(self) -> tuple[Operator, ...]:
        """All operators in order, ``shard_by`` and ``split`` among them."""
        return self._state.operators

    @property
    def sinks(self) -> dict[str, Sink]:
        """The sinks by name, in the order in which they were given."""
        return dict(self._state.sinks)

    def source(self, source: PipelineSource, on_error: Policy = None) -> Pipeline:
        """Read from this source; a record that it cannot decode goes by ``on_error``."""
        if self._state.source is not None:
            raise ConfigError(f"the pipeline {self.name} already has a source; two inputs are two pipelines")
        _check_is_source(source)
        own = getattr(source, "on_error", None)
        policy = _policy("source", on_error if on_error is not None else own)
        return self._with(msgspec.structs.replace(self._state, source=source, source_on_error=policy))

    def map(self, fn: Callable[[Any], Any], on_error: Policy = None, name: str | None = None) -> Pipeline:
        """Replace each record by what ``fn`` returns for it."""
        return self._with_operator(OperatorKind.MAP, fn, on_error, name)

    def filter(self, fn: Callable[[Any], Any], on_error: Policy = None, name: str | None = None) -> Pipeline:
        """Keep the records for which ``fn`` returns something true."""
        return self._with_operator(OperatorKind.FILTER, fn, on_error, name)

    def flat_map(
        self, fn: Callable[[Any], Iterable[Any]], on_error: Policy = None, name: str | None = None
    ) -> Pipeline:
        """Replace each record by the records of the iterable that ``fn`` returns; they share its position."""
        return self._with_operator(OperatorKind.FLAT_MAP, fn, on_error, name)

    def inspect(self, fn: Callable[[Any], object], on_error: Policy = None, name: str | None = None) -> Pipeline:
        """Call ``fn`` with each record, for what it does; the record goes on."""
        return self._with_operator(OperatorKind.INSPECT, fn, on_error, name)

    def map_batch(
        self, fn: Callable[[list[Any]], Collection[Any]], on_error: Policy = None, name: str | None = None
    ) -> Pipeline:
        """Replace a list of records by a list of equal length; None in it leaves that record out.

        When ``fn`` raises, or returns another length, all records of the list are bad.
        """
        return self._with_operator(OperatorKind.MAP_BATCH, fn, on_error, name)

    def shard_by(self, key: Callable[[Any], Any] | str, on_error: Policy = None) -> Pipeline:
        """Keep the records of one key in order, on one shard: a function of the record, or the name of a field.

        Operators before it run in the supervisor, operators after it in the shard's worker. With a field of a JSON
        source, and no operator before it, the supervisor reads nothing but that field.
        """
        if any(operator.kind is OperatorKind.SHARD_BY for operator in self.operators):
            raise ConfigError(f"the pipeline {self.name} has two shard_by; a record has one key, which may be a tuple")
        if isinstance(key, str):
            self._check_field(key)
            return self._with_operator(OperatorKind.SHARD_BY, FieldReader(key), on_error, "shard_by")
        return self._with_operator(OperatorKind.SHARD_BY, key, on_error, "shard_by")

    def split(self, route: Callable[[Any], Any], sinks: Mapping[str, Sink], on_error: Policy = None) -> Pipeline:
        """End in several sinks: ``route`` returns a record's sink by name, several names, or None for no sink."""
        if not sinks:
            raise ConfigError(f"the pipeline {self.name}: split needs sinks, {{name: sink, …}}")
        made = self._with_operator(OperatorKind.SPLIT, route, on_error, "split")
        checked = {_checked_name(name, "a sink"): self._fitted(sink) for name, sink in sinks.items()}
        return self._with(msgspec.structs.replace(self._state, operators=made.operators, sinks=checked))

    def sink(self, sink: Sink, name: str = "main", on_error: Policy = None) -> Pipeline:
        """End in this sink. ``name`` is its durable id: positions and dead letters are kept under it."""
        self._check_open("sink")
        checked = self._fitted(sink)
        policy = _policy("sink", on_error)
        if policy is not None:
            checked = msgspec.structs.replace(checked, on_error=policy)
        return self._with(msgspec.structs.replace(self._state, sinks={_checked_name(name, "a sink"): checked}))

    def build(self, *, on_error: OnError) -> BuiltChain:
        """The chain, ready to run; ``on_error`` is for all that has no policy of its own. Raises `ConfigError`."""
        source = self.source_of
        if not self._state.sinks:
            raise ConfigError(f"the pipeline {self.name} has no sink; {_RETURNS_NEW.format('.sink(…)')}")
        for name, sink in self._state.sinks.items():
            try:
                sink.check()
            except ConfigError as error:
                raise ConfigError(f"sink {name}: {error}") from None
        return build_chain(
            title=self.name,
            source=source,
            source_policy=self._state.source_on_error or on_error,
            operators=self.operators,
            sinks=tuple(self._state.sinks.items()),
            policy=on_error,
        )

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object], base: Path) -> Pipeline:
        """The pipeline that a parsed TOML file describes; modules are looked for in the folder ``base`` first."""
        from headrace.config.pipeline_toml import pipeline_from_toml  # noqa: PLC0415 - it imports this module
        from headrace.config.toml_file import TomlFile  # noqa: PLC0415 - as above

        if not sys.path or sys.path[0] != str(base):
            sys.path.insert(0, str(base))
        made, settings = pipeline_from_toml(TomlFile(base, mapping, ""))
        return made._with(msgspec.structs.replace(made._state, settings=settings))  # noqa: SLF001 - it is one of us

    def _with_operator(self, kind: OperatorKind, fn: object, on_error: Policy, name: str | None) -> Pipeline:
        self._check_open(kind)
        number = 1 + sum(operator.kind is not OperatorKind.SHARD_BY for operator in self.operators)
        stage = _checked_name(name, f"a {kind}") if name is not None else f"{number}_{kind}"
        if stage in _STAGES or any(operator.name == stage for operator in self.operators):
            raise ConfigError(f"{kind}: the name {stage!r} is taken; bad records and counts are told apart by it")
        operator = Operator(kind=kind, fn=check_function(kind, fn), name=stage, on_error=_policy(f"{stage}", on_error))
        return self._with(msgspec.structs.replace(self._state, operators=(*self.operators, operator)))

    def _with(self, state: _State) -> Pipeline:
        made = copy.copy(self)
        made._state = state  # noqa: SLF001 - it is one of us
        return made

    def _fitted(self, sink: Sink) -> Sink:
        """The sink as it is for this pipeline's rows, whose type is known while no operator makes another.

        A ``map`` says what it makes in its return annotation.
        """
        row_type: object = self.source_of.decode
        for operator in self.operators:
            match operator.kind:
                case OperatorKind.MAP:
                    row_type = _returned(operator.fn)
                case OperatorKind.FLAT_MAP | OperatorKind.MAP_BATCH:
                    row_type = None
                case _:
                    pass
        return _checked_sink(sink).for_rows(row_type if is_struct(row_type) else None)

    def _check_open(self, what: str) -> None:
        if self._state.source is None:
            raise ConfigError(f"{what} comes before a source; {_RETURNS_NEW.format('.source(Files(…)) first')}")
        if self._state.sinks:
            raise ConfigError(
                f"{what} comes after the sink, where the pipeline {self.name} ends; "
                + (
                    "for several sinks use .split(route, {name: sink, …})"
                    if what == "sink"
                    else "put it before the sink"
                )
            )

    def _check_field(self, field: str) -> None:
        """Whether the records can have the field, where that is known."""
        self._check_open(OperatorKind.SHARD_BY)
        if not field:
            raise ConfigError("shard_by('') names no field")
        decode: Any = self.source_of.decode
        changed = (OperatorKind.MAP, OperatorKind.FLAT_MAP, OperatorKind.MAP_BATCH)
        if any(operator.kind in changed for operator in self.operators):
            return
        if decode in (bytes, str):
            raise ConfigError(
                f"shard_by({field!r}): records of decode={decode.__name__} have no fields; give a function of the "
                "record, or decode=dict or a Struct"
            )
        known: tuple[str, ...] = decode.__struct_fields__ if is_struct(decode) else (field,)
        if field not in known:
            near = difflib.get_close_matches(field, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
            raise ConfigError(f"shard_by({field!r}): {decode.__name__} has no such field; {hint}")


_RETURNS_NEW: Final = "call {} and use what it returns, for each call returns a new pipeline"


def _returned(fn: Callable[..., object]) -> object:
    """What the function's annotation says it returns."""
    try:
        return get_type_hints(fn).get("return")
    except (TypeError, NameError, AttributeError):
        return None


def _policy(where: str, given: Policy) -> OnError | None:
    if given is None:
        return None
    try:
        return OnError(given)
    except ValueError:
        known = [policy.value for policy in OnError]
        near = difflib.get_close_matches(str(given), known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"use {', '.join(map(repr, known))}"
        raise ConfigError(f"{where}: on_error={given!r} is no policy; {hint}") from None


def _checked_name(name: object, what: str = "a pipeline") -> str:
    if not isinstance(name, str) or not name.strip() or len(name) > _MAX_NAME or not name.isprintable():
        raise ConfigError(f"{what} needs a name of 1 to {_MAX_NAME} printable characters, not {name!r:.300}")
    return name


def _check_is_source(source: object) -> None:
    if isinstance(source, type):
        raise ConfigError(f"source({source.__name__}) is given the class; make one: {source.__name__}(…)")
    if not hasattr(source, "decode") or not hasattr(source, "format") or isinstance(source, str | bytes):
        raise ConfigError(
            f"source({source!r:.100}) is no source; give one of headrace.sources, such as Files('data/…')"
        )


def _checked_sink(sink: Any) -> Sink:
    if isinstance(sink, type):
        raise ConfigError(f"sink({sink.__name__}) is given the class; make one: {sink.__name__}(…)")
    if not hasattr(sink, "writer") or not hasattr(sink, "check"):
        raise ConfigError(f"sink({sink!r:.100}) is no sink; give one of headrace.sinks, such as Stdout()")
    checked: Sink = sink
    return checked
