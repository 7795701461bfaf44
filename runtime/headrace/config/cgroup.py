"""Where this process's control groups lie under a file system's root, from its own group up to the outermost.

Version 2: ``/proc/self/cgroup`` has a line ``0::/path``, the files lie in ``/sys/fs/cgroup/path``. Version 1: a line
``N:cpu,cpuacct:/path``, the files lie in ``/sys/fs/cgroup/cpu,cpuacct/path``. Inside a container the path may be one
of the host's that does not exist here; the mount's own top then is this process's group.
"""

from __future__ import annotations

from pathlib import Path


def groups(root: Path, controller: str) -> tuple[int, list[Path]]:
    """The version that rules ``controller``, and its folders, innermost first. Version 0: there is none."""
    mounts = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        _, names, path = (*line.split(":", 2), "", "")[:3]
        if controller in names.split(","):
            for name in (controller, names):
                if (mounts / name).is_dir():
                    return 1, _upwards(mounts / name, path)
        if not names and (mounts / "cgroup.controllers").exists():
            unified = _upwards(mounts, path)
            if any((folder / f"{controller}.max").exists() for folder in unified) or not (mounts / controller).is_dir():
                return 2, unified
    if (mounts / controller).is_dir():
        return 1, [mounts / controller]
    return (2, [mounts]) if (mounts / f"{controller}.max").exists() else (0, [])


def read_word(path: Path, place: int = 0) -> str | None:
    """One word of a one-line file, or None when there is no such file or word."""
    words = (_lines(path) or [""])[0].split()
    return words[place] if place < len(words) else None


def read_number(path: Path) -> int | None:
    """A file that holds one number; None when it is missing or says ``max``."""
    word = read_word(path)
    return int(word) if word is not None and word.lstrip("-").isdigit() else None


def _upwards(top: Path, path: str) -> list[Path]:
    inner = top / path.strip("/")
    if ".." in inner.parts or not inner.is_dir():
        return [top]
    return [inner, *(parent for parent in inner.parents if parent == top or top in parent.parents)]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
