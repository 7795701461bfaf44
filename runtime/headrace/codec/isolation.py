"""Finds the bad rows of a group that does not decode as a whole, and says why each is bad."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec

from headrace.errors import CorruptFrameError, RecordError

BAD_ROW: Final = (RecordError, msgspec.MsgspecError, UnicodeError, RecursionError, ValueError, TypeError, OverflowError)
"""What decoding or converting raises for a row."""

Decoded: TypeAlias = tuple[list[Any], list[tuple[int, str]]]
"""The good rows in order; for each bad one its place in the group and the cause."""

GroupDecoder: TypeAlias = Callable[["memoryview | bytes", int], Decoded]
"""Decodes the body of a group of so many rows. Raises `CorruptFrameError`. Keeps no view of the body."""

_split: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])


def one_by_one(rows: list[Any], take: Callable[[Any], Any], explain: Callable[[str], str] = str) -> Decoded:
    """Apply ``take`` to each row; ``explain`` turns an error's text into a cause."""
    good: list[Any] = []
    bad: list[tuple[int, str]] = []
    for at, row in enumerate(rows):
        try:
            good.append(take(row))
        except BAD_ROW as error:
            bad.append((at, explain(str(error) or type(error).__name__)))
    return good, bad


def decode_one_by_one(
    body: memoryview | bytes, count: int, take: Callable[[bytes], Any], explain: Callable[[str], str] = str
) -> Decoded:
    """Split a msgpack array into its items and apply ``take`` to the bytes of each. Raises `CorruptFrameError`."""
    copy = bytes(body)  # the items are views, and an error's traceback would keep them
    try:
        items = [bytes(item) for item in _split.decode(copy)]
    except (msgspec.MsgspecError, RecursionError) as error:
        raise CorruptFrameError(f"a group of {len(copy)} bytes is no array of rows: {error}") from None
    check_count(len(items), count, len(copy))
    return one_by_one(items, take, explain)


def check_count(found: int, said: int, length: int) -> None:
    """Raises `CorruptFrameError` when a group does not hold the rows that its header says."""
    if found != said:
        raise CorruptFrameError(f"a group of {length} bytes holds {found} rows and its header says {said}")
