"""The ledger as it is listed."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from headrace.cli.main import call
from headrace.lease.fences import WorkerAttribution
from headrace.lease.handoff import LeaseKey
from headrace.record import ChunkId, ShardNo, SinkNo
from headrace.supervisor.journal import Journal, begin_incarnation


def key(chunk: int) -> LeaseKey:
    return LeaseKey(SinkNo(0), ShardNo(1), ChunkId(chunk), 1)


def worker(name: str, pid: int) -> WorkerAttribution:
    return WorkerAttribution(name=name, pid=pid, start_ticks=5, host="here", version="1")


def test_each_lease_is_listed_with_what_ended_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db, recovered = begin_incarnation(tmp_path / "state.db", "flights")
    journal = Journal(db, tmp_path / "state.db", tmp_path / "letters.db", recovered.incarnation, socket.gethostname())
    journal.lease(key(1), worker("w0", 10), "aa")
    journal.ended("lost", key(1), "w0", "lost", 5)
    journal.lease(key(1), worker("w1", 11), "bb")
    journal.lease(key(2), worker("w1", 11), "cc")
    journal.ended("done", key(1), "w1", "delivered", 5)
    journal.close(5.0)

    assert call(["leases", "--state", str(tmp_path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["leases"]

    assert [(row["chunk"], row["worker"], row["pid"], row["ended"]) for row in rows] == [
        (2, "w1", 11, None),
        (1, "w1", 11, "done"),
        (1, "w0", 10, "lost"),
    ]
    assert call(["leases", "--state", str(tmp_path), "--limit", "1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_directory_without_a_journal_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["leases", "--state", str(tmp_path)]) == 2

    assert "holds no journal" in capsys.readouterr().err
