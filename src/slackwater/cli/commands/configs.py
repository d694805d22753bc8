"""Commands that write, check, test and explain a config, and compare it with its state."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from slackwater.cli.commands import File


def init(  # noqa: PLR0913 -- one argument per option of the command
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The config to write.")] = Path("pipeline.toml"),
    sample: Annotated[
        list[Path] | None,
        typer.Option(
            "--sample",
            metavar="PATH",
            help="Sample rows to derive the config from: a file or directory of JSON lines, CSV or Parquet, also .gz; repeat the option for a join.",
        ),
    ] = None,
    source: Annotated[str | None, typer.Option(help="The kind of source: files or kafka.")] = None,
    kind: Annotated[str | None, typer.Option(help="The kind: session, tumbling, hopping or join.")] = None,
    key: Annotated[
        list[str] | None, typer.Option("--key", metavar="COLUMN", help="A column to group or join by; may be repeated.")
    ] = None,
    time: Annotated[str | None, typer.Option(metavar="COLUMN", help="The column with the event time.")] = None,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", help="The Kafka topic; repeat the option for a join.")
    ] = None,
    brokers: Annotated[str, typer.Option(help="Kafka's bootstrap servers.")] = "localhost:9092",
    name: Annotated[
        str | None, typer.Option(help="The name of the pipeline; by default, the name of the file.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    no_test: Annotated[
        bool, typer.Option("--no-test", help="Do not write a test, tests/NAME.toml, with rows of the sample.")
    ] = False,
) -> None:
    """Write a commented first config that passes check. Given a sample of the data, also write a test."""
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
    """Check a config. Spark starts only if --connect needs it."""
    from slackwater.cli.check import check_file

    check_file(file, connect)


def run_tests(
    path: Annotated[
        Path,
        typer.Argument(metavar="FILE|DIR", help="A test, a pipeline with tests next to it, or a folder of either."),
    ] = Path(),
    update: Annotated[
        bool, typer.Option("--update", help="Replace the expected results in the files by the actual ones.")
    ] = False,
) -> None:
    """Run the tests of a pipeline, tests/*.toml.

    Exit code 0: all pass; 1: a test fails; 2: a test or its config is invalid.
    """
    from slackwater.cli.check import run_test_files

    if code := run_test_files(path, update):
        raise typer.Exit(code)


def schema(
    tests: Annotated[bool, typer.Option("--tests", help="Print the schema of test files instead.")] = False,
) -> None:
    """Print the JSON Schema of a config, which lets editors complete keys and flag mistakes.

    The schema includes the keys of installed connectors.
    """
    from importlib import resources

    from slackwater.core.connector_table import TABLE

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
    """Print the plan of a config: stages, state, delivery guarantee."""
    from slackwater.cli.check import explain_file

    explain_file(file)


def plan(
    file: File,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what the next start with this config would keep, migrate or reject. Exit code 1 if the start would fail."""
    from slackwater.cli.plan import print_config_changes

    print_config_changes(file, as_json)
