"""The journal: what is queued first is durable first, and nothing of another incarnation is written."""

import select
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.errors import StateError
from headrace.lease.fences import WorkerAttribution
from headrace.lease.handoff import LeaseKey
from headrace.record import BadRecord, OnError, PartitionId, PartitionIdentity
from headrace.supervisor import journal as journals
from headrace.supervisor.journal import Journal, JournalFailure, Letter, Loss, begin_incarnation, read_leases
from headrace.supervisor.process import ProcessIdentity

WORKER = WorkerAttribution("worker-0", 4711, 99, "here", "1")


def collect_until(journal: Journal, condition: Callable[[], bool], limit: float = 10.0) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline
        select.select([journal.wake_fd], [], [], 0.2)
        journal.collect()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    db, recovered = begin_incarnation(tmp_path / "state.db", "flights")
    made = Journal(db, tmp_path / "state.db", tmp_path / "letters.db", recovered.incarnation, "here")
    yield made
    assert made.close(10.0)


def test_a_new_state_begins_with_incarnation_one_and_nothing(tmp_path: Path) -> None:
    db, recovered = begin_incarnation(tmp_path / "state.db", "flights")
    db.close()

    assert recovered.incarnation == 1
    assert recovered.watermarks == {}
    assert recovered.in_flight == []


def test_positions_survive_and_the_incarnation_rises(tmp_path: Path, journal: Journal) -> None:
    told: list[str] = []
    journal.remember(PartitionIdentity(partition=PartitionId("a#1"), details=b"head"))
    journal.commit({"a#1": 100}, lambda: told.append("done"), lambda failure: told.append(failure.reason))
    collect_until(journal, lambda: bool(told))

    db, recovered = begin_incarnation(tmp_path / "state.db", "flights")
    db.close()

    assert told == ["done"]
    assert recovered.incarnation == 2
    assert recovered.watermarks == {"a#1": 100}
    assert recovered.identities == [PartitionIdentity(partition=PartitionId("a#1"), details=b"head")]


def test_a_former_incarnation_writes_nothing_more(tmp_path: Path, journal: Journal) -> None:
    db, _ = begin_incarnation(tmp_path / "state.db", "flights")
    failures: list[JournalFailure] = []

    journal.commit({"a": 5}, lambda: None, failures.append)
    collect_until(journal, lambda: bool(failures))

    assert failures[0].lost
    assert db.execute("SELECT count(*) FROM watermarks").fetchone() == (0,)
    db.close()


def test_a_lease_without_an_end_is_in_flight_at_the_next_start(tmp_path: Path, journal: Journal) -> None:
    for chunk in (1, 2, 3):
        journal.lease(LeaseKey(0, chunk % 2, chunk, 1), WORKER, "digest")
    journal.ended("done", LeaseKey(0, 0, 2, 1), "worker-0", "delivered", 10)
    journal.ended("lost", LeaseKey(0, 1, 3, 1), "worker-0", "its process ended", 10)
    journal.lease(LeaseKey(0, 1, 3, 1), WORKER, "digest")
    collect_until(journal, lambda: journal.pending == 0)

    db, recovered = begin_incarnation(tmp_path / "state.db", "flights")
    db.close()

    assert [one.chunk for one in recovered.in_flight] == [1, 3]
    assert read_leases(tmp_path / "state.db", 2)[0]["kind"] == "lease"


def test_processes_are_remembered_until_they_are_proved_gone(tmp_path: Path, journal: Journal) -> None:
    stays, goes = ProcessIdentity("boot", 10, 1), ProcessIdentity("boot", 11, 2)
    told: list[int] = []
    journal.process("worker", "worker-0", stays, lambda: told.append(1))
    journal.process("worker", "worker-1", goes, None)
    journal.gone(goes)
    collect_until(journal, lambda: journal.pending == 0)

    db, recovered = begin_incarnation(tmp_path / "state.db", "flights")
    db.close()

    assert told == [1]
    assert recovered.workers == [stays]


def test_losses_add_up_across_incarnations_and_are_forgotten(tmp_path: Path, journal: Journal) -> None:
    """P02: the count is kept under what the chunk holds, not under a number that changes."""
    loss = Loss(0, 3, "a#1", 0, 99)
    journal.losses([loss], lambda: None, lambda failure: None)
    journal.losses([loss], lambda: None, lambda failure: None)
    collect_until(journal, lambda: journal.pending == 0)
    db, recovered = begin_incarnation(tmp_path / "state.db", "flights")

    again = Journal(db, tmp_path / "state.db", tmp_path / "letters.db", recovered.incarnation, "here")
    again.forget_losses([loss])
    collect_until(again, lambda: again.pending == 0)
    left = db.execute("SELECT count(*) FROM losses").fetchone()
    assert again.close(10.0)

    assert recovered.losses == {loss: 2}
    assert left == (0,)


def test_a_dead_letter_is_kept_once_by_where_it_came_from(tmp_path: Path, journal: Journal) -> None:
    record = BadRecord(
        partition=PartitionId("a#1"), position=7, stage="decode", cause="no", raw=b"{", policy=OnError.DEAD_LETTER
    )
    done: list[int] = []

    for _ in range(2):
        journal.letters([Letter("main", 0, record)], lambda: done.append(1), lambda failure: None)
    collect_until(journal, lambda: len(done) == 2)

    with sqlite3.connect(tmp_path / "letters.db") as db:
        assert db.execute("SELECT partition, position, raw FROM letters").fetchall() == [("a#1", 7, b"{")]
    db.close()


def test_a_foreign_state_is_refused(tmp_path: Path) -> None:
    begin_incarnation(tmp_path / "state.db", "flights")[0].close()

    with pytest.raises(StateError, match="belongs to the pipeline 'flights'"):
        begin_incarnation(tmp_path / "state.db", "other")


def test_a_newer_schema_is_refused_and_kept(tmp_path: Path) -> None:
    db, _ = begin_incarnation(tmp_path / "state.db", "flights")
    db.execute("UPDATE meta SET value = 99 WHERE key = 'schema'")
    db.close()

    with pytest.raises(StateError, match="newer headrace"):
        begin_incarnation(tmp_path / "state.db", "flights")


@pytest.mark.parametrize("content", [b"garbage" * 1000, b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_file_that_is_no_database_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    """Z01 and Z03: never a silent fresh start, never an endless recovery."""
    path = tmp_path / "state.db"
    path.write_bytes(content)

    with pytest.raises(StateError, match="kept as it is"):
        begin_incarnation(path, "flights")

    assert path.read_bytes() == content


def test_the_ledger_keeps_its_newest_rows_and_every_open_lease(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HR-9: the ledger is bounded by a number, not by the stream."""
    monkeypatch.setattr(journals, "LEDGER_KEEP", 100)
    monkeypatch.setattr(journals, "_PRUNE_EVERY", 50)
    journal.lease(LeaseKey(0, 0, 1, 1), WORKER, "open")

    for chunk in range(2, 400):
        journal.lease(LeaseKey(0, 0, chunk, 1), WORKER, "digest")
        journal.ended("done", LeaseKey(0, 0, chunk, 1), "worker-0", "delivered", 10)
        if chunk % 20 == 0:
            collect_until(journal, lambda: journal.pending == 0)
    collect_until(journal, lambda: journal.pending == 0)

    rows = read_leases(tmp_path / "state.db", 10_000)
    assert len(rows) < 300
    assert rows[-1]["chunk"] == 1
