"""What the fork server loads before it forks workers: the modules that each would load, and its own end.

Nothing that starts a thread on import belongs here: a fork of a threaded process inherits its locks, not its threads.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal

from headrace_workers import life

MODULES = (
    "concurrent.futures.thread",
    "dill",
    "json",
    "sqlite3",
    "traceback",
    "headrace",
    "headrace.sinks",
    "headrace.sources",
    "headrace_workers.entry",
    "headrace_workers.writers.blackhole",
    "headrace_workers.writers.ndjson_files",
    "headrace_workers.writers.sqlite",
    "headrace_workers.writers.stdout",
)
"""Loaded by name: what a pipeline's own modules need is none of a worker's business, but is loaded once this way."""


def _become_server() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
    holder, _, descriptor = os.environ.pop("HEADRACE_LIFE").partition(":")
    os.environ.pop("PYTHONSAFEPATH", None)
    life.arm(f"/proc/{holder}/fd/{descriptor}")
    for name in MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


if "HEADRACE_LIFE" in os.environ:
    _become_server()
