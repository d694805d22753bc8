"""Test aggregations that collect, rank or measure spread, and a custom aggregation, on Spark."""

from __future__ import annotations

import decimal
import math
from typing import Any

import pytest
from tests.laws.oracles import window_oracle
from tests.support.case_selection import exhaustive, select_cases
from tests.support.longest_text_aggregator import LongestTextAggregator
from tests.support.sample_events_and_windows import NAN, SCHEMA, WINDOWS, build_rows_of_every_type, to_microseconds
from tests.support.spark_pipeline_runner import SparkPipelineRunner

import slackwater as sw
from slackwater.errors import EpochError, LimitExceededError, StartError, ValueRangeError
from slackwater.spark.epoch_sql import pane_aggregates

pytestmark = pytest.mark.spark

COLUMNS = ("i", "l", "d", "m", "s", "b", "t")
NUMBERS = ("i", "l", "d", "m")


def aggregations(in_sql: bool) -> list[sw.Aggregation]:
    """Return all aggregations, or with `in_sql` those that Spark SQL aggregates before the shuffle."""
    specs = [sw.Aggregation(agg="count", as_="n")]
    specs += [sw.Aggregation(agg=a, column=c, as_=f"{a}_{c}") for a in ("sum", "avg") for c in ("l", "d")]
    for c in COLUMNS:
        specs.append(sw.Aggregation(agg="collect_set", column=c, max_values_per_group=99, as_=f"set_{c}"))
        for by in ("s", "d"):
            specs += [sw.Aggregation(agg=a, column=c, by=by, as_=f"{a}_{c}_{by}") for a in ("min_by", "max_by")]
    if in_sql:
        return specs
    for c in NUMBERS:
        specs += [sw.Aggregation(agg=a, column=c, as_=f"{a}_{c}") for a in ("var", "stddev")]
        specs.append(sw.Aggregation(agg="approx_quantile", column=c, quantile=0.75, as_=f"quantile_{c}"))
    for c in COLUMNS:
        specs.append(sw.Aggregation(agg="collect_list", column=c, max_values_per_group=99, as_=f"list_{c}"))
        specs.append(sw.Aggregation(agg="top_k", column=c, k=2, max_distinct_values_per_group=99, as_=f"top_{c}"))
    return specs


def to_oracle_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return an input row in the form that the oracle reads."""
    out = {**row, "ts": to_microseconds(row["ts"])}
    out["d"] = NAN if row["d"] == "NaN" else row["d"]
    out["m"] = None if row["m"] is None else decimal.Decimal(row["m"])
    out["t"] = None if row["t"] is None else to_microseconds(row["t"])
    return out


def normalize_value(value: Any) -> Any:
    """Make equal results comparable: NaN as a word, times in µs, floats with ten digits."""
    if isinstance(value, dict):
        return {k: normalize_value(v) for k, v in value.items() if k != "session_id"}
    if isinstance(value, list):
        return [normalize_value(v) for v in value]
    if hasattr(value, "timestamp"):
        return round(value.timestamp() * 1_000_000)
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.10g}") + 0.0
    return window_oracle.canonical_value(value)


def comparable_rows(rows: list[dict[str, Any]]) -> list[Any]:
    return sorted((sorted(normalize_value(r).items()) for r in rows), key=repr)


@pytest.mark.parametrize(
    ("kind", "in_sql"), select_cases([("session", True), ("hopping", False), ("session", False), ("hopping", True)])
)
def test_aggregations_match_the_oracle(runner: SparkPipelineRunner, kind: str, in_sql: bool) -> None:
    rows = build_rows_of_every_type()
    for part in range(3):
        runner.write_input_file(f"{part}.jsonl", rows[part * 20 : part * 20 + 20])
    window_settings = {"event_time_column": "ts", "group_by": ["user"], "lateness_ms": "1m", **WINDOWS[kind]}
    window = sw.Window(aggregations=aggregations(in_sql), **window_settings)
    frame = runner.run_pipeline(source=runner.files_source(SCHEMA, max_files_per_trigger=1), window=window)
    assert comparable_rows(frame.to_dicts()) == comparable_rows(
        window_oracle.compute_windows_over_all_rows(window, map(to_oracle_row, rows))
    )
    assert frame.height > 5
    assert runner.statuses[-1].counters.rows_used == len(rows)


@pytest.mark.semantics("aggregations")
def test_aggregations_match_spark(runner: SparkPipelineRunner) -> None:
    """Aggregations give the same results as Spark's own functions, including for NULL and NaN.

    Types and NULL rules are those of Spark. Each user is a group, and `a` has one value only.
    """
    rows = [{"user": u, "i": i, "d": d, "s": s, "ts": "2024-03-01T00:00:00Z"} for u, i, d, s in (
        ("a", 1, 0.5, None), ("b", 1, 0.1, "x"), ("b", 2, 0.2, "y"), ("b", 1, None, "x"), ("c", None, None, None),
        ("d", 7, "NaN", "q"), ("d", 8, 1.0, None), ("d", None, 3.0, "z"),
    )]  # fmt: skip
    runner.write_input_file("0.jsonl", rows)
    calls = {
        "var_i": ("var", "i", "variance(i)"), "sd_d": ("stddev", "d", "stddev(d)"), "set_s": ("collect_set", "s", "sort_array(collect_set(s))"),
        "low": ("min_by", "s", "min_by(s, d)"), "high": ("max_by", "s", "max_by(s, i)"),
        "q": ("approx_quantile", "i", "CAST(percentile_disc(0.5) WITHIN GROUP (ORDER BY i) AS DOUBLE)"),
    }  # fmt: skip
    more = {
        "collect_set": {"max_values_per_group": 9},
        "min_by": {"by": "d"},
        "max_by": {"by": "i"},
        "approx_quantile": {"quantile": 0.5},
    }
    window = sw.Window(
        kind="tumbling", duration_ms="1m", max_groups_per_window=9, event_time_column="ts", group_by=["user"],
        aggregations=[sw.Aggregation(agg=a, column=c, as_=n, **more.get(a, {})) for n, (a, c, _) in calls.items()],
    )  # fmt: skip
    results = runner.run_pipeline(
        source=runner.files_source("user STRING, i INT, d DOUBLE, s STRING, ts TIMESTAMP"), window=window
    )
    frame = runner.spark.read.schema("user STRING, i INT, d DOUBLE, s STRING").json(str(runner.home / "in"))
    expected = frame.groupBy("user").agg(*[_sql_expression(sql, n) for n, (_, _, sql) in calls.items()])
    assert comparable_rows(results.drop("window_start", "window_end").to_dicts()) == comparable_rows(
        [r.asDict() for r in expected.collect()]
    )


def _sql_expression(sql: str, name: str) -> Any:
    from pyspark.sql import functions

    return functions.expr(sql).alias(name)


@exhaustive(beside="test_spark_engine.py::test_exact_distinct_count_beyond_its_limit_fails")
def test_sets_aggregated_by_spark_respect_their_size_limit(runner: SparkPipelineRunner) -> None:
    """Spark aggregates each group completely, so the shard does not merge sets."""
    runner.write_input_file("0.jsonl", [{"user": "a", "i": n, "ts": "2024-03-01T00:00:00Z"} for n in range(5)])
    shape = {"kind": "tumbling", "duration_ms": "1m", "max_groups_per_window": 9, "event_time_column": "ts"}
    for number, (kind, key) in enumerate(
        (("collect_set", "max_values_per_group"), ("count_distinct", "max_distinct_values_per_group"))
    ):
        more = {"mode": "exact"} if kind == "count_distinct" else {}
        for bound in (4, 5):
            aggregation = sw.Aggregation(agg=kind, column="i", as_="x", **{key: bound}, **more)
            settings = {
                "source": runner.files_source("user STRING, i INT, ts TIMESTAMP"), "name": f"p{number}{bound}",
                "target_path": str(runner.home / f"out{number}"),
                "window": sw.Window(group_by=["user"], aggregations=[aggregation], **shape),
            }  # fmt: skip
            if bound == 5:
                runner.run_pipeline(**settings)
                continue
            with pytest.raises(
                LimitExceededError, match=f'"x" has 5 distinct values of "i" in one group, but {key} is 4'
            ):
                runner.run_pipeline(**settings)


@pytest.mark.parametrize("kind", select_cases(["session", "hopping"]))
def test_custom_aggregation_receives_keys_and_reports_failures(runner: SparkPipelineRunner, kind: str) -> None:
    rows = [{"user": "a", "s": "x" * (n % 7) or "long", "ts": f"2024-03-01T00:00:{n:02}Z"} for n in range(20)]
    runner.write_input_file("0.jsonl", rows[:10])
    runner.write_input_file("1.jsonl", rows[10:])

    def window(**options: Any) -> sw.Window:
        longest = sw.Aggregation(agg=LongestTextAggregator, columns={"text": "s"}, options=options, as_="best")
        return sw.Window(event_time_column="ts", group_by=["user"], aggregations=[longest], **WINDOWS[kind])

    source = runner.files_source("user STRING, s STRING, ts TIMESTAMP", max_files_per_trigger=1)
    frame = runner.run_pipeline(source=source, window=window(mark="="))
    assert set(frame["best"]) == {"a=xxxxxx"}
    with pytest.raises(
        EpochError, match=r'aggregation "best": LongestTextAggregator\.lift failed: .*; correct this method'
    ) as error:
        runner.run_pipeline(
            source=source, window=window(fail=True), name="failing", target_path=str(runner.home / "failed")
        )
    assert "\n" not in str(error.value)
    wrong = sw.Aggregation(agg=LongestTextAggregator, columns={"text": "i"}, as_="best")
    shape = sw.Window(event_time_column="ts", group_by=["user"], aggregations=[wrong], **WINDOWS[kind])
    with pytest.raises(
        StartError,
        match=r'aggregation "best": LongestTextAggregator\.text takes string, but column "i" is int; cast it in the SQL',
    ):
        runner.run_pipeline(
            source=runner.files_source("user STRING, i INT, ts TIMESTAMP"),
            window=shape,
            name="unfit",
            target_path=str(runner.home / "unfit"),
        )


def test_config_and_engine_agree_on_aggregations_that_run_in_sql() -> None:
    from slackwater.core.schema import Field
    from slackwater.windows.aggregations import bind_aggregation
    from slackwater.windows.pane_windows import CompiledPaneWindow

    fields = {"i": Field("i", "int"), "s": Field("s", "string"), "d": Field("d", "double")}
    window = sw.Window(
        kind="tumbling", duration_ms=1, max_groups_per_window=1, aggregations=[sw.Aggregation(agg="count", as_="n")]
    )
    for spec in aggregations(in_sql=False):
        if spec.column in (None, *fields):
            more = (fields[spec.by],) if spec.by else ()
            agg = bind_aggregation(spec, fields[spec.column] if spec.column else None, more)
            logic = CompiledPaneWindow("p", window, (), (agg,))
            assert logic.preaggregates_in_sql == spec.in_sql == (len(pane_aggregates(logic)) > 2), spec.agg


@exhaustive(beside="test_sum_overflow.py::test_overflowing_sum_fails_before_the_commit_and_null_policy_continues")
def test_overflowing_sum_fails_with_its_key_or_becomes_null(runner: SparkPipelineRunner) -> None:
    """Cover sums in the shards (BIGINT) and in Spark (DECIMAL, where Spark would raise). A batch run agrees."""
    when = "2024-03-01T00:00:00Z"
    rows = [{"user": u, "l": v, "m": m, "ts": when} for u, v, m in (
        ("a", 2**62, 10**37), ("b", 1, 9 * 10**37), ("a", 2**62, 0), ("b", 2, 9 * 10**37), ("b", None, 9 * 10**37), ("c", None, None),
    )]  # fmt: skip
    runner.write_input_file("0.jsonl", rows)
    schema = "user STRING, l BIGINT, m DECIMAL(38,0), ts TIMESTAMP"

    def window(kind: str, column: str, policy: str) -> sw.Window:
        total = sw.Aggregation(agg="sum", column=column, as_="total", on_overflow=policy)
        return sw.Window(
            event_time_column="ts", group_by=["user"], aggregations=[total, sw.Aggregation(agg="count", as_="n")],
            **WINDOWS[kind],
        )  # fmt: skip

    for kind, column, key in (("tumbling", "l", "a"), ("session", "m", "b"), ("tumbling", "m", "b")):
        name = f"{kind}-{column}"
        where = {"name": name, "target_path": str(runner.home / name), "source": runner.files_source(schema)}
        with pytest.raises(
            ValueRangeError,
            match=rf"^{name}: aggregation \"total\": the sum of \"{column}\" .* for user='{key}'; set on_",
        ):
            runner.run_pipeline(window=window(kind, column, "fail"), **where)
        runner.run_pipeline(window=window(kind, column, "null"), **where)
        results = {(r["user"], r["n"]): r["total"] for r in runner.read_output(name).to_dicts()}
        totals = {"l": {"a": None, "b": 3, "c": None}, "m": {"a": 10**37, "b": None, "c": None}}[column]
        assert results == {(u, n): totals[u] for u, n in (("a", 2), ("b", 3), ("c", 1))}
        assert runner.statuses[-1].counters.overflows == 1
        frame = runner.spark.read.schema(schema).json(str(runner.home / "in"))
        batch = {(r["user"], r["n"]): r["total"] for r in sw.batch(frame, window(kind, column, "null")).collect()}
        assert batch == results
