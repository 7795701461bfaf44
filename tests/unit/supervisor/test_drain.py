"""The steps in which a run ends, and their deadlines (HR-10)."""

from headrace.supervisor.drain import Ending, Step


def step_of(ending: Ending) -> Step:
    """Asked anew each time: a type checker would remember the answer."""
    return ending.step


def test_a_bounded_run_finishes_without_a_deadline() -> None:
    ending = Ending(25.0)
    ending.started()

    ending.source_drained()
    ending.tick(1e9)

    assert step_of(ending) is Step.FINISHING
    assert ending.next_due() is None


def test_a_drain_is_bounded_and_keeps_a_reserve() -> None:
    ending = Ending(25.0)
    ending.started()
    ending.request(100.0)

    ending.tick(119.9)
    assert step_of(ending) is Step.DRAINING
    ending.tick(120.0)
    assert step_of(ending) is Step.KILLING
    assert not ending.overdue(124.9)
    assert ending.overdue(125.0)


def test_a_stop_of_a_finishing_run_bounds_it() -> None:
    ending = Ending(25.0)
    ending.started()
    ending.source_drained()

    ending.request(10.0)

    assert step_of(ending) is Step.DRAINING
    assert ending.next_due() == 30.0


def test_a_quiet_run_stops_its_workers_and_ends_when_they_are_gone() -> None:
    ending = Ending(25.0)
    ending.started()
    ending.source_drained()

    ending.quiet(5.0)
    assert step_of(ending) is Step.STOPPING
    ending.gone()

    assert step_of(ending) is Step.ENDED


def test_a_worker_that_does_not_stop_is_killed_within_the_time() -> None:
    ending = Ending(25.0)
    ending.started()
    ending.source_drained()
    ending.quiet(0.0)

    ending.tick(22.5)

    assert step_of(ending) is Step.KILLING


def test_a_short_timeout_still_has_room_to_write() -> None:
    ending = Ending(3.0)
    ending.started()
    ending.request(0.0)

    ending.tick(1.9)
    assert step_of(ending) is Step.DRAINING
    ending.tick(2.0)

    assert step_of(ending) is Step.KILLING


def test_the_second_request_moves_no_deadline() -> None:
    ending = Ending(25.0)
    ending.started()
    ending.request(0.0)

    ending.request(10.0)

    assert ending.overdue(25.0)


def test_a_forced_end_kills_at_once() -> None:
    ending = Ending(25.0)
    ending.started()
    ending.request(0.0)

    ending.force()

    assert step_of(ending) is Step.KILLING
    assert ending.forced
