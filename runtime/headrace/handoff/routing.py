"""Which shard a key goes to: ``xxh3_64(key bytes, seed 0) % shards``, the same in every process and for ever.

A ``str`` is its UTF-8, ``bytes`` are themselves, an ``int`` beyond 64 bits is its decimal digits, and anything else is
its MessagePack encoding with keys and sets sorted. None is keyless: the partition's id decides.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final

import msgspec
from xxhash import xxh3_64_intdigest

from headrace.record import PartitionId

_CACHED_KEYS: Final = 65_536
_CACHED_LENGTH: Final = 256
_NO_PARTITION: Final = PartitionId("")
_encode: Final = msgspec.msgpack.Encoder(order="sorted").encode


def key_bytes(key: object) -> bytes:
    """What is hashed. Raises `TypeError`, `OverflowError`, `UnicodeError` or `ValueError` for what is no key."""
    if isinstance(key, str):
        return str.encode(key)
    if isinstance(key, bytes):
        return key
    if type(key) is int and not -(2**63) <= key < 2**64:
        return str(key).encode()
    return _encode(key)


def shard_of(key: object, shards: int, partition: PartitionId = _NO_PARTITION) -> int:
    """The shard of a key; ``partition`` decides for None."""
    return xxh3_64_intdigest(key_bytes(partition if key is None else key)) % shards


class _Shards(dict[Any, int]):
    """The shards of keys of one exact type, worked out when first asked for; holds a bounded number of them."""

    def __init__(self, shards: int) -> None:
        super().__init__()
        self._shards = shards
        self.keyless = 0

    def __missing__(self, key: Any) -> int:
        if key is None:
            return self.keyless
        shard = shard_of(key, self._shards)
        if isinstance(key, int) or len(key) <= _CACHED_LENGTH:
            if len(self) >= _CACHED_KEYS:
                self.clear()
            self[key] = shard
        return shard


class Router:
    """Routes the rows of a batch."""

    def __init__(self, shards: int) -> None:
        self._shards = shards
        # One table a type: 1, 1.0 and True are equal as dict keys and different as bytes. Subclasses are left out.
        self._tables: dict[type, _Shards] = {kind: _Shards(shards) for kind in (str, bytes, int)}
        self._keyless: _Shards = _Shards(shards)

    def shards_of(self, keys: list[object] | None, n: int, partition: PartitionId) -> list[int]:
        """The shard of each of ``n`` rows of a partition. Raises as `key_bytes` does."""
        keyless = self._keyless[partition]
        if keys is None:
            return [keyless] * n
        kinds = set(map(type, keys))
        kinds.discard(type(None))
        if not kinds:
            return [keyless] * n
        table = self._tables.get(kinds.pop())
        if table is None or kinds:
            return list(map(self._shard, keys, itertools.repeat(partition)))
        table.keyless = keyless
        look_up: Callable[[object], int] = table.__getitem__
        return list(map(look_up, keys))

    def _shard(self, key: object, partition: PartitionId) -> int:
        return shard_of(key, self._shards, partition)
