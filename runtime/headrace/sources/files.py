"""Files as a source: what a user says about them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from headrace.errors import ConfigError, SourceError
from headrace.record import LaneId, OnError, PartitionId, SourceContext, SourceEvent
from headrace.sources.compression import Compression
from headrace.sources.discovery import check_paths, find_files, format_suffix
from headrace.sources.file_lane import Reading
from headrace.sources.splitting import CsvRecords, Lines
from headrace.sources.watch import FileWatch

Format = Literal["ndjson", "csv", "lines"]
_OF_SUFFIX: Mapping[str, Format] = {".csv": "csv"}


def choose_format(asked: str, paths: Sequence[str], decode: type) -> Format:
    """The format that was asked for, or the one that the paths' suffixes tell. Raises `ConfigError`."""
    match asked:
        case "ndjson" | "csv" | "lines":
            return asked
        case "auto":
            pass
        case _:
            raise ConfigError(f'format={asked!r} is not known; use "auto", "ndjson", "csv" or "lines"')
    if decode is bytes:
        return "lines"
    formats: set[Format] = {_OF_SUFFIX.get(format_suffix(path), "ndjson") for path in paths}
    if len(formats) > 1:
        raise ConfigError(
            f"{', '.join(paths)}: CSV files and others cannot be read by one source; use one source for each,"
            ' or say format="csv" or format="ndjson"'
        )
    return formats.pop() if formats else "ndjson"


def decode_type(decode: type, format_: Format) -> type:
    """Lines that are not decoded are bytes."""
    return bytes if format_ == "lines" and decode is dict else decode


def choose_policy(on_error: OnError | str | None) -> OnError | None:
    try:
        return None if on_error is None else OnError(on_error)
    except ValueError:
        raise ConfigError(f'on_error={on_error!r} is not known; use "fail", "skip" or "dead_letter"') from None


class Files:
    """Files by path or by pattern, one partition a file.

    ``paths``: a path, or several; ``*``, ``?``, ``[…]`` and ``**`` are wildcards. A path without wildcards must be
    there at start; a pattern must match something at start, unless the files are followed.

    ``decode``: the type of a record: a `msgspec.Struct`, ``dict`` for any JSON, ``bytes`` for undecoded lines.

    ``format``: ``ndjson``, ``csv`` or ``lines``; ``auto`` goes by the suffix (``.csv``; all others are NDJSON), and
    is ``lines`` for ``decode=bytes``. In CSV a record ends at a newline outside quotes, fields are parted by commas,
    and a file begins with its header.

    ``follow``: go on for ever, with what is appended and with new files. Rotation by rename loses nothing. Where a
    file is copied and truncated, lines written between the two are in no file and cannot be read. A last line without
    its newline waits for it; without ``follow`` it is a record.

    ``compression``: ``auto`` looks at the first bytes; ``gzip``, ``zstd`` and ``none`` insist.

    A file is recognised by its content: renamed or packed, it goes on where it was; truncated or rewritten, it is a
    new partition, with a warning. The rest of a file that was rotated is read where it lies beside its old name, also
    under a name that no path matches.
    """

    replayable = True

    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        decode: type = dict,
        format: Literal["auto", "ndjson", "csv", "lines"] = "auto",  # noqa: A002 - the word that users know
        follow: bool = False,
        on_error: OnError | Literal["fail", "skip", "dead_letter"] | None = None,
        compression: Literal["auto", "gzip", "zstd", "none"] = "auto",
    ) -> None:
        listed = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
        if not listed:
            raise ConfigError("Files() names no file; give a path, or a pattern such as logs/*.ndjson")
        self.paths = tuple(os.fspath(path) for path in listed)
        if not all(self.paths):
            raise ConfigError("Files(): a path is empty")
        self.format: Format = choose_format(format, self.paths, decode)
        self.decode = decode_type(decode, self.format)
        self.follow = follow
        self.on_error = choose_policy(on_error)
        self.compression = self._check_compression(compression)
        self._watch: FileWatch | None = None

    @staticmethod
    def _check_compression(compression: str) -> Compression | None:
        try:
            return None if compression == "auto" else Compression(compression)
        except ValueError:
            raise ConfigError(
                f'compression={compression!r} is not known; use "auto", "gzip", "zstd" or "none"'
            ) from None

    @property
    def bounded(self) -> bool:
        return not self.follow

    def __repr__(self) -> str:
        return f"Files({', '.join(map(repr, self.paths))})"

    def resolve(self, cwd: str | os.PathLike[str]) -> Files:
        """The same source with paths that do not depend on the working directory."""
        return Files(
            [str(Path(cwd, path)) for path in self.paths],
            decode=self.decode,
            format=self.format,
            follow=self.follow,
            on_error=self.on_error,
            compression="auto" if self.compression is None else self.compression.value,
        )

    def check(self) -> None:
        """Refuse, before anything is started, what `open` would refuse. Raises `SourceError` naming the path."""
        check_paths(self.paths)
        found = find_files(self.paths)
        if not found and not self.follow:
            raise SourceError(f"{', '.join(self.paths)}: no file matches; correct the path")
        for path in found:
            if not os.access(path, os.R_OK):
                raise SourceError(f"{path}: cannot be read (permission denied); correct its rights")

    def progress(self) -> tuple[int, int] | None:
        """Bytes as stored: read, and in all; None while following, which has no end."""
        return None if self.follow or self._watch is None else self._watch.progress()

    def open(self, ctx: SourceContext) -> None:
        """Find the files. Raises `SourceError` naming a path that is not there or cannot be read."""
        reading = Reading(
            rule=CsvRecords() if self.format == "csv" else Lines(),
            with_header=self.format == "csv",
            follow=self.follow,
        )
        watch = FileWatch(ctx, self.paths, reading, self.compression)
        try:
            watch.open()
        except BaseException:
            watch.close()
            raise
        self._watch = watch

    @property
    def _opened(self) -> FileWatch:
        if self._watch is None:
            raise ConfigError(f"{self!r} is not open")
        return self._watch

    def poll_events(self) -> SourceEvent:
        return self._opened.events()

    def next_due(self) -> float | None:
        return self._opened.next_due()

    def pause(self, lanes: Sequence[LaneId]) -> None:
        for lane in self._opened.lanes_of(lanes):
            lane.paused = True

    def resume(self, lanes: Sequence[LaneId]) -> None:
        for lane in self._opened.lanes_of(lanes):
            lane.paused = False

    def commit(self, positions: Mapping[PartitionId, int]) -> None:
        self._opened.commit(positions)

    def flush_commits(self) -> None:
        """Positions are kept in the state directory; nothing is left to write."""

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
