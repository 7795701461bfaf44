"""The ``headrace`` command: finds the verb, and turns every ending into an exit code and at most two lines."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from headrace.cli.output import FAILED, FORCED, REFUSED, exit_code_of, print_error, print_json
from headrace.errors import HeadraceError

# Verbs are imported when they are called: `headrace run` pays for nothing but itself.
_VERBS = {
    "run": "Run a pipeline until its source is drained or it is told to stop.",
    "check": "Say whether a pipeline can run, with which settings and how much memory; change nothing.",
    "start": "Run a pipeline in the background.",
    "stop": "Drain a run and wait until it has ended.",
    "status": "Say how a run is doing.",
    "leases": "List which worker held which chunk.",
    "connectors": "List the sources, sinks and writers that are installed.",
}


class _Verbs(click.Group):
    """The verbs by name; click hands each method a context that none of them needs."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _VERBS:
            return None
        found = importlib.import_module(f"headrace.cli.{cmd_name}").command
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Verbs"):
            formatter.write_dl(list(_VERBS.items()))


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        from importlib.metadata import PackageNotFoundError, version

        try:
            click.echo(f"headrace {version('headrace')}")
        except PackageNotFoundError:
            click.echo("headrace (not installed)")
        ctx.exit()


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, callback=_print_version, expose_value=False, is_eager=True)
def headrace() -> None:
    """Move a stream of records into databases, files and topics without losing one."""


def main() -> NoReturn:
    """The console script."""
    sys.exit(call(sys.argv[1:]))


def call(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    as_json = "--json" in arguments
    try:
        code: Any = headrace.main(args=list(arguments), prog_name="headrace", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return REFUSED
    except click.ClickException as error:
        return _refused(error, as_json)
    except HeadraceError as error:
        return _told(error, as_json)
    except (KeyboardInterrupt, click.Abort):
        return FORCED
    except BrokenPipeError:
        _let_go_of_stdout()
        return FAILED
    except Exception as error:  # a fault of ours: said in a line, as every other
        if sys.flags.dev_mode:
            raise
        print_error(f"{type(error).__name__}: {error}", "this is a fault of headrace; python -X dev shows where")
        return FAILED


def _refused(error: click.ClickException, as_json: bool) -> int:
    context = error.ctx if isinstance(error, click.UsageError) else None
    name = context.command_path if context is not None else "headrace"
    message = error.format_message().rstrip(".")
    print_error(message[:1].lower() + message[1:], f"`{name} --help` lists what there is")
    if as_json:
        print_json({"state": "failed", "exit_code": REFUSED, "error": message})
    return REFUSED


def _told(error: HeadraceError, as_json: bool) -> int:
    trace = getattr(error, "user_traceback", None)
    print_error(str(error))
    if trace:
        click.echo(trace.rstrip(), err=True)
    code = exit_code_of(error)
    if as_json:
        print_json({"state": "failed", "exit_code": code, "error": str(error)})
    return code


def _let_go_of_stdout() -> None:
    """Nobody reads what we print; the interpreter must not complain of it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
