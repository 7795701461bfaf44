"""The one way to end a chunk: slot, budget and acknowledgement in the same step (HR-4)."""

from __future__ import annotations

from headrace.handoff.budget import Budget
from headrace.record import ChunkId
from headrace.shm.queue import InFlight, ShardQueue


class Settlement:
    """Ends the chunks that are in slots, each once: a second end raises `HeadraceError` and changes nothing."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    def deliver(self, queue: ShardQueue, chunk: ChunkId) -> InFlight:
        """Every row of the chunk is written, filtered, skipped or durably dead-lettered."""
        flight = self._end(queue, chunk)
        flight.chunk.acks.deliver()
        return flight

    def fail(self, queue: ShardQueue, chunk: ChunkId, cause: str) -> InFlight:
        """The chunk is given up; its batches replay."""
        flight = self._end(queue, chunk)
        flight.chunk.acks.fail(cause)
        return flight

    def _end(self, queue: ShardQueue, chunk: ChunkId) -> InFlight:
        # The check comes first, so that a refusal of either side leaves both as they were.
        flight = queue.check_settles(chunk)
        self._budget.release(flight.chunk.size)
        return queue.settle(chunk)
