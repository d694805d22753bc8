"""The entry point of the command `slackwater`: it registers all commands, and prints errors without a stack trace.

To start quickly, it imports a module only when a command needs it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from slackwater.cli.commands import inspect, pipelines, state_dlq_outbox
from slackwater.core.humanize import plural
from slackwater.errors import ConfigError, ResourceExhaustedError, SlackwaterError
from slackwater.secret_masking import mask_secrets, remember_url

app = typer.Typer(
    help="Windows, sessions and stream joins for Apache Spark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(is_set: bool) -> None:
    if is_set:
        from slackwater.core import VERSION

        print(f"slackwater {VERSION}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Windows, sessions and stream joins for Apache Spark."""
    if (directory := str(Path.cwd())) not in sys.path:  # as `python -m` does: a config may name the user's modules
        sys.path.append(directory)


app.command()(pipelines.init)
app.command()(pipelines.check)
app.command("test")(pipelines.run_tests)
app.command()(pipelines.schema)
app.command()(pipelines.explain)
app.command()(pipelines.plan)
app.command()(pipelines.run)
app.command()(inspect.show)
app.command()(inspect.why)
app.command()(inspect.serve)
app.command()(inspect.ui)
app.command()(inspect.diff)
app.command()(pipelines.backfill)
app.command()(pipelines.prepare)
app.command()(pipelines.demo)
app.command()(pipelines.demo_kafka)
for name, group in (
    ("state", state_dlq_outbox.state),
    ("dlq", state_dlq_outbox.dlq),
    ("outbox", state_dlq_outbox.outbox),
):
    app.add_typer(group, name=name)


def main() -> None:
    """Run the command line. Exit code 1: failure; 2: invalid config or arguments; 70: a bug in Slackwater."""
    try:
        _check_arguments(sys.argv[1:])
        app()
    except ConfigError as error:
        print(error, file=sys.stderr)
        for further in error.further:
            print(further, file=sys.stderr)
        print(plural(len(error.problems), "problem"), file=sys.stderr)
        sys.exit(2)
    except SlackwaterError as error:
        if os.environ.get("SLACKWATER_DEBUG"):
            raise
        _print_error(error)
        sys.exit(1)
    except Exception as error:
        if os.environ.get("SLACKWATER_DEBUG"):
            raise
        from slackwater.runner.error_boundary import describe_service_error

        if exhausted := ResourceExhaustedError.from_error(error):
            _print_error(exhausted)
            sys.exit(1)
        if line := describe_service_error(error):
            print(f"error: {mask_secrets(line)}", file=sys.stderr)
            sys.exit(1)
        text = mask_secrets((str(error).strip().splitlines() or [""])[0])
        print(
            f"internal error: {type(error).__name__}: {text}; run again with SLACKWATER_DEBUG=1 for the stack trace",
            file=sys.stderr,
        )
        sys.exit(70)


def _check_arguments(arguments: Sequence[str]) -> None:
    """Register secrets in arguments, so that messages mask them. Raises ConfigError if one is not UTF-8 text."""
    for position, argument in enumerate(arguments, 1):
        try:
            argument.encode()
        except UnicodeEncodeError:
            text = argument[:80].encode(errors="replace").decode()
            raise ConfigError(
                [f'command line: argument {position} ("{text}") is not valid UTF-8; correct it']
            ) from None
        remember_url(argument)


def _print_error(error: SlackwaterError) -> None:
    """Print an error. On a terminal, also print the URL of its documentation."""
    print(f"error: {error}", file=sys.stderr)
    if sys.stderr.isatty():
        print(f"for the cause and the solution, see {error.documented}", file=sys.stderr)


if __name__ == "__main__":
    main()
