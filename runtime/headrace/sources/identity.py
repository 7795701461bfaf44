"""How a file is recognised: by its content, whatever its name, its inode or its compression.

What is kept of a partition is the msgpack map of `FileIdentity`. Heads and tails are of unpacked bytes. The head is
compared over the length that it had when it was written down, the tail at the place where it was taken; a tail may be
older than the partition's committed position, never newer, and says so by its own ``tail_end``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec
import xxhash

from headrace.record import PartitionId, PartitionIdentity

SPAN = 4096
"""Of a head, and of a tail, at most."""


def digest(data: bytes) -> bytes:
    return xxhash.xxh3_128_digest(data)


class FileIdentity(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="file"):
    """What is known of one file's content. ``path`` is where it was last seen, as the bytes of its name."""

    path: bytes
    device: int
    inode: int
    head_length: int
    head_digest: bytes
    tail_end: int
    tail_length: int
    tail_digest: bytes
    torn_start: int = -1
    """Where the line began that a truncated or corrupt file ended in."""
    torn_end: int = -1
    """How much content there was. The record of that loss is at this position, one past all bytes."""

    @property
    def tail_start(self) -> int:
        return self.tail_end - self.tail_length

    @property
    def nothing_was_in_it(self) -> bool:
        """A packed file that was cut before its first byte of content."""
        return self.torn_end == 0

    def encoded(self, partition: PartitionId) -> PartitionIdentity:
        return PartitionIdentity(partition=partition, details=msgspec.msgpack.encode(self))


def decode_identity(identity: PartitionIdentity) -> FileIdentity | None:
    """None: it is no file's."""
    try:
        return msgspec.msgpack.decode(identity.details, type=FileIdentity)
    except msgspec.MsgspecError:
        return None


def name_bytes(path: Path) -> bytes:
    return os.fsencode(path)


def new_partition(path: Path, random: bytes) -> PartitionId:
    """The path as first seen, ``#``, and 8 hex digits."""
    name = os.fsencode(path).decode("utf-8", "backslashreplace")
    return PartitionId(f"{name}#{random[:4].hex()}")


class Known:
    """A partition of this state directory and how far its content was handed out."""

    def __init__(self, partition: PartitionId, identity: FileIdentity, position: int) -> None:
        self.partition = partition
        self.identity = identity
        self.position = position
        self.names: set[Path] = set()
        """Where its content was during this run."""

    @property
    def path(self) -> Path:
        return Path(os.fsdecode(self.identity.path))

    @property
    def key(self) -> tuple[int, int]:
        return self.identity.device, self.identity.inode


class HeadIndex:
    """Finds the partitions whose content may begin with given bytes."""

    def __init__(self, known: Iterable[Known]) -> None:
        self._by_head: dict[int, dict[bytes, list[Known]]] = {}
        self._torn_at_once: dict[tuple[int, int], list[Known]] = {}
        for one in known:
            length = one.identity.head_length
            if one.identity.nothing_was_in_it:
                self._torn_at_once.setdefault(one.key, []).append(one)
            elif length:
                self._by_head.setdefault(length, {}).setdefault(one.identity.head_digest, []).append(one)

    def matching(self, head: bytes, key: tuple[int, int]) -> list[Known]:
        """Of a packed file that gave no byte only the inode is known."""
        found: list[Known] = [] if head else list(self._torn_at_once.get(key, []))
        for length, by_digest in self._by_head.items():
            if length <= len(head):
                found += by_digest.get(digest(head[:length]), [])
        return found
