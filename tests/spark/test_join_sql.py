"""SQL of each side of a join: the analysis for the source of the side, and errors that name the config key."""

from __future__ import annotations

from typing import Any

import pytest

import slackwater as sw
from slackwater.config.stage import InputPath
from slackwater.errors import StartError
from slackwater.spark.analysis import sql_analysis

pytestmark = pytest.mark.spark

SCHEMA = "id INT, price INT, ts TIMESTAMP"


def pipeline_with_join_sql(left: str | None, right: str | None) -> sw.Pipeline:
    lake = sw.FilesConnection()
    return sw.pipeline(
        name="paid",
        sources=[sw.Source(name=n, connection=lake, query=n, format="json") for n in ("orders", "payments")],
        join=sw.Join(
            kind="inner",
            left_source="orders",
            right_source="payments",
            left_keys=["id"],
            right_keys=["id"],
            time_window_ms="1m",
            event_time_column="ts",
            late_data="dlq",
            left_sql=left,
            right_sql=right,
        ),
        target=sw.ConsoleConnection(),
        dead_letter=sw.Target(connection=lake, path="letters"),
        state_store=sw.StateStore(kind="files", path="state"),
    )


def test_join_side_sql_is_resolved_against_its_own_source(spark: Any) -> None:
    rows = spark.createDataFrame([], SCHEMA)
    spec = pipeline_with_join_sql(
        "SELECT id, price * 2 AS twice, _event_ts FROM source", "SELECT id, _event_ts FROM source WHERE id > 3"
    )
    assert list(sql_analysis.check_sql(spark, spec, InputPath("orders", "orders"), rows)) == [
        "id",
        "twice",
        "_event_ts",
    ]
    assert list(sql_analysis.check_sql(spark, spec, InputPath("payments", "payments"), rows)) == ["id", "_event_ts"]
    assert sql_analysis.add_origin_to_sql(spark, spec, InputPath("orders", "orders"), rows) == (
        "SELECT id, price * 2 AS twice, _event_ts , _origin FROM source",
    )
    half = pipeline_with_join_sql(None, "SELECT id, _event_ts FROM source")
    assert list(sql_analysis.check_sql(spark, half, InputPath("orders", "orders"), rows)) == [
        "id",
        "price",
        "ts",
        "_event_ts",
    ]
    assert sql_analysis.add_origin_to_sql(spark, half, InputPath("orders", "orders"), rows) is None


def test_sql_errors_name_the_join_side(spark: Any) -> None:
    rows = spark.createDataFrame([], SCHEMA)
    spec = pipeline_with_join_sql(
        "SELECT id, count(*) AS n, max(_event_ts) AS _event_ts FROM source GROUP BY id", "SELECT id FROM source"
    )
    with pytest.raises(StartError, match=r'source "orders": transform\.join\.left_sql must be row-wise') as caught:
        sql_analysis.check_sql(spark, spec, InputPath("orders", "orders"), rows)
    assert str(caught.value).endswith("projections and lookup joins")
    with pytest.raises(StartError, match=r'source "payments": transform\.join\.right_sql does not select "_event_ts"'):
        sql_analysis.check_sql(spark, spec, InputPath("payments", "payments"), rows)
