"""What became of each record: read = written + filtered + skipped + dead-lettered + in flight (HR-8).

A record that stays one row is counted by sums. Where a record may become several rows (``flat_map``, ``split``), each
batch keeps one byte a record, and the record counts once, by the first of failed, in flight, dead-lettered, skipped,
written, filtered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from headrace.record import OnError

WRITTEN, SKIPPED, DEAD_LETTERED = 1, 2, 3
_RANK = {OnError.SKIP: SKIPPED, OnError.DEAD_LETTER: DEAD_LETTERED}


Batch = tuple[str, int, int]
"""Partition, epoch and sequence number of a source batch."""


class _Marks(msgspec.Struct):
    """A batch whose records may have become several rows: the highest rank seen of each, and how many still count."""

    ranks: bytearray
    records: int


class Totals(msgspec.Struct):
    """Counts of this incarnation, in records of the source; ``rows_written`` in rows, as sinks acknowledged them."""

    records_in: int = 0
    written: int = 0
    filtered: int = 0
    skipped: int = 0
    dead_letters: int = 0
    rows_written: int = 0

    @property
    def in_flight(self) -> int:
        """Records that are read and of which nothing final is known."""
        return self.records_in - self.written - self.filtered - self.skipped - self.dead_letters


class Accounts:
    """The books. Without fan-out they are sums; with it, one byte a record of each unresolved batch."""

    def __init__(self, *, fan_out: bool) -> None:
        self.fan_out = fan_out
        self._open: dict[Batch, _Marks] = {}
        self.left_out_at: Counter[str] = Counter()
        """Rows that were skipped or dead-lettered, by stage: ``decode``, an operator's name, ``encode``, ``sink`` …"""
        self.totals = Totals()

    def read(self, batch: Batch, *, records: int, decoded: int, filtered: int, skipped: int, dead: int) -> None:
        """A batch came in. Of its ``records``, these were decided on before anything was handed over."""
        totals = self.totals
        totals.records_in += records
        totals.skipped += skipped
        totals.dead_letters += dead
        if self.fan_out:
            self._open[batch] = _Marks(bytearray(decoded), records - skipped - dead)
        else:
            totals.filtered += filtered

    def left_out(self, batch: Batch, record: int, outcome: OnError) -> None:
        """A row of this record was left out before the hand-over (encode, oversize)."""
        rank = _RANK[outcome]
        if self.fan_out:
            self._raise(self._open[batch].ranks, record, rank)
        elif rank == SKIPPED:
            self.totals.skipped += 1
        else:
            self.totals.dead_letters += 1

    def settled(
        self,
        segments: Iterable[tuple[Batch, Iterable[int]]],
        counts: Counter[str],
        left_out: dict[int, OnError],
        filtered_rows: set[int],
    ) -> None:
        """A chunk was delivered. ``segments``: for each batch, the record of each of the chunk's rows, in row order."""
        totals = self.totals
        totals.rows_written += counts["written"]
        if not self.fan_out:
            totals.skipped += counts["skipped"]
            totals.dead_letters += counts["dead_lettered"]
            totals.filtered += counts["filtered"]
            rows = counts["rows"]
            totals.written += rows - counts["skipped"] - counts["dead_lettered"] - counts["filtered"]
            return
        row = 0
        for batch, records in segments:
            marks = self._open[batch].ranks
            for record in records:
                outcome = left_out.get(row)
                if outcome is not None:
                    self._raise(marks, record, _RANK[outcome])
                elif row not in filtered_rows:
                    self._raise(marks, record, WRITTEN)
                row += 1

    @staticmethod
    def _raise(marks: bytearray, record: int, rank: int) -> None:
        marks[record] = max(marks[record], rank)

    def resolved(self, batch: Batch) -> None:
        """Nothing of the batch is in flight any more."""
        marks = self._open.pop(batch, None)
        if marks is None:
            return
        totals = self.totals
        written, skipped, dead = (marks.ranks.count(rank) for rank in (WRITTEN, SKIPPED, DEAD_LETTERED))
        totals.written += written
        totals.skipped += skipped
        totals.dead_letters += dead
        totals.filtered += marks.records - written - skipped - dead
