"""What an error that user code raised says about a record, in text that can be kept."""

from __future__ import annotations

from typing import Final

from headrace.errors import RecordError

FATAL: Final = (KeyboardInterrupt, MemoryError)
"""What is never a record's fault. Anything else is, `SystemExit` and a Rust extension's panic included."""

_MAX_CHARS: Final = 2_000


def cause_of(error: BaseException) -> str:
    """``ValueError: text``, in valid Unicode and of bounded length, whatever the error's own ``__str__`` does.

    A `RecordError` speaks for itself.
    """
    name = type(error).__name__
    try:
        text = str(error)
    except FATAL:
        raise
    except BaseException as second:  # noqa: BLE001 (it comes from the user's own __str__)
        text = f"(its text cannot be made: {type(second).__name__})"
    if text and isinstance(error, RecordError):
        return clean(text)
    return clean(f"{name}: {text}" if text else name)


def clean(text: str) -> str:
    """The text without lone surrogates, cut to what a dead letter keeps."""
    if len(text) > _MAX_CHARS:
        text = text[: _MAX_CHARS - 1] + "…"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
