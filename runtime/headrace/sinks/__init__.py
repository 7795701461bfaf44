"""Sinks: where rows go, as settings; their writers run in the workers."""

from headrace.sinks.base import Sink
from headrace.sinks.blackhole import Blackhole
from headrace.sinks.ndjson_files import NdjsonFiles
from headrace.sinks.sqlite import Sqlite
from headrace.sinks.stdout import Stdout

__all__ = ["Blackhole", "NdjsonFiles", "Sink", "Sqlite", "Stdout"]
