"""Rows as newline-delimited JSON, in part files of a directory.

A part is written as ``.part-NAME`` and given the name ``NAME`` when it is finished: rolled, or at the end of the run.
Names are ``SHARD-INCARNATION-NUMBER-ID.ndjson`` (``.gz``, ``.zst``), where ID is random for each run and worker, so no
part ever replaces another. What a killed worker left open is cut after its last whole line and named by the next
worker that opens the directory. No other file is ever touched.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import ClassVar, Literal, Self

import msgspec

from headrace.codec.rows import Codec
from headrace.config.units import UnitError, parse_duration, parse_size
from headrace.errors import ConfigError
from headrace.sinks.base import Sink


class _InDirectory(Sink, frozen=True):
    directory: str | Path


class NdjsonFiles(_InDirectory, frozen=True, kw_only=True):
    """``NdjsonFiles("out", roll_bytes="64MiB", compress="zstd")``. The directory is made when it is not there.

    A part is rolled by the write that fills it, and by the first write after ``roll_age``.
    """

    writer: ClassVar[str] = "ndjson_files"
    codec: ClassVar[Codec] = Codec.JSON_LINES

    roll_bytes: int | str = 128 * 1024 * 1024
    """A part of this many bytes (``"64MiB"``), as written, is finished."""
    roll_rows: int | None = None
    """A part of this many rows is finished."""
    roll_age: float | str | None = None
    """A part that was begun this long ago (seconds, or ``"10m"``) is finished."""
    compress: Literal["gzip", "zstd"] | None = None
    """Each write becomes a member (gzip) or frame (zstd) of its own, so that a part can always be read so far."""

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            if isinstance(self.roll_bytes, str):
                msgspec.structs.force_setattr(self, "roll_bytes", parse_size(self.roll_bytes))
            if isinstance(self.roll_age, str):
                msgspec.structs.force_setattr(self, "roll_age", parse_duration(self.roll_age))
        except UnitError as error:
            raise ConfigError(f"NdjsonFiles: {error}") from None

    def resolve(self, cwd: Path) -> Self:
        return msgspec.structs.replace(self, directory=str(cwd / self.directory))

    def check(self) -> None:
        super().check()
        path = str(self.directory)
        if not path or "\0" in path:
            raise ConfigError(f"NdjsonFiles: {path!r} cannot be the path of a directory")
        for name in ("roll_bytes", "roll_rows", "roll_age"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"NdjsonFiles: {name}={value!r}; it must be above 0")
        if self.compress not in (None, "gzip", "zstd"):
            raise ConfigError(f"NdjsonFiles: compress={self.compress!r} is not known; 'gzip', 'zstd' or None")
