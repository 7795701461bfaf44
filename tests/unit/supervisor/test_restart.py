"""When a dead worker is replaced, and when its deaths end the run."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.supervisor.restart import FIRST_PAUSE, LONGEST_PAUSE, RestartPolicy


def test_the_pauses_double_up_to_the_longest() -> None:
    policy = RestartPolicy(max_restarts=20, window=1000.0)

    pauses = [policy.died(float(second)) for second in range(10)]

    assert pauses[:4] == [FIRST_PAUSE, 0.1, 0.2, 0.4]
    assert pauses[-1] == LONGEST_PAUSE


def test_one_death_too_many_within_the_window_is_the_end() -> None:
    """W01: a crash loop is slowed down, and given up."""
    policy = RestartPolicy(max_restarts=3, window=60.0)

    answers = [policy.died(float(second)) for second in range(4)]

    assert None not in answers[:3]
    assert answers[3] is None


def test_deaths_that_are_far_apart_never_end_a_run() -> None:
    policy = RestartPolicy(max_restarts=3, window=60.0)

    assert all(policy.died(second * 61.0) is not None for second in range(100))


def test_a_settled_chunk_clears_the_record() -> None:
    policy = RestartPolicy(max_restarts=3, window=60.0)
    for second in range(3):
        policy.died(float(second))

    policy.settled()

    assert policy.died(3.0) == FIRST_PAUSE
    assert policy.recent == 1


@given(st.lists(st.floats(0.0, 30.0), max_size=60), st.integers(0, 5))
def test_no_window_ever_holds_more_deaths_than_allowed(gaps: list[float], most: int) -> None:
    policy = RestartPolicy(max_restarts=most, window=60.0)
    times: list[float] = []
    now = 0.0

    for gap in gaps:
        now += gap
        times.append(now)
        answer = policy.died(now)
        within = sum(1 for one in times if one >= now - 60.0)
        assert (answer is None) == (within > most)
