"""``headrace check``: everything that can be known of a run before it begins; nothing is changed or locked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from headrace.cli.options import options_of, run_options
from headrace.cli.output import COMPLETE, REFUSED, print_error, print_json, table

if TYPE_CHECKING:
    from headrace.chain.build import BuiltChain
    from headrace.cli.prepare import Prepared
    from headrace.cli.state_check import StateFindings
    from headrace.config.feasibility import Plan


class SettingLine(msgspec.Struct, frozen=True):
    """One effective setting."""

    value: str
    origin: str


class CheckReport(msgspec.Struct, kw_only=True):
    """What ``check`` found. A run with ``problems`` would be refused with exit code 2."""

    pipeline: str
    state: str
    workers: int
    workers_from: str
    shards: int
    problems: list[str] = msgspec.field(default_factory=list[str])
    warnings: list[str] = msgspec.field(default_factory=list[str])
    settings: dict[str, SettingLine] = msgspec.field(default_factory=dict[str, SettingLine])
    memory: list[str] = msgspec.field(default_factory=list[str])
    explanation: str | None = None
    exit_code: int = COMPLETE


@click.command("check", short_help="Say whether a pipeline can run; change nothing.")
@run_options
@click.option("--explain", is_flag=True, help="Also print the code that is generated for each side.")
def command(as_json: bool, explain: bool, **values: Any) -> int:
    """Print the effective settings of PIPELINE with their origins, and the memory map; refuse what cannot work.

    Exit code 2 when a run would be refused: settings, a plan that cannot work, an operator that cannot travel to the
    workers, a sink, the state directory. Nothing is changed, and a live run is not disturbed.
    """
    from headrace.cli.prepare import prepare
    from headrace.cli.streams import prints_to_stderr

    with prints_to_stderr():
        report = examine(prepare(options_of(values)), explain)
    if as_json:
        print_json(report)
    else:
        click.echo("\n".join(_lines(report)))
    for problem in report.problems:
        print_error(problem)
    return report.exit_code


def examine(prepared: Prepared, explain: bool) -> CheckReport:
    """Look at every part of a run, and go on after a problem so that all of them are told at once (X03)."""
    from headrace.cli.state_check import inspect_state
    from headrace.config.load import written
    from headrace.config.settings import DEFAULT_SHARDS

    pipeline = prepared.loaded.pipeline
    state = inspect_state(prepared.state, pipeline.name)
    values = written(prepared.effective.settings)
    report = CheckReport(
        pipeline=pipeline.name,
        state=str(prepared.state),
        workers=prepared.workers,
        workers_from=prepared.reason,
        shards=state.shards or prepared.shards or DEFAULT_SHARDS,
        settings={key: SettingLine(text, prepared.effective.origins[key]) for key, text in values.items()},
    )
    _examine_state(report, state, prepared.shards)
    _examine_plan(report, prepared)
    _examine_connectors(report, prepared)
    built = _examine_chain(report, prepared)
    if built is not None and explain:
        from headrace.chain.explain import explain as explain_chain

        report.explanation = explain_chain(built)
    report.exit_code = REFUSED if report.problems else COMPLETE
    return report


def _attempt(report: CheckReport, call: Callable[[], Any]) -> Any:
    """What ``call`` returns; what it refuses becomes a problem of the report, and None is returned."""
    from headrace.errors import HeadraceError

    try:
        return call()
    except HeadraceError as error:
        report.problems.append(str(error))
        return None


def _examine_state(report: CheckReport, state: StateFindings, asked: int | None) -> None:
    report.problems += state.problems
    report.warnings += state.warnings
    if asked is not None and state.shards not in (None, asked):
        report.problems.append(
            f"{state.path} was begun with {state.shards} shards and keeps them; leave --shards out, or give another "
            "--state"
        )


def _examine_plan(report: CheckReport, prepared: Prepared) -> None:
    from headrace.cli.prepare import plan_for

    plan: Plan | None = _attempt(report, lambda: plan_for(prepared, report.shards))
    if plan is not None:
        report.warnings += plan.warnings
        report.memory = plan.memory_map()


def _examine_connectors(report: CheckReport, prepared: Prepared) -> None:
    """Ask the sinks, and the source where it can tell, whether they could be opened."""
    here = Path.cwd()
    pipeline = prepared.loaded.pipeline
    for name, sink in pipeline.sinks.items():
        before = len(report.problems)
        _attempt(report, lambda sink=sink: sink.resolve(here).check())  # type: ignore[misc]
        report.problems[before:] = [f"sink {name}: {problem}" for problem in report.problems[before:]]
    source: Any = pipeline.source_of
    check = getattr(_attempt(report, lambda: source.resolve(here)), "check", None)
    if check is not None:
        _attempt(report, check)


def _examine_chain(report: CheckReport, prepared: Prepared) -> BuiltChain | None:
    """Generate the chain and pack what goes to the workers, so that what cannot travel is refused by name."""
    from headrace.supervisor.parts import default_policy, pack

    pipeline = prepared.loaded.pipeline
    on_error = default_policy(pipeline, prepared.effective)
    built: BuiltChain | None = _attempt(report, lambda: pipeline.build(on_error=on_error))
    if built is not None:
        _attempt(report, lambda: pack(built, list(pipeline.sinks.items()), prepared.loaded.modules_root))
    return built


def _lines(report: CheckReport) -> list[str]:
    lines = [
        f"pipeline {report.pipeline}, state {report.state}",
        f"{report.workers} workers ({report.workers_from}), {report.shards} shards",
        "",
        *table(("setting", "value", "from"), [(key, one.value, one.origin) for key, one in report.settings.items()]),
    ]
    if report.memory:
        lines += ["", "memory", *(f"  {line}" for line in report.memory)]
    if report.explanation is not None:
        lines += ["", report.explanation.rstrip()]
    lines += ["", *(f"warning: {warning}" for warning in report.warnings)]
    return [*lines, "this plan works"] if not report.problems else lines
