"""What became of each record, with and without fan-out (HR-8)."""

from array import array
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headrace.record import OnError
from headrace.supervisor.accounts import Accounts

BATCH = ("p", 1, 0)


def test_without_fan_out_the_sums_are_the_books() -> None:
    accounts = Accounts(fan_out=False)

    accounts.read(BATCH, records=10, decoded=9, filtered=3, skipped=1, dead=1)
    accounts.left_out(BATCH, 4, OnError.SKIP)
    accounts.settled([(BATCH, array("I", [0, 1, 2, 3]))], Counter(rows=4, written=2, filtered=1, skipped=1), {}, set())

    totals = accounts.totals
    assert (totals.records_in, totals.written, totals.filtered, totals.skipped, totals.dead_letters) == (10, 2, 4, 3, 1)
    assert totals.rows_written == 2
    assert totals.in_flight == 0


def test_a_record_of_several_rows_counts_once_by_the_worst() -> None:
    accounts = Accounts(fan_out=True)
    accounts.read(BATCH, records=3, decoded=3, filtered=0, skipped=0, dead=0)

    outcomes = {1: OnError.DEAD_LETTER, 3: OnError.SKIP}
    accounts.settled(
        [(BATCH, array("I", [0, 0, 1, 1]))], Counter(rows=4, written=2, dead_lettered=1, skipped=1), outcomes, set()
    )
    assert accounts.totals.in_flight == 3
    accounts.resolved(BATCH)

    totals = accounts.totals
    assert (totals.dead_letters, totals.skipped, totals.filtered, totals.written) == (1, 1, 1, 0)
    assert totals.in_flight == 0


OUTCOMES = st.sampled_from(["written", "filtered", OnError.SKIP, OnError.DEAD_LETTER])


@given(st.lists(st.lists(OUTCOMES, max_size=4), min_size=1, max_size=20), st.data())
def test_every_record_is_counted_exactly_once(records: list[list[object]], data: st.DataObject) -> None:
    accounts = Accounts(fan_out=True)
    accounts.read(BATCH, records=len(records), decoded=len(records), filtered=0, skipped=0, dead=0)
    rows = [(record, outcome) for record, outcomes in enumerate(records) for outcome in outcomes]
    cut = data.draw(st.integers(0, len(rows)))

    for part in (rows[:cut], rows[cut:]):
        left_out = {row: outcome for row, (_, outcome) in enumerate(part) if isinstance(outcome, OnError)}
        filtered = {row for row, (_, outcome) in enumerate(part) if outcome == "filtered"}
        accounts.settled([(BATCH, array("I", [record for record, _ in part]))], Counter(), left_out, filtered)
    accounts.resolved(BATCH)

    totals = accounts.totals
    assert totals.in_flight == 0
    assert totals.dead_letters == sum(OnError.DEAD_LETTER in outcomes for outcomes in records)
    assert totals.filtered == sum(all(one == "filtered" for one in outcomes) for outcomes in records)
