"""Commands that show, explain, serve and compare results and states."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slackwater.cli.arguments import MOST_ROWS, AllowHost, File, parse_amount
from slackwater.cli.state import Name, Schema, Where


def show(
    file: File,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            "-n",
            min=1,
            max=MOST_ROWS,
            help="The number of rows, those of the newest windows; 20 by default, or all with --sql.",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue with new rows as they are published, until Ctrl-C.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per row; times in ISO 8601.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Lines of CSV with a header; times in ISO 8601.")] = False,
    where: Annotated[
        str | None,
        typer.Option(metavar="CONDITION", help="Only rows for which this SQL condition is true; it searches all rows."),
    ] = None,
    columns: Annotated[
        list[str] | None, typer.Option(metavar="NAME,…", help="Only these columns, in this order; may be repeated.")
    ] = None,
    sql: Annotated[
        str | None, typer.Option(metavar="QUERY", help="Print what this SQL selects: SELECT … FROM result.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this target, if the pipeline has several.")
    ] = None,
) -> None:
    """Print the published results of a pipeline from its targets, ordered by window, without Spark."""
    from slackwater.cli.show import ShowOptions, show_file

    show_file(file, ShowOptions(limit, as_json, as_csv, where, tuple(columns or ()), sql), follow, target)


def why(
    file: File,
    key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="K=V,…", help="Also report this key, its late rows and last results; a name alone stands for NULL."
        ),
    ] = None,
    stage: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this stage, if the pipeline has several.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; times in microseconds UTC.")] = False,
) -> None:
    """Explain why there is no output yet: the watermark, what holds it, and which windows close next."""
    from slackwater.cli.why import print_why_report

    print_why_report(file, key or [], as_json, stage)


def serve(
    where: Where,
    pipeline: Name = None,
    schema: Schema = "public",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0: any free port.")] = 8085,
    host: Annotated[str, typer.Option(help="Address to bind to.")] = "127.0.0.1",
    allow_host: AllowHost = None,
) -> None:
    """Serve the open windows over HTTP in JSON and Arrow, read-only."""
    from slackwater.cli.serve import serve_state_until_stopped

    serve_state_until_stopped(where, pipeline, schema, host, port, allow_host or [])


def ui(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE…",
            help="TOML files of pipelines; or a state directory or postgresql://… for all pipelines in it.",
        ),
    ],
    schema: Schema = "public",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0: any free port.")] = 8086,
    host: Annotated[
        str, typer.Option(help="Address to bind to; any other than a loopback address needs --token.")
    ] = "127.0.0.1",
    allow_host: AllowHost = None,
    token: Annotated[
        str | None,
        typer.Option(metavar="TEXT", envvar="SLACKWATER_UI_TOKEN", help="Answer only requests with this token."),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="PAGE.html", help="Write the page to one file instead of serving it.")
    ] = None,
) -> None:
    """Serve a page about pipelines, running or not: what holds the watermark, what closes next, where every row went."""
    from slackwater.cli.ui import serve_or_save_page

    serve_or_save_page(places, host, port, allow_host or [], token, save, schema)


def diff(
    a: Annotated[
        str,
        typer.Argument(
            metavar="A", help="Files, a Delta table, postgresql://…#table, a TOML file, FILE.toml#target, state:WHERE."
        ),
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="What to compare with, in the same forms.")],
    by: Annotated[
        str | None, typer.Option(metavar="COL,…", help="The columns that identify a row, if neither side defines them.")
    ] = None,
    ignore: Annotated[str | None, typer.Option(metavar="COL,…", help="Columns to ignore.")] = None,
    tolerance: Annotated[
        float,
        typer.Option(
            parser=parse_amount,
            metavar="NUMBER",
            help="The tolerance for numbers, relative to the larger of 1 and their absolute value.",
        ),
    ] = 0.0,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, max=MOST_ROWS, help="The number of examples of each kind.")
    ] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object; times in ISO 8601.")] = False,
) -> None:
    """Compare two outputs or states by key and window. Exit code 0: equal; 1: different; 2: they cannot be compared."""
    from slackwater.cli.diff import print_output_diff

    print_output_diff(a, b, by, ignore, tolerance, limit, as_json)
