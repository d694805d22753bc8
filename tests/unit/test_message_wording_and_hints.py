"""Texts of messages: plurals, durations, types, and one hint per mistake."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import polars as pl
import pytest
from tests.support.local_pipeline_script import MicroBatch, run_local_script

import slackwater as sw
from slackwater.cli.state_show import _value_text
from slackwater.config import config_warnings
from slackwater.config.error_text import suggest_word
from slackwater.config.source import Source
from slackwater.core.humanize import format_duration, plural
from slackwater.core.schema import Field, polars_to_spark_type
from slackwater.errors import ConfigError, StartError
from slackwater.operators.registry import bind_window
from slackwater.spark import rejected_rows

SRC = Path(__file__).resolve().parents[2] / "src" / "slackwater"


def test_plural_formats_counts_with_nouns() -> None:
    assert [plural(n, "bad row") for n in (0, 1, 2, 1000)] == [
        "0 bad rows",
        "1 bad row",
        "2 bad rows",
        "1,000 bad rows",
    ]
    assert plural(1, "record was", "records were") == "1 record was"
    assert plural(2, "record was", "records were") == "2 records were"


def test_messages_do_not_use_a_fixed_plural_after_a_count() -> None:
    """A text such as `{n} rows` would print "1 rows". Limits, names and counts that are never one are excluded."""
    fixed = re.compile(
        r"\{[^{}]*\} (?:bad |late |dead )?(?:rows|letters|windows|records|files|epochs|sources|keys|commits|problems)\b|%d (?:\w+ )?(?:rows|records)\b"
    )
    names = (
        "{s.",
        "{t.",
        "{form}",
        "{spec.",
        "{window.kind}",
        "{side}",
        "{alone}",
        "{kinds}",
        "status.files_total",
        "rows={status",
    )
    bounds = ("{times} sources", "{join.max_rows_per_key:,} rows")
    fixed_plurals = []
    for path in SRC.rglob("*.py"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if fixed.search(line) and not any(allowed in line for allowed in (*names, *bounds)):
                fixed_plurals.append(f"{path.relative_to(SRC)}:{number}: {line.strip()}")
    assert fixed_plurals == []


@pytest.mark.parametrize(
    ("ms", "message"),
    [
        (86_400_000, "1 day"),
        (172_800_000, "2 days"),
        (3_600_000, "1 hour"),
        (90_000, "90 seconds"),
        (1500, "1,500 ms"),
        (0, "0 ms"),
    ],
)
def test_durations_are_formatted_in_the_largest_whole_unit(ms: int, message: str) -> None:
    assert format_duration(ms) == message


WINDOW = {
    "kind": "session",
    "gap_ms": "30s",
    "max_session_duration_ms": "1h",
    "group_by": ["user"],
    "event_time_column": "ts",
}
COUNT = [sw.Aggregation(agg="count", as_="n")]


def test_bad_row_warning_is_singular_for_a_count_of_one(caplog: pytest.LogCaptureFixture) -> None:
    window = sw.Window(**WINDOW, aggregations=COUNT)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING, "slackwater"):
        run_local_script(
            window, [MicroBatch({"a": [{"ts": 0, "user": "a"}, {"ts": None, "user": "a"}]})], {"user": "string"}
        )
    assert "1 bad row (0 undecodable, 0 more than 1 hour in the future, 1 without" in caplog.text


def test_default_session_limit_does_not_cause_a_size_warning() -> None:
    """Only an explicit `max_groups_per_window` causes the warning."""
    window = sw.Window(
        **WINDOW, aggregations=[*COUNT, sw.Aggregation(agg="count_distinct", column="page", as_="pages")]
    )  # type: ignore[arg-type]
    assert config_warnings.estimate_bytes(window) > config_warnings.GIB
    assert config_warnings.size_warnings(window) == ()
    chosen = sw.Window(**WINDOW, max_groups_per_window=2_000_000, aggregations=window.aggregations)  # type: ignore[arg-type]
    (line,) = config_warnings.size_warnings(chosen)
    assert "4.1 GiB at max_groups_per_window = 2,000,000" in line


def test_types_are_written_as_in_spark_sql() -> None:
    names = (
        "bigint",
        "string",
        "timestamp",
        "decimal(10,2)",
        "array<int>",
        "struct<a:double,b:array<date>>",
        "map<string,int>",
    )
    assert [polars_to_spark_type(Field("c", name).polars) for name in names] == list(names)
    assert polars_to_spark_type(pl.UInt32()) == "uint32"


def test_fingerprint_is_not_shown_as_a_python_literal() -> None:
    text = _value_text({"keys": ["user string"], "aggs": {"n": "count *", "m": ["a", 1]}})
    assert text == "keys: user string, aggs: n: count *, m: a, 1"


@pytest.mark.parametrize(
    ("agg", "meant"),
    [
        ("median", '"approx_quantile" with quantile = 0.5'),
        ("mean", '"avg"'),
        ("p95", '"approx_quantile"'),
        ("stdev", '"stddev"'),
        ("sm", '"sum"'),
    ],
)
def test_aggregation_names_of_other_systems_get_a_hint(agg: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean {meant}") as raised:
        sw.Aggregation(agg=agg, column="x", as_="m")
    assert str(raised.value).count("did you mean") == 1


@pytest.mark.parametrize(
    ("key", "value", "meant"),
    [
        *(
            ("output_mode", "update", 'emit = "updates"'),
            ("outputMode", "append", 'emit = "on_close"'),
            ("output_mode", "x", '"emit"'),
        ),
        *(("keys", ["a"], '"group_by"'), ("watermark", "1m", '"lateness_ms"'), ("slide", "1m", '"hop_ms"')),
    ],
)
def test_config_keys_of_other_systems_get_a_hint(key: str, value: object, meant: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{key}: unknown key; did you mean {meant}?")):
        sw.Window(**{**WINDOW, key: value}, aggregations=COUNT)  # type: ignore[arg-type]


def test_a_hint_ignores_case_and_appears_once() -> None:
    assert suggest_word("User_ID", ["user_id", "ts"]) == '; did you mean "user_id"?'
    assert suggest_word("zzz", ["user_id"]) == ""
    columns = {"user_id": Field("user_id", "string"), "n": Field("n", "int")}
    for name, hint in (("User_ID", 'did you mean "user_id"?'), ("zzz", "expected one of n, user_id")):
        with pytest.raises(StartError) as raised:
            bind_window("p", sw.Window(**{**WINDOW, "group_by": [name]}, aggregations=COUNT), columns)  # type: ignore[arg-type]
        assert str(raised.value).endswith(hint) and "there are" not in str(raised.value)


def test_undecodable_records_get_a_hint_about_the_cause() -> None:
    settings = {"name": "s", "connection": "lake", "query": "in", "schema": "user STRING, ts TIMESTAMP"}
    csv, json = Source(**settings, format="csv"), Source(**settings, format="json")  # type: ignore[arg-type]
    assert 'set options = { header = "true" }' in rejected_rows.decode_hint(csv, "user,ts", 7)
    assert rejected_rows.decode_hint(csv, "u1,yesterday", 12) == ""
    assert rejected_rows.decode_hint(Source(**settings, format="csv", options={"header": "true"}), "user,ts", 7) == ""  # type: ignore[arg-type]
    assert 'set options = { header = "true" }' in rejected_rows.decode_hint(
        Source(**settings, format="csv", options={"sep": ";"}), "User;TS", 7
    )  # type: ignore[arg-type]
    assert "30 MB long" in rejected_rows.decode_hint(
        json, "{", 30_000_000
    ) and "20,000,000" in rejected_rows.decode_hint(json, "{", 30_000_000)
    assert rejected_rows.decode_hint(json, "{", 300) == ""
