"""The life pipe: a process that armed it is killed by the kernel when the supervisor is gone.

Nobody writes to the pipe and the supervisor alone holds its other end, so the only thing that can happen to it is its
end; with ``O_ASYNC`` and ``F_SETSIG`` that event is SIGKILL, which reaches a process that is stopped or whose C code
holds the GIL. The owner of the signal belongs to the open file description, so each process opens the pipe anew
through ``/proc``: on a shared description the last one to arm would be the only one to die.
"""

from __future__ import annotations

import fcntl
import os
import signal

_F_SETSIG = 10


def arm(path: str) -> int:
    """Arm the pipe behind ``path`` (``/proc/…/fd/N``); ends this process at once if its other end is gone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        os.kill(os.getpid(), signal.SIGKILL)  # the supervisor went before we came
        raise
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(fd, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
    if supervisor_is_gone(fd):
        os.kill(os.getpid(), signal.SIGKILL)
    return fd


def supervisor_is_gone(fd: int) -> bool:
    """Whether the other end of an armed pipe is closed."""
    try:
        return os.read(fd, 1) == b""
    except BlockingIOError:
        return False
