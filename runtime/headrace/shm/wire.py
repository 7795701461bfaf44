"""What the records of both pipes and a slot's trailer share: sizes, partitions and tokens as bytes."""

from __future__ import annotations

import struct
from typing import Final

from headrace.record import PartitionId
from headrace.shm.token import CompletionToken

RECORD_MAX: Final = 4096
HEAD: Final = struct.Struct("<BH")
PAYLOAD_MAX: Final = RECORD_MAX - HEAD.size


def partition_bytes(partition: PartitionId) -> bytes:
    """UTF-8; lone surrogates pass, for they stand for the bytes of a path that is no UTF-8."""
    return partition.encode("utf-8", "surrogatepass")


def partition_from(data: bytes) -> PartitionId:
    return PartitionId(data.decode("utf-8", "surrogatepass"))


def token_from(data: bytes) -> CompletionToken:
    """Raises ValueError."""
    token = CompletionToken.from_bytes(data)
    if token is None:
        raise ValueError(f"a token of {len(data)} bytes")
    return token
