"""What tests of the real command share."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.process.run_headrace import Headrace


@pytest.fixture
def headrace(tmp_path: Path) -> Iterator[Headrace]:
    """The command in a folder of the test's own; all its processes are ended with the test."""
    with closing(Headrace(tmp_path)) as headrace:
        yield headrace
