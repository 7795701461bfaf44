"""One publication's lease: every road leaves the gate open, once."""

import itertools

import pytest

from headrace.errors import FencesPoisonedError
from headrace.lease.fences import Accepted, ChunkKey, CompletionFences, WorkerAttribution
from headrace.lease.handoff import LeaseFailures, LeaseHandoff, LeaseKey, LeaseSignal, LeaseState
from headrace.shm.token import CompletionToken

WORKER = WorkerAttribution("w3", 4711, 99, "host", "1.0")
KEY = LeaseKey(0, 1, 2, 1)


class Ledger:
    """Keeps what was recorded; fails with ``error`` if there is one."""

    def __init__(self) -> None:
        self.rows: list[tuple[LeaseKey, WorkerAttribution, str, float]] = []
        self.error: BaseException | None = None

    def record(self, key: LeaseKey, worker: WorkerAttribution, token_digest: str, now: float) -> None:
        if self.error is not None:
            raise self.error
        self.rows.append((key, worker, token_digest, now))


class Bench:
    """Fences, a ledger, a signal and one token."""

    def __init__(self) -> None:
        self.fences = CompletionFences(1, itertools.count(1).__next__)
        self.ledger = Ledger()
        self.reported: list[tuple[LeaseKey, Exception]] = []
        self.failures = LeaseFailures(lambda key, error: self.reported.append((key, error)))
        self.fired: list[float] = []
        self.token = self.fences.issue(ChunkKey(0, 1, 2))

    def arm(self, signal: LeaseSignal | None = None, token: CompletionToken | None = None) -> LeaseHandoff:
        return LeaseHandoff.arm(
            self.ledger,
            KEY,
            WORKER,
            self.fences,
            token or self.token,
            signal or LeaseSignal(self.fired.append),
            failures=self.failures,
        )


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_gate_is_closed_from_arming_until_the_worker_holds_the_chunk(bench: Bench) -> None:
    lease = bench.arm()
    assert not bench.fences.gate_is_open(bench.token)

    lease.accepted(12.5)

    assert bench.fences.gate_is_open(bench.token)
    assert lease.state is LeaseState.RECORDED


def test_the_lease_is_in_the_ledger_before_its_completion_can_be_accepted(bench: Bench) -> None:
    """(HR-5)"""
    lease = bench.arm()

    lease.accepted(12.5)

    assert bench.ledger.rows == [(KEY, WORKER, bench.token.digest(), 12.5)]
    assert isinstance(bench.fences.accept(bench.token), Accepted)


def test_the_record_and_the_signal_share_one_instant(bench: Bench) -> None:
    bench.arm().accepted(12.5)

    assert bench.fired == [12.5]
    assert bench.ledger.rows[0][3] == 12.5


def test_an_attempt_that_nothing_is_timing_says_so(bench: Bench) -> None:
    lease = bench.arm(LeaseSignal.none())

    lease.accepted(1.0)

    assert lease.state is LeaseState.RECORDED
    assert bench.fired == []


def test_a_second_acceptance_is_nothing(bench: Bench) -> None:
    lease = bench.arm()
    lease.accepted(1.0)

    lease.accepted(2.0)
    lease.accepted_blocking(3.0)
    lease.close()

    assert len(bench.ledger.rows) == 1
    assert bench.fired == [1.0]
    assert lease.state is LeaseState.RECORDED


def test_the_blocking_form_does_the_same(bench: Bench) -> None:
    bench.arm().accepted_blocking(1.0)

    assert len(bench.ledger.rows) == 1
    assert bench.fences.gate_is_open(bench.token)


def test_a_close_without_acceptance_opens_the_gate_and_records_nothing(bench: Bench) -> None:
    lease = bench.arm()

    lease.close()
    lease.close()
    lease.accepted(1.0)

    assert lease.state is LeaseState.ABANDONED
    assert bench.fences.gate_is_open(bench.token)
    assert bench.ledger.rows == []
    assert bench.fired == []
    assert bench.failures.count == 0


def test_an_exception_before_the_push_opens_the_gate(bench: Bench) -> None:
    with pytest.raises(ZeroDivisionError), bench.arm():
        raise ZeroDivisionError

    assert bench.fences.gate_is_open(bench.token)
    assert bench.ledger.rows == []


def test_a_ledger_that_cannot_record_is_reported_and_counted_and_holds_up_nothing(bench: Bench) -> None:
    bench.ledger.error = OSError("disk full")
    lease = bench.arm()

    lease.accepted(1.0)

    assert lease.state is LeaseState.UNRECORDED
    assert bench.failures.count == 1
    assert bench.reported == [(KEY, bench.ledger.error)]
    assert bench.fired == [1.0]
    assert isinstance(bench.fences.accept(bench.token), Accepted)


def test_an_interrupt_while_recording_opens_the_gate(bench: Bench) -> None:
    bench.ledger.error = KeyboardInterrupt()
    lease = bench.arm()

    with pytest.raises(KeyboardInterrupt):
        lease.accepted(1.0)

    assert bench.fences.gate_is_open(bench.token)
    assert lease.state is LeaseState.UNRECORDED
    lease.close()


def test_a_signal_that_raises_does_not_leave_the_gate_closed(bench: Bench) -> None:
    def broken(now: float) -> None:
        raise ValueError("no clock")

    with pytest.raises(ValueError, match="no clock"):
        bench.arm(LeaseSignal(broken)).accepted(1.0)

    assert bench.fences.gate_is_open(bench.token)


def test_a_later_publication_arms_its_own_gate(bench: Bench) -> None:
    bench.arm().close()
    second = bench.fences.issue(ChunkKey(0, 1, 2))

    bench.arm(token=second).accepted(2.0)

    assert [row[2] for row in bench.ledger.rows] == [second.digest()]


def test_a_token_that_was_superseded_meanwhile_opens_its_own_gate_only(bench: Bench) -> None:
    first = bench.arm()
    second = bench.fences.issue(ChunkKey(0, 1, 2))
    bench.arm(token=second)

    first.close()

    assert bench.fences.gate_is_open(bench.token)
    assert not bench.fences.gate_is_open(second)


def test_arming_on_poisoned_fences_fails_and_arms_nothing(bench: Bench) -> None:
    with pytest.raises(FencesPoisonedError):
        bench.fences.open_gate(bench.token)

    with pytest.raises(FencesPoisonedError):
        bench.arm()


def test_the_worker_is_remembered_with_the_token(bench: Bench) -> None:
    bench.arm().close()

    assert bench.fences.was_issued_to(bench.token, WORKER)
