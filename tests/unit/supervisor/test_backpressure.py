"""When the source is paused and when it may go on."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.config.settings import BackpressureSettings
from headrace.supervisor.backpressure import Hysteresis

SETTINGS = BackpressureSettings(max_inflight_bytes=1000, high=0.8, low=0.5, shard_share=0.4, min_pause=0.1)


def test_a_full_budget_pauses_and_half_of_it_resumes() -> None:
    hysteresis = Hysteresis(SETTINGS)

    seen = [hysteresis.update(used, 0, now) for used, now in ((799, 0.0), (800, 1.0), (500, 2.0), (499, 3.0))]

    assert seen == [False, True, True, False]


def test_one_shard_with_its_share_pauses() -> None:
    hysteresis = Hysteresis(SETTINGS)

    assert not hysteresis.update(399, 399, 0.0)
    assert hysteresis.update(400, 400, 0.1)
    assert hysteresis.update(260, 251, 1.0)
    assert not hysteresis.update(240, 240, 2.0)


def test_a_pause_lasts_at_least_its_least_time() -> None:
    hysteresis = Hysteresis(SETTINGS)
    hysteresis.update(900, 0, 5.0)

    assert hysteresis.next_due() == 5.1
    assert hysteresis.update(0, 0, 5.05)
    assert not hysteresis.update(0, 0, 5.1)


@given(st.lists(st.tuples(st.integers(0, 1200), st.floats(0.0, 0.3)), max_size=200))
def test_pauses_alternate_and_none_is_too_short(steps: list[tuple[int, float]]) -> None:
    hysteresis = Hysteresis(SETTINGS)
    now, began, before = 0.0, 0.0, False

    for used, gap in steps:
        now += gap
        paused = hysteresis.update(used, 0, now)
        if paused and not before:
            assert used >= 800
            began = now
        if before and not paused:
            assert used < 500
            assert now >= began + 0.1
        before = paused
