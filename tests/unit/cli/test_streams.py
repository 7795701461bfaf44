"""Who gets the real standard output."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os, sys
from headrace.cli.streams import SavedStdout, write_whole
print("before")
saved = SavedStdout()
print("while")
os.system("echo child")
write_whole(saved.fd, b"report\\n")
saved.give_back()
print("after")
saved.close()
"""


def test_prints_go_to_stderr_until_stdout_is_given_back() -> None:
    found = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)

    assert found.stdout == "before\nreport\nafter\n"
    assert found.stderr == "while\nchild\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_a_closed_stream_is_no_files_number(closed: str) -> None:
    code = (
        "import os; from headrace.cli.streams import SavedStdout; s = SavedStdout(); "
        "os._exit(0 if s.fd > 2 and os.open('/dev/null', 0) > 2 else 1)"
    )

    assert os.system(f'{sys.executable} -c "{code}" {closed}') == 0
