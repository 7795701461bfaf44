"""Writes `settings.md` beside it from the definitions in `headrace.config.settings`."""

import enum
from collections.abc import Iterator
from pathlib import Path

from headrace.config.load import environment_name
from headrace.config.settings import Kind, Knob, Settings, knobs, value_of
from headrace.config.units import format_duration, format_size

PAGE = Path(__file__).with_name("settings.md")

_HEAD = """\
# Settings

This page is written by `make settings-page` from `runtime/headrace/config/settings.py`.

A setting is given, in falling order of precedence, by

1. a flag: `--workers`, `--shards`, `--admin`, or `--set KEY=VALUE` for any key, as often as needed;
2. an environment variable: `{variable}` for `batch.max_rows`;
3. a TOML file: `--config FILE`, or the pipeline's own TOML file;
4. the pipeline's code: `Pipeline("name", settings={{"batch.max_rows": 20_000}})`;
5. its default.

An unknown key is refused with its path and the nearest valid key, and so is a value of a wrong type or out of bounds.
`headrace check PIPELINE` prints the effective settings, where each came from, and the memory they need. Sizes are
written with a unit (`256KiB`, `1MB`), durations too (`50ms`, `2m`); a duration without a unit counts seconds. In files
`${{VAR}}`, `${{VAR:-default}}` and `${{VAR:?message}}` are expanded in values.

`HEADRACE_STATE` is no setting: it gives the state directory where `--state` does not.

In this version nothing acts on `breaker.*`, `fleet.max_rss`, `lease.max_losses` and `admin.listen`: they are checked,
and kept for the versions that bring endpoints, recycling, quarantine and the HTTP server.
"""


def page() -> str:
    """The whole text."""
    return "\n".join([_HEAD.format(variable=environment_name("batch.max_rows")), *_sections(), ""])


def _sections() -> Iterator[str]:
    settings = Settings()
    group: str | None = None
    for key, knob in knobs().items():
        first = key.rpartition(".")[0]
        if first != group:
            group = first
            yield from _section_head(settings, group)
        yield f"| `{key}` | {_written(value_of(settings, key), knob)} | {_bounds(knob)} | {_escaped(knob.doc)} |"


def _section_head(settings: Settings, group: str) -> Iterator[str]:
    title, about = "The run", "Processes, shards and the policy for bad records."
    if group:
        title, about = f"`{group}`", (type(value_of(settings, group)).__doc__ or "").strip()
    yield from (f"\n## {title}\n", about, "", "| key | default | value | what it means |", "|---|---|---|---|")


def _written(value: object, knob: Knob) -> str:
    if value is None:
        return "none"
    if isinstance(value, enum.Enum):
        return f"`{value.value}`"
    if knob.kind is Kind.BYTES and isinstance(value, int):
        return f"`{format_size(value)}`"
    if knob.kind is Kind.SECONDS and isinstance(value, float):
        return f"`{format_duration(value)}`"
    return f"`{value}`"


def _bounds(knob: Knob) -> str:
    if knob.kind is Kind.CHOICE:
        return " · ".join(f"`{choice}`" for choice in knob.choices)
    if knob.kind is Kind.TEXT:
        return "text"
    write = {Kind.BYTES: lambda bound: format_size(int(bound)), Kind.SECONDS: format_duration}.get(
        knob.kind, lambda bound: f"{bound:g}"
    )
    said = {Kind.BYTES: "size", Kind.SECONDS: "duration", Kind.COUNT: "whole number"}.get(knob.kind, "number")
    if knob.low:
        said += f", at least {write(knob.low)}"
    if knob.high is not None and knob.kind not in {Kind.BYTES, Kind.SECONDS}:
        said += f", at most {write(knob.high)}"
    return f"{said}, or `{knob.word}`" if knob.word else said


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
