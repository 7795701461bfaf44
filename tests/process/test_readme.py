"""The README's examples run as they stand there, in order, in an empty folder."""

import re
import shlex
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.process.run_headrace import Headrace

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "examples" / "data" / "flights-20000.ndjson.gz"
DEPARTED = 19_822
"""Flights of the sample that have a departure delay."""

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def blocks() -> list[tuple[str, str]]:
    """The README's fenced blocks: language and text."""
    return _FENCE.findall((ROOT / "README.md").read_text(encoding="utf-8"))


@pytest.fixture
def folder(headrace: Headrace) -> Path:
    (headrace.folder / "data").mkdir()
    shutil.copy(SAMPLE, headrace.folder / "data" / "flights.ndjson.gz")
    return headrace.folder


def test_the_examples_of_the_readme_run(headrace: Headrace, folder: Path, blocks: list[tuple[str, str]]) -> None:
    for language, text in blocks:
        if language in {"python", "toml"}:
            (folder / _file_name(text)).write_text(text, encoding="utf-8")
        elif language == "console":
            for command in _commands(text):
                _run(headrace, command)

    with closing(sqlite3.connect(folder / "flights.db")) as db:
        assert db.execute("SELECT count(*) FROM flights").fetchone() == (DEPARTED,)
    written = b"".join(part.read_bytes() for part in (folder / "delays").rglob("*") if part.is_file())
    assert written.count(b"\n") == DEPARTED


def test_the_links_of_the_documents_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "deploy").glob("*.md")]

    broken = [
        f"{page.name}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]

    assert broken == []


def _file_name(text: str) -> str:
    """A block that is a file says its name in its first line: ``# flights.py``."""
    named = re.match(r"# (\S+\.(?:py|toml))\n", text)
    assert named is not None, f"the block names no file:\n{text}"
    return named[1]


def _commands(text: str) -> list[str]:
    return [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]


def _run(headrace: Headrace, command: str) -> None:
    """`headrace` is run by the harness; `sqlite3` by Python's own, since the machine may not have the command."""
    program, *arguments = shlex.split(command)
    if program == "headrace":
        headrace.run(*arguments).expect(0)
    elif program == "mkdir":
        (headrace.folder / arguments[0]).mkdir()
    else:
        assert program == "sqlite3", f"the test cannot run {command!r}"
        with closing(sqlite3.connect(headrace.folder / arguments[0])) as db:
            assert db.execute(arguments[1]).fetchall()
