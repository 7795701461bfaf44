"""A sink as its users write it: settings, a codec and what it guarantees. Its writer runs in the workers."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import ClassVar, Self, TypeVar

import msgspec

from headrace.codec.columns import Columns
from headrace.codec.rows import Codec
from headrace.errors import ConfigError
from headrace.record import Delivery, OnError

E = TypeVar("E", bound=enum.Enum)


class Sink(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all sinks.

    ``writer`` is a name in the entry-point group ``headrace_workers.writers``; ``codec`` is what its frames are written
    in; ``ordered`` says that writes of a shard must not overlap.
    """

    writer: ClassVar[str]
    codec: ClassVar[Codec]
    guarantees: ClassVar[frozenset[Delivery]] = frozenset({Delivery.AT_LEAST_ONCE})
    ordered: ClassVar[bool] = False

    delivery: Delivery = Delivery.AT_LEAST_ONCE
    """The guarantee that is asked for."""
    on_error: OnError | None = None
    """What is done about a row that cannot be written; None: as the pipeline says."""

    def __post_init__(self) -> None:
        # A TOML file gives texts.
        msgspec.structs.force_setattr(self, "delivery", _one_of(Delivery, "delivery", self.delivery))
        if self.on_error is not None:
            msgspec.structs.force_setattr(self, "on_error", _one_of(OnError, "on_error", self.on_error))

    def resolve(self, cwd: Path) -> Self:  # noqa: ARG002 - for sinks that have a path
        """The sink with its relative paths taken from ``cwd``."""
        return self

    def for_rows(self, row_type: type | None) -> Self:  # noqa: ARG002 - for sinks that have columns
        """The sink as it is for rows of this type, where the pipeline knows it; only a Struct says anything."""
        return self

    def declared_columns(self) -> Columns | None:
        """The columns as far as the settings give them; what holds is what the writer reports once it is open."""
        return None

    def check(self) -> None:
        """Raises `ConfigError` for settings that cannot work. Touches nothing."""
        if self.delivery not in self.guarantees:
            offered = ", ".join(sorted(self.guarantees))
            raise ConfigError(
                f"{type(self).__name__} cannot give delivery={self.delivery.value!r}: in this version its writer keeps "
                f"no positions beside its rows; it gives {offered}"
            )


def _one_of(kind: type[E], name: str, value: object) -> E:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(repr(one.value) for one in kind)
        raise ConfigError(f"{name}={value!r} is not known; one of {known}") from None
