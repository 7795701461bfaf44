"""The budget counts exactly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import HeadraceError
from headrace.handoff.budget import Budget


def test_what_was_charged_is_used_until_it_is_given_back() -> None:
    budget = Budget(100)

    budget.charge(70)
    budget.charge(80)
    budget.release(70)

    assert budget.used == 80
    assert budget.limit == 100


@pytest.mark.parametrize("size", [11, -1])
def test_giving_back_what_was_not_charged_is_an_error_and_changes_nothing(size: int) -> None:
    budget = Budget(100)
    budget.charge(10)

    with pytest.raises(HeadraceError, match="given back"):
        budget.release(size)

    assert budget.used == 10


def test_a_negative_charge_is_an_error() -> None:
    with pytest.raises(HeadraceError, match="charge"):
        Budget(100).charge(-1)


@given(st.lists(st.integers(0, 1000)))
def test_balanced_charges_come_back_to_zero(sizes: list[int]) -> None:
    budget = Budget(1)

    for size in sizes:
        budget.charge(size)
    for size in reversed(sizes):
        budget.release(size)

    assert budget.used == 0
