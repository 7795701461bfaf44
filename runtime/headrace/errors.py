"""The tree of errors. Whether to retry is a property of the error, never of its type's name."""

from __future__ import annotations

import enum
from collections.abc import Mapping


class ErrorClass(enum.Enum):
    """What an error asks for: another attempt, a decision about one record, or the end of the run."""

    RETRYABLE = "retryable"
    RECORD = "record"
    FATAL = "fatal"


class HeadraceError(Exception):
    """Base of all errors of headrace. The message says what happened, where, and what to do."""

    error_class: ErrorClass = ErrorClass.FATAL

    @property
    def retryable(self) -> bool:
        return self.error_class is ErrorClass.RETRYABLE


class ConfigError(HeadraceError):
    """A pipeline or a setting that cannot work; refused before the first worker starts (exit 2)."""


class StateError(HeadraceError):
    """A state directory that cannot be used (exit 2)."""


class StateInUseError(HeadraceError):
    """Another process holds the state directory (exit 4)."""


class SourceError(HeadraceError):
    """The source failed. ``SourceError(message, retryable=True)`` asks for another try."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.error_class = ErrorClass.RETRYABLE if retryable else ErrorClass.FATAL


class SinkError(HeadraceError):
    """A sink failed. The class says whether the same write is tried again; retryable unless said otherwise."""

    def __init__(self, message: str, *, error_class: ErrorClass = ErrorClass.RETRYABLE) -> None:
        super().__init__(message)
        self.error_class = error_class


class RejectedRows(HeadraceError):
    """The sink refused these rows of a write, by index in the batch, and kept nothing of the write."""

    error_class = ErrorClass.RECORD

    def __init__(self, reasons: Mapping[int, str]) -> None:
        super().__init__(f"the sink refused {len(reasons)} row(s)")
        self.reasons = dict(reasons)


class RecordError(HeadraceError):
    """One record cannot go on."""

    error_class = ErrorClass.RECORD


class OversizeError(RecordError):
    """A row that does not fit an empty slot."""


class BrokenEncoderError(HeadraceError):
    """An encoder that declared itself broken: fatal whatever the policy."""


class CorruptFrameError(HeadraceError):
    """Bytes that are not what their header says."""


class FencesPoisonedError(HeadraceError):
    """An operation of the fences failed half way: the run stops rather than guess."""


class LostWorkerError(HeadraceError):
    """A worker that cannot be replaced, or be proved gone."""


class StalledError(HeadraceError):
    """A partition that cannot go on."""


class RunFailed(HeadraceError):
    """The run ended because of this."""
