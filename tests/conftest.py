"""What holds for every test: it leaves nothing behind, and Hypothesis knows no deadlines."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.leaks import Belongings, become_subreaper, leaks_since
from tests.scale import IN_CI

settings.register_profile("laptop", deadline=None)
settings.register_profile(
    "ci", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ci" if IN_CI else "laptop")


@pytest.fixture(scope="session", autouse=True)
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder for temporary files of this process and its children, empty between tests."""
    become_subreaper()
    folder = tmp_path_factory.mktemp("scratch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def nothing_is_left_behind(scratch: Path) -> Iterator[None]:
    """Fails the test that leaves a process, zombie, thread, descriptor, memfd or temporary file behind."""
    before = Belongings.now(scratch)
    yield
    left = leaks_since(before, scratch)
    assert not left, "the test left behind: " + "; ".join(left)
