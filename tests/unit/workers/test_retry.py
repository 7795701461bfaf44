"""Backoff: grows, is capped, and jitter only shortens."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.settings import RetrySettings
from headrace_workers.retry import SHORTEST, Backoff

settings = st.builds(
    RetrySettings,
    initial=st.floats(0.001, 100.0),
    max=st.floats(0.001, 1e6),
    multiplier=st.floats(1.0, 100.0),
    jitter=st.floats(0.0, 0.99),
)


@given(settings, st.integers(0, 2**32), st.integers(1, 400))
def test_waits_grow_to_their_cap_and_jitter_only_shortens_them(retry: RetrySettings, seed: int, attempts: int) -> None:
    plain = Backoff(msgspec.structs.replace(retry, jitter=0.0), seed)
    backoff = Backoff(retry, seed)

    whole = [plain.next() for _ in range(attempts)]
    waits = [backoff.next() for _ in range(attempts)]

    assert whole[0] == max(SHORTEST, min(retry.initial, retry.max))
    assert whole == sorted(whole)
    assert max(whole) <= max(SHORTEST, retry.max)
    for wait, longest in zip(waits, whole, strict=True):
        assert SHORTEST <= wait <= longest
        assert wait >= longest * (1 - retry.jitter) * 0.999


def test_thousands_of_attempts_do_not_overflow() -> None:
    backoff = Backoff(RetrySettings(initial=1.0, max=30.0, multiplier=100.0, jitter=0.0), 1)

    assert [backoff.next() for _ in range(5_000)][-1] == 30.0


def test_workers_with_other_seeds_do_not_wait_in_step() -> None:
    waits = {Backoff(RetrySettings(), seed).next() for seed in range(20)}

    assert len(waits) == 20


def test_the_same_seed_waits_the_same() -> None:
    one, other = Backoff(RetrySettings(), 7), Backoff(RetrySettings(), 7)

    assert [one.next() for _ in range(5)] == [other.next() for _ in range(5)]
