"""Rows as newline-delimited JSON to nowhere: counted and dropped, for trying a pipeline and for measuring the path."""

from __future__ import annotations

from typing import ClassVar

from headrace.codec.rows import Codec
from headrace.sinks.base import Sink


class Blackhole(Sink, frozen=True, kw_only=True):
    """``Blackhole()``."""

    writer: ClassVar[str] = "blackhole"
    codec: ClassVar[Codec] = Codec.JSON_LINES
