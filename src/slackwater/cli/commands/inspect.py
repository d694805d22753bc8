"""Commands that show, explain, serve and compare results and states."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slackwater.cli.commands import MOST_ROWS, AllowHost, File, parse_amount
from slackwater.cli.commands.state_dlq_outbox import Name, Schema, Where
from slackwater.cli.state_location import StateLocation


def show(
    file: File,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            "-n",
            min=1,
            max=MOST_ROWS,
            help="The maximum number of rows to print; by default, the newest 20, or all with --sql.",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new rows as they are published, until Ctrl-C.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per row, with times in ISO 8601.")
    ] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV with a header, with times in ISO 8601.")] = False,
    where: Annotated[
        str | None,
        typer.Option(metavar="CONDITION", help="Print only rows that match this SQL condition."),
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME,…", help="Print only these columns, in this order; may be repeated."),
    ] = None,
    sql: Annotated[
        str | None,
        typer.Option(
            metavar="QUERY", help="Print the result of a SQL query over the published rows: SELECT … FROM result."
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="NAME", help="Read only this target, if the pipeline has several.")
    ] = None,
) -> None:
    """Print the published results of a pipeline, ordered by window. They are read from the targets without Spark."""
    from slackwater.cli.results import ShowOptions, show_file

    show_file(file, ShowOptions(limit, as_json, as_csv, where, tuple(columns or ()), sql), follow, target)


def why(
    file: File,
    key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="K=V,…",
            help="Also report on this key, its late rows and its last results; a name without a value stands for NULL.",
        ),
    ] = None,
    stage: Annotated[
        str | None, typer.Option(metavar="NAME", help="Report only on this stage, if the pipeline has several.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with times in microseconds (UTC).")] = False,
) -> None:
    """Explain why there is no output yet: the watermark, what holds it back, and which windows close next."""
    from slackwater.cli.why import print_why_report

    print_why_report(file, key or [], as_json, stage)


def serve(
    where: Where,
    pipeline: Name = None,
    schema: Schema = "public",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 means any free port.")] = 8085,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    allow_host: AllowHost = None,
) -> None:
    """Serve the open and retained windows over HTTP as JSON or Arrow, read-only."""
    from slackwater.cli.web_commands import serve_state_until_stopped

    serve_state_until_stopped(StateLocation(where, pipeline, schema), host, port, allow_host or [])


def ui(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE…",
            help="The TOML files of pipelines, or a state directory or database URL for all pipelines in it.",
        ),
    ],
    schema: Schema = "public",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 means any free port.")] = 8086,
    host: Annotated[
        str, typer.Option(help="The address to listen on; any address except loopback requires --token.")
    ] = "127.0.0.1",
    allow_host: AllowHost = None,
    token: Annotated[
        str | None,
        typer.Option(metavar="TEXT", envvar="SLACKWATER_UI_TOKEN", help="Accept only requests with this token."),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="PAGE.html", help="Write the page to one file instead of serving it.")
    ] = None,
) -> None:
    """Serve a web page about pipelines: what holds back the watermark, what closes next, and where each row went."""
    from slackwater.cli.web_commands import serve_or_save_page

    serve_or_save_page(places, host, port, allow_host or [], token, save, schema)


def diff(
    a: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="A path to files or a Delta table, postgresql://…#TABLE, FILE.toml or FILE.toml#TARGET, or state:WHERE.",
        ),
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="The other side of the comparison, in one of the same forms.")],
    by: Annotated[
        str | None,
        typer.Option(metavar="COL,…", help="The columns that identify a row; required if neither side defines them."),
    ] = None,
    ignore: Annotated[str | None, typer.Option(metavar="COL,…", help="Columns to ignore.")] = None,
    tolerance: Annotated[
        float,
        typer.Option(
            parser=parse_amount,
            metavar="NUMBER",
            help="The tolerance for numbers, relative to the largest of 1 and their absolute values.",
        ),
    ] = 0.0,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, max=MOST_ROWS, help="The maximum number of examples of each kind.")
    ] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, with times in ISO 8601.")] = False,
) -> None:
    """Compare two outputs or states by key and window. Exit code 0: equal; 1: different; 2: not comparable."""
    from slackwater.cli.results import print_differences_of_outputs

    print_differences_of_outputs(a, b, by, ignore, tolerance, limit, as_json)
