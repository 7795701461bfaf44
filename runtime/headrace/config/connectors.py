"""Sources, sinks and writers by name: those of this package, and those that others announce as entry points."""

from __future__ import annotations

import difflib
import importlib
from importlib.metadata import EntryPoint, entry_points

import msgspec

from headrace.errors import ConfigError

SOURCES = "headrace.sources"
SINKS = "headrace.sinks"
WRITERS = "headrace_workers.writers"
GROUPS = (SOURCES, SINKS, WRITERS)

# So that a tree that was never installed knows its own connectors.
_BUILT_IN = {
    SOURCES: {"files": "headrace.sources:Files", "stdin": "headrace.sources:Stdin"},
    SINKS: {
        "sqlite": "headrace.sinks:Sqlite",
        "ndjson_files": "headrace.sinks:NdjsonFiles",
        "stdout": "headrace.sinks:Stdout",
        "blackhole": "headrace.sinks:Blackhole",
    },
    WRITERS: {},
}


class Connector(msgspec.Struct, frozen=True):
    """A connector as it is announced; nothing of it is imported yet."""

    group: str
    name: str
    target: str
    package: str

    def load(self) -> object:
        """Import it. Raises `ConfigError` saying what is missing."""
        module, _, attribute = self.target.partition(":")
        try:
            found: object = importlib.import_module(module)
            for word in attribute.split("."):
                found = getattr(found, word)
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"{self.name} of {self.package} cannot be used: {error}") from None
        return found


def connectors(group: str) -> list[Connector]:
    """All connectors of a group, by name; an installed one goes before a built-in entry of the same name."""
    found = {name: Connector(group, name, target, "headrace") for name, target in _BUILT_IN[group].items()}
    for entry in entry_points(group=group):
        found[entry.name] = Connector(group, entry.name, entry.value, _package(entry))
    return [found[name] for name in sorted(found)]


def connector(group: str, name: str) -> Connector:
    """The connector of this name. Raises `ConfigError` naming the nearest one, and all there are."""
    known = {one.name: one for one in connectors(group)}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        kind = group.rpartition(".")[2].removesuffix("s")
        raise ConfigError(f"there is no {kind} called {name!r}{hint} Known: {', '.join(known)}")
    return known[name]


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "unknown"
