"""The loop's time counts only what the loop could see."""

from headrace.supervisor.turning import TurningClock


def test_an_ordinary_wait_counts_in_full() -> None:
    clock = TurningClock(100.0)

    assert clock.turn(100.5, planned=0.5) == 100.5
    assert clock.turn(101.9, planned=0.5) == 101.9


def test_a_stopped_process_ages_nobody() -> None:
    """A supervisor that was stopped for 15 s finds all deadlines where they were."""
    clock = TurningClock(100.0)
    clock.turn(100.5, planned=0.5)

    now = clock.turn(116.0, planned=0.5)

    assert now == 101.0
    assert clock.skipped == 15.0


def test_time_never_runs_backwards() -> None:
    clock = TurningClock(0.0)
    times = [
        clock.turn(real, planned) for real, planned in ((1.0, 1.0), (9.0, 0.0), (9.1, 0.1), (30.0, 2.0), (30.0, 0.0))
    ]

    assert times == sorted(times)
