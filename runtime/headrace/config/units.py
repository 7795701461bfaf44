"""Sizes and durations as people write them: ``"256KiB"`` to bytes, ``"50ms"`` to seconds, and back without loss."""

from __future__ import annotations

import math
import re

_SIZES = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_SIZE_BY_LOWER = {name.lower(): factor for name, factor in _SIZES.items()}
_WRITTEN_SIZES = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))

# A unit is a fraction of seconds: 50ms is 50 * 1 / 1000, which rounds once and so equals the literal 0.05.
_DURATIONS = {"us": (1, 10**6), "ms": (1, 10**3), "s": (1, 1), "m": (60, 1), "h": (3600, 1), "d": (86400, 1)}
_NUMBER_AND_UNIT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?)\s*([A-Za-z]*)\s*", re.ASCII)


class UnitError(ValueError):
    """A text that is no size or no duration; the message says what is expected."""


def parse_size(text: str) -> int:
    """Bytes in ``"256KiB"``, ``"1.5MB"`` or ``"4096"``. KiB is 1024 bytes, kB is 1000; letters in either case."""
    number, unit = _split(text, 'a size such as "256KiB"')
    if unit.lower() in ("k", "m", "g", "t"):
        raise UnitError(f"{text!r} may mean 1000 or 1024: write {unit.upper()}iB (1024) or {unit}B (1000)")
    factor = _SIZE_BY_LOWER.get(unit.lower() or "b")
    if factor is None:
        raise UnitError(f"{text!r} has an unknown unit; a size ends with one of {', '.join(_SIZES)}")
    size = int(number) * factor if number.isdigit() else _whole(float(number) * factor, text)
    if size >= 2**63:
        raise UnitError(f"{text!r} is more than a 64-bit count of bytes")
    return size


def format_size(size: int) -> str:
    """The shortest exact way to write ``size`` that `parse_size` reads back."""
    for unit, factor in _WRITTEN_SIZES:
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return f"{size}B"


def parse_duration(text: str) -> float:
    """Seconds in ``"50ms"``, ``"1.5s"``, ``"2m"``, ``"1h"``; a number without a unit counts seconds."""
    number, unit = _split(text, 'a duration such as "200ms"')
    if (unit or "s") not in _DURATIONS:
        raise UnitError(f"{text!r} has an unknown unit; a duration ends with one of {', '.join(_DURATIONS)}")
    times, parts = _DURATIONS[unit or "s"]
    seconds = float(number) * times / parts
    if not math.isfinite(seconds):
        raise UnitError(f"{text!r} is too long a time")
    return seconds


def format_duration(seconds: float) -> str:
    """A short way to write ``seconds`` that `parse_duration` reads back to the same float."""
    candidates = [_written(seconds, unit) for unit in (("ms", "us") if 0 < seconds < 1 else ("d", "h", "m", "s"))]
    exact = [text for text in candidates if text is not None and parse_duration(text) == seconds]
    return exact[0] if exact else f"{seconds!r}s"


def _written(seconds: float, unit: str) -> str | None:
    times, parts = _DURATIONS[unit]
    count = round(seconds * parts / times)
    return f"{count}{unit}" if count else None


def _split(text: str, expected: str) -> tuple[str, str]:
    found = _NUMBER_AND_UNIT.fullmatch(text)
    if found is None:
        raise UnitError(f"{text!r} is not {expected}")
    return found[1], found[2]


def _whole(size: float, text: str) -> int:
    if not size.is_integer():
        raise UnitError(f"{text!r} is not a whole number of bytes")
    return int(size)
