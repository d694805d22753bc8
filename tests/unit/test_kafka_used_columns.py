"""The columns of Kafka records that a pipeline uses: others are not read, so none may be missed."""

from __future__ import annotations

from typing import Any

import pytest

import slackwater as sw
from slackwater.connectors.kafka.connector import used_columns
from slackwater.connectors.kafka.source import RECORD_COLUMNS

BUS = sw.KafkaConnection(bootstrap_servers="broker:9092")
LAKE = sw.FilesConnection()


def used_by(sql: str | None, **settings: Any) -> frozenset[str]:
    """Return the columns that a pipeline with this SQL uses."""
    window = sw.Window(
        kind="tumbling",
        duration_ms="1m",
        group_by=settings.pop("group_by", ["user"]),
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
    return used_columns(pipeline, pipeline.sources[0])


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
def test_sql_that_can_return_columns_without_their_names_uses_all(sql: str) -> None:
    assert used_by(sql) == RECORD_COLUMNS


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (None, set()),
        ("SELECT user, _event_ts FROM source", set()),
        ("SELECT user, _event_ts, COUNT ( * ) OVER () AS n FROM source", set()),
        ("SELECT CAST(_KEY AS STRING) AS user, _event_ts FROM source", {"_key"}),
        ("SELECT source.`_Value` AS user, _event_ts FROM source WHERE _headers IS NULL", {"_value", "_headers"}),
    ],
)
def test_columns_are_used_if_the_sql_names_them_in_any_case(sql: str | None, expected: set[str]) -> None:
    assert used_by(sql) == expected


def test_keys_of_a_window_and_dead_letters_use_columns() -> None:
    assert used_by(None, group_by=["_topic"]) == {"_topic"}
    letters = sw.Target(connection=LAKE, path="letters")
    assert used_by(None, dead_letter=letters, on_error="dlq") == RECORD_COLUMNS
