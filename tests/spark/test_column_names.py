"""User columns never collide with internal columns, and `SELECT *` and `struct(*)` never show an internal column.

Names are drawn from the internal column names in the source code, in any case, and from names that are awkward in SQL.
"""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path
from typing import Any

import pytest
from tests.support.parquet_rows import read_sorted_rows

import slackwater as sw
from slackwater.config.pipeline import Pipeline
from slackwater.core.column_names import ROW_COLUMNS, quote_identifier
from slackwater.errors import SlackwaterError
from slackwater.spark.analysis import row_origin_propagation
from slackwater.testing import LocalPipeline

pytestmark = pytest.mark.spark

EXAMPLES = int(os.environ.get("SLACKWATER_LAWS_EXAMPLES", "12"))
SOURCES = Path(sw.__file__).parent
COUNT = sw.Aggregation(agg="count", as_="n")


def state_column_names() -> list[str]:
    """Return every name in the source code that looks like a hidden column, and names that internal frames used."""
    written = re.compile(r"(?<![\w.])_{1,2}[a-z][a-z_0-9]*[a-z0-9](?!_|\w|\()")
    names = {n for p in SOURCES.rglob("*.py") for n in written.findall(p.read_text()) if not n.endswith("__")}
    return sorted(names | {"i", "ts", "bad", "partition", "source", "value", "row", "n", "c0", "c1"})


AWKWARD = ["a b", "a.b", "ä", "select", "from", "x-y", "`", "0", "K"]


def pipeline_with_column(home: Path, name: str, sql: str, **step: Any) -> Pipeline:
    window = {
        "kind": "tumbling", "duration_ms": "1h", "max_groups_per_window": 99, "event_time_column": "t", "late_data": "dlq",
    }  # fmt: skip
    return sw.pipeline(
        name="named",
        connections={"lake": sw.FilesConnection()},
        source="lake",
        source_query=str(home / "in"),
        source_format="json",
        source_schema=f"{quote_identifier(name)} BIGINT, key STRING, t TIMESTAMP",
        transform_sql=sql,
        window=sw.Window(**window, **step),
        target=sw.Target(connection="lake", path=str(home / "out"), format="parquet"),
        state_store=sw.StateStore(kind="files", path=str(home / "state"), shards=2),
        dead_letter=sw.Target(connection="lake", path=str(home / "letters"), format="parquet"),
    )


def rows_with_column(name: str) -> list[dict[str, Any]]:
    return [{name: v, "key": "k", "t": f"2024-01-01T00:00:0{v}Z"} for v in (1, 2, 3)]


def sql_cases_by_use(name: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return SQL and a step per use of the name: as an input, as a key, and in a struct of all columns."""
    total = sw.Aggregation(agg="sum", column=name, as_="total")
    shown = sw.Aggregation(agg="max", column="shown", as_="shown")
    whole = "SELECT key, _event_ts, to_json(struct(*)) AS shown FROM source"
    return {
        "input": (
            f"SELECT key, {quote_identifier(name)}, _event_ts FROM source",
            {"group_by": ["key"], "aggregations": [total]},
        ),
        "key": ("SELECT * FROM source", {"group_by": [name], "aggregations": [COUNT]}),
        "struct": (whole, {"group_by": ["key"], "aggregations": [shown]}),
    }


def is_expected_result(which: str, name: str, table_rows: list[dict[str, Any]]) -> bool:
    if which == "input":
        return [r["total"] for r in table_rows] == [6]
    if which == "key":
        return sorted(r[name] for r in table_rows) == [1, 2, 3]
    (row,) = table_rows
    return set(json.loads(row["shown"])) == {name, "key", "t", "_event_ts"}


def draw_column_name(seed: int) -> str:
    chance = random.Random(seed)
    name = chance.choice(state_column_names() * 2 + AWKWARD)
    return chance.choice([name, name, name.upper(), name.capitalize()])


def is_clear_refusal(error: SlackwaterError, name: str) -> bool:
    """Return whether the error contains the name, and no raw error of Spark or Polars."""
    text = str(error)
    return name.casefold() in text.casefold() and "Traceback" not in text and "NotFound" not in text


def test_column_name_is_accepted_or_the_error_names_it(spark: Any, tmp_path: Path) -> None:
    served = 0
    for name in [
        "i",
        "_origin",
        "__bad",
        "__TS",
        "_emit_reason",
        "_revision",
        "_final_at",
        *(draw_column_name(seed) for seed in range(EXAMPLES)),
    ]:
        if name.casefold() in ("key", "t"):
            continue
        for which, (sql, step) in sql_cases_by_use(name).items():
            try:
                with LocalPipeline(pipeline_with_column(tmp_path, name, sql, **step), session=spark) as test:
                    test.pipe(rows_with_column(name))
                    test.flush()
                    result = test.result()
            except SlackwaterError as error:
                assert is_clear_refusal(error, name), (name, which, str(error))
                continue
            served += 1
            assert is_expected_result(which, name, result.rows), (name, which, result.rows)
            assert (result.counters.rows_used, result.counters.rows_bad) == (3, 0), (name, which)
    assert served > EXAMPLES / 2


@pytest.mark.parametrize("name", ["i", "__deleted", "__bad", "_ORIGIN"])
def test_run_refuses_reserved_column_names_and_accepts_other_names(spark: Any, tmp_path: Path, name: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/0.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows_with_column(name)))
    sql = "SELECT key, _event_ts, to_json(struct(*)) AS shown FROM source"
    shown = sw.Aggregation(agg="max", column="shown", as_="shown")
    try:
        spec = pipeline_with_column(tmp_path, name, sql, group_by=["key"], aggregations=[shown])
        sw.run(spec, available_now=True, flush=True, spark=spark, on_notice=lambda level, line: None)
    except SlackwaterError as error:
        assert name in ("__bad", "_ORIGIN")
        assert is_clear_refusal(error, name)
        return
    assert name in ("i", "__deleted")
    assert is_expected_result("struct", name, read_sorted_rows(tmp_path / "out"))


@pytest.mark.parametrize(
    "clause",
    ["struct(*)", "struct(s.*)", "struct(* EXCEPT (key))", "named_struct('a', struct(*))"],
)
@pytest.mark.parametrize("shape", ["SELECT key, to_json({}) AS j, _event_ts FROM source s", "SELECT * FROM (SELECT key, to_json({}) AS j, _event_ts FROM source s) WHERE to_json(struct(*)) NOT LIKE '%_origin%'"])  # fmt: skip
def test_struct_star_excludes_the_internal_origin_column(spark: Any, clause: str, shape: str) -> None:
    frame = spark.sql("SELECT 1 AS a, 'k' AS key, timestamp'2024-01-01' AS _event_ts, 'hidden' AS _origin")
    frame.createOrReplaceTempView("source")
    (row,) = spark.sql(row_origin_propagation.add_origin_column(shape.format(clause))).collect()
    assert row["_origin"] == "hidden"
    assert "hidden" not in row["j"]
    assert "_event_ts" in row["j"]


def test_every_internal_column_of_source_rows_is_reserved() -> None:
    """Sources and shard input write internal names as `… AS __name`, or as a constant."""
    rooms = [
        SOURCES / "spark/row_query_builder.py",
        SOURCES / "spark/tuning/source_statistics.py",
        SOURCES / "testing/rows_with_spark.py",
        SOURCES / "testing/stub_sources.py",
    ]
    written = {n for p in rooms for n in re.findall(r'(?:AS |= "|")(__[a-z]+)\b', p.read_text())}
    assert written - {"__all__"} <= ROW_COLUMNS
