"""Records as they were decoded, each with its line and the position that follows it; and decoding one by one."""

from __future__ import annotations

import itertools
import operator
from array import array
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from headrace.chain.cause import FATAL, cause_of, clean
from headrace.chain.output import UndecodableRow
from headrace.record import BadRecord, OnError, PayloadBatch

BOM: Final = b"\xef\xbb\xbf"


class Decoded(msgspec.Struct):
    """Records with, in parallel, one past each one's position, and its bytes.

    ``numbers`` says which payload of the batch each record is; None: record i is payload i, or there is a block.
    """

    records: list[object]
    ends: array[int]
    bad: list[BadRecord]
    lines: list[bytes]
    numbers: list[int] | None = None


def decode_payloads(batch: PayloadBatch, decode: Callable[[bytes], object], policy: OnError) -> Decoded:
    """Each payload a record."""
    assert batch.payloads is not None
    assert batch.ends is not None
    return decode_each(batch, list(batch.payloads), batch.ends, decode, policy)


def decode_each(
    batch: PayloadBatch, texts: list[bytes], ends: array[int], decode: Callable[[bytes], object], policy: OnError
) -> Decoded:
    """Decode one by one, setting the bad ones apart."""
    records: list[object] = []
    numbers: list[int] = []
    bad: list[BadRecord] = []
    for number, text in enumerate(texts):
        try:
            records.append(decode(text))
        except FATAL:
            raise
        except BaseException as error:  # noqa: BLE001 (a Struct's __post_init__ may raise anything)
            bad.append(
                BadRecord(
                    partition=batch.partition,
                    position=ends[number] - 1,
                    stage="decode",
                    cause=decode_cause(error),
                    raw=text,
                    policy=policy,
                )
            )
        else:
            numbers.append(number)
    if not bad:
        return Decoded(records, ends, [], texts)
    left = array("q", [ends[number] for number in numbers])
    return Decoded(records, left, bad, [texts[number] for number in numbers], numbers)


def decode_rows(
    lines: Sequence[bytes], decode: Callable[[bytes], object], policy: OnError
) -> tuple[list[object], list[UndecodableRow]]:
    """Decode carried lines one by one: the records, and the rows that are none."""
    records: list[object] = []
    bad: list[UndecodableRow] = []
    for row, line in enumerate(lines):
        try:
            records.append(decode(line))
        except FATAL:
            raise
        except BaseException as error:  # noqa: BLE001 (a Struct's __post_init__ may raise anything)
            bad.append(UndecodableRow(row, "decode", decode_cause(error), policy, bytes(line)))
    return records, bad


def decode_cause(error: BaseException) -> str:
    """msgspec's and Python's own decoders speak for themselves."""
    if isinstance(error, msgspec.MsgspecError | UnicodeError):
        return clean(str(error))
    return cause_of(error)


def split_lines(block: bytes) -> list[bytes]:
    """The lines without their newlines; a block may lack the last one."""
    lines = block.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines


def line_ends(lines: list[bytes], start: int, end: int) -> array[int]:
    """One past the newline of each line; ``end`` is where the last one ends, with or without a newline."""
    numbers = range(start + 1, start + 1 + len(lines))
    ends = array("q", list(map(operator.add, itertools.accumulate(map(len, lines)), numbers)))
    if ends:
        ends[-1] = end
    return ends


def without_bom(block: bytes, start: int) -> tuple[bytes, int]:
    if start == 0 and block.startswith(BOM):
        return block[len(BOM) :], len(BOM)
    return block, start
