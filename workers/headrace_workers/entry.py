"""A worker's first code: its descriptors, its end, its plan, and the loop that reads the doorbell."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import resource
import signal
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from headrace.chain import travel
from headrace.config.log import open_log
from headrace.config.worker_plan import FIXED_DESCRIPTORS, WorkerPlan
from headrace.errors import ConfigError, SinkError
from headrace.shm.records import ChunkBell, DoorbellReader, Flush, Release, Stop
from headrace.shm.slab import MappedSlab
from headrace_workers import life
from headrace_workers.acks import AckPipe
from headrace_workers.batch import Batcher
from headrace_workers.prepare import Preparer
from headrace_workers.shard_worker import Counters, ShardWorker, WorkerTools
from headrace_workers.spool import Spool
from headrace_workers.writers.base import BlockingWriter, WriterContext, open_writer

DUMP_SIGNAL = signal.SIGUSR1
"""On it every thread's stack is written to standard error, though C code may hold the GIL."""


def main(descriptors: list[int], body: bytes) -> NoReturn:
    """Run a worker until it is told to stop; never returns to the code that forked it."""
    doorbell, ack, life_fd, _fleet, stdout = descriptors[:FIXED_DESCRIPTORS]
    acks = AckPipe(ack)
    status = 1
    try:
        _become_worker(life_fd, descriptors)
        plan = msgspec.msgpack.decode(body, type=WorkerPlan)
        worker = Worker(plan, acks, doorbell, stdout, descriptors[FIXED_DESCRIPTORS:])
        asyncio.run(worker.run())
        status = 0
    except BaseException as error:  # noqa: BLE001 - the top of the process
        _last_words(acks, error)
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        _end_children()
        os._exit(status)


def _become_worker(life_fd: int, descriptors: list[int]) -> None:
    os.dup2(2, 1)
    _ignore_signals()
    life.arm(f"/proc/self/fd/{life_fd}")
    os.close(life_fd)
    fleet = descriptors[3]
    for descriptor in descriptors:
        if descriptor != life_fd:
            os.set_inheritable(descriptor, descriptor == fleet)  # a fork that outlives us must be found by its lock
    faulthandler.enable()
    faulthandler.register(DUMP_SIGNAL, all_threads=True)


def _ignore_signals() -> None:
    """A service manager signals the whole group; a worker stops when its supervisor says so."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _end_children() -> None:
    """Nothing that user code started outlives its worker."""
    with contextlib.suppress(OSError):
        for thread in Path("/proc/self/task").iterdir():
            for child in (thread / "children").read_text(encoding="ascii").split():
                os.kill(int(child), signal.SIGKILL)  # our own child, not reaped: the number is still its


def _last_words(acks: AckPipe, error: BaseException) -> None:
    told = isinstance(error, ConfigError | SinkError)  # it says all that a user can use
    text = f"{error}" if told else "".join(traceback.format_exception(error))
    sys.stderr.write(f"{text}\n")
    with contextlib.suppress(Exception):
        acks.broken(_tail(text))


def _start_ticks() -> int:
    """When this process began: field 22 of its stat line."""
    return int(Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19])


def _tail(text: str) -> str:
    """The end of a traceback, which names the error, cut to what one record holds."""
    return text if len(text) <= 3_000 else "…" + text[-3_000:]


class Worker:
    """The process' parts, and the doorbell."""

    def __init__(self, plan: WorkerPlan, acks: AckPipe, doorbell: int, stdout: int, slabs: list[int]) -> None:
        self._plan = plan
        self._acks = acks
        self._doorbell = doorbell
        self._stdout = stdout
        self._reader = DoorbellReader()
        self._chain, self._sinks = travel.unpack(plan.packed)
        _ignore_signals()  # the pipeline's own modules may have set handlers
        self._slabs = [MappedSlab(fd, plan.slots, plan.slot_bytes) for fd in slabs]
        for fd in slabs:
            os.close(fd)
        self._log = open_log(plan.log, pipeline=plan.pipeline, worker=plan.name)
        self._shards: dict[tuple[int, int], ShardWorker] = {}
        self._writers: list[Any] = []
        self._stopping = asyncio.Event()
        seats = len(plan.sinks) * plan.shards
        self._tools = WorkerTools(
            acks=acks,
            spool=Spool(plan.spool),
            operators=ThreadPoolExecutor(1, "headrace-operators"),
            writes=ThreadPoolExecutor(seats * plan.inflight.max_per_shard + 1, "headrace-write"),
            retry=plan.retry,
            counters=Counters(),
            incarnation=plan.incarnation,
            log=self._log,
        )

    async def run(self) -> None:
        """Open the sinks, say so, and serve the doorbell until `Stop`."""
        for number, sink in enumerate(self._sinks):
            await self._open_sink(number, sink)
        self._acks.ready(os.getpid(), _start_ticks(), self._plan.digest)
        beats = threading.Thread(target=self._beat, name="headrace-beats", daemon=True)
        beats.start()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_fault)
        os.set_blocking(self._doorbell, False)
        loop.add_reader(self._doorbell, self._on_doorbell)
        tasks = [loop.create_task(shard.run()) for shard in self._shards.values()]
        stopping = loop.create_task(self._stopping.wait())
        done, _ = await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
        loop.remove_reader(self._doorbell)
        for task in done - {stopping}:
            task.result()
        for task in tasks:
            task.cancel()
        for writer in self._writers:
            await self._close_writer(writer)

    async def _open_sink(self, number: int, sink: Any) -> None:
        plan = self._plan
        writer = open_writer(sink.writer)()
        context = WriterContext(
            sink=sink,
            shards=plan.owned,
            worker=plan.name,
            run_id=plan.run_id,
            incarnation=plan.incarnation,
            stdout_fd=self._stdout,
            log=self._log.bind(sink=plan.sinks[number].name).warning,
        )
        if isinstance(writer, BlockingWriter):
            columns = await asyncio.get_running_loop().run_in_executor(self._tools.writes, writer.open, context)
        else:
            columns = await writer.open(context)
        self._writers.append(writer)
        self._acks.columns(number, columns.to_wire() if columns is not None else b"")
        on_error = plan.sinks[number].on_error
        for shard in range(plan.shards):
            self._shards[number, shard] = ShardWorker(
                number,
                shard,
                plan.sinks[number].name,
                self._slabs[number * plan.shards + shard],
                Preparer(plan.sinks[number].name, sink.codec, columns, self._chain, on_error, fan_out=plan.fan_out),
                writer,
                Batcher(plan.batch),
                max_writes=1 if sink.ordered else plan.inflight.max_per_shard,
                on_error=on_error,
                tools=self._tools,
            )

    async def _close_writer(self, writer: Any) -> None:
        if isinstance(writer, BlockingWriter):
            await asyncio.get_running_loop().run_in_executor(self._tools.writes, writer.close)
        else:
            await writer.close()

    def _on_fault(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback failed: this process is not trusted to go on."""
        error = context.get("exception")
        text = "".join(traceback.format_exception(error)) if error is not None else str(context.get("message"))
        sys.stderr.write(text)
        self._acks.broken(_tail(text))
        os._exit(1)

    # -- the doorbell

    def _on_doorbell(self) -> None:
        try:
            data = os.read(self._doorbell, 65_536)
        except BlockingIOError:
            return
        if not data:
            os._exit(1)  # the supervisor closed it without a word: it is gone, or this process is given up
        for record in self._reader.feed(data):
            self._hear(record)

    def _hear(self, record: object) -> None:
        match record:
            case ChunkBell(sink=sink, shard=shard):
                self._shards[sink, shard].claim(record)
            case Flush(sink=sink, shard=shard):
                self._shards[sink, shard].flush()
            case Release(sink=sink, shard=shard):
                self._shards[sink, shard].release()
            case Stop():
                for one in self._shards.values():
                    one.flush()
                asyncio.get_running_loop().create_task(self._stop_when_idle())
            case _:
                raise ValueError(f"the doorbell said what this worker does not know: {record!r}")

    async def _stop_when_idle(self) -> None:
        for one in self._shards.values():
            await one.idle()
        self._stopping.set()

    # -- signs of life

    def _beat(self) -> NoReturn:
        pause = threading.Event()
        while True:
            pause.wait(self._plan.fleet.beat_interval)
            with contextlib.suppress(RuntimeError):  # a table changed while it was read: the next beat tells
                self._acks.beat(self._sign_of_life())

    def _sign_of_life(self) -> bytes:
        now = time.monotonic()
        stages = [
            (one.sink, one.shard, stage.name, round(now - stage.since, 3))
            for one in list(self._shards.values())
            for stage in list(one.stages.values())
            if stage.at_work
        ]
        waiting = [(one.sink, one.shard, one.waiting) for one in self._shards.values() if one.waiting]
        return msgspec.msgpack.encode(
            {
                "stages": stages[:40],
                "waiting": waiting[:8],
                "holding": sum(one.holding for one in self._shards.values()),
                "counters": self._tools.counters,
                "max_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            }
        )
