"""Parts for tests of pipelines: an in-memory source and its script."""

from headrace.testing.memory_source import MemorySource

__all__ = ["MemorySource"]
