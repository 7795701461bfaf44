"""Looking at a state directory without touching it (X03)."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from pathlib import Path

import pytest

from headrace.cli.state_check import inspect_state
from headrace.supervisor.journal import SCHEMA


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    path.mkdir(mode=0o700)
    return path


def write_meta(state: Path, **values: object) -> sqlite3.Connection:
    connection = sqlite3.connect(state / "state.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID")
    meta = {"schema": SCHEMA, "pipeline": "flights", "shards": 8, "of a later version": "kept"} | values
    connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
    return connection


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}


def test_a_good_state_directory_is_read_and_left_as_it_is(state: Path) -> None:
    """X03, X04"""
    write_meta(state).close()
    before = contents(state)

    found = inspect_state(state, "flights")

    assert (found.problems, found.shards, found.live) == ([], 8, False)
    assert contents(state) == before


def test_what_only_the_log_holds_is_seen_after_a_crash(state: Path, tmp_path: Path) -> None:
    connection = write_meta(state, shards=5)
    crashed = tmp_path / "crashed"
    crashed.mkdir(mode=0o700)
    for name in ("state.db", "state.db-wal"):
        (crashed / name).write_bytes((state / name).read_bytes())
    connection.close()
    before = contents(crashed)

    found = inspect_state(crashed, "flights")

    assert (found.problems, found.shards) == ([], 5)
    assert contents(crashed) == before


@pytest.mark.parametrize("damage", ["no database", "torn"])
def test_a_damaged_database_is_reported(state: Path, damage: str) -> None:
    """X03"""
    if damage == "torn":
        connection = write_meta(state)
        connection.execute("CREATE TABLE t (x)")
        connection.executemany("INSERT INTO t VALUES (?)", [(os.urandom(200),) for _ in range(500)])
        connection.close()
    path = state / "state.db"
    path.write_bytes(b"not a database" * 100 if damage == "no database" else path.read_bytes()[:-40_000])

    [problem] = inspect_state(state, "flights").problems

    assert "state.db" in problem
    assert "move it away" in problem


def test_a_foreign_and_a_newer_directory_are_reported(state: Path) -> None:
    """X03, X04"""
    write_meta(state, pipeline="trains", schema=SCHEMA + 1).close()

    problems = inspect_state(state, "flights").problems

    assert "newer headrace" in problems[0]
    assert "belongs to pipeline 'trains', not 'flights'" in problems[1]


def test_a_missing_parent_and_a_file_are_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert inspect_state(tmp_path / "new", "flights").problems == []
    assert "does not exist" in inspect_state(tmp_path / "a/b", "flights").problems[0]
    assert "is not a directory" in inspect_state(tmp_path / "file", "flights").problems[0]
    assert "is not a directory" in inspect_state(tmp_path / "file", "flights").problems[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_a_directory_that_others_can_write_to_is_reported(state: Path) -> None:
    """E04"""
    state.chmod(0o777)

    assert "run: chmod 700" in inspect_state(state, "flights").problems[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_reported_with_both(state: Path) -> None:
    """E04"""
    os.chown(state, 1234, 1234)

    assert "belongs to uid 1234, this process runs as uid 0" in inspect_state(state, "flights").problems[0]


def test_a_live_run_is_seen_and_not_disturbed(state: Path) -> None:
    """X03"""
    connection = write_meta(state)
    with open(state / "lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        connection.execute("BEGIN IMMEDIATE")

        found = inspect_state(state, "flights")

    connection.close()
    assert found.live
    assert found.problems == []
    assert found.shards == 8
    assert "a run is live" in found.warnings[0]


def test_a_temporary_directory_that_cannot_be_used_is_said(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """E04"""
    write_meta(state).close()
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")

    assert "/nowhere" in inspect_state(state, "flights").problems[0]
