"""Which state directory a verb means."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.cli.state_choice import default_state, make_default_root, state_for_client, state_for_run
from headrace.errors import ConfigError


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@given(st.text(min_size=1), st.text(min_size=1))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_name_has_a_folder_of_its_own_under_the_root(one: str, other: str) -> None:
    for name in (one, other):
        try:
            folder = default_state(name)
        except UnicodeEncodeError:
            return
        assert folder.parent == Path(".headrace")
        assert folder.name not in ("", ".", "..")
    assert (default_state(one) == default_state(other)) == (one == other)


def test_a_run_uses_the_option_or_its_own_name(tmp_path: Path) -> None:
    assert state_for_run(None, "flights") == tmp_path / ".headrace/flights"
    assert state_for_run(Path("s"), "flights") == tmp_path / "s"


def test_a_client_uses_the_only_one_there_is(tmp_path: Path) -> None:
    (tmp_path / ".headrace/flights").mkdir(parents=True)
    (tmp_path / ".headrace/file").touch()

    assert state_for_client(None, None) == tmp_path / ".headrace/flights"


def test_a_client_with_several_is_told_which(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / ".headrace" / name).mkdir(parents=True)

    with pytest.raises(ConfigError, match=r"(?s)several.*\.headrace/a\n.*\.headrace/b"):
        state_for_client(None, None)
    assert state_for_client(Path("b"), None) == tmp_path / "b"


def test_only_the_default_root_is_made(tmp_path: Path) -> None:
    make_default_root(tmp_path / "elsewhere/state")
    assert list(tmp_path.iterdir()) == []

    make_default_root(state_for_run(None, "flights"))
    assert [path.name for path in tmp_path.iterdir()] == [".headrace"]
