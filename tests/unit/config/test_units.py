"""Sizes and durations, there and back."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.units import UnitError, format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("256KiB", 262144), ("1.5MB", 1_500_000), ("4096", 4096), ("8 MiB", 8 * 2**20), ("1gib", 2**30), ("0B", 0)],
)
def test_a_size_is_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("50ms", 0.05), ("1s", 1.0), ("2m", 120.0), ("1h", 3600.0), ("0.5", 0.5), ("200us", 0.0002), ("1d", 86400.0)],
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "KiB", "-1KiB", "1.5B", "12QB", "1e400KiB", "nan", "٣KiB", "1 2", "9e30B"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UnitError):
        parse_size(text)


@pytest.mark.parametrize("text", ["", "s", "-1s", "1M", "1 second", "inf", "nan", "1e999s", "0x10s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UnitError):
        parse_duration(text)


def test_a_unit_that_may_mean_two_things_is_refused_with_both() -> None:
    with pytest.raises(UnitError, match=r"MiB \(1024\) or MB \(1000\)"):
        parse_size("64M")


@given(st.integers(0, 2**62))
def test_every_size_survives_being_written(size: int) -> None:
    assert parse_size(format_size(size)) == size


@given(st.floats(0, 1e9, allow_nan=False))
def test_every_duration_survives_being_written(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.text(max_size=12))
def test_any_text_is_a_value_or_a_unit_error(text: str) -> None:
    for parse in (parse_size, parse_duration):
        with contextlib.suppress(UnitError):
            assert parse(text) >= 0
