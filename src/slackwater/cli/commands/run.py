"""Commands that run pipelines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slackwater.cli.commands import MOST_ROWS, AllowHost, File, parse_amount


def run(  # noqa: PLR0913 -- one argument per option of the command
    file: File,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Process the input that is available now, then stop.")
    ] = False,
    flush: Annotated[
        bool, typer.Option("--flush", help="With --available-now: close all open windows at the end.")
    ] = False,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="The port of the Prometheus metrics; 0 means any free port.")
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="The address to serve the metrics on.")] = "127.0.0.1",
    allow_host: AllowHost = None,
    status_every: Annotated[
        float,
        typer.Option(parser=parse_amount, metavar="SECONDS", help="The minimum time between two status lines."),
    ] = 1.0,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Start over: move the state away and begin a new one.")
    ] = False,
    begin: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="OFFSETS",
            help='With --rebuild: earliest, latest, or JSON per source, such as {"clicks": "latest"}.',
        ),
    ] = None,
    put_aside_output: Annotated[
        bool,
        typer.Option(
            "--put-aside-output",
            help="Move away the files in the target that another state of this pipeline, or a newer copy of it, wrote.",
        ),
    ] = False,
    keep_output: Annotated[
        bool,
        typer.Option(
            "--keep-output", help="Continue although another state, or a newer copy of this one, wrote to the target."
        ),
    ] = False,
    otel: Annotated[
        bool, typer.Option("--otel", help="Send metrics to OTEL_EXPORTER_OTLP_ENDPOINT (OpenTelemetry).")
    ] = False,
    openlineage: Annotated[
        bool, typer.Option("--openlineage", help="Send run events to OPENLINEAGE_URL (OpenLineage).")
    ] = False,
    timings: Annotated[
        bool, typer.Option("--timings", help="Print how long the parts of the start and of the first epoch took.")
    ] = False,
    ui: Annotated[
        bool, typer.Option("--ui", help="Also serve the page of the pipeline on loopback, and print its address.")
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
        typer.Option(metavar="DURATION", help="How far the time of a Kafka record may be from its event time."),
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="NAME", help="The name of the target, if the pipeline has several.")
    ] = None,
) -> None:
    """Write the windows of a period of history to the target, without affecting the running pipeline or its state."""
    from slackwater.cli.run import backfill_file

    backfill_file(file, since, until, partial, into, slack, target)


def prepare(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE", help="Configs whose jars are also fetched.")
    ] = None,
    jars: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="kafka|avro", help="Also fetch the jars of this connector; may be repeated."),
    ] = None,
) -> None:
    """Compile and download what a first start needs, once per machine or image, so that starts are faster."""
    from slackwater.cli.prepare import prepare_machine

    prepare_machine(files or [], jars or [])


def demo(
    keep: Annotated[Path | None, typer.Option(help="Keep the demo's files in this new directory.")] = None,
    rows: Annotated[int, typer.Option(min=1000, max=MOST_ROWS, help="The number of clicks to generate.")] = 60_000,
    ui: Annotated[
        bool, typer.Option("--ui", help="Serve the page of both pipelines at the end, until Ctrl-C.")
    ] = False,
    ui_port: Annotated[int, typer.Option(min=0, max=65535, help="The port of the page; 0 means any free port.")] = 8086,
) -> None:
    """Compute sessions and five-minute counts over generated clicks, in under a minute."""
    from slackwater.cli.demo import run_demo

    run_demo(keep, rows, ui_port if ui else None)


def demo_kafka(
    rows: Annotated[int, typer.Option(min=10_000, max=MOST_ROWS, help="The number of clicks to produce.")] = 60_000,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep Kafka and Postgres running until Ctrl-C, to inspect them.")
    ] = False,
) -> None:
    """Run sessions from Kafka to Postgres on this machine, kill the runner twice, and lose nothing."""
    from slackwater.cli.demo_kafka import run_demo

    run_demo(rows, keep)
