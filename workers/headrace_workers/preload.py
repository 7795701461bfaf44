"""What the fork server loads before it forks workers: the modules that each would load, and its own end.

Nothing that starts a thread on import belongs here: a fork of a threaded process inherits its locks, not its threads.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import faulthandler
import gc
import json
import os
import signal
import sqlite3
import traceback

import dill
import msgspec
import xxhash

import headrace
import headrace.sinks
import headrace.sources
import headrace_workers.entry
import headrace_workers.writers.blackhole
import headrace_workers.writers.ndjson_files
import headrace_workers.writers.sqlite
import headrace_workers.writers.stdout
from headrace_workers import life

__all__ = [
    "asyncio",
    "concurrent",
    "dill",
    "faulthandler",
    "headrace",
    "headrace_workers",
    "json",
    "msgspec",
    "sqlite3",
    "traceback",
    "xxhash",
]


def _become_server() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
    holder, _, descriptor = os.environ.pop("HEADRACE_LIFE").partition(":")
    os.environ.pop("PYTHONSAFEPATH", None)
    life.arm(f"/proc/{holder}/fd/{descriptor}")
    gc.collect()
    gc.freeze()


if "HEADRACE_LIFE" in os.environ:
    _become_server()
