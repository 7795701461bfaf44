"""Completion tokens as bytes."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.shm.token import MISSING, CompletionToken

u64 = st.integers(0, 2**64 - 1)


@given(u64, u64, u64)
def test_a_token_survives_its_bytes(incarnation: int, serial: int, nonce: int) -> None:
    token = CompletionToken(incarnation, serial, nonce)

    assert len(token.to_bytes()) == 24
    assert CompletionToken.from_bytes(token.to_bytes()) == token


@given(st.binary().filter(lambda data: len(data) != 24))
def test_bytes_of_another_size_are_no_token(data: bytes) -> None:
    assert CompletionToken.from_bytes(data) is None


def test_zeroed_memory_is_the_missing_token() -> None:
    assert CompletionToken.from_bytes(bytes(24)) == MISSING


def test_a_digest_names_the_token_and_does_not_hold_it() -> None:
    token = CompletionToken(3, 7, 0x1122334455667788)

    assert token.digest() == CompletionToken(3, 7, 0x1122334455667788).digest()
    assert token.digest() != CompletionToken(3, 8, 0x1122334455667788).digest()
    assert "1122334455667788" not in token.digest()
