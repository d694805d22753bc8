"""Commands that write, check, explain and test a config, and commands that run its pipeline."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from slackwater.cli.commands import MOST_ROWS, AllowHost, File, parse_amount


def init(  # noqa: PLR0913 -- one argument per option of the command
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The config to write.")] = Path("pipeline.toml"),
    sample: Annotated[
        list[Path] | None,
        typer.Option(
            "--sample",
            metavar="PATH",
            help="A sample of the rows: a file or directory of JSON lines, CSV or Parquet, also compressed as .gz; for a join, specify the option twice, the left side first.",
        ),
    ] = None,
    source: Annotated[str | None, typer.Option(help="The kind of source: files (the default) or kafka.")] = None,
    kind: Annotated[
        str | None,
        typer.Option(help="The kind of window (session, which is the default, tumbling or hopping), or join."),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key",
            metavar="COLUMN",
            help="A column to group or join by; may be repeated. By default, the most likely column of the sample.",
        ),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="The event time column. By default, the most likely column of the sample."),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", help="The Kafka topic; for a join, specify the option twice, the left side first."),
    ] = None,
    brokers: Annotated[str, typer.Option(help="Kafka's bootstrap servers.")] = "localhost:9092",
    name: Annotated[
        str | None, typer.Option(help="The name of the pipeline; by default, the name of the config file.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the config and the test if they exist.")] = False,
    no_test: Annotated[
        bool, typer.Option("--no-test", help="Do not write the test tests/NAME.toml with rows from the sample.")
    ] = False,
) -> None:
    """Write a first config that passes `check`, with explanatory comments. With --sample, also write a test."""
    from slackwater.cli.init import InitOptions, write_first_config

    paths, keys, topics = (tuple(values or ()) for values in (sample, key, topic))
    write_first_config(InitOptions(file, source, kind, paths, keys, time, topics, brokers, name, force, not no_test))  # type: ignore[arg-type]


def check(
    file: File,
    connect: Annotated[
        bool,
        typer.Option(
            "--connect", help="Also check that brokers, topics, databases and tables exist and match the config."
        ),
    ] = False,
) -> None:
    """Check a config for mistakes, without running the pipeline. Spark starts only if --connect needs it."""
    from slackwater.cli.check import check_file

    check_file(file, connect)


def run_tests(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="FILE|DIR",
            help="A test file, a config whose tests are in the folder tests/ next to it, or a directory with tests.",
        ),
    ] = Path(),
    update: Annotated[
        bool, typer.Option("--update", help="Replace the expected results of failed tests with the actual results.")
    ] = False,
) -> None:
    """Run the tests of one or more pipelines (tests/*.toml).

    The exit code is 0 if all tests pass, 1 if a test fails, and 2 if a test or its config is invalid.
    """
    from slackwater.cli.check import run_test_files

    if code := run_test_files(path, update):
        raise typer.Exit(code)


def schema(
    tests: Annotated[bool, typer.Option("--tests", help="Print the schema of test files instead.")] = False,
) -> None:
    """Print the JSON Schema of configs. Editors use it to complete keys and to flag mistakes.

    It includes the keys of connectors from other installed packages.
    """
    from importlib import resources

    from slackwater.core.connector_registry import TABLE

    has_connectors = TABLE.installed_kinds() != list(TABLE)
    if tests or has_connectors:
        from slackwater.config import json_schema

        TABLE.load_installed()
    if tests:
        from slackwater.testing.case_file import TestCase

        sys.stdout.write(json_schema.schema_text(json_schema.build_schema(TestCase, "A test of a Slackwater pipeline")))
    elif has_connectors:
        sys.stdout.write(json_schema.schema_text(json_schema.build_schema()))
    else:
        sys.stdout.write(resources.files("slackwater.config").joinpath("slackwater.schema.json").read_text("utf-8"))


def explain(file: File) -> None:
    """Print the plan of a config: its stages, state and delivery guarantee."""
    from slackwater.cli.check import explain_file

    explain_file(file)


def plan(
    file: File,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what the next start with this config would keep, migrate or reject.

    The exit code is 1 if startup would fail.
    """
    from slackwater.cli.plan import print_config_changes

    print_config_changes(file, as_json)


# -- run -------------------------------------------------------------------------------------------------------------


def run(  # noqa: PLR0913 -- one argument per option of the command
    file: File,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Process the input that is available now, then stop.")
    ] = False,
    flush: Annotated[
        bool, typer.Option("--flush", help="With --available-now: close all open windows at the end.")
    ] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Serve Prometheus metrics and health probes on this port; 0 means any free port."
        ),
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="The address to serve the metrics on.")] = "127.0.0.1",
    allow_host: AllowHost = None,
    status_every: Annotated[
        float,
        typer.Option(parser=parse_amount, metavar="SECONDS", help="The minimum time between two status lines."),
    ] = 1.0,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Start over: move the state aside and begin with an empty one.")
    ] = False,
    begin: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="OFFSETS",
            help='With --rebuild: read from these offsets: earliest, latest, or JSON such as {"clicks": "latest"}.',
        ),
    ] = None,
    put_aside_output: Annotated[
        bool,
        typer.Option(
            "--put-aside-output",
            help="Move aside files that an earlier state, or a newer copy of the state, wrote to the target.",
        ),
    ] = False,
    keep_output: Annotated[
        bool,
        typer.Option(
            "--keep-output",
            help="Continue even if an earlier state, or a newer copy of the state, wrote to the target.",
        ),
    ] = False,
    otel: Annotated[
        bool, typer.Option("--otel", help="Send metrics to OTEL_EXPORTER_OTLP_ENDPOINT (OpenTelemetry).")
    ] = False,
    openlineage: Annotated[
        bool, typer.Option("--openlineage", help="Send run events to OPENLINEAGE_URL (OpenLineage).")
    ] = False,
    timings: Annotated[
        bool, typer.Option("--timings", help="Print a timing breakdown of startup and the first epoch.")
    ] = False,
    ui: Annotated[
        bool, typer.Option("--ui", help="Also serve the pipeline's web page on loopback, and print its address.")
    ] = False,
    ui_port: Annotated[int, typer.Option(min=0, max=65535, help="The port of the page; 0 means any free port.")] = 8086,
) -> None:
    """Run a pipeline until it is stopped (Ctrl-C), or until its input ends (--available-now)."""
    from slackwater.cli.run import MetricsAddress, RunFlags, run_file

    metrics = None if metrics_port is None else MetricsAddress(metrics_port, metrics_host, allow_host or ())
    flags = RunFlags(
        available_now=available_now,
        flush=flush,
        metrics=metrics,
        status_every=status_every,
        rebuild=rebuild,
        begin=begin,
        put_aside_output=put_aside_output,
        keep_output=keep_output,
        otel=otel,
        openlineage=openlineage,
        ui_port=ui_port if ui else None,
        timings=timings,
    )
    run_file(file, flags)


def backfill(
    file: File,
    since: Annotated[
        str,
        typer.Option("--from", metavar="TIME", help="Write windows that start at or after this time (ISO 8601, UTC)."),
    ],
    until: Annotated[str, typer.Option("--to", metavar="TIME", help="Write windows that start before this time.")],
    partial: Annotated[
        bool, typer.Option("--partial", help="Also write windows that extend beyond the range.")
    ] = False,
    into: Annotated[
        str | None,
        typer.Option(metavar="PATH_OR_TABLE", help="Write to this path or table instead of the pipeline's own target."),
    ] = None,
    slack: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="How far the timestamp of a Kafka record may be from its event time; by default, the lateness plus the allowed lateness.",
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="NAME", help="The name of the target, if the pipeline has several.")
    ] = None,
) -> None:
    """Write the windows of a past period to the target, without affecting the running pipeline or its state."""
    from slackwater.cli.run import backfill_file

    backfill_file(file, since, until, partial, into, slack, target)


def prepare(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE…", help="Configs whose jars are also downloaded.")
    ] = None,
    jars: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="kafka|avro", help="Also download this connector's jars; may be repeated."),
    ] = None,
) -> None:
    """Compile and download what the first run needs. Run this once per machine or container image."""
    from slackwater.cli.prepare import prepare_machine

    prepare_machine(files or [], jars or [])


def demo(
    keep: Annotated[
        Path | None, typer.Option(help="A new directory for the demo's files; by default, a temporary directory.")
    ] = None,
    rows: Annotated[int, typer.Option(min=1000, max=MOST_ROWS, help="The number of clicks to generate.")] = 60_000,
    ui: Annotated[
        bool, typer.Option("--ui", help="At the end, serve the web page of both pipelines until Ctrl-C.")
    ] = False,
    ui_port: Annotated[int, typer.Option(min=0, max=65535, help="The port of the page; 0 means any free port.")] = 8086,
) -> None:
    """Demonstrate Slackwater in under a minute: compute sessions and five-minute counts over generated clicks."""
    from slackwater.cli.demo import run_demo

    run_demo(keep, rows, ui_port if ui else None)


def demo_kafka(
    rows: Annotated[int, typer.Option(min=10_000, max=MOST_ROWS, help="The number of clicks to produce.")] = 60_000,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep Kafka and Postgres running until Ctrl-C, so that you can inspect them.")
    ] = False,
) -> None:
    """Demonstrate recovery with a local Kafka and Postgres: kill the runner twice, and show that no row is lost."""
    from slackwater.cli.demo_kafka import run_demo

    run_demo(rows, keep)
