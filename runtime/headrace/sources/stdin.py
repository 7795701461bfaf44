"""Standard input as a source: one partition a run, read by a thread so that no one else waits for it."""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Literal

from headrace.errors import SourceError
from headrace.record import (
    BadRecord,
    Drained,
    Idle,
    LaneId,
    LanesAssigned,
    OnError,
    PartitionId,
    PayloadBatch,
    SourceContext,
    SourceEvent,
)
from headrace.sources.files import Format, choose_format, choose_policy, decode_type
from headrace.sources.splitting import BlockCutter, CsvRecords, Lines, Piece

_READ_BYTES = 64 * 1024
_READ_AHEAD = 4  # blocks


class _Reader:
    """Reads a descriptor on a thread of its own, at most ``room`` bytes ahead; a source of bytes for the cutter."""

    def __init__(self, ctx: SourceContext, fd: int, room: int) -> None:
        self._ctx = ctx
        self._fd = fd
        self._room = room
        self._chunks: deque[bytes] = deque()
        self._held = 0
        self._ended = False
        self._failure: str | None = None
        self._closing = False
        self._changed = threading.Condition()
        self._ahead = b""
        self._stop_read, self._stop_write = os.pipe2(os.O_CLOEXEC)
        self.position = 0
        self.final = False
        self._thread = threading.Thread(target=self._run, name="headrace-stdin", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> str | None:
        """Why reading ended before the input did."""
        return self._failure

    def peek(self, size: int) -> bytes:
        if len(self._ahead) < size:
            with self._changed:
                parts = [self._ahead]
                have = len(self._ahead)
                while have < size and self._chunks:
                    parts.append(self._chunks.popleft())
                    have += len(parts[-1])
                self.final = self._ended and not self._chunks
                self._held = have + sum(map(len, self._chunks))
                self._changed.notify()
            self._ahead = b"".join(parts)
        return self._ahead[:size]

    def advance(self, count: int) -> None:
        self._ahead = self._ahead[count:]
        self.position += count
        with self._changed:
            self._held -= count
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        os.write(self._stop_write, b"\0")
        self._thread.join(5.0)
        if not self._thread.is_alive():
            os.close(self._stop_read)
        os.close(self._stop_write)

    def _run(self) -> None:
        failure: str | None = None
        try:
            while (data := self._read()) != b"":
                with self._changed:
                    self._chunks.append(data)
                    self._held += len(data)
                self._ctx.wake()
                if not self._has_room():
                    break
        except Exception as error:  # noqa: BLE001 - whatever ends this thread is told to the one that reads from it
            failure = f"{type(error).__name__}: {error}"
        with self._changed:
            self._failure = failure
            self._ended = failure is None
        self._ctx.wake()

    def _read(self) -> bytes:
        """The next bytes; none at the end or when told to stop."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.register(self._stop_read, select.POLLIN)
        while True:
            ready = dict(poll.poll())
            if self._stop_read in ready:
                return b""
            if ready.get(self._fd, 0) & select.POLLNVAL:
                raise OSError("standard input is closed")
            try:
                return os.read(self._fd, _READ_BYTES)
            except BlockingIOError:
                continue

    def _has_room(self) -> bool:
        """Waits for it; False: told to stop."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._held < self._room)
            return not self._closing


class StdinLane:
    """The only lane of standard input."""

    def __init__(self, ctx: SourceContext, reader: _Reader, cutter: BlockCutter, *, with_header: bool) -> None:
        self._ctx = ctx
        self._reader = reader
        self._cutter = cutter
        self._rule = CsvRecords()
        self._with_header = with_header
        self._header: bytes | None = None
        self.partition = PartitionId(f"stdin#{os.urandom(4).hex()}")
        self.paused = False
        self.exhausted = False

    @property
    def id(self) -> LaneId:
        return LaneId(self.partition)

    def poll(self, max_records: int) -> PayloadBatch | None:
        if self.paused or self.exhausted:
            return None
        if self._with_header and self._header is None and not self._read_header():
            return None
        piece = self._cutter.next(self._reader, max_records)
        if piece is not None:
            return self._batch(piece)
        if self._cutter.working:
            self._ctx.wake()
        elif self._reader.failure is not None:
            raise SourceError(f"standard input: reading at position {self._reader.position}: {self._reader.failure}")
        else:
            self.exhausted = self._reader.final
        if self.exhausted:
            self._ctx.wake()
        return None

    def _read_header(self) -> bool:
        while True:
            data = self._reader.peek(self._ctx.max_record_bytes + 1)
            end = self._rule.first_end(data)
            if not end and len(data) > self._ctx.max_record_bytes:
                raise SourceError(
                    f"standard input: the CSV header is longer than {self._ctx.max_record_bytes} bytes; raise"
                    " shm.slot_bytes"
                )
            if not end and not self._reader.final:
                if self._reader.failure is not None:
                    raise SourceError(f"standard input: {self._reader.failure}")
                return False
            line = data[: end or len(data)]
            self._reader.advance(len(line))
            if line.strip():
                self._header = line
                return True
            if not end:
                self.exhausted = True
                self._ctx.wake()
                return False

    def _batch(self, piece: Piece) -> PayloadBatch:
        rejects: list[BadRecord] = []
        if piece.left_out is not None:
            cause = (
                f"standard input: the record at {piece.start} is {piece.end - piece.start} bytes long, more than the"
                f" {self._ctx.max_record_bytes} that a slot takes; raise shm.slot_bytes"
            )
            position = piece.end - 1
            rejects.append(
                BadRecord(
                    partition=self.partition, position=position, stage="oversize", cause=cause, raw=piece.left_out
                )
            )
        return PayloadBatch(
            partition=self.partition,
            start=piece.start,
            end=piece.end,
            block=piece.block,
            header=self._header,
            rejects=rejects,
        )


class Stdin:
    """Standard input, to its end. What was read and not written when a run ends cannot be read again.

    ``decode`` and ``format`` are as for `Files`; ``auto`` is NDJSON, or lines for ``decode=bytes``.
    """

    replayable = False
    bounded = True

    def __init__(
        self,
        *,
        decode: type = dict,
        format: Literal["auto", "ndjson", "csv", "lines"] = "auto",  # noqa: A002 - the word that users know
        on_error: OnError | Literal["fail", "skip", "dead_letter"] | None = None,
        fd: int = 0,
    ) -> None:
        self.format: Format = choose_format(format, (), decode)
        self.decode = decode_type(decode, self.format)
        self.on_error = choose_policy(on_error)
        self._fd = fd
        self._reader: _Reader | None = None
        self._lane: StdinLane | None = None
        self._assigned = False

    def __repr__(self) -> str:
        return "Stdin()"

    def resolve(self, cwd: str | os.PathLike[str]) -> Stdin:  # noqa: ARG002 - standard input has no path
        return self

    def open(self, ctx: SourceContext) -> None:
        try:
            os.fstat(self._fd)
        except OSError as error:
            raise SourceError("standard input is closed; give the run an input, or read from Files()") from error
        with_header = self.format == "csv"
        cutter = BlockCutter(
            CsvRecords() if with_header else Lines(),
            block_bytes=ctx.block_bytes,
            max_record_bytes=ctx.max_record_bytes,
        )
        self._reader = _Reader(ctx, self._fd, max(_READ_AHEAD * ctx.block_bytes, ctx.max_record_bytes + _READ_BYTES))
        self._lane = StdinLane(ctx, self._reader, cutter, with_header=with_header)
        self._assigned = False

    def poll_events(self) -> SourceEvent:
        if self._lane is None:
            return Idle()
        if not self._assigned:
            self._assigned = True
            return LanesAssigned((self._lane,))
        return Drained() if self._lane.exhausted else Idle()

    def next_due(self) -> float | None:
        return None

    def pause(self, lanes: Sequence[LaneId]) -> None:
        if self._lane is not None and self._lane.id in lanes:
            self._lane.paused = True

    def resume(self, lanes: Sequence[LaneId]) -> None:
        if self._lane is not None and self._lane.id in lanes:
            self._lane.paused = False

    def commit(self, positions: Mapping[PartitionId, int]) -> None:
        """Standard input keeps no positions."""

    def flush_commits(self) -> None:
        """As `commit`."""

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
            self._lane = None
