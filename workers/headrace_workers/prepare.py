"""Turning a chunk in its slot into rows or lines for the writer: decode, worker-side operators, the sink's types."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.chain.worker_chain import Carry, WorkerChain
from headrace.codec.columns import Columns
from headrace.codec.frame import iter_groups
from headrace.codec.isolation import BAD_ROW
from headrace.codec.rows import Codec, JsonLines, rows_converter, rows_decoder
from headrace.codec.spool import SpoolEntry
from headrace.record import OnError
from headrace.shm.records import ChunkBell, RowOutcome
from headrace.shm.slot import SlotContents
from headrace_workers.batch import Prepared, place_among_children

if TYPE_CHECKING:
    from headrace.chain.output import WorkerOutput


class Preparer:
    """Prepares the chunks of one sink. Used from one thread at a time, in shard order."""

    def __init__(
        self,
        sink: str,
        codec: Codec,
        columns: Columns | None,
        chain: WorkerChain | None,
        on_error: OnError,
        *,
        fan_out: bool,
    ) -> None:
        self._sink = sink
        self._codec = codec
        self._chain = chain
        self._on_error = on_error
        self._fan_out = fan_out
        self._decode_rows = rows_decoder(codec, columns)
        self._convert_rows = rows_converter(columns) if codec is Codec.MSGPACK else None
        self._lines = JsonLines()

    def prepare(self, bell: ChunkBell, contents: SlotContents) -> Prepared:
        """Decode and run the operators over the bell's rows of a slot's frame."""
        prepared = Prepared(bell=bell, chunk=contents.header.chunk, nbytes=bell.length)
        if self._codec is Codec.JSON_LINES:
            prepared.blocks = []
        else:
            prepared.rows = []
        work = _Work(prepared, self._sink)
        if self._chain is None and self._codec is Codec.JSON_LINES and bell.rows == contents.header.rows:
            self._pass_through(work, contents)
        elif self._chain is None:
            self._take_rows(work, bell, contents)
        else:
            self._run_chain(work, bell, contents)
        work.finish()
        return prepared

    def _pass_through(self, work: _Work, contents: SlotContents) -> None:
        """Lines go from the slot to the writer as they are."""
        blocks = work.prepared.blocks
        assert blocks is not None
        for body, rows in iter_groups(contents.frame):
            blocks.append(body)
            work.prepared.count += rows

    def _take_rows(self, work: _Work, bell: ChunkBell, contents: SlotContents) -> None:
        for base, body, count, low, high in _within(contents, bell):
            if self._codec is Codec.JSON_LINES:
                lines = bytes(body).split(b"\n")[low:high]
                work.emit_lines(b"".join(line + b"\n" for line in lines), range(base + low, base + high))
                continue
            rows, bad = self._decode_rows(body, count)
            for row, cause in bad:
                if low <= row < high:
                    work.leave_out(base + row, "encode", cause, self._on_error, bytes)
            work.emit_rows(*_cut(rows, _places(base, count, bad), base + low, base + high))

    def _run_chain(self, work: _Work, bell: ChunkBell, contents: SlotContents) -> None:
        chain = self._chain
        assert chain is not None
        for base, body, count, low, high in _within(contents, bell):
            records, bad = chain.decode_group(body, count)
            for row, stage, cause, policy, raw in bad:
                if low <= row < high:
                    work.leave_out(base + row, stage, cause, policy, partial(bytes, raw))
            kept, places = _cut(records, _places(base, count, bad), base + low, base + high)
            result = chain.run(kept)
            for row, stage, cause, policy in result.bad if result.fatal is None else [*result.bad, result.fatal]:
                raw_of = (
                    partial(_line, body, places[row] - base) if chain.carry is Carry.LINES else partial(_raw, kept[row])
                )
                work.leave_out(places[row], stage, cause, policy, raw_of)
            if result.fatal is None:
                self._take_result(work, result, kept, places)

    def _take_result(self, work: _Work, result: WorkerOutput, records: list[object], places: Sequence[int]) -> None:
        work.prepared.filtered += result.filtered_records
        if self._fan_out and result.filtered_records:
            gone = set(range(len(records))) - set(result.index or ()) - {one[0] for one in result.bad}
            work.filtered_rows.extend(places[row] for row in sorted(gone))
        index = [places[row] for row in result.index] if result.index is not None else places
        self._convert(work, result.rows, index)

    def _convert(self, work: _Work, rows: list[object], index: Any) -> None:
        if self._codec is Codec.JSON_LINES:
            self._encode_lines(work, rows, index)
            return
        if self._convert_rows is None:
            work.emit_rows(rows, index)
            return
        good, bad = self._convert_rows(rows)
        if not bad:
            work.emit_rows(good, index)
            return
        for row, cause in bad:
            child = place_among_children(index, row)
            work.leave_out(index[row], "encode", cause, self._on_error, partial(_raw, rows[row]), child)
        gone = {row for row, _ in bad}
        left = [row for row in range(len(rows)) if row not in gone]
        work.emit_rows(good, [index[row] for row in left], [place_among_children(index, row) for row in left])

    def _encode_lines(self, work: _Work, rows: list[object], index: Any) -> None:
        if not rows:
            return
        try:
            work.emit_lines(self._lines.encode(rows), index)
        except BAD_ROW:
            for at, (row, place) in enumerate(zip(rows, index, strict=True)):
                child = place_among_children(index, at)
                try:
                    line = self._lines.encode([row])
                except BAD_ROW as error:
                    work.leave_out(place, "encode", str(error), self._on_error, partial(_raw, row), child)
                else:
                    work.emit_lines(line, [place], [child])


class _Work:
    """One chunk while it is prepared: collects what it becomes and what is left out of it."""

    def __init__(self, prepared: Prepared, sink: str) -> None:
        self.prepared = prepared
        self.filtered_rows: list[int] = []
        self._sink = sink
        self._index: list[Sequence[int]] = []
        self._children: list[Sequence[int] | None] = []

    def emit_rows(self, rows: list[object], index: Sequence[int], children: Sequence[int] | None = None) -> None:
        assert self.prepared.rows is not None
        self.prepared.rows.extend(rows)
        self.prepared.count += len(rows)
        self._index.append(index)
        self._children.append(children)

    def emit_lines(self, block: bytes, index: Sequence[int], children: Sequence[int] | None = None) -> None:
        assert self.prepared.blocks is not None
        self.prepared.blocks.append(block)
        self.prepared.count += len(index)
        self._index.append(index)
        self._children.append(children)

    def leave_out(
        self, row: int, stage: str, cause: str, policy: OnError, raw: Callable[[], bytes], child: int = 0
    ) -> None:
        outcome = RowOutcome(row, policy, stage, cause)
        prepared = self.prepared
        if policy is OnError.FAIL:
            prepared.fatal = prepared.fatal or outcome
        elif policy is OnError.SKIP:
            prepared.skipped.append(outcome)
        else:
            prepared.letters.append(letter(self._sink, prepared, outcome, raw(), child))

    def finish(self) -> None:
        index = array("I")
        for part in self._index:
            index.extend(part)
        if index != array("I", range(len(index))):
            self.prepared.index = index
        if any(self._children):
            self.prepared.children = self._all_children()
        if self.filtered_rows:
            self.prepared.filtered_rows = self.filtered_rows

    def _all_children(self) -> array[int]:
        children = array("I")
        for index, its in zip(self._index, self._children, strict=True):
            children.extend(its if its is not None else (place_among_children(index, row) for row in range(len(index))))
        return children


def letter(sink: str, chunk: Prepared, outcome: RowOutcome, raw: bytes, child: int) -> SpoolEntry:
    """A spool entry; the supervisor knows partition and position by the chunk's row. ``child``: the row's place among
    those that the chunk's row became."""
    return SpoolEntry(
        sink=sink,
        shard=chunk.bell.shard,
        partition="",
        position=-1,
        child=child,
        stage=outcome.stage,
        cause=outcome.cause,
        raw=raw,
        chunk=chunk.chunk,
        row=outcome.row,
    )


def _within(contents: SlotContents, bell: ChunkBell) -> Iterable[tuple[int, memoryview, int, int, int]]:
    """The groups that hold rows of the bell: first row, body, rows, and from which to which of its rows are meant."""
    base, end = 0, bell.first_row + bell.rows
    for body, rows in iter_groups(contents.frame):
        low, high = max(0, bell.first_row - base), min(rows, end - base)
        if low < high:
            yield base, body, rows, low, high
        base += rows


def _places(base: int, count: int, bad: Sequence[tuple[Any, ...]]) -> Sequence[int]:
    """The chunk's rows that are left when those of ``bad`` are gone."""
    if not bad:
        return range(base, base + count)
    gone = {one[0] for one in bad}
    return [base + row for row in range(count) if row not in gone]


def _cut(items: list[object], places: Sequence[int], low: int, high: int) -> tuple[list[object], Sequence[int]]:
    """Those whose place is at least ``low`` and below ``high``; places only grow."""
    first, last = bisect_left(places, low), bisect_left(places, high)
    return (items, places) if first == 0 and last == len(items) else (items[first:last], places[first:last])


def _line(body: memoryview, row: int) -> bytes:
    """A carried line as the source had it."""
    return bytes(body).split(b"\n")[row]


def _raw(record: object) -> bytes:
    """What a dead letter shows of a record that has no bytes of its own any more."""
    if isinstance(record, bytes):
        return record
    try:
        return msgspec.json.encode(record)
    except BAD_ROW:
        return repr(record).encode("utf-8", "backslashreplace")[:65_536]
