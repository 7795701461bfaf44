"""Which files a pattern names, and which files beside a path may be what it was before a rotation."""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from headrace.errors import SourceError

_SUFFIXES = frozenset({".gz", ".zst", ".zstd"})
_ROTATED = re.compile(r"(?:\.(?:gz|zst|zstd)|[._-]?\d+)+$")


def is_pattern(path: str) -> bool:
    """A path with wildcards. One that exists as it is written is a path."""
    return glob.has_magic(path) and not os.path.lexists(path)


def check_paths(paths: Sequence[str]) -> None:
    """Refuse what can never be found: a path without wildcards that is not there, a pattern in no directory."""
    for path in paths:
        if is_pattern(path):
            base = _fixed_directory(path)
            if not base.is_dir():
                raise SourceError(f"{path}: the directory {base} does not exist; create it or correct the path")
            continue
        try:
            mode = Path(path).stat().st_mode
        except OSError as error:
            raise SourceError(f"{path}: cannot be read ({error.strerror}); correct the path or its rights") from error
        if stat.S_ISDIR(mode):
            raise SourceError(f"{path}: is a directory; name its files, for example {path.rstrip('/')}/*.ndjson")
        if not stat.S_ISREG(mode):
            raise SourceError(f"{path}: is not a regular file; use Stdin() for a pipe")


def find_files(paths: Sequence[str]) -> list[Path]:
    """The regular files that the paths name now, in order, each name once. What cannot be looked at is left out."""
    found: dict[str, None] = {}
    for path in paths:
        # Path.glob takes no absolute pattern.
        names = sorted(glob.glob(path, recursive=True)) if is_pattern(path) else [path]  # noqa: PTH207
        found.update(dict.fromkeys(names))
    return [Path(name) for name in found if _is_regular(name)]


def find_rotated(path: Path, inodes: Iterable[tuple[int, int]]) -> list[Path]:
    """Files in the directory of ``path`` that begin with its name, or are one of ``inodes``; itself not."""
    wanted = set(inodes)
    found: list[str] = []
    try:
        with os.scandir(path.parent) as entries:
            for entry in entries:
                if entry.name == path.name or not entry.is_file():
                    continue
                if entry.name.startswith(path.name) or _key(entry.path) in wanted:
                    found.append(entry.path)
    except OSError:
        return []
    return [Path(name) for name in sorted(found)]


def names_are_related(one: Path, other: Path) -> bool:
    """The names differ by what a rotation adds: numbers, dates, a suffix of compression."""
    return _ROTATED.sub("", one.name) == _ROTATED.sub("", other.name)


def format_suffix(path: str) -> str:
    """The suffix that tells a path's format, that of its compression and a wildcard at its end apart."""
    name = Path(path).name.rstrip("*?")
    while Path(name).suffix.lower() in _SUFFIXES:
        name = Path(name).stem.rstrip("*?")
    return Path(name.rstrip(".")).suffix.lower()


def _fixed_directory(pattern: str) -> Path:
    parts = Path(pattern).parts
    fixed: list[str] = []
    for part in parts[:-1]:
        if glob.has_magic(part):
            break
        fixed.append(part)
    return Path(*fixed) if fixed else Path()


def _is_regular(path: str) -> bool:
    try:
        return stat.S_ISREG(Path(path).stat().st_mode)
    except OSError:
        return False


def _key(path: str) -> tuple[int, int] | None:
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
