"""Reading a state directory's databases so that the files, and what lies beside them, stay as they are."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Generator
from pathlib import Path
from urllib.parse import quote


@contextlib.contextmanager
def open_unchanged(database: Path, *, live: bool) -> Generator[sqlite3.Connection]:
    """A connection that leaves the file and what lies beside it as they are.

    A live run's database is opened as one more reader. Opening one that nobody has open would bring in its log and
    remove it, so a copy is opened in its place.
    """
    with contextlib.ExitStack() as stack:
        uri = f"file:{quote(str(database))}?mode=ro"
        if not live:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-check-")))
            for name in (database.name, f"{database.name}-wal"):
                with contextlib.suppress(FileNotFoundError):
                    shutil.copyfile(database.with_name(name), folder / name)
            uri = f"file:{quote(str(folder / database.name))}"
        connection = sqlite3.connect(uri, uri=True, timeout=1.0)
        stack.callback(connection.close)
        yield connection
