"""Signals become bytes in a pipe: the handler leaves a note and returns, the loop reads it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType
from typing import Any

_WATCHED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class SignalNotes:
    """Installed from `__init__` to `close`, on the main thread; elsewhere it watches nothing."""

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: dict[signal.Signals, Any] = {}
        self._wakeup = -1
        if threading.current_thread() is threading.main_thread():
            self._wakeup = signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
            for number in _WATCHED:
                self._before[number] = signal.signal(number, _note)

    def read(self) -> list[signal.Signals]:
        """The signals that came since the last look, in order."""
        with contextlib.suppress(BlockingIOError):
            return [signal.Signals(byte) for byte in os.read(self.fd, 512) if byte in _WATCHED]
        return []

    def close(self) -> None:
        """Put back what was there before."""
        if self._before:
            signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
        os.close(self.fd)
        os.close(self._write_fd)


def _note(_number: int, _frame: FrameType | None) -> None:
    """The byte that Python wrote to the wake-up descriptor is the note."""
