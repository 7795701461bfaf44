"""The state of each slot: which steps there are."""

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.errors import HeadraceError
from headrace.shm.queue import SlotState, SlotTable

F, A, P, H = SlotState.FREE, SlotState.ARMED, SlotState.PUBLISHED, SlotState.HELD
ROADS = {F: (), A: (), P: ("publish",), H: ("publish", "hold")}
STEPS = {
    (A, "publish"): P,
    (A, "free"): F,
    (P, "hold"): H,
    (P, "rearm"): A,
    (H, "rearm"): A,
    (H, "free"): F,
}


@pytest.mark.parametrize(("state", "step"), list(itertools.product((F, A, P, H), ("publish", "hold", "rearm", "free"))))
def test_only_the_steps_of_the_diagram_are_taken(state: SlotState, step: str) -> None:
    table = SlotTable(1)
    if state is not F:
        table.take()
    for earlier in ROADS[state]:
        getattr(table, earlier)(0)

    if (state, step) in STEPS:
        getattr(table, step)(0)
        assert table.state(0) is STEPS[state, step]
    else:
        with pytest.raises(HeadraceError, match=f"slot 0 is {state.name} and cannot become"):
            getattr(table, step)(0)
        assert table.state(0) is state


def test_the_lowest_free_slot_is_taken_first() -> None:
    table = SlotTable(4)
    assert [table.take() for _ in range(5)] == [0, 1, 2, 3, None]

    table.free(2)
    table.free(1)

    assert [table.take(), table.take()] == [1, 2]


class SlotTableModel(RuleBasedStateMachine):
    """Against a list of states."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SlotTable(5)
        self.states = [F] * 5

    @rule()
    def take(self) -> None:
        slot = self.table.take()
        assert slot == (self.states.index(F) if F in self.states else None)
        if slot is not None:
            self.states[slot] = A

    @rule(slot=st.integers(0, 4), step=st.sampled_from(["publish", "hold", "rearm", "free"]))
    def step(self, slot: int, step: str) -> None:
        to = STEPS.get((self.states[slot], step))
        if to is not None:
            getattr(self.table, step)(slot)
            self.states[slot] = to

    @invariant()
    def counts_follow_from_the_states(self) -> None:
        assert [self.table.state(slot) for slot in range(5)] == self.states
        assert [self.table.count(state) for state in SlotState] == [self.states.count(state) for state in SlotState]
        assert self.table.free_count == self.states.count(F)
        assert self.table.used == 5 - self.states.count(F)


SlotTableModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSlotTableAgainstTheModel = SlotTableModel.TestCase
