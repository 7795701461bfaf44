"""``headrace run``: one run in the foreground, from the pipeline file to the report."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.options import RunOptions, options_of, run_options
from headrace.cli.output import counts_line, is_terminal, print_error, printable
from headrace.cli.streams import SavedStdout, write_whole

if TYPE_CHECKING:
    from headrace.cli.prepare import Prepared
    from headrace.supervisor.report import RunReport, RunRequest


@click.command("run", short_help="Run a pipeline until its source is drained or it is told to stop.")
@run_options
def command(as_json: bool, **values: Any) -> int:
    """Run PIPELINE, a Python or TOML file, until its source is drained or it is told to stop.

    SIGTERM and SIGINT drain: everything sealed is written, at most drain.timeout after the signal; a second signal
    ends the run at once. Exit codes: 0 complete or cleanly drained; 1 failed; 2 refused before the first worker
    started; 3 stopped with data left that will replay; 4 the state directory is in use; 130 forced.
    """
    return run_in_foreground(options_of(values), as_json)


def run_in_foreground(options: RunOptions, as_json: bool) -> int:
    """Run and report; the exit code. What the pipeline's own code prints goes to standard error where rows or a
    report go to standard output."""
    from headrace.cli.prepare import prepare, refuse_before_making
    from headrace.cli.state_choice import make_default_root

    saved = SavedStdout()
    try:
        prepared = prepare(options)
        refuse_before_making(prepared)
        make_default_root(prepared.state)
        if not as_json and not prepared.has_stdout_sink:
            saved.give_back()
        report = _run(prepared, as_json, saved.fd)
        if report.error:
            print_error(report.error)
        _print_report(report, prepared, as_json, saved.fd)
        return report.exit_code
    finally:
        saved.close()


def _run(prepared: Prepared, as_json: bool, out_fd: int) -> RunReport:
    from headrace.supervisor.run import run

    live = not as_json and not prepared.has_stdout_sink and is_terminal(2)
    request = _request(prepared, as_json, out_fd, live)
    if not live:
        return run(request)
    from headrace.cli.live import LiveView

    view = LiveView(2)
    request.on_status = view.update
    try:
        return run(request)
    finally:
        view.close()


def _request(prepared: Prepared, as_json: bool, out_fd: int, live: bool) -> RunRequest:
    from headrace.supervisor.report import RunRequest

    return RunRequest(
        pipeline=prepared.loaded.pipeline,
        loaded=prepared.loaded,
        effective=prepared.effective,
        state=prepared.state,
        workers=prepared.workers,
        workers_reason=prepared.reason,
        shards=prepared.shards,
        json=as_json,
        out_fd=out_fd,
        live=live,
        log_path=prepared.state / "headrace.log" if live else None,
    )


def _print_report(report: RunReport, prepared: Prepared, as_json: bool, out_fd: int) -> None:
    import msgspec

    if as_json:
        data = msgspec.json.encode(report) + b"\n"
    else:
        data = "".join(f"{line}\n" for line in summary(msgspec.to_builtins(report))).encode()
    with contextlib.suppress(OSError):  # nobody reads it any more; the exit code still says what happened
        write_whole(2 if prepared.has_stdout_sink else out_fd, data)


def summary(report: dict[str, Any]) -> list[str]:
    """The end of a run for a person."""
    lines = [f"{report['state']} in {report['seconds']:.1f} s: {counts_line(report)}"]
    marks: dict[str, int] = report.get("watermarks") or {}
    shown = sorted(marks.items())[:10]
    lines += [f"  {printable(partition)}: {position:,}" for partition, position in shown]
    if len(marks) > len(shown):
        lines.append(f"  … {len(marks) - len(shown)} more partitions")
    return lines
