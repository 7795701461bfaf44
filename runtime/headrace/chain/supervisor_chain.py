"""The supervisor's side of a chain: a source batch in, rows with their shard keys and records out."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from headrace.chain.decode import Decoder
from headrace.chain.decoded import Decoded
from headrace.chain.fused import FusedChain, Targets
from headrace.chain.loop import Flow
from headrace.chain.operators import OperatorCounts, Step
from headrace.chain.output import ChainOutput, Emission, Failure
from headrace.record import BadRecord, OnError, PayloadBatch

_key_of: Final[Callable[[Any], Any]] = operator.attrgetter("key")
_position_of: Final[Callable[[BadRecord], int]] = operator.attrgetter("position")


class SupervisorChain:
    """Decodes, runs the operators, and says which row is for which sink.

    ``lines``: the decoder reads nothing but each record's ``key``, and the rows are the raw lines.
    """

    def __init__(
        self,
        decoder: Decoder,
        steps: Sequence[Step],
        *,
        policy: OnError,
        title: str,
        lines: bool = False,
        targets: Targets | None = None,
    ) -> None:
        self._decoder = decoder
        self._policy = policy
        self._lines = lines
        self._targets = targets
        self._chain = FusedChain(steps, f"{title}, supervisor", targets)

    @property
    def operators(self) -> list[OperatorCounts]:
        """Each operator's counts since the start."""
        return self._chain.counts

    @property
    def sources(self) -> list[str]:
        """The generated functions, in order."""
        return self._chain.sources

    def run(self, batch: PayloadBatch) -> ChainOutput:
        """Never raises for what a record holds or an operator does; `MemoryError` propagates."""
        decoded = self._decoder.decode(batch)
        bad = [msgspec.structs.replace(reject, policy=self._policy) for reject in batch.rejects] + decoded.bad
        total = len(decoded.records) + len(bad)
        if bad and self._policy is OnError.FAIL:
            return _fatal(min(bad, key=_position_of), total, decoded)
        if self._lines:
            keys = list(map(_key_of, decoded.records))
            emissions = _emissions([Emission(0, _as_lines(batch, decoded.lines), keys, None)])
            return _output(emissions, bad, total, 0, decoded)
        read = len(decoded.records)
        flow = self._chain.run(decoded.records)
        if flow.fatal is not None:
            return _fatal(_bad_record(batch, decoded, flow.fatal), total, decoded)
        bad += [_bad_record(batch, decoded, failure) for failure in flow.failures]
        if flow.keys is None:
            flow.keys = _source_keys(batch, decoded, flow.index)
        return _output(_emissions(self._split(flow)), bad, total, self._chain.filtered(flow, read), decoded)

    def _split(self, flow: Flow) -> list[Emission]:
        if self._targets is None:
            return [Emission(0, flow.rows, flow.keys, flow.index)]
        assert flow.targets is not None or not flow.rows
        places: list[list[int]] = [[] for _ in self._targets.names]
        for place, targets in enumerate(flow.targets or ()):
            for sink in targets:
                places[sink].append(place)
        return [_picked(flow, sink, its) for sink, its in enumerate(places)]


def _picked(flow: Flow, sink: int, places: list[int]) -> Emission:
    if len(places) == len(flow.rows):
        return Emission(sink, flow.rows, flow.keys, flow.index)
    return Emission(
        sink,
        [flow.rows[place] for place in places],
        None if flow.keys is None else [flow.keys[place] for place in places],
        array("I", places if flow.index is None else [flow.index[place] for place in places]),
    )


def _emissions(emissions: list[Emission]) -> list[Emission]:
    return [emission for emission in emissions if emission.rows]


def _source_keys(batch: PayloadBatch, decoded: Decoded, index: array[int] | None) -> list[object] | None:
    """The source's own keys, for rows that no operator gave one."""
    keys = batch.keys
    if keys is None or batch.block is not None:
        return None
    if decoded.numbers is not None:
        keys = [keys[number] for number in decoded.numbers]
    return list(keys) if index is None else [keys[record] for record in index]


def _as_lines(batch: PayloadBatch, lines: list[bytes]) -> list[object]:
    """Payloads may be written over several lines; in a JSON document a newline is as good as a space."""
    if batch.block is not None:
        return list(lines)
    return [line.replace(b"\n", b" ") for line in lines]


def _bad_record(batch: PayloadBatch, decoded: Decoded, failure: Failure) -> BadRecord:
    return BadRecord(
        partition=batch.partition,
        position=decoded.ends[failure.record] - 1,
        stage=failure.stage,
        cause=failure.cause,
        raw=decoded.lines[failure.record].removesuffix(b"\r"),
        policy=failure.policy,
    )


def _output(
    emissions: list[Emission], bad: list[BadRecord], total: int, filtered: int, decoded: Decoded
) -> ChainOutput:
    bad.sort(key=_position_of)
    return ChainOutput(emissions=emissions, bad=bad, fatal=None, records=total, filtered=filtered, ends=decoded.ends)


def _fatal(fatal: BadRecord, total: int, decoded: Decoded) -> ChainOutput:
    return ChainOutput(emissions=[], bad=[], fatal=fatal, records=total, filtered=0, ends=decoded.ends)
