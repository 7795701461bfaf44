"""Acknowledgement of one source batch, in shares: it is resolved when the last share ends, and failed if one failed.

An `AckRef` is shared by the chain, by each open buffer and chunk with rows of the batch (through their `AckSet`), and
by each dead letter until it is durable. A set that goes in any way but `AckSet.deliver` fails what it holds, so that
a lost chunk stalls its watermarks and replays (HR-1).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headrace.errors import HeadraceError
from headrace.record import PartitionId


class BatchId(msgspec.Struct, frozen=True):
    """One source batch: the ``seq``-th, from 0, that was polled of the partition in this epoch."""

    partition: PartitionId
    epoch: int
    seq: int


class AckRef:
    """One batch's acknowledgement, made with one share, the chain's.

    ``end`` is where reading resumes after it. ``on_resolve`` is called once, when the last share ends.
    """

    __slots__ = ("_on_resolve", "_shares", "batch_id", "cause", "end")

    def __init__(self, batch_id: BatchId, end: int, on_resolve: Callable[[AckRef], None]) -> None:
        self.batch_id = batch_id
        self.end = end
        self.cause: str | None = None
        self._shares = 1
        self._on_resolve = on_resolve

    @property
    def shares(self) -> int:
        """Shares that have not ended; none is left once the batch is resolved."""
        return self._shares

    @property
    def failed(self) -> bool:
        """Whether a share has failed; ``cause`` is the first one's."""
        return self.cause is not None

    def share(self) -> None:
        """One share more. Raises `HeadraceError` on a resolved batch."""
        self._check()
        self._shares += 1

    def deliver(self) -> None:
        """End one share well."""
        self._check()
        self._end()

    def fail(self, cause: str) -> None:
        """End one share badly: the batch is failed, whatever the others do."""
        self._check()
        if self.cause is None:
            self.cause = cause
        self._end()

    def _check(self) -> None:
        if self._shares == 0:
            raise HeadraceError(f"batch {self.batch_id} was resolved and is ended or shared once more")

    def _end(self) -> None:
        self._shares -= 1
        if self._shares == 0:
            self._on_resolve(self)


class AckSet:
    """The batches whose rows travel together, each held by one share."""

    __slots__ = ("_ended", "_last", "_refs")

    def __init__(self) -> None:
        self._refs: dict[AckRef, None] = {}
        self._last: AckRef | None = None
        self._ended = False

    def __len__(self) -> int:
        return len(self._refs)

    def __contains__(self, ref: AckRef) -> bool:
        return ref in self._refs

    def add(self, ref: AckRef) -> None:
        """Hold the batch, once: a share is taken the first time. Raises `HeadraceError` on an ended set."""
        if ref is self._last:
            return
        self._check()
        if ref not in self._refs:
            ref.share()
            self._refs[ref] = None
        self._last = ref

    def absorb(self, other: AckSet) -> None:
        """Take over what ``other`` holds; of a batch that both hold, one share is enough. ``other`` is empty then."""
        self._check()
        while other._refs:
            ref, _ = other._refs.popitem()
            if ref in self._refs:
                ref.deliver()
            else:
                self._refs[ref] = None
        other._last = None

    def deliver(self) -> None:
        """The write that holds these rows is durable. Raises `HeadraceError` on an ended set."""
        self._check()
        self._last = None
        while self._refs:
            self._refs.popitem()[0].deliver()
        self._ended = True

    def fail(self, cause: str) -> None:
        """These rows are not delivered. Raises `HeadraceError` on an ended set."""
        self._check()
        self._drop(cause)

    def close(self, cause: str = "dropped before it was delivered") -> None:
        """Fail what is still held; nothing on an ended set."""
        if not self._ended:
            self._drop(cause)

    def _drop(self, cause: str) -> None:
        self._last = None
        while self._refs:
            self._refs.popitem()[0].fail(cause)
        self._ended = True

    def _check(self) -> None:
        if self._ended:
            raise HeadraceError("an acknowledgement set is used after its end")

    def __del__(self) -> None:
        self.close()
