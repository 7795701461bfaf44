"""The log: fixed short sentences with named values, as JSON lines or, on a terminal, as text."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any, TextIO

import structlog

from headrace.config.settings import LogSettings

Logger = Any
"""A bound logger of structlog, which has no static type of its own for one that was configured at run time."""


def open_log(settings: LogSettings, *, path: Path | None = None, **values: object) -> Logger:
    """A logger with these values on every line: on standard error, or in a file opened for appending (0600)."""
    file = sys.stderr if path is None else _append_to(path)
    terminal = file.isatty()
    as_text = settings.format == "text" or (settings.format == "auto" and terminal)
    renderer: Any = structlog.dev.ConsoleRenderer(colors=terminal) if as_text else structlog.processors.JSONRenderer()
    return structlog.wrap_logger(
        structlog.PrintLogger(file),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, settings.level.upper(), logging.INFO)),
        context_class=dict,
    ).bind(**values)


def _append_to(path: Path) -> TextIO:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    return os.fdopen(fd, "w", buffering=1, encoding="utf-8")
