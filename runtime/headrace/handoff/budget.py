"""How many bytes are sealed and not yet settled, against the limit at which the source is paused (HR-17)."""

from __future__ import annotations

from headrace.errors import HeadraceError


class Budget:
    """Counts exactly; refuses nothing but what cannot be. ``limit`` is for the reader of ``used``."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def charge(self, size: int) -> None:
        if size < 0:
            raise HeadraceError(f"a charge of {size} bytes")
        self.used += size

    def release(self, size: int) -> None:
        """Raises `HeadraceError`, changing nothing, when more is given back than was charged."""
        if not 0 <= size <= self.used:
            raise HeadraceError(f"{size} bytes are given back of a budget of which {self.used} are used")
        self.used -= size
