"""Detection of pipelines that use Kafka headers. Unused headers are not read, so no use may be missed."""

from __future__ import annotations

from typing import Any

import pytest

import slackwater as sw
from slackwater.connectors.kafka.connector import may_use_headers

BUS = sw.KafkaConnection(bootstrap_servers="broker:9092")
LAKE = sw.FilesConnection()


def may_use_kafka_headers(sql: str | None, **settings: Any) -> bool:
    """Return whether a pipeline with this SQL may use the headers."""
    window = sw.Window(
        kind="tumbling",
        duration_ms="1m",
        group_by=["user"],
        max_groups_per_window=9,
        aggregations=[sw.Aggregation(agg="count", as_="n")],
    )
    source = sw.Source(name="events", connection=BUS, query="events", schema="user STRING")
    pipeline = sw.pipeline(
        name="used",
        source=source,
        transform_sql=sql,
        window=window,
        target=sw.Target(connection=LAKE, path="out"),
        state_store=sw.StateStore(kind="files", path="state"),
        **settings,
    )
    return may_use_headers(pipeline, pipeline.sources[0])


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM source",
        "SELECT source.* FROM source",
        "SELECT to_json(struct(*)) AS user, _event_ts FROM source",
        "SELECT count(*) AS n, named_struct('all', struct(*)) AS user FROM source",
        "FROM source |> WHERE user = 'a'",
        "TABLE source",
        "FROM source",
    ],
)
def test_sql_that_can_return_columns_without_naming_them_may_use_headers(sql: str) -> None:
    assert may_use_kafka_headers(sql)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (None, False),
        ("SELECT user, _event_ts FROM source", False),
        ("SELECT user, _event_ts, COUNT ( * ) OVER () AS n FROM source", False),
        ("SELECT user, _event_ts FROM source WHERE _headers IS NULL", True),
        ("SELECT source.`_Headers`[0].key AS user, _event_ts FROM source", True),
    ],
)
def test_headers_are_used_if_the_sql_names_them_in_any_case(sql: str | None, expected: bool) -> None:
    assert may_use_kafka_headers(sql) == expected


def test_dead_letters_use_headers() -> None:
    assert may_use_kafka_headers(None, dead_letter=sw.Target(connection=LAKE, path="letters"), on_error="dlq")
