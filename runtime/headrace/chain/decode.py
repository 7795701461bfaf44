"""Decoders: from the bytes of a source batch to records, each with its line and the position that follows it.

A block is decoded in one call. When that fails, or when its lines are not one document each, it is decoded again line
by line from its start, for an error's offset may point at a neighbour. Blank lines are no records; a byte order mark
at the start of an input, carriage returns before newlines and NUL bytes around a line (what a truncated log file
leaves) are no part of one.
"""

from __future__ import annotations

import itertools
import operator
from array import array
from collections.abc import Iterable
from typing import Any, Final, Protocol, TypeGuard

import msgspec
from msgspec import inspect

from headrace.chain.cause import FATAL
from headrace.chain.csv_records import CsvDecoder
from headrace.chain.decoded import Decoded, decode_each, decode_payloads, line_ends, split_lines, without_bom
from headrace.errors import ConfigError
from headrace.record import OnError, PayloadBatch

_OPENERS: Final = frozenset(b"{[")
_CLOSERS: Final = frozenset(b"}]")
_AROUND: Final = b" \t\r\0"
_first_byte: Final = operator.itemgetter(0)
_last_byte: Final = operator.itemgetter(-1)
_last_but_one: Final = operator.itemgetter(-2)


class Decoder(Protocol):
    """Decodes the batches of a source. Never raises for what a record holds."""

    def decode(self, batch: PayloadBatch) -> Decoded: ...


class DecodedSource(Protocol):
    """What a chain wants to know of its source: ``decode``, a type, and ``format``."""

    @property
    def decode(self) -> Any: ...
    @property
    def format(self) -> str: ...


def is_json(source: DecodedSource) -> bool:
    """Whether the source's records are JSON documents, and not bytes or text as they are."""
    return source.format not in ("csv", "lines") and source.decode is not bytes


def is_struct(decode: object) -> TypeGuard[type[msgspec.Struct]]:
    return isinstance(decode, type) and issubclass(decode, msgspec.Struct)


def decoder_of(source: DecodedSource, policy: OnError) -> Decoder:
    """The decoder for a source's format and type. Raises `ConfigError`."""
    decode = source.decode
    if source.format == "csv":
        return CsvDecoder(decode, policy)
    if decode is bytes or source.format == "lines":
        if decode not in (bytes, str):
            raise ConfigError(f"a source of lines has decode=bytes or decode=str, not {_label(decode)}")
        return LineDecoder(policy, text=decode is str)
    return JsonDecoder(decode, policy)


def json_decoder(decode: Any) -> msgspec.json.Decoder[Any]:
    """A JSON decoder for the type, ``dict`` meaning any JSON. Raises `ConfigError`."""
    kind = Any if decode is dict else decode
    try:
        if isinstance(inspect.type_info(kind), inspect.CustomType):
            raise TypeError("it has no fields that are known")
        return msgspec.json.Decoder(kind)
    except (TypeError, NameError, msgspec.MsgspecError) as error:
        raise ConfigError(f"decode={_label(decode)} is no type that JSON can be decoded into: {error}") from None


class JsonDecoder:
    """JSON documents: one a line of a block, or one a payload."""

    def __init__(self, decode: Any, policy: OnError) -> None:
        self._decoder = json_decoder(decode)
        self._policy = policy

    def decode(self, batch: PayloadBatch) -> Decoded:
        if batch.block is None:
            return decode_payloads(batch, self._decoder.decode, self._policy)
        block, start = without_bom(batch.block, batch.start)
        lines = split_lines(block)
        records = self._decode_block(block, lines)
        if records is None:
            return self._line_by_line(batch, block, start, lines)
        return Decoded(records, line_ends(lines, start, start + len(block)), [], lines)

    def _decode_block(self, block: bytes, lines: list[bytes]) -> list[object] | None:
        """The documents of the lines; None where it takes a closer look to say which is whose."""
        try:
            records: list[object] = self._decoder.decode_lines(block)
        except FATAL:
            raise
        except BaseException:  # noqa: BLE001 (a Struct's __post_init__ may raise anything; each line is tried again)
            return None
        return records if len(records) == len(lines) and one_document_a_line(lines) else None

    def _line_by_line(self, batch: PayloadBatch, block: bytes, start: int, lines: list[bytes]) -> Decoded:
        stripped = [line.strip(_AROUND) for line in lines]
        candidates = [at for at, line in enumerate(stripped) if line]
        all_ends = line_ends(lines, start, start + len(block))
        texts = [stripped[at] for at in candidates]
        ends = array("q", [all_ends[at] for at in candidates])
        decoded = decode_each(batch, texts, ends, self._decoder.decode, self._policy)
        decoded.numbers = None
        return decoded


class LineDecoder:
    """Lines as they are, as bytes or as UTF-8 text; empty ones are no records."""

    def __init__(self, policy: OnError, *, text: bool) -> None:
        self._policy = policy
        self._text = text

    def decode(self, batch: PayloadBatch) -> Decoded:
        if batch.block is None:
            assert batch.payloads is not None
            assert batch.ends is not None
            return self._of(batch, list(batch.payloads), batch.ends)
        block, start = (batch.block, batch.start) if not self._text else without_bom(batch.block, batch.start)
        lines = split_lines(block)
        ends = line_ends(lines, start, start + len(block))
        if b"\r" in block:
            lines = [line.removesuffix(b"\r") for line in lines]
        if b"" in lines:
            ends = array("q", itertools.compress(ends, lines))
            lines = [line for line in lines if line]
        decoded = self._of(batch, lines, ends)
        decoded.numbers = None
        return decoded

    def _of(self, batch: PayloadBatch, lines: list[bytes], ends: array[int]) -> Decoded:
        if not self._text:
            return Decoded(list(lines), ends, [], lines)
        return decode_each(batch, lines, ends, bytes.decode, self._policy)


def one_document_a_line(lines: Iterable[bytes]) -> bool:
    """Whether no document can span lines: a closing bracket is never followed by an opening one inside a document.

    With as many documents as lines it follows that each line holds one.
    """
    try:
        last = set(map(_last_byte, lines))
        if last == {0x0D}:
            last = set(map(_last_but_one, lines))
        return last <= _CLOSERS and set(map(_first_byte, lines)) <= _OPENERS
    except IndexError:
        return False


def _label(decode: object) -> str:
    return getattr(decode, "__name__", None) or repr(decode)
