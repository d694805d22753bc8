"""The command `slackwater`. Errors are one line each; what they cost is loaded only where it is needed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from slackwater.cli.state import Name, Schema, Where, state
from slackwater.core.words import plural
from slackwater.errors import ConfigError, ExhaustedError, SlackwaterError
from slackwater.secrets import masked, remember_url

app = typer.Typer(
    help="Windows, sessions and stream joins for Apache Spark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host",
        metavar="NAME",
        help="A name that clients may call this server by, beside localhost and numbers.",
    ),
]
File = Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline as TOML.")]


def _version(wanted: bool) -> None:
    if wanted:
        from slackwater import __version__

        print(f"slackwater {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Windows, sessions and stream joins for Apache Spark."""
    if (here := str(Path.cwd())) not in sys.path:  # as `python -m` has it: a config names modules of the user's
        sys.path.append(here)


@app.command()
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The config to write.")] = Path("pipeline.toml"),
    sample: Annotated[
        list[Path] | None,
        typer.Option(
            "--sample",
            metavar="PATH",
            help="A file or directory of JSON lines, CSV or Parquet to learn from, .gz too; two of them for a join.",
        ),
    ] = None,
    source: Annotated[str | None, typer.Option(help="Where rows come from: files or kafka.")] = None,
    kind: Annotated[str | None, typer.Option(help="session, tumbling, hopping or join.")] = None,
    key: Annotated[
        list[str] | None, typer.Option("--key", metavar="COLUMN", help="Group or join by it; may be repeated.")
    ] = None,
    time: Annotated[str | None, typer.Option(metavar="COLUMN", help="The column with the event time.")] = None,
    topic: Annotated[list[str] | None, typer.Option("--topic", help="Of kafka; two of them for a join.")] = None,
    brokers: Annotated[str, typer.Option(help="Of kafka.")] = "localhost:9092",
    name: Annotated[str | None, typer.Option(help="The pipeline's name, else the file's.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    no_test: Annotated[
        bool, typer.Option("--no-test", help="Write no test beside it, tests/NAME.toml with rows of the sample.")
    ] = False,
) -> None:
    """Write a first config, commented, that passes check; from a sample of the data if there is one, with a test."""
    from slackwater.cli.init import Asked, init_file

    paths, keys, topics = (tuple(given or ()) for given in (sample, key, topic))
    init_file(Asked(file, source, kind, paths, keys, time, topics, brokers, name, force, not no_test))  # type: ignore[arg-type]


@app.command()
def check(
    file: File,
    connect: Annotated[
        bool,
        typer.Option("--connect", help="Also look whether brokers, topics, databases and tables are there and fit."),
    ] = False,
) -> None:
    """Check a config, without starting Spark unless --connect needs it."""
    from slackwater.cli.describe import check_file

    check_file(file, connect)


@app.command("test")
def run_tests(
    path: Annotated[
        Path, typer.Argument(metavar="FILE|DIR", help="A test, a pipeline with tests beside it, or a folder of either.")
    ] = Path(),
    update: Annotated[
        bool, typer.Option("--update", help="Make the files expect what came; the rest of them stays.")
    ] = False,
) -> None:
    """Run the tests beside a pipeline, tests/*.toml. Exit code 0: all as expected; 1: not; 2: a test or its config is wrong."""
    from slackwater.cli.test import test_path

    if code := test_path(path, update):
        raise typer.Exit(code)


@app.command()
def schema(
    tests: Annotated[bool, typer.Option("--tests", help="Of the files that slackwater test runs.")] = False,
) -> None:
    """Print the JSON Schema of a config, with which editors complete keys and flag mistakes."""
    from importlib import resources

    if tests:
        from slackwater.config import json_schema
        from slackwater.testing.case import Case

        sys.stdout.write(json_schema.text(json_schema.schema(Case, "A test of a Slackwater pipeline")))
        return

    sys.stdout.write(resources.files("slackwater.config").joinpath("slackwater.schema.json").read_text("utf-8"))


@app.command()
def explain(file: File) -> None:
    """Print the plan of a config: stages, state, delivery guarantee."""
    from slackwater.cli.describe import explain_file

    explain_file(file)


@app.command()
def plan(
    file: File,
    as_json: Annotated[bool, typer.Option("--json", help="For machines: one object.")] = False,
) -> None:
    """Compare a config with its state: what the next start keeps, migrates, or cannot use. Exit code 1 if it would refuse."""
    from slackwater.cli.plan import plan_file

    plan_file(file, as_json)


@app.command()
def run(
    file: File,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Process what is there now, then stop.")
    ] = False,
    flush: Annotated[
        bool, typer.Option("--flush", help="At the end close all open windows (with --available-now).")
    ] = False,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Serve Prometheus metrics; 0: a free port.")
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="Address to bind the metrics to.")] = "127.0.0.1",
    allow_host: AllowHost = None,
    status_every: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="At most one status line per so many seconds.")
    ] = 1.0,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Start over: put the state aside and begin a new one.")
    ] = False,
    begin: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="OFFSETS",
            help='With --rebuild: earliest, latest, or JSON per source, as {"clicks": "latest"}.',
        ),
    ] = None,
    put_aside_output: Annotated[
        bool,
        typer.Option(
            "--put-aside-output",
            help="Where a state begins: move the files that another state of this pipeline left in the target.",
        ),
    ] = False,
    keep_output: Annotated[
        bool, typer.Option("--keep-output", help="Where a state begins: add rows beside those that another state left.")
    ] = False,
    otel: Annotated[
        bool, typer.Option("--otel", help="Send metrics by OpenTelemetry, to OTEL_EXPORTER_OTLP_ENDPOINT.")
    ] = False,
    openlineage: Annotated[
        bool, typer.Option("--openlineage", help="Send run events of OpenLineage, to OPENLINEAGE_URL.")
    ] = False,
    ui: Annotated[
        bool, typer.Option("--ui", help="Serve its page on loopback beside it, and print the address.")
    ] = False,
    ui_port: Annotated[int, typer.Option(min=0, max=65535, help="Of --ui; 0: a free port.")] = 8086,
) -> None:
    """Run a pipeline until it is stopped (Ctrl-C), or until its input ends (--available-now)."""
    from slackwater.cli.runner import run_file

    run_file(
        file,
        available_now,
        flush,
        metrics_port,
        metrics_host,
        status_every,
        rebuild,
        begin,
        put_aside_output,
        keep_output,
        allow_host or [],
        otel=otel,
        openlineage=openlineage,
        ui_port=ui_port if ui else None,
    )


app.add_typer(state, name="state")

letters = typer.Typer(help="Look into the dead letters of a config, and apply them.", no_args_is_help=True)
app.add_typer(letters, name="dlq")


@letters.command("list")
def dlq_list(file: File) -> None:
    """Count the dead letters, by reason and source."""
    from slackwater.cli.dlq import list_file

    list_file(file)


@letters.command("show")
def dlq_show(
    file: File,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many letters.")] = 10,
    reason: Annotated[str | None, typer.Option(help="Only of this reason, as in late.")] = None,
    source: Annotated[str | None, typer.Option(help="Only of this source.")] = None,
) -> None:
    """Print the newest dead letters with their content."""
    from slackwater.cli.dlq import show_file

    show_file(file, limit, reason, source)


@letters.command("replay")
def dlq_replay(
    file: File,
    reason: Annotated[str | None, typer.Option(help="Only letters of this reason, as in late.")] = None,
    epoch: Annotated[
        str | None, typer.Option(metavar="A..B", help="Only letters of these epochs; A.. or ..B or one alone.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="At most so many, the oldest first.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would happen.")] = False,
) -> None:
    """Apply dead letters: late rows correct the windows they missed, bad rows are read again. Each one at most once."""
    from slackwater.cli.dlq_replay import replay_file

    replay_file(file, reason, epoch, limit, dry_run)


outbox = typer.Typer(
    help="Look at an epoch that was committed and is not published; try again, or set it aside.", no_args_is_help=True
)
app.add_typer(outbox, name="outbox")
Epoch = Annotated[int, typer.Argument(metavar="EPOCH", min=0, help="The epoch that outbox show names.")]


@outbox.command("show")
def outbox_show(
    file: File, limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many rows.")] = 10
) -> None:
    """Which epoch waits to be published, and what it holds. Takes no lock."""
    from slackwater.cli.outbox import show_file

    show_file(file, limit)


@outbox.command("retry")
def outbox_retry(file: File, epoch: Epoch) -> None:
    """Publish the epoch, as the next start would, and stop without reading anything."""
    from slackwater.cli.outbox import retry_file

    retry_file(file, epoch)


@outbox.command("set-aside")
def outbox_set_aside(
    file: File,
    epoch: Epoch,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIR", help="Keep them in Parquet files here, not in the dead letters."),
    ] = None,
) -> None:
    """Keep the rows of an epoch that its target never takes in the dead letters, and let the next start go on after it."""
    from slackwater.cli.outbox import set_aside_file

    set_aside_file(file, epoch, to)


@app.command()
def show(
    file: File,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="How many rows: those of the newest windows.")
    ] = 20,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with new rows as they are published, until Ctrl-C.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per row; times in ISO 8601.")] = False,
    target: Annotated[str | None, typer.Option(metavar="NAME", help="Of several targets this one alone.")] = None,
) -> None:
    """Print what a pipeline has published, from its targets, in the order of the windows; without Spark."""
    from slackwater.cli.show import show_file

    show_file(file, limit, follow, as_json, target)


@app.command()
def why(
    file: File,
    key: Annotated[
        list[str] | None, typer.Option(metavar="K=V,…", help="Also tell of this key; a name alone stands for NULL.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines; times in microseconds UTC.")] = False,
) -> None:
    """Why is there no output yet: the watermark, who holds it, and what closes next."""
    from slackwater.cli.why import why_file

    why_file(file, key or [], as_json)


@app.command()
def serve(
    where: Where,
    pipeline: Name = None,
    schema: Schema = "public",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free port.")] = 8085,
    host: Annotated[str, typer.Option(help="Address to bind to.")] = "127.0.0.1",
    allow_host: AllowHost = None,
) -> None:
    """Answer questions about the open windows over HTTP, in JSON and Arrow; read only."""
    from slackwater.cli.serve import serve_state

    serve_state(where, pipeline, schema, host, port, allow_host or [])


@app.command()
def ui(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE…", help="The pipelines as TOML; or a state directory, or postgresql://…: all there."
        ),
    ],
    schema: Schema = "public",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free port.")] = 8086,
    host: Annotated[
        str, typer.Option(help="Address to bind to; another one than this machine's own needs --token.")
    ] = "127.0.0.1",
    allow_host: AllowHost = None,
    token: Annotated[
        str | None,
        typer.Option(metavar="TEXT", envvar="SLACKWATER_UI_TOKEN", help="Answer only those who give it."),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="PAGE.html", help="Write the page as one file instead, as for a ticket.")
    ] = None,
) -> None:
    """A page about pipelines, running or not: who holds the watermark, what closes next, where every row went."""
    from slackwater.cli.ui import show_ui

    show_ui(places, host, port, allow_host or [], token, save, schema)


@app.command()
def diff(
    a: Annotated[
        str,
        typer.Argument(
            metavar="A", help="Files, a Delta table, postgresql://…#table, a TOML file, FILE.toml#target, state:WHERE."
        ),
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="The same.")],
    by: Annotated[
        str | None, typer.Option(metavar="COL,…", help="The columns that tell rows apart, if neither side tells them.")
    ] = None,
    ignore: Annotated[str | None, typer.Option(metavar="COL,…", help="Columns that do not count.")] = None,
    tolerance: Annotated[
        float, typer.Option(min=0, help="Numbers may differ by this times the larger of 1 and their size.")
    ] = 0.0,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="How many examples of each kind.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object; times in ISO 8601.")] = False,
) -> None:
    """Compare two outputs or states by key and window. Exit code 0: equal; 1: not; 2: they cannot be compared."""
    from slackwater.cli.diff import diff_outputs

    diff_outputs(a, b, by, ignore, tolerance, limit, as_json)


@app.command()
def backfill(
    file: File,
    since: Annotated[
        str, typer.Option("--from", metavar="TIME", help="Windows that start at or after it (ISO 8601, UTC).")
    ],
    until: Annotated[str, typer.Option("--to", metavar="TIME", help="Windows that start before it.")],
    partial: Annotated[bool, typer.Option("--partial", help="Also write windows that reach out of the range.")] = False,
    into: Annotated[
        str | None, typer.Option(metavar="PATH_OR_TABLE", help="Write there, not into the pipeline's own target.")
    ] = None,
    slack: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="How far the time of a Kafka record may be from its event time."),
    ] = None,
    target: Annotated[str | None, typer.Option(metavar="NAME", help="Which of several targets.")] = None,
) -> None:
    """Run a pipeline over bounded history into its target, beside the live one and its state."""
    from slackwater.cli.backfill import backfill_file

    backfill_file(file, since, until, partial, into, slack, target)


@app.command()
def demo(
    keep: Annotated[Path | None, typer.Option(help="Keep the demo's files in this new directory.")] = None,
    rows: Annotated[int, typer.Option(min=1000, help="How many clicks to generate.")] = 60_000,
    ui: Annotated[
        bool, typer.Option("--ui", help="Serve the page of both pipelines at the end, until Ctrl-C.")
    ] = False,
    ui_port: Annotated[int, typer.Option(min=0, max=65535, help="Of --ui; 0: a free port.")] = 8086,
) -> None:
    """Sessions and five-minute counts over a generated click stream, in under a minute."""
    from slackwater.cli.demo import run_demo

    run_demo(keep, rows, ui_port if ui else None)


@app.command()
def demo_kafka(
    rows: Annotated[int, typer.Option(min=10_000, help="How many clicks to produce.")] = 60_000,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave Kafka and Postgres up until Ctrl-C, to look at them.")
    ] = False,
) -> None:
    """Kafka to Postgres on this machine: sessions, a runner that is killed twice, and nothing lost."""
    from slackwater.cli.demo_kafka import run_demo

    run_demo(rows, keep)


def main() -> None:
    """Entry point: exit code 0; 2 for a wrong config or command line, 1 for what failed, 70 for a bug of ours."""
    for given in sys.argv[1:]:
        remember_url(given)
    try:
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
        _tell(error)
        sys.exit(1)
    except Exception as error:
        if os.environ.get("SLACKWATER_DEBUG"):
            raise
        from slackwater.runner.border import of_service

        if exhausted := ExhaustedError.of(error):
            _tell(exhausted)
            sys.exit(1)
        if line := of_service(error):
            print(f"error: {masked(line)}", file=sys.stderr)
            sys.exit(1)
        text = masked((str(error).strip().splitlines() or [""])[0])
        print(
            f"internal error: {type(error).__name__}: {text}; run again with SLACKWATER_DEBUG=1 for the stack trace",
            file=sys.stderr,
        )
        sys.exit(70)


def _tell(error: SlackwaterError) -> None:
    """One line; who reads it on a terminal is told where its meaning is written."""
    print(f"error: {error}", file=sys.stderr)
    if sys.stderr.isatty():
        print(f"what it means, and what to do: {error.documented}", file=sys.stderr)


if __name__ == "__main__":
    main()
