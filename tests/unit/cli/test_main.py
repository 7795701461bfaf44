"""One command line: its exit code, and what it says where."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.main import call

BROKEN = """\
import json

def load():
    return json.loads("{")

load()
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_STATE", raising=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runn"], "error: no such command 'runn'"),
        (["run"], "error: missing argument 'PIPELINE'"),
        (["run", "a.py", "--worker", "2"], "error: no such option"),
        (["run", "missing.py"], "error: cannot read the pipeline missing.py: there is no such file"),
        (["run", "."], "it is a directory"),
        (["run", "a.txt"], "error: a.txt is neither a .py nor a .toml file"),
        (["run", "a.py", "--set", "rows"], "error: --set rows: expected KEY=VALUE"),
        (["run", "a.py", "--set", "batch.max_row=2"], "did you mean batch.max_rows?"),
        (["run", "a.py", "--workers", "many"], "error: --workers: workers is 'many'; expected a whole number"),
        (["check", "a.py", "--config", "no.toml"], "error: cannot read no.toml: No such file or directory"),
        (["status"], "error: there is no state directory under"),
    ],
)
def test_what_cannot_be_understood_is_refused_in_a_line_or_two(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """X01"""
    Path("a.txt").touch()

    assert call(arguments) == 2

    said = capsys.readouterr()
    assert message in said.err
    assert "Traceback" not in said.err
    assert len(said.err.splitlines()) <= 2
    assert said.out == ""
    assert not Path(".headrace").exists()


def test_a_refusal_is_an_object_with_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["run", "missing.py", "--json"]) == 2

    said = capsys.readouterr()
    assert json.loads(said.out)["exit_code"] == 2
    assert "no such file" in json.loads(said.out)["error"]


def test_a_pipeline_that_raises_shows_its_own_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken_flights.py").write_text(BROKEN)

    assert call(["check", "broken_flights.py"]) == 2

    err = capsys.readouterr().err
    assert "error: broken_flights.py, line 4: json.decoder.JSONDecodeError" in err
    assert 'broken_flights.py", line 4, in load' in err
    assert "headrace/" not in err
    assert "importlib" not in err


@pytest.mark.parametrize("verb", ["run", "check", "start", "stop", "status", "leases", "connectors"])
def test_every_verb_explains_itself(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call([verb, "--help"]) == 0

    out = capsys.readouterr().out
    assert "--json" in out
    assert out.startswith(f"Usage: headrace {verb}")


def test_no_verb_at_all_shows_the_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    assert call([]) == 2
    assert call(["--help"]) == 0

    assert "connectors" in capsys.readouterr().out


def test_connectors_are_listed_with_their_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["connectors", "--json"]) == 0

    rows = json.loads(capsys.readouterr().out)["connectors"]
    assert {"sqlite", "stdout", "files"} <= {row["name"] for row in rows}
    assert all(row["package"].startswith("headrace") for row in rows if row["name"] == "sqlite")


def test_the_command_imports_little() -> None:
    code = "import sys, headrace.cli.main as m; m.call(['run', '--help']); print(*sys.modules)"

    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    loaded = set(found.stdout.split())
    assert "click" in loaded
    heavy = {"rich", "structlog", "sqlite3", "asyncio", "dill", "multiprocess", "psutil", "importlib.metadata"}
    assert not loaded & heavy


def test_python_dash_m_is_the_same_command() -> None:
    found = subprocess.run([sys.executable, "-m", "headrace", "status"], capture_output=True, text=True, check=False)

    assert found.returncode == 2
    assert found.stderr.startswith("error: there is no state directory")
