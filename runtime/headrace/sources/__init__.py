"""Sources: where records come from."""

from headrace.sources.files import Files
from headrace.sources.stdin import Stdin

__all__ = ["Files", "Stdin"]
