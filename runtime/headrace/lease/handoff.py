"""One publication's lease: armed before the doorbell rings, recorded when the worker holds the chunk, then settled.

States: ``ARMED`` → ``RECORDED`` | ``UNRECORDED`` when the worker said that it holds the chunk and the ledger took the
lease or could not; ``ARMED`` → ``ABANDONED`` when no worker will ever say so. Leaving ``ARMED``, by whichever road,
opens the gate, once (HR-5). A lease is evidence, a completion is truth: a ledger that fails holds up nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

import msgspec

from headrace.lease.fences import CompletionFences, WorkerAttribution
from headrace.shm.token import CompletionToken


class LeaseKey(msgspec.Struct, frozen=True):
    """The attempt that is leased; attempts count from 1."""

    sink: int
    shard: int
    chunk: int
    attempt: int


class LeaseRecorderSeam(Protocol):
    """Where leases are written down: what is queued first is durable first, and nobody waits for it."""

    def record(self, key: LeaseKey, worker: WorkerAttribution, token_digest: str, now: float) -> None:
        """Queue the lease. May raise: the lease is then counted as unrecorded."""
        ...


class LeaseSignal:
    """Fired at the instant at which a lease is recorded: the attempt's clock starts there."""

    def __init__(self, fire: Callable[[float], None]) -> None:
        self.fire = fire

    @classmethod
    def none(cls) -> LeaseSignal:
        """Says that nothing is timing this attempt."""
        return cls(_nothing_is_timed)


def _nothing_is_timed(_now: float) -> None:
    return None


class LeaseFailures:
    """Leases that were known and could not be recorded, since the start. ``report`` logs one."""

    def __init__(self, report: Callable[[LeaseKey, Exception], None]) -> None:
        self.count = 0
        self._report = report

    def note(self, key: LeaseKey, error: Exception) -> None:
        self.count += 1
        self._report(key, error)


class LeaseState(enum.Enum):
    """How far a publication's lease has come."""

    ARMED = "armed"
    RECORDED = "recorded"
    UNRECORDED = "unrecorded"
    ABANDONED = "abandoned"


class LeaseHandoff:
    """Made by `arm`. As a context manager it is closed at the end; keep it open by not leaving the block."""

    def __init__(
        self,
        seam: LeaseRecorderSeam,
        key: LeaseKey,
        worker: WorkerAttribution,
        fences: CompletionFences,
        token: CompletionToken,
        lease: LeaseSignal,
        failures: LeaseFailures,
    ) -> None:
        self.key = key
        self.worker = worker
        self.token = token
        self.state = LeaseState.ARMED
        self._seam = seam
        self._fences = fences
        self._lease = lease
        self._failures = failures

    @classmethod
    def arm(
        cls,
        seam: LeaseRecorderSeam,
        key: LeaseKey,
        worker: WorkerAttribution,
        fences: CompletionFences,
        token: CompletionToken,
        lease: LeaseSignal,
        *,
        failures: LeaseFailures,
    ) -> LeaseHandoff:
        """Close the token's gate and hold the lease to record. Raises `FencesPoisonedError`: then nothing is armed."""
        fences.issued_to(token, worker)
        fences.arm(token)
        return cls(seam, key, worker, fences, token, lease, failures)

    def accepted(self, now: float) -> None:
        """The worker holds the chunk: record the lease, fire the signal, open the gate. A second call is nothing."""
        if self.state is not LeaseState.ARMED:
            return
        self.state = LeaseState.UNRECORDED
        try:
            self._record(now)
            self._lease.fire(now)
        finally:
            self._fences.open_gate(self.token)

    def accepted_blocking(self, now: float) -> None:
        """`accepted`, for a caller that is not called back: on return the lease is queued and the gate open."""
        self.accepted(now)

    def close(self) -> None:
        """Nobody will hold it: open the gate and record nothing. Nothing if it is settled already."""
        if self.state is LeaseState.ARMED:
            self.state = LeaseState.ABANDONED
            self._fences.open_gate(self.token)

    def _record(self, now: float) -> None:
        try:
            self._seam.record(self.key, self.worker, self.token.digest(), now)
        except Exception as error:  # noqa: BLE001 (whatever the ledger's fault is, the completion goes on)
            self._failures.note(self.key, error)
        else:
            self.state = LeaseState.RECORDED

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
