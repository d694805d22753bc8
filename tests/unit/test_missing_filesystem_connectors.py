"""Paths in object stores: `check` and the error of a run name the connector that Spark lacks."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.command import GOOD, Command

from slackwater.connectors.source import spark_error_reason

TABLE = GOOD.replace('[[sources]]', '[connections.warm]\nKIND\n[[sources]]').replace(
    'connection = "lake"\nquery = "in/*.jsonl"\nformat = "json"\nschema = "user_id STRING, page STRING, ts TIMESTAMP"',
    'connection = "warm"\nquery = "QUERY"',
)  # fmt: skip
SETTINGS = '\n[spark]\n"spark.jars.packages" = "org.apache.hadoop:hadoop-aws:3.4.1"\n'


@pytest.fixture(autouse=True)
def _clear_spark_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_HOME", "SPARK_REMOTE", "SPARK_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)


def read_connector_notes_of_check(slackwater: Command, text: str) -> list[str]:
    Path("p.toml").write_text(text)
    outcome = slackwater("check", "p.toml")
    assert (outcome.code, outcome.err) == (0, "")
    return [line for line in outcome.out.splitlines() if "connector" in line]


def table_config(kind: str, query: str) -> str:
    return TABLE.replace("KIND", kind).replace("QUERY", query)


@pytest.mark.parametrize(
    ("text", "scheme", "package"),
    [
        (table_config('kind = "delta"', "s3://bucket/clicks"), "s3a", "org.apache.hadoop:hadoop-aws:3."),
        (table_config('kind = "delta"', "az://bucket/clicks"), "abfss", "org.apache.hadoop:hadoop-azure:3."),
        (table_config('kind = "delta"', "gs://bucket/clicks"), "gs", "com.google.cloud.bigdataoss:gcs-connector "),
        (
            table_config('kind = "iceberg"\ncatalog = "rest"\noptions = { uri = "http://c", warehouse = "s3://b/w" }', "shop.clicks"),
            "s3a",
            "org.apache.hadoop:hadoop-aws:3.",
        ),
        (GOOD.replace('"in/*.jsonl"', '"s3a://bucket/in/*.jsonl"'), "s3a", "org.apache.hadoop:hadoop-aws:3."),
    ],
)  # fmt: skip
def test_check_names_the_missing_filesystem_connector_of_a_source(
    run_slackwater: Command, text: str, scheme: str, package: str
) -> None:
    (line,) = read_connector_notes_of_check(run_slackwater, text)
    name = "clicks" if 'name = "clicks"' in text else "events"
    assert line.startswith(
        f'p.toml: note: source "{name}": Spark needs a connector to read {scheme}://, and none is configured; add {package}'
    )
    assert line.endswith('to "spark.jars.packages" ([spark]); otherwise, a run fails')
    assert read_connector_notes_of_check(run_slackwater, text + SETTINGS) == []


def test_check_notes_a_url_scheme_that_spark_does_not_support(run_slackwater: Command) -> None:
    Path("p.toml").write_text(GOOD.replace('"in/*.jsonl"', '"s3://bucket/in/*.jsonl"'))
    printed = run_slackwater("check", "p.toml").out
    assert 'note: source "events": Spark does not know s3:// addresses; write s3a://; otherwise, a run fails' in printed


def test_local_paths_and_an_external_spark_need_no_connector(
    run_slackwater: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_connector_notes_of_check(run_slackwater, GOOD) == []
    assert read_connector_notes_of_check(run_slackwater, table_config('kind = "delta"', "lake/clicks")) == []
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert read_connector_notes_of_check(run_slackwater, table_config('kind = "delta"', "s3://bucket/clicks")) == []


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            "An error occurred while calling o44.load.\n: java.lang.RuntimeException: java.lang.ClassNotFoundException: "
            "Class org.apache.hadoop.fs.s3a.S3AFileSystem not found\n\tat org.apache",
            'Spark has no connector for s3a:// addresses; name org.apache.hadoop:hadoop-aws in "spark.jars.packages" ([spark]), of '
            "Spark's Hadoop version",
        ),
        (
            'org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "gs"',
            'Spark has no connector for gs:// addresses; name com.google.cloud.bigdataoss:gcs-connector in "spark.jars.packages" ([spark])',
        ),
        ('No FileSystem for scheme "s3"', "Spark has no connector for s3:// addresses; write s3a://"),
        (
            'No FileSystem for scheme "ftp2"',
            'Spark has no connector for ftp2:// addresses; name one in "spark.jars.packages" ([spark])',
        ),
    ],
)
def test_run_error_names_the_missing_filesystem_connector(error: str, reason: str) -> None:
    assert spark_error_reason(RuntimeError(error)) == reason
