"""Which token may complete which chunk: each rule of the fences."""

import itertools
from collections.abc import Callable

import pytest

from headrace.errors import FencesPoisonedError
from headrace.lease.fences import Accepted, ChunkKey, CompletionFences, RefusalReason, Refused, WorkerAttribution
from headrace.shm.token import MISSING, CompletionToken

A, B = ChunkKey(0, 0, 1), ChunkKey(0, 1, 2)
ONE, OTHER = WorkerAttribution("w0", 10, 100, "h", "1"), WorkerAttribution("w0", 11, 101, "h", "1")


def nonces() -> Callable[[], int]:
    return itertools.count(1000).__next__


@pytest.fixture
def fences() -> CompletionFences:
    return CompletionFences(5, nonces())


def refusal(answer: Accepted | Refused) -> RefusalReason:
    assert isinstance(answer, Refused)
    return answer.reason


def test_a_live_token_is_accepted_once(fences: CompletionFences) -> None:
    token = fences.issue(A)

    assert fences.accept(token) == Accepted(token, A)
    assert refusal(fences.accept(token)) is RefusalReason.CONSUMED
    assert fences.outstanding == 0


def test_a_token_is_accepted_as_bytes_too(fences: CompletionFences) -> None:
    token = fences.issue(A)

    assert fences.accept(token.to_bytes()) == Accepted(token, A)


def test_each_token_carries_incarnation_and_a_serial_of_its_own(fences: CompletionFences) -> None:
    issued = [fences.issue(A) for _ in range(3)]

    assert {token.incarnation for token in issued} == {5}
    assert [token.serial for token in issued] == [1, 2, 3]
    assert len({token.nonce for token in issued}) == 3


def test_a_later_issue_supersedes_the_chunks_earlier_token_alone(fences: CompletionFences) -> None:
    first, elsewhere, second = fences.issue(A), fences.issue(B), fences.issue(A)

    assert refusal(fences.accept(first)) is RefusalReason.SUPERSEDED
    assert fences.accept(second) == Accepted(second, A)
    assert fences.accept(elsewhere) == Accepted(elsewhere, B)


def test_revoking_withdraws_this_token_only(fences: CompletionFences) -> None:
    first, second = fences.issue(A), fences.issue(A)

    assert not fences.revoke(first)
    assert fences.peek(second) == A
    assert fences.revoke(second)
    assert not fences.revoke(second)
    assert refusal(fences.accept(second)) is RefusalReason.REVOKED


def test_the_zero_token_is_missing_and_no_wildcard(fences: CompletionFences) -> None:
    fences.issue(A)

    assert refusal(fences.accept(MISSING)) is RefusalReason.MISSING
    assert refusal(fences.accept(bytes(24))) is RefusalReason.MISSING


@pytest.mark.parametrize("data", [b"", b"x" * 23, b"x" * 25, b"x" * 5000])
def test_bytes_that_are_no_token_are_malformed(fences: CompletionFences, data: bytes) -> None:
    assert refusal(fences.accept(data)) is RefusalReason.MALFORMED


def test_a_token_of_an_earlier_start_is_refused_before_and_after_the_chunk_is_issued_again() -> None:
    """C08"""
    before = CompletionFences(4, nonces()).issue(A)
    fences = CompletionFences(5, nonces())

    assert refusal(fences.accept(before)) is RefusalReason.WRONG_INCARNATION
    token = fences.issue(A)
    assert refusal(fences.accept(before)) is RefusalReason.WRONG_INCARNATION
    assert fences.accept(token) == Accepted(token, A)


def test_a_guessed_token_is_unknown(fences: CompletionFences) -> None:
    token = fences.issue(A)
    guess = CompletionToken(token.incarnation, token.serial, token.nonce + 1)

    assert refusal(fences.accept(guess)) is RefusalReason.UNKNOWN
    assert fences.peek(token) == A


def test_refusals_are_counted_by_reason_and_change_nothing_else(fences: CompletionFences) -> None:
    token = fences.issue(A)
    for wrong in (MISSING, b"x", b"x", CompletionToken(9, 1, 1)):
        fences.accept(wrong)

    assert fences.refusals == {
        RefusalReason.MISSING: 1,
        RefusalReason.MALFORMED: 2,
        RefusalReason.WRONG_INCARNATION: 1,
    }
    assert fences.accept(token) == Accepted(token, A)


def test_a_peek_consumes_and_counts_nothing(fences: CompletionFences) -> None:
    token = fences.issue(A)

    assert fences.peek(token) == fences.peek(token.to_bytes()) == A
    assert fences.peek(MISSING) is None
    assert fences.peek(b"x") is None
    assert not fences.refusals
    assert fences.accept(token) == Accepted(token, A)


def test_what_was_consumed_can_be_put_back_and_is_accepted_again(fences: CompletionFences) -> None:
    token = fences.issue(A)
    accepted = fences.accept(token)
    assert isinstance(accepted, Accepted)

    assert fences.restore(accepted)
    assert not fences.restore(accepted)
    assert fences.accept(token) == accepted


@pytest.mark.parametrize("then", ["live", "consumed", "revoked"])
def test_nothing_is_put_back_over_a_newer_token_whatever_became_of_it(fences: CompletionFences, then: str) -> None:
    accepted = fences.accept(fences.issue(A))
    assert isinstance(accepted, Accepted)
    newer = fences.issue(A)
    if then == "consumed":
        fences.accept(newer)
    elif then == "revoked":
        fences.revoke(newer)

    assert not fences.restore(accepted)
    assert (fences.peek(newer) == A) is (then == "live")


def test_what_was_revoked_is_not_put_back(fences: CompletionFences) -> None:
    token = fences.issue(A)
    fences.revoke(token)

    assert not fences.restore(Accepted(token, A))


def test_of_dead_tokens_only_the_last_are_told_apart() -> None:
    fences = CompletionFences(5, nonces(), remembered=3)
    tokens = [fences.issue(ChunkKey(0, 0, chunk)) for chunk in range(5)]
    accepted = [fences.accept(token) for token in tokens]

    reasons = [refusal(fences.accept(token)) for token in tokens]

    assert reasons == [RefusalReason.UNKNOWN] * 2 + [RefusalReason.CONSUMED] * 3
    assert isinstance(accepted[0], Accepted)
    assert not fences.restore(accepted[0])


def test_what_is_remembered_is_bounded() -> None:
    """(HR-9)"""
    fences = CompletionFences(5, nonces(), remembered=10)

    for chunk in range(1000):
        fences.accept(fences.issue(ChunkKey(0, 0, chunk)))
        fences.revoke(fences.issue(ChunkKey(0, 0, chunk)))

    assert len(fences._dead) == 10
    assert len(fences._latest) <= 10
    assert not fences._live
    assert not fences._gates


def test_a_worker_is_known_by_the_process_that_was_sent_the_token(fences: CompletionFences) -> None:
    token = fences.issue(A)
    assert not fences.was_issued_to(token, ONE)
    fences.issued_to(token, ONE)

    assert fences.was_issued_to(token, ONE)
    assert not fences.was_issued_to(token, OTHER)
    fences.revoke(token)
    assert fences.was_issued_to(token.to_bytes(), ONE)
    assert not fences.was_issued_to(MISSING, ONE)
    assert not fences.was_issued_to(b"x", ONE)


def test_a_gate_is_open_until_armed_and_after_it_was_opened(fences: CompletionFences) -> None:
    token = fences.issue(A)
    assert fences.gate_is_open(token)

    fences.arm(token)
    assert not fences.gate_is_open(token)
    fences.open_gate(token)

    assert fences.gate_is_open(token)
    assert fences.accept(token) == Accepted(token, A)


def test_one_chunks_gate_holds_up_no_other(fences: CompletionFences) -> None:
    waiting, other = fences.issue(A), fences.issue(B)

    fences.arm(waiting)

    assert fences.accept(other) == Accepted(other, B)


@pytest.mark.parametrize(
    "misuse",
    [
        pytest.param(lambda fences, token: fences.open_gate(token), id="opened without being armed"),
        pytest.param(lambda fences, token: (fences.arm(token), fences.arm(token)), id="armed twice"),
        pytest.param(lambda fences, token: (fences.revoke(token), fences.arm(token)), id="armed when dead"),
        pytest.param(
            lambda fences, token: (fences.arm(token), fences.open_gate(token), fences.open_gate(token)),
            id="opened twice",
        ),
        pytest.param(lambda fences, token: (fences.arm(token), fences.accept(token)), id="accepted behind its gate"),
    ],
)
def test_a_broken_rule_poisons_the_fences(
    fences: CompletionFences, misuse: Callable[[CompletionFences, CompletionToken], object]
) -> None:
    """(HR-5)"""
    with pytest.raises(FencesPoisonedError):
        misuse(fences, fences.issue(A))

    with pytest.raises(FencesPoisonedError, match="failed earlier"):
        fences.issue(B)


def test_after_an_exception_inside_every_operation_answers_that_the_fences_are_poisoned() -> None:
    def broken() -> int:
        raise OSError("no random numbers")

    fences = CompletionFences(5, broken)
    with pytest.raises(FencesPoisonedError, match="no random numbers"):
        fences.issue(A)

    token = CompletionToken(5, 1, 1)
    for operation in (
        lambda: fences.issue(A),
        lambda: fences.accept(token),
        lambda: fences.peek(token),
        lambda: fences.restore(Accepted(token, A)),
        lambda: fences.revoke(token),
        lambda: fences.arm(token),
        lambda: fences.open_gate(token),
        lambda: fences.gate_is_open(token),
        lambda: fences.issued_to(token, ONE),
        lambda: fences.was_issued_to(token, ONE),
    ):
        with pytest.raises(FencesPoisonedError, match="issue"):
            operation()


def test_an_interrupt_inside_poisons_and_goes_on_as_itself() -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    fences = CompletionFences(5, interrupted)

    with pytest.raises(KeyboardInterrupt):
        fences.issue(A)
    with pytest.raises(FencesPoisonedError):
        fences.issue(A)
