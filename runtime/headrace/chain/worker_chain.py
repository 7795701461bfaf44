"""The worker's side of a chain: what a chunk carries is decoded, and the operators after ``shard_by`` run over it.

It holds the user's functions and plain data, so that it can travel; its loops are generated where they run.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from headrace.chain.cause import FATAL, clean
from headrace.chain.decode import json_decoder
from headrace.chain.decoded import decode_cause, decode_rows, split_lines
from headrace.chain.fused import FusedChain
from headrace.chain.operators import OperatorCounts, Step
from headrace.chain.output import UndecodableRow, WorkerOutput
from headrace.codec.records import RecordsCodec
from headrace.errors import CorruptFrameError
from headrace.record import OnError


class Carry(enum.Enum):
    """What a chunk holds: rows as the sink takes them, raw JSON lines, or records as they stood at the hand-off."""

    ROWS = "rows"
    LINES = "lines"
    RECORDS = "records"


class WorkerChain:
    """Decodes a chunk's groups and runs the operators. Used from one thread at a time."""

    def __init__(self, steps: Sequence[Step], *, carry: Carry, record_type: Any, policy: OnError, title: str) -> None:
        self.carry = carry
        self._steps = tuple(steps)
        self._record_type = record_type
        self._policy = policy
        self._title = title
        self._fused: FusedChain | None = None
        self._decoder: msgspec.json.Decoder[Any] | None = None
        self._codec: RecordsCodec | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_fused": None, "_decoder": None, "_codec": None}

    @property
    def operators(self) -> list[OperatorCounts]:
        """Each operator's counts in this process."""
        return self._chain.counts

    @property
    def sources(self) -> list[str]:
        """The generated functions, in order."""
        return self._chain.sources

    def travelling(self) -> Iterator[tuple[str, object]]:
        """What is the user's in it, by name, so that what cannot travel can be told."""
        yield "decode", self._record_type
        for step in self._steps:
            yield step.name, step.fn

    def run(self, records: list[object]) -> WorkerOutput:
        """The operators over rows of one shard, in order. `MemoryError` propagates."""
        read = len(records)
        flow = self._chain.run(list(records))
        if flow.fatal is not None:
            return WorkerOutput(rows=[], index=None, bad=flow.failures, fatal=flow.fatal, filtered_records=0)
        return WorkerOutput(
            rows=flow.rows,
            index=flow.index,
            bad=sorted(flow.failures),
            fatal=None,
            filtered_records=self._chain.filtered(flow, read),
        )

    def decode_group(self, body: memoryview, rows: int) -> tuple[list[object], list[UndecodableRow]]:
        """The records of a group of so many rows, and those of its rows that are none. Raises `CorruptFrameError`."""
        return self._decode_lines(body, rows) if self.carry is Carry.LINES else self._decode_records(body, rows)

    @property
    def _chain(self) -> FusedChain:
        if self._fused is None:
            self._fused = FusedChain(self._steps, f"{self._title}, worker")
        return self._fused

    def _decode_lines(self, body: memoryview, rows: int) -> tuple[list[object], list[UndecodableRow]]:
        if self._decoder is None:
            self._decoder = json_decoder(self._record_type)
        try:
            records: list[object] = self._decoder.decode_lines(body)
        except FATAL:
            raise
        except BaseException:  # noqa: BLE001 (a Struct's __post_init__ may raise anything; each line is tried again)
            records = []
        if len(records) == rows:
            return records, []
        lines = split_lines(bytes(body))
        if len(lines) != rows:
            raise CorruptFrameError(f"a group of {rows} rows holds {len(lines)} lines")
        return decode_rows(lines, self._decoder.decode, self._policy)

    def _decode_records(self, body: memoryview, rows: int) -> tuple[list[object], list[UndecodableRow]]:
        if self._codec is None:
            self._codec = RecordsCodec(self._record_type)
        try:
            records, bad = self._codec.decode(body, rows)
        except (*FATAL, CorruptFrameError):
            raise
        except BaseException:
            if self._record_type is None:
                raise
        else:
            if not bad:
                return records, []
            if self._record_type is None:
                return records, [UndecodableRow(row, "decode", cause, self._policy, b"") for row, cause in bad]
        plain, _ = RecordsCodec().decode(body, rows)
        return _convert_each(plain, lambda record: msgspec.convert(record, type=self._record_type), self._policy)


def _convert_each(
    plain: list[object], convert: Callable[[object], object], policy: OnError
) -> tuple[list[object], list[UndecodableRow]]:
    records: list[object] = []
    bad: list[UndecodableRow] = []
    for row, record in enumerate(plain):
        try:
            records.append(convert(record))
        except FATAL:
            raise
        except BaseException as error:  # noqa: BLE001 (a Struct's __post_init__ may raise anything)
            bad.append(UndecodableRow(row, "decode", decode_cause(error), policy, _shown(record)))
    return records, bad


def _shown(record: object) -> bytes:
    """What a dead letter shows of a record that has no line of its own any more."""
    try:
        return msgspec.json.encode(record)
    except (msgspec.MsgspecError, UnicodeError, TypeError, OverflowError, RecursionError):
        return clean(repr(record)).encode()
