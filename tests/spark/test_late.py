"""Late rows as dead letters on Spark: the SQL that carries `_origin`, and letters against a real broker and database."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import polars as pl
import pytest
from tests.conftest import Runner
from tests.spark.test_engine import SIMPLE, simple, us
from tests.spark.test_kafka import Make, minutes, topic  # noqa: F401 — a fixture

import slackwater as sw
from slackwater.engine import inspect, origin
from slackwater.engine.letters import origin_column
from slackwater.errors import StartError

pytestmark = pytest.mark.spark

LETTERS = pl.col("reason") == "late"

# what the config says, and what runs (None: it carries `_origin` as it is)
FORMS: dict[str, tuple[str, str | None]] = {
    "star": ("SELECT * FROM source", None),
    "a table": ("TABLE source", None),
    "from first": ("FROM source SELECT *", None),
    "columns": ("SELECT user, _event_ts FROM source", "SELECT user, _event_ts , _origin FROM source"),
    "alias": (
        "SELECT s.user, s._event_ts FROM source AS s WHERE s.i > 0",
        "SELECT s.user, s._event_ts , _origin FROM source AS s WHERE s.i > 0",
    ),
    "quoted": (
        "SELECT `s 1`.user AS `a b`, _event_ts FROM `SOURCE` `s 1`",
        "SELECT `s 1`.user AS `a b`, _event_ts , _origin FROM `SOURCE` `s 1`",
    ),
    "star of an alias": (
        "SELECT u.*, s._event_ts FROM source s LEFT JOIN users u ON s.user = u.user",
        "SELECT u.*, s._event_ts , _origin FROM source s LEFT JOIN users u ON s.user = u.user",
    ),
    "star without a column": (
        "SELECT * EXCEPT (i) FROM (SELECT user, i, _event_ts FROM source)",
        "SELECT * EXCEPT (_origin, i) , _origin FROM (SELECT user, i, _event_ts , _origin FROM source)",
    ),
    "lookup": (
        "SELECT /*+ BROADCAST(users) */ team, _event_ts FROM source JOIN users USING (user)",
        "SELECT /*+ BROADCAST(users) */ team, _event_ts , _origin FROM source JOIN users USING (user)",
    ),
    "lookup in parentheses": (
        "SELECT team, _event_ts FROM (source s JOIN users USING (user))",
        "SELECT team, _event_ts , _origin FROM (source s JOIN users USING (user))",
    ),
    "with": (
        "WITH a AS (SELECT *, 1 AS one FROM source), u AS (SELECT * FROM users)\n"
        "SELECT a.user, team, _event_ts -- FROM nowhere\nFROM a LEFT JOIN u USING (user)",
        "WITH a AS (SELECT * EXCEPT (_origin), 1 AS one , _origin FROM source), u AS (SELECT * FROM users)\n"
        "SELECT a.user, team, _event_ts -- FROM nowhere\n, _origin FROM a LEFT JOIN u USING (user)",
    ),
    "with of the same name": (
        "WITH source AS (SELECT user, _event_ts FROM source) SELECT user, _event_ts FROM source",
        "WITH source AS (SELECT user, _event_ts , _origin FROM source) SELECT user, _event_ts , _origin FROM source",
    ),
    "union of stars": ("SELECT * FROM source WHERE i > 0 UNION ALL SELECT * FROM source WHERE i <= 0", None),
    "union": (
        "(SELECT *, 'x' AS x FROM source WHERE i > 0) UNION ALL SELECT user, i, ts, _event_ts, 'y' FROM source WHERE i <= 0",
        "(SELECT * EXCEPT (_origin), 'x' AS x , _origin FROM source WHERE i > 0)"
        " UNION ALL SELECT user, i, ts, _event_ts, 'y' , _origin FROM source WHERE i <= 0",
    ),
    "derived": (
        "SELECT q.user, q.day, q._event_ts FROM (SELECT user, extract(DAY FROM _event_ts) AS day, _event_ts FROM source"
        " WHERE user IS NOT DISTINCT FROM user) AS q",
        "SELECT q.user, q.day, q._event_ts , _origin FROM (SELECT user, extract(DAY FROM _event_ts) AS day, _event_ts ,"
        " _origin FROM source WHERE user IS NOT DISTINCT FROM user) AS q",
    ),
    "exploded": (
        "SELECT user, part, _event_ts FROM source LATERAL VIEW explode(array(i * 2)) AS part",
        "SELECT user, part, _event_ts , _origin FROM source LATERAL VIEW explode(array(i * 2)) AS part",
    ),
    "compared in the list": (
        "SELECT user IS DISTINCT FROM 'a' AS other, i * 2 AS twice, _event_ts FROM source",
        "SELECT user IS DISTINCT FROM 'a' AS other, i * 2 AS twice, _event_ts , _origin FROM source",
    ),
    "piped": (
        "SELECT user, i, _event_ts FROM source |> WHERE i > 0",
        "SELECT user, i, _event_ts , _origin FROM source |> WHERE i > 0",
    ),
    "by hand": ("SELECT _origin, user, _event_ts FROM source", None),
}


def pipeline_with(sql: str | None) -> Any:
    return sw.pipeline(
        name="test",
        source=sw.FilesConnection(),
        source_query="in",
        source_format="json",
        source_schema=SIMPLE,
        transform_sql=sql,
        window=simple(late_data="dlq", aggregations=[sw.Aggregation(agg="count", as_="n")]),
        target=sw.ConsoleConnection(),
        dead_letter=sw.Target(connection=sw.FilesConnection(), path="letters"),
        state_store=sw.StateStore(kind="files", path="state"),
    )


@pytest.fixture
def rows(spark: Any) -> Any:
    found = spark.createDataFrame(
        [("a", 1, dt.datetime(2024, 3, 1)), ("a", 0, dt.datetime(2024, 3, 2)), (None, 3, dt.datetime(2024, 3, 3))],
        SIMPLE,
    )
    users = spark.createDataFrame([("a", "red"), (None, "none")], "user STRING, team STRING")
    users.createOrReplaceTempView("users")
    return found


@pytest.mark.parametrize("form", FORMS)
def test_every_row_out_of_the_sql_knows_where_it_came_from(spark: Any, rows: Any, form: str) -> None:
    given, expected = FORMS[form]
    made = pipeline_with(given)
    before = inspect.check_sql(spark, made, "in", rows)
    sql = inspect.check_origin(spark, made, "in", rows)
    assert sql == (expected or given)
    view = rows.selectExpr("*", "ts AS _event_ts").selectExpr("*", origin_column(rows.columns, "in"))
    out = inspect.run_sql(spark, made, view, sql)
    assert [c for c in out.columns if c != "_origin"] == list(before)
    pairs = out.selectExpr("_event_ts", "CAST(_origin.value AS STRING) AS row").collect()
    assert pairs, "the form lets some rows through"
    assert all(json.loads(p["row"])["ts"].startswith(p["_event_ts"].isoformat()) for p in pairs)


def test_without_sql_nothing_is_written(spark: Any, rows: Any) -> None:
    assert inspect.check_origin(spark, pipeline_with(None), "in", rows) is None


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT a.user, b._event_ts FROM source a JOIN source b ON a.i = b.i", "it joins source with itself"),
        ("SELECT user, _event_ts FROM source UNION ALL SELECT user, NULL FROM users", "a branch of its UNION does not read source"),
        ("FROM source SELECT user, _event_ts", "the end of a SELECT list is not found"),
        ("SELECT user, _event_ts FROM source AS s(user, i, ts, _event_ts)", "[ASSIGNMENT_ARITY_MISMATCH]"),
        ("SELECT user, _event_ts FROM source WHERE i !> 3", "the SQL cannot be parsed"),
        ("SELECT user, _event_ts FROM users JOIN (TABLE source) USING (user)", "the SELECT that reads source is not found"),
        ("SELECT user, _event_ts, struct(_origin) AS _origin FROM source", "it selects it otherwise than unchanged, once"),
        ("SELECT 'a' AS user, CAST(NULL AS TIMESTAMP) AS _event_ts", "the SELECT that reads source is not found"),
    ],
)  # fmt: skip
def test_what_cannot_be_rewritten_is_said_in_one_line(spark: Any, rows: Any, sql: str, why: str) -> None:
    made = pipeline_with(sql)
    inspect.check_sql(spark, made, "in", rows)
    with pytest.raises(StartError, match='late_data = "dlq" needs the hidden column _origin of source') as raised:
        inspect.check_origin(spark, made, "in", rows)
    text = str(raised.value)
    assert f"it cannot be added ({why}" in text
    assert text.startswith('test: source "in": transform.sql: ')
    assert text.endswith("; select _origin yourself, in every SELECT from source to the outermost")
    assert "\n" not in text


def test_a_column_of_that_name_must_be_renamed(spark: Any, rows: Any) -> None:
    taken = rows.selectExpr("*", "1 AS _Origin")
    with pytest.raises(StartError, match='source "in" has a column "_origin", under which late_data = "dlq" carries'):
        inspect.check_origin(spark, pipeline_with(None), "in", taken)


@pytest.mark.parametrize(
    ("sql", "found"),
    [("SELECT _ORIGIN FROM x", True), ("SELECT `_origin`", True), ("SELECT http_origin, _origins", False)],
)
def test_who_selects_it_is_left_alone(sql: str, found: bool) -> None:
    assert origin.mentions(sql) is found


# -- letters ---------------------------------------------------------------------------------------------------------

SHAPES: dict[str, dict[str, Any]] = {
    "tumbling": {},
    "hopping": {"kind": "hopping", "hop_ms": "20s"},
    "session": {"kind": "session", "duration_ms": None, "gap_ms": "20s", "max_session_duration_ms": "1h"},
}
# seconds after the start, per epoch; the watermark is the newest time before it: 0, then 100
FIRST, SECOND = (0, 50, 100), (99, 70, 10, -30, 101)
# what a late row misses, by the window's kind: how many windows, and the first of them in seconds
MISSED: dict[str, dict[int, tuple[int, int | None]]] = {
    "tumbling": {99: (1, 40), 70: (1, 40), 10: (1, -20), -30: (1, -80)},
    "hopping": {99: (1, 40), 70: (2, 20), 10: (3, -40), -30: (3, -80)},
    "session": {70: (1, None), 10: (1, None), -30: (1, None)},  # 70 = 50 + 20 is the end of a closed session
}
START_S = 1_700_000_000  # 20 s after a full minute


def letters_of(frame: pl.DataFrame) -> dict[int, dict[str, Any]]:
    """Late letters by the second of their event."""
    late = frame.filter(LETTERS).with_columns(pl.col("event_time", "watermark").dt.epoch("us"))
    found = {(r["event_time"] // 1_000_000 - START_S): r for r in late.to_dicts()}
    assert len(found) == late.height, "one letter per row"
    return found


@pytest.mark.parametrize("kind", SHAPES)
def test_late_records_keep_their_bytes(runner: Runner, topic: Make, kind: str) -> None:  # noqa: F811
    stream = topic(1)
    sql = "SELECT upper(user) AS user, amount, _event_ts FROM source WHERE amount > 0"
    given = {
        "source": stream.source(),
        "transform_sql": sql,
        "window": minutes(late_data="dlq", **SHAPES[kind]),
        "dead_letter": sw.Target(connection=sw.FilesConnection(), path=str(runner.home / "letters")),
    }
    for at in FIRST:
        stream.send({"user": "a", "amount": 1}, at=at)
    runner.run(**given, flush=False)
    for n, at in enumerate(SECOND):
        stream.send(f'{{"user":  "a", "amount": {n + 1}}}'.encode(), at=at, key=f"k{n}", headers=[("h", bytes([n]))])
    stream.send({"user": "a", "amount": 0}, at=-30)  # late, and filtered away by the SQL: no letter
    runner.run(**given)
    counters = runner.statuses[-1].counters
    kept = pl.read_parquet(runner.home / "letters" / "*.parquet")
    letters, expected = letters_of(kept), MISSED[kind]
    assert set(letters) == set(expected)
    assert counters.letters == {"late": len(expected)}
    assert counters.letters["late"] == counters.rows_late + counters.rows_partly_late
    assert counters.rows_sql == counters.rows_used + counters.rows_late == len(FIRST) + len(SECOND)
    for at, letter in letters.items():
        n = SECOND.index(at)
        assert letter["value"] == f'{{"user":  "a", "amount": {n + 1}}}'.encode()
        assert letter["key"] == f"k{n}".encode()
        assert json.loads(letter["headers"])[0]["key"] == "h"
        assert (letter["topic"], letter["partition"], letter["offset"]) == (stream.name, 0, len(FIRST) + n)
        assert (letter["source"], letter["pipeline"], letter["epoch"]) == ("events", "test", 1)
        assert (letter["watermark"], letter["late_us"]) == ((START_S + 100) * 10**6, (100 - at) * 10**6)
        assert (letter["watermark_source"], letter["cause"], letter["file"]) == ("events", "lateness", None)
        count, first = expected[at]
        assert letter["windows_missed"] == count
        starts = [us(t) // 10**6 - START_S for t in json.loads(letter["windows"] or "[]")]
        assert starts == ([] if first is None else [first + 20 * k for k in range(count)])
