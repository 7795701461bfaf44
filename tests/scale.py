"""How far the tests count: HEADRACE_SCALE scales the slow ones, HEADRACE_CI makes their random choices repeatable.

Both are taken out of the environment here, which conftest.py imports first: `headrace` refuses unknown settings in it.
"""

import os
from typing import Final

IN_CI: Final = os.environ.pop("HEADRACE_CI", "") not in {"", "0"}
SCALE: Final = float(os.environ.pop("HEADRACE_SCALE", "0.1"))


def scaled(count: float, *, least: int = 1) -> int:
    """The full ``count`` of a slow test times HEADRACE_SCALE, at least ``least``."""
    return max(least, round(count * SCALE))
