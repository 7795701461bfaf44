"""Rows as newline-delimited JSON on the run's standard output.

Lines of several workers never mix within a line. A reader that stops reading stops the run; when it does not read for
longer than ``retry.attempt_timeout`` the waiting worker is replaced, and lines that were written already come again.
"""

from __future__ import annotations

from typing import ClassVar

from headrace.codec.rows import Codec
from headrace.sinks.base import Sink


class Stdout(Sink, frozen=True, kw_only=True):
    """``Stdout()``."""

    writer: ClassVar[str] = "stdout"
    codec: ClassVar[Codec] = Codec.JSON_LINES
