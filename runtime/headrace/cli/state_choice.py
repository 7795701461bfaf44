"""Which state directory a verb works on."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

from headrace.errors import ConfigError, StateError

DEFAULT_ROOT = Path(".headrace")


def default_state(name: str) -> Path:
    """``./.headrace/NAME``; what cannot be part of a path is percent-encoded."""
    encoded = quote(name, safe=" +,=@~")
    if not encoded.strip("."):
        encoded = encoded.replace(".", "%2E")
    return DEFAULT_ROOT / encoded


def state_for_run(option: Path | None, name: str) -> Path:
    """The state directory of a run, as an absolute path; nothing is made."""
    return (option if option is not None else default_state(name)).resolve()


def make_default_root(state: Path) -> None:
    """Make ``./.headrace`` for a state directory in it; the parent of any other must exist."""
    root = DEFAULT_ROOT.resolve()
    if state.parent == root:
        try:
            root.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise StateError(f"cannot make {root}: {os.strerror(error.errno or 0)}; give a --state") from None


def state_for_client(option: Path | None, pipeline: Path | None) -> Path:
    """The state directory a client verb means: ``--state``, that of PIPELINE, or the only one there is."""
    if option is not None:
        return option.resolve()
    if pipeline is not None:
        return state_for_run(None, _name_of(pipeline))
    return _only_one()


def _name_of(pipeline: Path) -> str:
    from headrace.cli.streams import prints_to_stderr
    from headrace.config.pipeline_file import load_pipeline

    with prints_to_stderr():
        return load_pipeline(pipeline).pipeline.name


def _only_one() -> Path:
    root = DEFAULT_ROOT.resolve()
    found = sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    if len(found) == 1:
        return found[0]
    if not found:
        raise ConfigError(f"there is no state directory under {root}; give PIPELINE or --state")
    names = "".join(f"\n  {path}" for path in found)
    raise ConfigError(f"there are several state directories; give PIPELINE or --state, one of:{names}")
