"""What the errors of the operating system and of SQLite mean for a write: try again, or never."""

from __future__ import annotations

import errno
import sqlite3
from typing import Final

from headrace.errors import ErrorClass, SinkError

_FOR_GOOD: Final = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EEXIST,
        errno.EISDIR,
        errno.ENAMETOOLONG,
        errno.ELOOP,
    }
)
_SQLITE: Final = {
    sqlite3.SQLITE_BUSY: (ErrorClass.RETRYABLE, "another program holds the database"),
    sqlite3.SQLITE_LOCKED: (ErrorClass.RETRYABLE, "another connection holds the table"),
    sqlite3.SQLITE_FULL: (ErrorClass.RETRYABLE, "the disk is full (ENOSPC)"),
    sqlite3.SQLITE_IOERR: (ErrorClass.RETRYABLE, "input/output error (EIO); see the kernel's log for the device"),
    sqlite3.SQLITE_NOMEM: (ErrorClass.RETRYABLE, "no memory (ENOMEM)"),
    sqlite3.SQLITE_PROTOCOL: (ErrorClass.RETRYABLE, "the locks of the WAL are contended"),
    sqlite3.SQLITE_INTERRUPT: (ErrorClass.RETRYABLE, "interrupted"),
    sqlite3.SQLITE_CANTOPEN: (ErrorClass.RETRYABLE, "it, its WAL or its folder cannot be opened"),
    sqlite3.SQLITE_READONLY: (
        ErrorClass.FATAL,
        "the database is read-only; check its mode, its folder's and the mount",
    ),
    sqlite3.SQLITE_NOTADB: (ErrorClass.FATAL, "the file is no SQLite database; name another, or move it away"),
    sqlite3.SQLITE_CORRUPT: (ErrorClass.FATAL, "the database is damaged; run PRAGMA integrity_check"),
    sqlite3.SQLITE_PERM: (ErrorClass.FATAL, "permission denied"),
    sqlite3.SQLITE_AUTH: (ErrorClass.FATAL, "permission denied"),
}


def os_failure(where: object, doing: str, error: OSError) -> SinkError:
    """``where``: what it happened to; ``doing``: what could not be done."""
    number = error.errno or 0
    error_class = ErrorClass.FATAL if number in _FOR_GOOD else ErrorClass.RETRYABLE
    text = f"{where}: {doing}: {error.strerror or error} ({errno.errorcode.get(number, 'no errno')})"
    return SinkError(text, error_class=error_class)


def sqlite_failure(path: str, error: sqlite3.Error) -> SinkError:
    """What SQLite says about the file at ``path``; what it has no code for is a matter of the schema, and for good."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    error_class, meaning = _SQLITE.get(code & 0xFF, (ErrorClass.FATAL, ""))
    return SinkError(f"{path}: {meaning or 'SQLite refuses'}: {error} ({name})", error_class=error_class)
