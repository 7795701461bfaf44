"""What comes out of a chain: rows with their keys and records, and the records that cannot go on."""

from __future__ import annotations

from array import array
from typing import NamedTuple

import msgspec

from headrace.record import BadRecord, OnError


class Failure(NamedTuple):
    """A record that cannot go on, by its number in the batch."""

    record: int
    stage: str
    cause: str
    policy: OnError


class Emission(msgspec.Struct):
    """The rows for one sink, in order.

    ``keys`` runs parallel to ``rows``; None: keyless. ``index`` is each row's record in the batch, never falling;
    None: row i is record i.
    """

    sink: int
    rows: list[object]
    keys: list[object] | None
    index: array[int] | None


class ChainOutput(msgspec.Struct, kw_only=True):
    """What the supervisor's chain made of one source batch.

    ``bad`` are the skipped and dead-lettered records, those that the source rejected among them, by position.
    ``fatal`` is the first record found whose policy is ``fail``; then there are no emissions. ``records`` counts all
    source records, ``filtered`` those of which no row is left, bad ones apart. ``ends`` is, for each decoded record,
    one past its position.
    """

    emissions: list[Emission]
    bad: list[BadRecord]
    fatal: BadRecord | None
    records: int
    filtered: int
    ends: array[int]


class WorkerOutput(msgspec.Struct, kw_only=True):
    """What the worker's chain made of some rows. ``index`` is each row's input row; None: row i comes of row i."""

    rows: list[object]
    index: array[int] | None
    bad: list[Failure]
    fatal: Failure | None
    filtered_records: int


class UndecodableRow(NamedTuple):
    """A carried row that is no record of the source's type."""

    row: int
    stage: str
    cause: str
    policy: OnError
    raw: bytes
