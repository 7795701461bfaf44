"""What can be said of a state directory without touching it or taking its lock."""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path

import msgspec

from headrace.cli.state_reading import open_unchanged

_LITTLE_SPACE = 64 * 2**20


class StateFindings(msgspec.Struct, kw_only=True):
    """What was found: what a start would be refused for, what deserves a look, and what is kept there."""

    path: Path
    exists: bool = False
    live: bool = False
    shards: int | None = None
    problems: list[str] = msgspec.field(default_factory=list[str])
    warnings: list[str] = msgspec.field(default_factory=list[str])


def inspect_state(path: Path, pipeline: str) -> StateFindings:
    """Look at a state directory as a start of this pipeline would. Never raises, never writes there."""
    findings = StateFindings(path=path)
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        _check_parent(findings)
        return findings
    except OSError as error:
        findings.problems.append(f"{path}: {error.strerror} (uid {os.geteuid()})")
        return findings
    findings.exists = True
    _check_folder(findings, found)
    if not findings.problems:
        _check_contents(findings, pipeline)
    return findings


def _check_parent(findings: StateFindings) -> None:
    from headrace.cli.state_choice import DEFAULT_ROOT

    parent = findings.path.parent
    if parent == DEFAULT_ROOT.resolve() and not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        findings.problems.append(f"{parent} does not exist; make it, or give another --state")
    elif not os.access(parent, os.W_OK | os.X_OK):
        findings.problems.append(f"{parent} cannot be written to (uid {os.geteuid()}); give another --state")


def _check_folder(findings: StateFindings, found: os.stat_result) -> None:
    path = findings.path
    if not stat.S_ISDIR(found.st_mode):
        findings.problems.append(f"{path} is not a directory; --state names a directory")
        return
    if found.st_uid != os.geteuid():
        findings.problems.append(f"{path} belongs to uid {found.st_uid}, this process runs as uid {os.geteuid()}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        findings.problems.append(f"{path} can be written by others; run: chmod 700 {path}")
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        findings.problems.append(f"{path} cannot be written to (uid {os.geteuid()}, mode {found.st_mode & 0o777:04o})")


def _check_contents(findings: StateFindings, pipeline: str) -> None:
    from headrace.config.feasibility import about
    from headrace.config.memory import free_space, memory_room
    from headrace.supervisor.state_dir import is_locked

    path = findings.path
    findings.live = is_locked(path)
    if findings.live:
        findings.warnings.append(f"a run is live on {path}; another start would be refused")
    free = free_space(path, memory_room())
    if free < _LITTLE_SPACE:
        findings.warnings.append(f"{path} has {about(free)} left to write")
    database = path / "state.db"
    if not database.exists():
        return
    try:
        with open_unchanged(database, live=findings.live) as connection:
            _check_database(findings, connection, pipeline)
    except sqlite3.Error as error:
        findings.problems.append(f"{database} cannot be read as a database ({error}); restore it or move it away")
    except OSError as error:
        findings.problems.append(f"{database} could not be looked into: {error.strerror}: {error.filename}")


def _check_database(findings: StateFindings, connection: sqlite3.Connection, pipeline: str) -> None:
    from headrace.supervisor.journal import SCHEMA

    path = findings.path
    if not findings.live:
        verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            findings.problems.append(f"{path}/state.db is damaged ({verdict}); restore it or move it away")
            return
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    meta = dict(connection.execute("SELECT key, value FROM meta")) if "meta" in tables else {}
    schema, name, shards = meta.get("schema"), meta.get("pipeline"), meta.get("shards")
    if isinstance(schema, int | str) and str(schema).isdigit() and int(schema) > SCHEMA:
        findings.problems.append(f"{path} was written by a newer headrace (schema {schema}, this one knows {SCHEMA})")
    if name is not None and name != pipeline:
        findings.problems.append(f"{path} belongs to pipeline {name!r}, not {pipeline!r}; give another --state")
    findings.shards = int(shards) if isinstance(shards, int | str) and str(shards).isdigit() else None
