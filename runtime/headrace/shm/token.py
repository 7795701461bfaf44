"""A completion token: the proof of one publication of one chunk.

Layout, 24 bytes, little endian::

    0   u64  incarnation   number of the supervisor's start on its state directory
    8   u64  serial        from 1, never used twice in an incarnation
    16  u64  nonce         random

All zero is `MISSING`: zeroed memory never passes for a token. Token and attempt travel in the doorbell alone; a
journal keeps the digest, not the token.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final

import msgspec

TOKEN_BYTES: Final = 24
_LAYOUT: Final = struct.Struct("<QQQ")


class CompletionToken(msgspec.Struct, frozen=True):
    """One publication of one chunk. Whoever completes the chunk must show it."""

    incarnation: int
    serial: int
    nonce: int

    @staticmethod
    def from_bytes(data: bytes) -> CompletionToken | None:
        """The token in ``data``; None if that is not the size of one. All zero gives `MISSING`."""
        if len(data) != TOKEN_BYTES:
            return None
        return CompletionToken(*_LAYOUT.unpack(data))

    def to_bytes(self) -> bytes:
        return _LAYOUT.pack(self.incarnation, self.serial, self.nonce)

    def digest(self) -> str:
        """Sixteen hex digits that name the token without giving it away."""
        return hashlib.blake2b(self.to_bytes(), digest_size=8).hexdigest()


MISSING: Final = CompletionToken(0, 0, 0)
