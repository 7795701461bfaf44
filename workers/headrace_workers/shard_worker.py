"""A shard inside a worker: claims its chunks in order, merges them into write batches, writes, acknowledges."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, TypeVar

import msgspec

from headrace.config.settings import RetrySettings
from headrace.errors import CorruptFrameError, ErrorClass, HeadraceError, RejectedRows, SinkError
from headrace.record import OnError
from headrace.shm.records import ChunkBell, Outcome, RowOutcome, Stage
from headrace.shm.slab import MappedSlab
from headrace.shm.slot import read_slot
from headrace_workers.acks import AckPipe
from headrace_workers.attempt import Attempt
from headrace_workers.batch import Batcher, Prepared, SealReason
from headrace_workers.prepare import Preparer, letter
from headrace_workers.retry import Backoff
from headrace_workers.spool import Spool
from headrace_workers.writers.base import BlockingWriter, SealedBatch

EXIT_ABANDONED = 75
"""The exit status of a worker that left a blocking write behind which no one could stop."""

T = TypeVar("T")


class Doing(msgspec.Struct):
    """What a shard is doing, for beats: the operators on a chunk, since when."""

    name: str
    since: float
    at_work: bool = True


class Counters(msgspec.Struct):
    """A worker's counts, sent with its beats."""

    rows: int = 0
    bytes: int = 0
    batches: int = 0
    retries: int = 0
    last_error: str = ""


class WorkerTools(msgspec.Struct):
    """What all shards of a worker share."""

    acks: AckPipe
    spool: Spool
    operators: ThreadPoolExecutor
    writes: ThreadPoolExecutor
    retry: RetrySettings
    counters: Counters
    incarnation: int
    log: Any


class ShardWorker:
    """One (sink, shard). Everything but operators and blocking writes runs on the event loop."""

    def __init__(
        self,
        sink: int,
        shard: int,
        sink_name: str,
        slab: MappedSlab,
        preparer: Preparer,
        writer: Any,
        batcher: Batcher,
        *,
        max_writes: int,
        on_error: OnError,
        tools: WorkerTools,
    ) -> None:
        self.sink = sink
        self.shard = shard
        self._sink_name = sink_name
        self._slab = slab
        self._preparer = preparer
        self._writer = writer
        self._batcher = batcher
        self._max_writes = max_writes
        self._on_error = on_error
        self._tools = tools
        self._claimed: deque[ChunkBell] = deque()
        self._preparing: ChunkBell | None = None
        self._writes: set[asyncio.Task[None]] = set()
        self._flushing = False
        self._releasing = False
        self._halted = False
        self._event = asyncio.Event()
        self._quiet = asyncio.Event()
        self.stages: dict[int, Doing | Attempt] = {}
        self.waiting: str | None = None

    # -- what the doorbell says

    def claim(self, bell: ChunkBell) -> None:
        """Hold a chunk: said at once, before anything is done with it."""
        self._tools.acks.held(bell.token)
        if self._halted or self._releasing:
            self._tools.acks.released(bell.token)
            return
        self._claimed.append(bell)
        self._event.set()

    def flush(self) -> None:
        """Write what is held without waiting for more."""
        self._flushing = True
        self._event.set()

    def release(self) -> None:
        """Give back every chunk whose write has not begun."""
        self._releasing = True
        self._event.set()

    @property
    def holding(self) -> int:
        """Chunks that are claimed and not answered for."""
        return len(self._claimed) + len(self._batcher) + (self._preparing is not None) + len(self._writes)

    # -- the shard's life

    async def run(self) -> NoReturn:
        """Prepare and write, in shard order, until cancelled."""
        while True:
            now = time.monotonic()
            reason = self._due(now)
            if self._releasing and self._preparing is None:
                self._give_back()
            elif reason is not None and len(self._writes) < self._max_writes:
                self._begin_write(self._batcher.take())
            elif self._claimed and reason is None and not self._halted:
                await self._prepare(self._claimed.popleft())
            else:
                await self._wait(now, full=reason is not None)

    def _due(self, now: float) -> SealReason | None:
        if self._halted:
            return None
        return self._batcher.due(now, flushing=self._flushing, more=bool(self._claimed))

    async def _wait(self, now: float, *, full: bool) -> None:
        if not self.holding:
            self._flushing = False
            self._quiet.set()
        due = None if full or self._halted else self._batcher.next_due()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if due is None else max(0.0, due - now)):
                await self._event.wait()
        self._event.clear()

    def _give_back(self) -> None:
        for bell in [*(one.bell for one in self._batcher.take()), *self._claimed]:
            self._tools.acks.released(bell.token)
        self._claimed.clear()
        self._releasing = False

    async def idle(self) -> None:
        """Wait until nothing is held."""
        while self.holding:
            self._quiet.clear()
            await self._quiet.wait()

    async def _prepare(self, bell: ChunkBell) -> None:
        self._preparing = bell
        try:
            prepared = await _on(self._tools.operators, lambda: self._prepare_now(bell))
        except CorruptFrameError as error:
            self._halt([], bell, RowOutcome(bell.first_row, OnError.FAIL, "frame", str(error)))
            return
        finally:
            self._preparing = None
            self.stages.pop(Stage.OPERATORS, None)
        if prepared.fatal is not None:
            self._halt([prepared], bell, prepared.fatal)
            return
        self._batcher.add(prepared, time.monotonic())

    def _prepare_now(self, bell: ChunkBell) -> Prepared:
        # Said here and not before: the wait for the operators' thread is nobody's fault (HR-16).
        self._tools.acks.busy([bell.token], Stage.OPERATORS)
        self.stages[Stage.OPERATORS] = Doing("operators", time.monotonic())
        contents = read_slot(
            self._slab.view(bell.slot),
            sink=self.sink,
            shard=self.shard,
            length=bell.length,
            rows=bell.first_row + bell.rows,
            incarnation=self._tools.incarnation,
        )
        prepared = self._preparer.prepare(bell, contents)
        self._tools.acks.busy([bell.token], Stage.NONE)
        return prepared

    def _halt(self, lost: list[Prepared], bell: ChunkBell, outcome: RowOutcome) -> None:
        """A row failed under ``fail``: nothing more of this shard is begun, the rest is given back."""
        self._halted = True
        acks = self._tools.acks
        acks.failed(bell.token, [outcome])
        acks.done(bell.token, Outcome.FAILED)  # before the rest, so that the shard is closed when that comes back
        for one in lost:
            if one.bell.token != bell.token:
                acks.released(one.bell.token)
        self._give_back()

    # -- writing

    def _begin_write(self, chunks: list[Prepared]) -> None:
        write = asyncio.get_running_loop().create_task(self._write(chunks))
        self._writes.add(write)
        write.add_done_callback(self._end_write)

    def _end_write(self, write: asyncio.Task[None]) -> None:
        self._writes.discard(write)
        self._event.set()
        if not write.cancelled() and (error := write.exception()) is not None:
            self._tools.log.error("a write ended in a fault of the worker itself", exc_info=error)
            self._tools.acks.broken(f"{type(error).__name__}: {error}")
            os._exit(1)

    async def _write(self, chunks: list[Prepared]) -> None:
        key = id(chunks)
        backoff = Backoff(self._tools.retry, seed=random.getrandbits(32))
        began = time.monotonic()
        attempt = 0
        while True:
            attempt += 1
            try:
                await self._spool(chunks)
                await self._attempt(key, chunks)
                break
            except RejectedRows as rejected:
                if self._on_error is OnError.FAIL:
                    self._reject_all(chunks, rejected)
                    return
                self._leave_out(chunks, rejected)
                attempt -= 1
            except Exception as error:  # noqa: BLE001 - a driver raises what it likes
                if not await self._try_again(error, attempt, began, backoff, chunks):
                    return
        self._acknowledge(chunks)

    async def _attempt(self, key: int, chunks: list[Prepared]) -> None:
        """One write of what is left of these chunks; nothing of the batch is held when it is over."""
        batch = _sealed(self.shard, chunks)
        if batch.count == 0:
            return
        attempt = self.stages[key] = Attempt(self._tools.acks, [one.bell.token for one in chunks])
        try:
            await self._call_writer(attempt, batch, chunks)
        except BaseException:
            attempt.failed()
            raise
        finally:
            del self.stages[key]
            batch.release()

    async def _call_writer(self, attempt: Attempt, batch: SealedBatch, chunks: list[Prepared]) -> None:
        limit = self._tools.retry.attempt_timeout
        if not isinstance(self._writer, BlockingWriter):
            async with asyncio.timeout(limit):
                await self._writer.write(batch)
            return
        writer = self._writer
        future = asyncio.get_running_loop().run_in_executor(
            self._tools.writes, lambda: attempt.run(lambda: writer.write(batch))
        )
        while not future.done():
            left = attempt.left(limit)
            if left <= 0:
                self._abandon(chunks, limit)
            await asyncio.wait([future], timeout=left)
        future.result()

    def _abandon(self, chunks: list[Prepared], limit: float) -> NoReturn:
        """No one can stop a blocking call that reads our slots: this process ends, and the chunks are tried again."""
        self._tools.log.error(
            "a blocking write passed its limit; this worker ends", sink=self._sink_name, shard=self.shard, seconds=limit
        )
        for one in chunks:
            self._tools.acks.done(one.bell.token, Outcome.ABANDONED)
        os._exit(EXIT_ABANDONED)

    async def _try_again(
        self, error: Exception, attempt: int, began: float, backoff: Backoff, chunks: list[Prepared]
    ) -> bool:
        """Whether, after a pause, the same write is tried again; else everything has been said about it."""
        retry, counters = self._tools.retry, self._tools.counters
        cause = f"{type(error).__name__}: {error}" if not isinstance(error, HeadraceError) else str(error)
        counters.last_error = cause[:300]
        given_up = (retry.max_attempts is not None and attempt >= retry.max_attempts) or (
            retry.give_up_after is not None and time.monotonic() - began >= retry.give_up_after
        )
        retryable = not isinstance(error, HeadraceError) or error.error_class is not ErrorClass.FATAL
        if not retryable or given_up:
            await self._give_up(chunks, cause, attempt, backoff, permanent=not retryable)
            return False
        pause = backoff.next()
        counters.retries += 1
        self._tools.log.warning(
            "a write failed and will be tried again",
            sink=self._sink_name, shard=self.shard, attempt=attempt, cause=cause, seconds=round(pause, 3),
        )  # fmt: skip
        self.waiting = f"backoff after: {cause[:200]}"
        try:
            await asyncio.sleep(pause)
        finally:
            self.waiting = None
        return True

    async def _give_up(
        self, chunks: list[Prepared], cause: str, attempt: int, backoff: Backoff, *, permanent: bool
    ) -> None:
        """A permanent failure fails the run at once; attempts used up go by policy."""
        if not permanent and self._on_error is OnError.DEAD_LETTER:
            for one in chunks:
                rows = range(one.count)
                self._drop_rows(one, dict.fromkeys(rows, f"given up after {attempt} attempts: {cause}"))
            await self._spool_at_last(chunks, backoff)
            self._acknowledge(chunks)
            return
        what = "the sink failed for good" if permanent else f"given up after {attempt} attempts"
        bell = chunks[0].bell
        self._halt(chunks, bell, RowOutcome(bell.first_row, OnError.FAIL, "sink", f"{what}: {cause}"))

    def _reject_all(self, chunks: list[Prepared], rejected: RejectedRows) -> None:
        row, reason = min(rejected.reasons.items())
        for one in chunks:
            if row < one.count:
                self._halt(chunks, one.bell, RowOutcome(one.chunk_row(row), OnError.FAIL, "sink", reason))
                return
            row -= one.count
        raise ValueError(f"the writer rejected row {row}, which the batch does not have")

    def _leave_out(self, chunks: list[Prepared], rejected: RejectedRows) -> None:
        base = 0
        for one in chunks:
            mine = {row - base: why for row, why in rejected.reasons.items() if base <= row < base + one.count}
            base += one.count
            if mine:
                self._drop_rows(one, mine)

    def _drop_rows(self, one: Prepared, reasons: dict[int, str]) -> None:
        rows = one.rows if one.rows is not None else _lines(one)
        for row, why in reasons.items():
            outcome = RowOutcome(one.chunk_row(row), self._on_error, "sink", why)
            if self._on_error is OnError.DEAD_LETTER:
                one.letters.append(letter(self._sink_name, one, outcome, _bytes_of(rows[row]), one.child(row)))
                one.spooled = False
            else:
                one.skipped.append(outcome)
        one.keep([row for row in range(one.count) if row not in reasons], rows)

    async def _spool(self, chunks: list[Prepared]) -> None:
        """What is left out is durable before anything that passes it (HR-15)."""
        fresh = [one for one in chunks if one.letters and not one.spooled]
        entries = [entry for one in fresh for entry in one.letters]
        if not entries:
            return
        end = await _on(self._tools.writes, lambda: self._tools.spool.append(entries))
        for one in fresh:
            one.spooled = True
            one.spool_end = end

    async def _spool_at_last(self, chunks: list[Prepared], backoff: Backoff) -> None:
        """Nothing is left but the spool: however long its disk is full, nothing passes what is not on it."""
        while True:
            try:
                await self._spool(chunks)
                return
            except SinkError as error:
                self._tools.log.error("dead letters wait for their disk", shard=self.shard, cause=str(error))
                await asyncio.sleep(backoff.next())

    def _acknowledge(self, chunks: list[Prepared]) -> None:
        acks, counters = self._tools.acks, self._tools.counters
        counters.batches += 1
        for one in chunks:
            counters.rows += one.count
            counters.bytes += one.nbytes
            if one.skipped:
                acks.failed(one.bell.token, one.skipped)
            if one.letters:
                acks.failed(
                    one.bell.token,
                    [RowOutcome(entry.row, OnError.DEAD_LETTER, entry.stage, entry.cause) for entry in one.letters],
                )
            if one.filtered_rows:
                acks.filtered(one.bell.token, one.filtered_rows)
            written, one.rows, one.blocks = one.count, None, None
            acks.done(
                one.bell.token,
                Outcome.DELIVERED,
                written=written,
                filtered=one.filtered,
                skipped=len({outcome.row for outcome in one.skipped}),
                dead_lettered=len({entry.row for entry in one.letters}),
                spool_end=one.spool_end,
            )


def _sealed(shard: int, chunks: list[Prepared]) -> SealedBatch:
    if chunks[0].rows is not None:
        rows = chunks[0].rows if len(chunks) == 1 else [row for one in chunks for row in one.rows or ()]
        return SealedBatch(shard, rows, None, len(rows), sum(one.nbytes for one in chunks))
    blocks = [block for one in chunks for block in one.blocks or ()]
    return SealedBatch(shard, None, blocks, sum(one.count for one in chunks), sum(one.nbytes for one in chunks))


def _lines(one: Prepared) -> list[object]:
    text = b"".join(bytes(block) for block in one.blocks or ())
    return [line + b"\n" for line in text.split(b"\n")[:-1]]


def _bytes_of(row: object) -> bytes:
    if isinstance(row, bytes):
        return row.rstrip(b"\n")
    try:
        return msgspec.json.encode(row)
    except (msgspec.MsgspecError, UnicodeError, TypeError, OverflowError, RecursionError):
        return repr(row).encode("utf-8", "backslashreplace")[:65_536]


def _on(pool: ThreadPoolExecutor, call: Callable[[], T]) -> Awaitable[T]:
    return asyncio.get_running_loop().run_in_executor(pool, call)
