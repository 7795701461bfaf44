"""The shipped unit file says what the service manager must do when headrace stops, fails or loses a worker."""

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

from headrace.config.settings import Settings

UNIT = Path(__file__).parents[2] / "deploy" / "headrace.service"


@pytest.fixture
def service() -> dict[str, str]:
    unit = configparser.ConfigParser(interpolation=None, comment_prefixes=("#",), strict=True)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # keys of a unit file are case-sensitive
    unit.read(UNIT, encoding="utf-8")
    return dict(unit["Service"])


def test_one_worker_out_of_memory_does_not_stop_the_service(service: dict[str, str]) -> None:
    """O05"""
    assert service["OOMPolicy"] == "continue"
    assert service["KillMode"] == "mixed"
    assert service["Restart"] == "on-failure"


def test_the_manager_waits_longer_than_a_drain_and_a_kill_take(service: dict[str, str]) -> None:
    """R06, O05"""
    settings = Settings()

    assert float(service["TimeoutStopSec"]) > settings.drain.timeout + settings.fleet.kill_timeout


def test_what_a_restart_cannot_cure_is_not_restarted(service: dict[str, str]) -> None:
    assert service["RestartPreventExitStatus"].split() == ["2", "4"]


def test_the_state_is_private_and_inside_the_only_writable_folder(service: dict[str, str]) -> None:
    assert service["StateDirectoryMode"] == "0700"
    assert service["ProtectSystem"] == "strict"
    assert service["WorkingDirectory"] == f"/var/lib/{service['StateDirectory']}"
    assert f"--state {service['WorkingDirectory']}/" in service["ExecStart"]


def test_nothing_is_forbidden_that_the_workers_need(service: dict[str, str]) -> None:
    assert "AF_UNIX" in service["RestrictAddressFamilies"].split()
    assert service["SystemCallFilter"] == "@system-service"
    assert "MemoryDenyWriteExecute" not in service


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    installed = tmp_path / UNIT.name
    text = UNIT.read_text(encoding="utf-8")
    installed.write_text(text.replace("/opt/headrace/bin/headrace", "/bin/true"), encoding="utf-8")

    verified = subprocess.run(
        ["systemd-analyze", "verify", str(installed)], capture_output=True, text=True, timeout=30, check=False
    )

    assert (verified.returncode, verified.stderr) == (0, "")
