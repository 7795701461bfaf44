"""The public API, and nothing else; sources, sinks and what runs a pipeline are imported from where they are."""

from headrace.errors import (
    ConfigError,
    HeadraceError,
    RecordError,
    RejectedRows,
    RunFailed,
    SinkError,
    SourceError,
    StateError,
    StateInUseError,
)
from headrace.pipeline import Pipeline
from headrace.record import Delivery, OnError

__all__ = [
    "ConfigError",
    "Delivery",
    "HeadraceError",
    "OnError",
    "Pipeline",
    "RecordError",
    "RejectedRows",
    "RunFailed",
    "SinkError",
    "SourceError",
    "StateError",
    "StateInUseError",
    "__version__",
]

__version__ = "0.1.0"
