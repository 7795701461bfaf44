"""One worker process as the supervisor knows it: its pipes, its pidfd, and what it said last."""

from __future__ import annotations

import contextlib
import enum
import os
from pathlib import Path
from typing import Any

from headrace.codec.spool import SpoolEntry, read_entries
from headrace.lease.fences import WorkerAttribution
from headrace.shm.pipes import PeerGone, PipeWriter
from headrace.shm.records import Ack, AckReader, Doorbell, Malformed, encode
from headrace.supervisor.process import ProcessIdentity


class Phase(enum.Enum):
    """Where a worker stands, from the request to fork it to the proof that it is gone."""

    STARTING = "starting"
    OPENING = "opening"
    SERVING = "serving"
    ENDING = "ending"
    GONE = "gone"


class WorkerHandle:
    """Made before the process is; closed once it is proved gone."""

    def __init__(self, number: int, serial: int, shards: list[int], spool: Path, now: float) -> None:
        self.number = number
        self.serial = serial
        self.name = f"worker-{number}" if serial == 0 else f"worker-{number}.{serial}"
        self.shards = shards
        self.spool = spool
        self._spool_read = 0
        self._spooled: dict[int, list[SpoolEntry]] = {}
        self.phase = Phase.STARTING
        self.since = now
        self.last_heard = now
        self.identity: ProcessIdentity | None = None
        self.attribution: WorkerAttribution | None = None
        self.pidfd = -1
        self.status_fd = -1
        self.end = "how is not known"
        self.beat: dict[str, Any] = {}
        self.settled = False
        self.abandoning = False
        self.last_words = ""
        self.reason = ""
        self.to_blame = False
        self.told_to_stop = False
        self.kill_at: float | None = None
        self.kill_deadline: float | None = None
        self.columns: dict[int, bytes] = {}
        self._bell_read, self._bell_write = os.pipe2(os.O_CLOEXEC)
        self.ack_fd, self._ack_write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.ack_fd, False)
        self._bell = PipeWriter(self._bell_write)
        self._reader = AckReader()
        self.ack_ended = False

    @property
    def pid(self) -> int:
        """0 until the process was forked."""
        return self.identity.pid if self.identity else 0

    @property
    def childs_ends(self) -> tuple[int, int]:
        """The ends that go to the process: doorbell to read, acks to write."""
        return self._bell_read, self._ack_write

    def close_childs_ends(self) -> None:
        """The process has its own copies now; while ours are open no end of a pipe is ever seen."""
        for name in ("_bell_read", "_ack_write"):
            fd = getattr(self, name)
            if fd >= 0:
                os.close(fd)
                setattr(self, name, -1)

    def ring(self, record: Doorbell) -> bool:
        """Write one record to the doorbell; False when there is no room, or nobody reads any more."""
        if self._bell_write < 0:
            return False
        try:
            return self._bell.try_write(encode(record))
        except PeerGone:
            return False  # its pidfd will say so; what it held is handled there

    def hear(self) -> list[Ack | Malformed]:
        """What the ack pipe holds now; `ack_ended` once its end was read."""
        if self.ack_fd < 0:
            return []
        try:
            data = os.read(self.ack_fd, 65_536)
        except BlockingIOError:
            return []
        if not data:
            self.ack_ended = True
            return []
        return self._reader.feed(data)

    def hear_all(self) -> list[Ack | Malformed]:
        """Everything that is left in the pipe of a process that is gone; a torn last record is dropped."""
        records: list[Ack | Malformed] = []
        while not self.ack_ended:
            found = self.hear()
            if not found and not self.ack_ended:
                break
            records += found
        return records

    def take_spooled(self, chunk: int, end: int) -> list[SpoolEntry]:
        """What the worker spooled of this chunk, given that its spool is durable up to ``end``.

        The spool is read once; what belongs to chunks that are not done waits for them. Raises OSError.
        """
        if end > self._spool_read:
            with open(self.spool, "rb") as spool:
                spool.seek(self._spool_read)
                entries, length = read_entries(spool.read(end - self._spool_read))
            self._spool_read += length
            for entry in entries:
                self._spooled.setdefault(entry.chunk, []).append(entry)
        return self._spooled.pop(chunk, [])

    @property
    def torn(self) -> int:
        """Bytes of a record that its writer did not finish."""
        return self._reader.torn

    def close(self) -> None:
        """Give back every descriptor."""
        self.close_childs_ends()
        for name in ("_bell_write", "ack_fd", "pidfd", "status_fd"):
            fd = getattr(self, name)
            if fd >= 0:
                with contextlib.suppress(OSError):
                    os.close(fd)
                setattr(self, name, -1)
