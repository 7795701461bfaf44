"""Decodes CSV: records that end at a newline outside quotes, as dicts of texts or converted loosely into a type.

A quote opens a quoted field only where the field begins; anywhere else it is text, and so is a lone carriage return.
An empty field is None where the type allows None and no text.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import inspect

from headrace.chain.decoded import BOM, Decoded, decode_each
from headrace.errors import ConfigError, RecordError
from headrace.record import OnError, PayloadBatch

# A quoted part may lack its end at the end of the input only; what follows it, up to the comma, is text.
_QUOTED: Final = r'"(?:[^"]++|"")*+(?:"|\Z)'
_FIELD_OF_RECORD: Final = rf"(?:{_QUOTED})?+[^,\n]*+"
_RECORD: Final = re.compile(rf"{_FIELD_OF_RECORD}(?:,{_FIELD_OF_RECORD})*+(?:\n|\Z)".encode())
_FIELD: Final = re.compile(r'(?:"((?:[^"]++|"")*+)(?:"|\Z))?+([^,]*+)(?:,|\Z)', re.DOTALL)


class CsvDecoder:
    """CSV records of a block, under the header that the batch carries; or one a payload."""

    def __init__(self, decode: Any, policy: OnError) -> None:
        self._raw = decode is bytes
        self._policy = policy
        self._convert: Callable[[dict[str, Any]], object] = dict if decode in (dict, bytes) else _converter(decode)
        self._header = b""
        self._names: list[str] = []

    def decode(self, batch: PayloadBatch) -> Decoded:
        records, ends = _records(batch)
        if self._raw:
            return Decoded(list(records), ends, [], records)
        reader = self._reader(batch.header)
        decoded = decode_each(batch, records, ends, reader, self._policy)
        if batch.block is not None:
            decoded.numbers = None
        return decoded

    def _reader(self, header: bytes | None) -> Callable[[bytes], object]:
        if header != self._header or not self._names:
            try:
                self._names = _names(header)
            except (RecordError, UnicodeError) as error:
                return _unreadable(str(error))
            self._header = header or b""
        return self._read

    def _read(self, record: bytes) -> object:
        fields = split_fields(record.decode())
        if len(fields) != len(self._names):
            raise RecordError(f"the record has {len(fields)} field(s) and the header {len(self._names)}")
        return self._convert(dict(zip(self._names, fields, strict=True)))


def _unreadable(cause: str) -> Callable[[bytes], object]:
    """Under a header that cannot be read no record can."""

    def read(_: bytes) -> object:
        raise RecordError(f"the header cannot be read: {cause}")

    return read


def split_fields(record: str) -> list[str]:
    """The fields of one record, its newline taken off."""
    if '"' not in record:
        return record.split(",")
    fields: list[str] = []
    at = 0
    while True:
        found = _FIELD.match(record, at)
        assert found is not None  # each of its parts may be empty
        quoted, text = found.groups()
        fields.append(quoted.replace('""', '"') + text if quoted is not None else text)
        at = found.end()
        if found.end(2) == at:  # no comma follows
            return fields


def _names(header: bytes | None) -> list[str]:
    if header is None:
        raise RecordError("the source gave none")
    names = split_fields(_ended(header.removeprefix(BOM)).decode())
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise RecordError(f"it has {len(names)} columns, of which {names.count(twice[0])} are called {twice[0]!r}")
    return names


def _records(batch: PayloadBatch) -> tuple[list[bytes], array[int]]:
    if batch.block is None:
        assert batch.payloads is not None
        assert batch.ends is not None
        return [_ended(payload) for payload in batch.payloads], batch.ends
    records: list[bytes] = []
    ends: array[int] = array("q")
    for found in _RECORD.finditer(batch.block):
        record = _ended(found.group())
        if record:
            records.append(record)
            ends.append(batch.start + found.end())
    return records, ends


def _ended(record: bytes) -> bytes:
    return record.removesuffix(b"\n").removesuffix(b"\r")


def _converter(decode: Any) -> Callable[[dict[str, Any]], object]:
    try:
        empty_is_none = _nullable_without_text(decode)
    except (TypeError, NameError, msgspec.MsgspecError) as error:
        raise ConfigError(f"decode={decode!r} is no type that CSV can be converted into: {error}") from None

    def convert(fields: dict[str, Any]) -> object:
        for name in empty_is_none:
            if fields.get(name) == "":
                fields[name] = None
        return msgspec.convert(fields, type=decode, strict=False)

    return convert


def _nullable_without_text(decode: Any) -> list[str]:
    """The fields that may be None and may not be a text."""
    info = inspect.type_info(decode)
    if not isinstance(info, inspect.StructType | inspect.DataclassType | inspect.TypedDictType):
        raise TypeError("a record has named fields: use dict, a Struct or bytes")
    names: list[str] = []
    for field in info.fields:
        options = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
        kinds = {type(option) for option in options}
        if inspect.NoneType in kinds and not kinds & {inspect.StrType, inspect.AnyType}:
            names.append(field.encode_name)
    return names
