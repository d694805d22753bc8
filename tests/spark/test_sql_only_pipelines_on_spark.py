"""SQL-only pipelines on Spark: each row once despite crashes, dead letters, lookups, nested columns, grouped rows."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pytest
from tests.support.case_selection import exhaustive, select_cases
from tests.support.simulated_driver_crashes import CrashOnce
from tests.support.spark_pipeline_runner import SparkPipelineRunner

import slackwater as sw
from slackwater.config import toml
from slackwater.config.sql.query_columns import resolve_query
from slackwater.config.sql.select_scope import ColumnTypes, GroupableColumns, SqlFindings
from slackwater.engine import kill_points
from slackwater.engine.kill_points import KILL_POINTS
from slackwater.errors import StartError
from slackwater.spark.analysis import row_wise_plan_check
from slackwater.spark.sessions.spark_session import private_session
from slackwater.state.postgres.store import PostgresStore
from slackwater.testing import LocalPipeline

pytestmark = pytest.mark.spark

SCHEMA = "user STRING, page STRING, n INT"
SQL = (
    "SELECT s.user, upper(page) AS page, n + 1 AS n, u.country FROM source s LEFT JOIN users u ON s.user = u.user "
    "WHERE page <> 'skip'"
)
CONFIG = """
name = "plain"

[connections.lake]
kind = "files"
DATABASE
[[sources]]
name = "clicks"
connection = "lake"
query = "HOME/in/*.jsonl"
format = "json"
schema = "SCHEMA"
max_files_per_trigger = 1

[transform]
sql = '''SQL'''
on_error = "dlq"

[transform.lookups.users]
connection = "lake"
query = "HOME/users.csv"
format = "csv"
schema = "user STRING, country STRING"

[target]
TARGET

[dead_letter]
connection = "lake"
path = "HOME/letters"

[state_store]
STATE
"""
LAKE = 'connection = "lake"\npath = "HOME/out"\nformat = "parquet"'
TABLE = 'connection = "warehouse"\ntable = "plain"'
DATABASE = '\n[connections.warehouse]\nkind = "postgres"\nurl = "${WAREHOUSE_URL}"\n'
FILES = 'kind = "files"\npath = "HOME/state"\nshards = 3'
POSTGRES = 'kind = "postgres"\nurl = "${WAREHOUSE_URL}"'
COUNTRIES = {"u0": "DE", "u1": "FR"}


def page_view_rows(count: int) -> list[dict[str, Any]]:
    return [{"user": f"u{i % 4}", "page": ["a", "b", "skip"][i % 3], "n": i // 2} for i in range(count)]


def compute_expected_rows(rows: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Compute the batch result, including duplicate rows."""
    results = [
        (r["user"], r["page"].upper(), r["n"] + 1, COUNTRIES.get(r["user"])) for r in rows if r["page"] != "skip"
    ]
    return sorted(results, key=repr)


def write_input_files(home: Path, batches: Sequence[Sequence[Any]]) -> None:
    (home / "users.csv").write_text("user,country\n" + "".join(f"{u},{c}\n" for u, c in COUNTRIES.items()))
    (home / "in").mkdir()
    for number, rows in enumerate(batches):
        path = home / "in" / f"{number}.jsonl"
        path.write_text("".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in rows))
        os.utime(path, (1_600_000_000 + number, 1_600_000_000 + number))


def write_config(home: Path, state: str = FILES, target: str = LAKE, sql: str = SQL, schema: str = SCHEMA) -> Path:
    path = home / "plain.toml"
    text = CONFIG.replace("STATE", state).replace("TARGET", target).replace("SQL", sql).replace("SCHEMA", schema)
    path.write_text(
        text.replace("DATABASE", DATABASE if "WAREHOUSE" in state or "warehouse" in target else "").replace(
            "HOME", str(home)
        )
    )
    return path


def read_parquet_rows(home: Path, folder: str = "out") -> list[tuple[Any, ...]]:
    frames = [pl.read_parquet(p) for p in sorted((home / folder).glob("*.parquet"))]
    return sorted((r for f in frames for r in f.rows()), key=repr)


def read_table_rows(url: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as db:
        return sorted(db.execute("SELECT * FROM plain").fetchall(), key=repr)


BATCHES: list[list[Any]] = [
    [*page_view_rows(20), "not json"],
    [],
    [r for r in page_view_rows(30) if r["page"] == "skip"],  # an epoch without output
    [{"user": "u1", "page": "a", "n": "many"}, *page_view_rows(7), '{"user":'],
    page_view_rows(1),
]
GOOD = [r for batch in BATCHES for r in batch if isinstance(r, dict) and not isinstance(r["n"], str)]


@pytest.mark.parametrize(
    ("state", "target", "step"),
    [
        *select_cases(
            [pytest.param(FILES, LAKE, "commit.after", id="files")]
            + [pytest.param(POSTGRES, TABLE, "commit.before", id="postgres")]
            + [pytest.param(FILES, TABLE, "write.after", id="files to postgres")]
            + [pytest.param(FILES, LAKE, s, id=s) for s in ("ingest.after", "write.before", "note.before")]
        ),
    ],
)  # fmt: skip
def test_every_row_is_emitted_once_despite_a_crash(
    spark: Any, postgres: Any, tmp_path: Path, state: str, target: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epochs without output commit offsets, bad rows become dead letters, and the state stays empty."""
    url = postgres.database(f"plain_{'files' if state == FILES else 'postgres'}_{step.replace('.', '_')}")
    monkeypatch.setenv("WAREHOUSE_URL", url)
    write_input_files(tmp_path, BATCHES)
    pipeline = toml.load(write_config(tmp_path, state, target))
    death = CrashOnce(step, 3)
    monkeypatch.setattr(kill_points, "fault_injector_from_environment", lambda: death)
    statuses: list[Any] = []
    with pytest.raises(sw.SlackwaterError):
        sw.run(pipeline, available_now=True, spark=spark, on_status=statuses.append, on_notice=lambda a, b: None)
    assert death.died
    last = sw.run(
        pipeline, available_now=True, flush=True, spark=spark, on_status=statuses.append, on_notice=lambda a, b: None
    )
    assert last is not None
    assert (read_table_rows(url) if target == TABLE else read_parquet_rows(tmp_path)) == compute_expected_rows(GOOD)
    letters = pl.concat([pl.read_parquet(p) for p in (tmp_path / "letters").glob("*.parquet")])
    assert sorted(letters["reason"].to_list()) == ["undecodable"] * 3
    assert b"not json" in letters["value"].to_list()
    c = last.counters
    assert (c.rows_in, c.rows_bad, c.rows_used, c.rows_late) == (len(GOOD) + 3, 3, len(compute_expected_rows(GOOD)), 0)
    assert c.emitted == {"row": len(compute_expected_rows(GOOD))}
    assert (last.window_kind, last.windows_active, last.state_bytes, last.groups) == ("rows", 0, 0, 0)
    if state == POSTGRES:
        _check_postgres_state_is_empty(url)


def _check_postgres_state_is_empty(url: str) -> None:
    """Check that the state table is empty and that commands over all tables include it."""
    from slackwater.maintenance import state_sizes, verify_postgres_store

    store = PostgresStore(url, "public", "plain")
    report = verify_postgres_store.verify_postgres(store)
    assert (report.problems, report.unread) == ([], 0)
    assert all(
        t.rows == 0 for t in state_sizes.measure_state_sizes(store, hot=3).tables if "slackwater_state" in t.table
    )
    copy = store.fork("copied")
    assert copy is not None
    with psycopg.connect(url) as db:
        assert db.execute("SELECT count(*) FROM slackwater_state_copied").fetchone() == (0,)


def test_purchases_example_of_the_docs_gives_the_expected_rows(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "stages" / "sql-only.md").read_text()
    (text,) = [t for t in re.findall(r"```toml\n(.*?)```", page, re.DOTALL) if 'name = "purchases"' in t]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.toml").write_text(text)
    (tmp_path / "users.csv").write_text("user,country\nu1,DE\n")
    (tmp_path / "events").mkdir()
    purchases = [
        {"user": "u1", "kind": "purchase", "amount": 1.5, "tags": ["a"]},
        {"user": "u2", "kind": "view", "amount": 2.0},
        {"user": "u2", "kind": "purchase", "amount": 3.0},
    ]
    (tmp_path / "events" / "0.jsonl").write_text("".join(json.dumps(r) + "\n" for r in purchases) + "broken\n")
    sw.run(toml.load(tmp_path / "p.toml"), available_now=True, spark=spark, on_notice=lambda a, b: None)
    (file,) = (tmp_path / "purchases").glob("*.jsonl")
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {"user": "u1", "country": "DE", "amount": 1.5, "tags": ["a"]},
        {"user": "u2", "country": None, "amount": 3.0, "tags": None},
    ]
    (letters,) = (tmp_path / "letters").glob("*.parquet")
    assert pl.read_parquet(letters)["value"].to_list() == [b"broken"]


@exhaustive(
    beside="test_sql_only_pipelines_on_spark.py::test_crash_at_every_step_changes_neither_rows_nor_dead_letters"
)
def test_every_row_is_written_once_after_kill_9(tmp_path: Path, postgres: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill the process between commit and target, and start it again from the command line."""
    url = postgres.database("plain_killed")
    monkeypatch.setenv("WAREHOUSE_URL", url)
    write_input_files(tmp_path, BATCHES)
    file = write_config(tmp_path, FILES, TABLE)

    def run(crash_at: str | None) -> int:
        environment = {
            **os.environ,
            "SPARK_MASTER": "local[2]",
            **({"SLACKWATER_CRASH_AT": crash_at} if crash_at else {}),
        }
        command = [sys.executable, "-m", "slackwater.cli.main", "run", str(file), "--available-now"]
        with (tmp_path / "log").open("ab") as log:
            return subprocess.run(
                command, stdout=log, stderr=log, env=environment, start_new_session=True, timeout=240, check=False
            ).returncode

    assert run("write.before@3") == -signal.SIGKILL, (tmp_path / "log").read_text()[-3000:]
    assert run(None) == 0, (tmp_path / "log").read_text()[-3000:]
    assert read_table_rows(url) == compute_expected_rows(GOOD)
    said = (tmp_path / "log").read_text()
    assert f"{len(compute_expected_rows(GOOD))} rows; no state" in said
    assert "Traceback" not in said


# -- in process --------------------------------------------------------------------------------------------------------


def sql_only_pipeline(tmp_path: Path, sql: str, schema: str = SCHEMA, **more: Any) -> sw.Pipeline:
    return sw.Pipeline(
        name="law",
        connections={"lake": sw.FilesConnection()},
        sources=[sw.Source(name="a", connection="lake", query="in/*.jsonl", format="json", schema=schema)],
        transform=sw.Transform(sql=sql, on_error="dlq", **more),
        target=sw.Target(connection="lake", path=str(tmp_path / "out")),
        dead_letter=sw.Target(connection="lake", path=str(tmp_path / "letters")),
        state_store=sw.StateStore(kind="files", path=str(tmp_path / "state")),
    )


def test_crash_at_every_step_changes_neither_rows_nor_dead_letters(spark: Any, tmp_path: Path) -> None:
    """Crash the run at every named step and change the number of shards. The rows equal the batch result."""
    from slackwater.testing.rows_with_spark import InputRows, get_spark_row_preparer

    pipeline = sql_only_pipeline(tmp_path, "SELECT user, page, n * 2 AS n FROM source WHERE page <> 'skip'")
    expected_rows = sorted((r["user"], r["page"], 2 * r["n"]) for r in GOOD if r["page"] != "skip")
    front = get_spark_row_preparer(spark, pipeline, {})
    prepared = front.prepare([InputRows("a", batch) for batch in BATCHES if batch])
    for step in (None, *KILL_POINTS):
        for shards in (1, 4):
            with LocalPipeline(pipeline, session=spark, shards=2) as test:
                for number, rows in enumerate(prepared):
                    if number in (1, 2) and step is not None:
                        test.crash(step, shards)
                    test.pipe_prepared({"a": rows})
                test.quiet("5m")
                test.restart(shards=3)
                test.flush()
                result = test.result()
            assert sorted((r["user"], r["page"], r["n"]) for r in result.rows) == expected_rows, (step, shards)
            assert len(result.letters) == 3, (step, shards)
            assert result.counters.rows_in == len(GOOD) + 3
            assert (result.open_sessions, result.open_keys, test.identity) == (0, 0, None)


NESTED = "id INT, tags ARRAY<STRING>, attrs MAP<STRING, INT>, at STRUCT<x: INT, y: ARRAY<STRUCT<z: DATE>>>, price DECIMAL(10,2)"
ROW = {"id": 1, "tags": ["a", None], "attrs": {"k": 1}, "at": {"x": 2, "y": [{"z": "2024-03-01"}]}, "price": 1.25}
EMPTY = {"id": 2}


@pytest.mark.parametrize("form", select_cases(["parquet", "json", "csv"]))
def test_nested_columns_are_written_to_files(runner: SparkPipelineRunner, form: str) -> None:
    runner.write_input_file("0.jsonl", [ROW, EMPTY])
    source = sw.Source(connection=sw.FilesConnection(), query=str(runner.home / "in"), format="json", schema=NESTED)
    runner.run_pipeline(source=source, transform_sql="SELECT * FROM source", target_format=form)
    (file,) = (runner.home / "out").glob("test-*")
    types = "id INT, tags ARRAY<STRING>, attrs MAP<STRING, INT>, at STRUCT<x: INT, y: ARRAY<STRUCT<z: DATE>>>"
    if form == "csv":
        lines = file.read_text().splitlines()
        assert lines[0] == "id,tags,attrs,at,price"
        assert '"[""a"",null]","{""k"":1}","{""x"":2,""y"":[{""z"":""2024-03-01""}]}"' in lines[1]
        assert lines[2] == "2,,,,"
        return
    read = (
        runner.spark.read.parquet(str(file)) if form == "parquet" else runner.spark.read.schema(types).json(str(file))
    )
    first, second = (r.asDict(recursive=True) for r in read.drop("price").orderBy("id").collect())
    assert first == {
        "id": 1, "tags": ["a", None], "attrs": {"k": 1}, "at": {"x": 2, "y": [{"z": dt.date(2024, 3, 1)}]},
    }  # fmt: skip
    assert second == {"id": 2, "tags": None, "attrs": None, "at": None}


def test_columns_may_have_the_names_of_internal_columns(spark: Any, tmp_path: Path) -> None:
    names = [
        "__kh",
        "__ts",
        "__src",
        "__shard",
        "__start",
        "_origin",
        "c1",
        "ts",
        "window_start",
        "report",
        "odd name",
        "q`uote",
    ]
    sql = ", ".join(f"n + {i} AS `{name.replace('`', '``')}`" for i, name in enumerate(names))
    write_input_files(tmp_path, [page_view_rows(3)])
    pipeline = toml.load(write_config(tmp_path, sql=f"SELECT {sql} FROM source"))
    sw.run(pipeline, available_now=True, spark=spark, on_notice=lambda a, b: None)
    (file,) = (tmp_path / "out").glob("*.parquet")
    frame = pl.read_parquet(file)
    assert frame.columns == names
    assert sorted(frame.rows()) == sorted(tuple(r["n"] + i for i in range(len(names))) for r in page_view_rows(3))


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT user AS __reason FROM source", 'column "__reason" has a name that Slackwater reserves; rename'),
        ("SELECT user, page AS USER FROM source", 'selects "user" more than once; give each column a different name'),
        ("SELECT NULL AS nothing, user FROM source", 'column "nothing" has type void, which no target supports; cast it in the SQL'),
        ("SELECT user, count(*) AS n FROM source GROUP BY user", "must be row-wise, but it uses an aggregate"),
        ("SELECT user, uuid() AS id FROM source", r"must be row-wise, but it uses uuid\(\)"),
        ("SELECT user, _event_ts FROM source", "_event_ts.* cannot be resolved"),
    ],
)  # fmt: skip
def test_unsupported_sql_is_refused_at_start(spark: Any, tmp_path: Path, sql: str, said: str) -> None:
    write_input_files(tmp_path, [page_view_rows(3)])
    pipeline = toml.load(write_config(tmp_path, sql=sql))
    with pytest.raises(StartError, match=said) as raised:
        sw.run(pipeline, available_now=True, spark=spark, on_notice=lambda a, b: None)
    assert len(str(raised.value).splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_replay_emits_nothing_for_a_row_that_is_still_undecodable(runner: SparkPipelineRunner) -> None:
    """Replay with the same schema. The bad row stays a dead letter, and the output does not change."""
    write_input_files(runner.home, [[*page_view_rows(4), '{"user":"u9","page":"a","n":9999999999}']])
    sw.run(toml.load(write_config(runner.home)), available_now=True, spark=runner.spark, on_notice=lambda a, b: None)
    before = read_parquet_rows(runner.home)
    wide = toml.load(write_config(runner.home, schema="user STRING, page STRING, n INT"))
    assert len(before) == len(compute_expected_rows(page_view_rows(4)))
    from slackwater.runner import replay_runner as running

    outcome = running.replay_dead_letters(
        wide, lambda letters: letters, spark=runner.spark, on_notice=lambda a, b: None
    )
    assert (outcome.applied, sum(outcome.remaining.values())) == (0, 1)
    assert read_parquet_rows(runner.home) == before


# -- groups of results -------------------------------------------------------------------------------------------------

RESULTS = "window_start TIMESTAMP, window_end TIMESTAMP, user STRING, n BIGINT, _event_ts TIMESTAMP"
KNOWN = ColumnTypes(
    {"window_start": "timestamp", "window_end": "timestamp", "user": "string", "n": "bigint", "_event_ts": "timestamp"},
    True,
    frozenset({"window_start", "window_end"}),
)
BY = "an aggregate (GROUP BY, count(), …)"
OVER = "a window function (OVER)"
GROUPED: list[tuple[str, set[str]]] = [
    ("SELECT *, row_number() OVER (PARTITION BY window_start ORDER BY n DESC) AS r FROM source", set()),
    ("SELECT *, sum(n) OVER (PARTITION BY user, window_end) AS r FROM source", set()),
    ("SELECT window_start, sum(n) AS n FROM source GROUP BY window_start", set()),
    ("SELECT window_start AS w, user, sum(n) AS n FROM source GROUP BY 1, 2 HAVING sum(n) > 3", set()),
    ("SELECT window_start AS w, sum(n) AS n FROM source GROUP BY w", set()),
    ("SELECT window_start, sum(n) AS n FROM source GROUP BY ALL", set()),
    ("SELECT upper(user) AS window_start, sum(n) AS n FROM source GROUP BY window_start, user", set()),
    ("SELECT w, sum(n) AS n FROM (SELECT window_start AS w, n FROM source WHERE n > 1) GROUP BY w", set()),
    ("WITH t AS (SELECT window_start AS w, n FROM source) SELECT w, sum(n) AS n FROM t GROUP BY w", set()),
    ("SELECT a, sum(b) AS b FROM (SELECT window_start, n FROM source) AS t(a, b) GROUP BY a", set()),
    ("SELECT * FROM (SELECT *, rank() OVER (PARTITION BY window_start ORDER BY n) AS r FROM source) WHERE r < 3", set()),
    ("SELECT window_start, max(c) AS c FROM (SELECT window_start, user, sum(n) AS c FROM source GROUP BY 1, 2) GROUP BY 1", set()),
    ("SELECT s.window_start, name, sum(n) AS n FROM source s LEFT JOIN users u ON s.user = u.id GROUP BY 1, 2", set()),
    ("SELECT user, sum(n) AS n FROM source GROUP BY user", {BY}),
    ("SELECT count(*) AS n FROM source", {BY}),
    ("SELECT date_trunc('DAY', window_start) AS d, sum(n) AS n FROM source GROUP BY 1", {BY}),
    ("SELECT w, sum(n) AS n FROM (SELECT date_trunc('DAY', window_start) AS w, n FROM source) GROUP BY w", {BY}),
    ("SELECT w, sum(n) AS n FROM (SELECT user AS w, n FROM source) GROUP BY w", {BY}),
    ("SELECT user AS window_start, sum(n) AS n FROM (SELECT user, n FROM source) GROUP BY user", {BY}),
    ("SELECT u.window_start, sum(n) AS n FROM source s JOIN others u ON s.user = u.id GROUP BY u.window_start", {BY}),
    ("SELECT w, sum(n) AS n FROM (SELECT window_start AS w, n FROM source UNION ALL SELECT _event_ts, n FROM source) GROUP BY w", {BY}),
    ("SELECT window_start, user, sum(n) AS n FROM source GROUP BY CUBE (window_start, user)", {BY}),
    ("SELECT *, row_number() OVER (ORDER BY n) AS r FROM source", {OVER}),
    ("SELECT *, row_number() OVER (PARTITION BY user ORDER BY n) AS r FROM source", {OVER}),
    ("SELECT *, row_number() OVER (PARTITION BY date_trunc('DAY', window_start) ORDER BY n) AS r FROM source", {OVER}),
    ("SELECT DISTINCT window_start FROM source", {"DISTINCT"}),
    ("SELECT * FROM source ORDER BY window_start", {"ORDER BY"}),
    ("SELECT * FROM source LIMIT 3", {"LIMIT"}),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "forbidden"), GROUPED, ids=[sql for sql, _ in GROUPED])
def test_sql_may_combine_only_rows_of_one_window(spark: Any, sql: str, forbidden: set[str]) -> None:
    """Spark's analyser decides, and `check` refuses only what Spark refuses. Without window bounds, all are refused."""
    session = private_session(spark, 1)
    view = session.createDataFrame([], RESULTS)
    view.createOrReplaceTempView("source")
    session.createDataFrame([], "id STRING, name STRING").createOrReplaceTempView("users")
    session.createDataFrame([], "id STRING, window_start TIMESTAMP").createOrReplaceTempView("others")
    out = session.sql(sql)
    assert (
        row_wise_plan_check.find_forbidden_parts(out, view, GroupableColumns(frozenset({"window_start", "window_end"})))
        == forbidden
    )
    assert row_wise_plan_check.find_forbidden_parts(out, view) >= forbidden
    assert row_wise_plan_check.find_forbidden_parts(out), "without bounds"
    here = SqlFindings()
    users, others = (
        ColumnTypes({"id": "string", "name": "string"}, True),
        ColumnTypes({"id": "string", "window_start": "timestamp"}, True),
    )
    resolve_query(sql, {"source": KNOWN, "users": users, "others": others}, here)
    assert here.problems == []
    assert here.non_row_wise <= forbidden


TOP = "SELECT user, n, window_start, row_number() OVER (PARTITION BY window_start ORDER BY n DESC, user) AS place FROM source"


@pytest.mark.parametrize("kind", select_cases(["tumbling", "hopping"]))
def test_rows_are_ranked_within_each_window_across_epochs(spark: Any, tmp_path: Path, kind: str) -> None:
    """Rank all keys of a window over several epochs, with two crashes and resharding."""
    shape: dict[str, Any] = {"duration_ms": 20} | ({"hop_ms": 10} if kind == "hopping" else {})
    window = sw.Window(
        kind=kind, **shape, group_by=["user"], max_groups_per_window=99, lateness_ms=15, event_time_column="ts",
        aggregations=[sw.Aggregation(agg="count", as_="n")],
    )  # fmt: skip
    base = 1_709_280_000_000
    rows = [{"user": f"u{i * i % 7}", "ts": base + 3 * i + (i * 7) % 11} for i in range(60)]
    counts_by_start: dict[int, dict[str, int]] = {}
    for r in rows:
        for start in range((r["ts"] - 20) // 10 * 10 + 10, r["ts"] + 1, 10):
            if start + 20 > r["ts"] and start % shape.get("hop_ms", 20) == 0:
                counts = counts_by_start.setdefault(start, {})
                counts[r["user"]] = counts.get(r["user"], 0) + 1
    best = {
        (start, user, n, place)
        for start, counts in counts_by_start.items()
        for place, (user, n) in enumerate(sorted(counts.items(), key=lambda c: (-c[1], c[0])), 1)
    }
    pipeline = sw.Pipeline(
        name="law",
        connections={"lake": sw.FilesConnection()},
        sources=[sw.Source(name="a", connection="lake", query="in", format="json", schema="user STRING, ts TIMESTAMP")],
        stages=[sw.Stage(name="counts", window=window), sw.Stage(name="top", sql=TOP)],
        target=sw.Target(connection="lake", path=str(tmp_path / "out")),
        state_store=sw.StateStore(kind="files", path=str(tmp_path / "state")),
    )
    with LocalPipeline(pipeline, session=spark) as test:
        for number in range(0, 60, 10):
            if number in (20, 40):
                test.crash("commit.before" if number == 20 else "commit.after", 3)
            batch = [
                {"user": r["user"], "ts": dt.datetime.fromtimestamp(r["ts"] / 1000, dt.UTC).isoformat()}
                for r in rows[number : number + 10]
            ]
            test.pipe(batch)
        test.flush()
        result = test.result()
    assert {(r["window_start"] // 1000, r["user"], r["n"], r["place"]) for r in result.rows} == best
    assert len(result.rows) == len(best)
