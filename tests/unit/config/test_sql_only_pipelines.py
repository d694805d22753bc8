"""Configs of SQL-only pipelines: valid configs, mistakes that `check` reports, and columns to group by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import slackwater as sw
from slackwater import explain
from slackwater.cli import check
from slackwater.config import static_sql_check, toml
from slackwater.config.sql.query_columns import resolve_query
from slackwater.config.sql.select_scope import ROW_BY_ROW, ColumnTypes, SqlFindings
from slackwater.config.stage import find_groupable_columns
from slackwater.config.step_base import ROWS
from slackwater.errors import ConfigError

CONFIG = """
name = "plain"

[connections.lake]
kind = "files"

[[sources]]
name = "clicks"
connection = "lake"
query = "clicks/*.jsonl"
format = "json"
schema = "user STRING, page STRING, n INT"
MORE
[transform]
sql = "SELECT user, n + 1 AS n FROM source WHERE page <> ''"

[target]
connection = "lake"
path = "out"

[state_store]
kind = "files"
path = "state"
"""
SECOND = """
[[sources]]
name = "views"
connection = "lake"
query = "views/*.jsonl"
format = "json"
schema = "SCHEMA"
"""


def build_sql_only_config(more: str = "", **changes: str) -> str:
    text = CONFIG.replace("MORE", more)
    for old, new in changes.items():
        text = text.replace(
            {
                "sql": "SELECT user, n + 1 AS n FROM source WHERE page <> ''",
                "schema": "user STRING, page STRING, n INT",
            }[old],
            new,
        )
    return text


def find_config_problems(text: str) -> list[str]:
    try:
        pipeline = toml.loads(text, "p.toml")
    except ConfigError as error:
        return [p.removeprefix("p.toml: ") for p in error.problems]
    return static_sql_check.check_sql(pipeline).problems


def test_sql_only_config_is_a_stateless_pipeline() -> None:
    pipeline = toml.loads(build_sql_only_config())
    assert pipeline.transform.is_stateless
    assert pipeline.transform.step is ROWS
    assert toml.loads(sw.to_toml(pipeline)) == pipeline
    assert find_config_problems(build_sql_only_config()) == []
    built = sw.pipeline(
        name="plain",
        connections={"lake": sw.FilesConnection()},
        source=sw.Source(
            name="clicks",
            connection="lake",
            query="clicks/*.jsonl",
            format="json",
            schema="user STRING, page STRING, n INT",
        ),
        transform_sql="SELECT user, n + 1 AS n FROM source WHERE page <> ''",
        target=sw.Target(connection="lake", path="out"),
        state_store=sw.StateStore(kind="files", path="state"),
    )
    assert built == pipeline


def test_a_transform_with_a_window_is_not_stateless() -> None:
    window = sw.Window(
        kind="tumbling", duration_ms=1, max_groups_per_window=9, aggregations=[sw.Aggregation(agg="count", as_="n")]
    )
    assert not sw.Transform(sql="SELECT * FROM source", window=window).is_stateless
    with pytest.raises(ConfigError, match=r"window: missing; describe the window .* or only sql in \[transform\]"):
        sw.Transform(on_error="drop")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sql": "SELECT usr FROM source"}, 'transform.sql: column "usr" does not exist; did you mean "user"?'),
        (
            {"sql": "SELECT user, count(*) AS n FROM source GROUP BY user"},
            "transform.sql: must be row-wise, but it uses an aggregate (GROUP BY, count(), …); use only filters, projections and lookup joins, "
            "and describe aggregation in [transform.window]",
        ),
        (
            {"sql": "SELECT user, row_number() OVER (PARTITION BY user ORDER BY n) AS r FROM source"},
            "transform.sql: must be row-wise, but it uses a window function (OVER); use only filters, projections and lookup joins, and describe "
            "aggregation in [transform.window]",
        ),
        (
            {"schema": "user STRING, page STRING, n INT, _event_ts BIGINT"},
            'transform.sql: column "_event_ts" is bigint, which is not a time type; cast it in the SQL, or rename the column',
        ),
        (
            {"sql": "SELECT user, _event_ts FROM source"},
            'transform.sql: column "_event_ts" does not exist; expected one of n, page, user',
        ),
    ],
)  # fmt: skip
def test_check_reports_mistakes_in_sql_only_config(changes: dict[str, str], message: str) -> None:
    assert find_config_problems(build_sql_only_config(**changes)) == [message]


def test_sql_only_config_accepts_event_time_column_of_source() -> None:
    with_time = {
        "schema": "user STRING, page STRING, n INT, _event_ts TIMESTAMP",
        "sql": "SELECT user, _event_ts FROM source",
    }
    assert find_config_problems(build_sql_only_config(**with_time)) == []


def test_sources_of_sql_only_config_must_have_equal_columns() -> None:
    same = SECOND.replace("SCHEMA", "user STRING, page STRING, n BIGINT")
    assert find_config_problems(build_sql_only_config(same, sql="SELECT user, page FROM source WHERE true")) == []
    (line,) = find_config_problems(build_sql_only_config(same, sql="SELECT user, n FROM source WHERE true"))
    assert line == (
        'transform.sql: column "n" is int in source "clicks" and bigint in source "views"; expected the same columns from every '
        "source; cast or rename the column in the SQL"
    )
    (line,) = find_config_problems(
        build_sql_only_config(
            SECOND.replace("SCHEMA", "user STRING, page STRING, n INT, m INT"), sql="SELECT * FROM source"
        )
    )
    assert 'column "m" is missing in source "clicks" and int in source "views"' in line


def test_dead_letter_and_target_of_sql_only_config_are_checked() -> None:
    text = build_sql_only_config().replace("[transform]\n", '[transform]\non_error = "dlq"\n')
    assert find_config_problems(text) == [
        'dead_letter: missing, but required by on_error = "dlq"; define [dead_letter] with a connection and a path, table or topic'
    ]
    assert find_config_problems(build_sql_only_config() + '[dead_letter]\nconnection = "lake"\npath = "bad"\n') == [
        'dead_letter: unused, because on_error is "fail"; set it to "dlq", or remove [dead_letter]'
    ]
    text = (
        build_sql_only_config()
        .replace('path = "out"', 'path = "out"\nmode = "merge"')
        .replace('kind = "files"\n\n', 'kind = "delta"\n\n', 1)
    )
    assert any("target.mode" in p and "merge" in p for p in find_config_problems(text))


def test_check_and_explain_describe_sql_only_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "clicks").mkdir()
    file = tmp_path / "p.toml"
    file.write_text(build_sql_only_config())
    check.check_file(file)
    assert f"{file}: ok — SQL over 1 source, state in files at" in capsys.readouterr().out
    check.explain_file(file)
    output = capsys.readouterr().out
    assert "the result of the SQL, in the epoch that reads the row" in output
    assert "no state except offsets" in output
    assert "SELECT user, n + 1 AS n FROM source" in output
    plan = explain.build_plan(toml.load(file))
    assert plan.state_bytes == 0
    assert [s.name for s in plan.stages] == ["read", "event time", "sql", "emit", "commit", "publish"]


# -- grouping of results -----------------------------------------------------------------------------------------------


def build_tumbling_window(**more: Any) -> sw.Window:
    settings: dict[str, Any] = {
        "kind": "tumbling",
        "duration_ms": "1m",
        "group_by": ["user"],
        "max_groups_per_window": 9,
        **more,
    }
    return sw.Window(**settings, aggregations=[sw.Aggregation(agg="count", as_="n")])


def test_sql_may_group_by_window_bounds_only_if_each_window_is_emitted_once() -> None:
    assert find_groupable_columns(build_tumbling_window()).names == {"window_start", "window_end"}
    assert find_groupable_columns(
        build_tumbling_window(window_start_column="a", window_end_column="b", late_data="dlq")
    ).names == {
        "a",
        "b",
    }
    assert find_groupable_columns(build_tumbling_window(emit="final", late_data="reopen")).names == {
        "window_start",
        "window_end",
    }
    for again in ({"emit": "updates"}, {"late_data": "reopen"}, {"late_data": "standalone", "emit_metadata": True}):
        groupable = find_groupable_columns(build_tumbling_window(**again))
        assert not groupable.names
        assert "emitted more than once" in groupable.reason
    session = find_groupable_columns(
        build_tumbling_window(kind="session", gap_ms="1m", max_session_duration_ms="1h", duration_ms=None)
    )
    assert not session.names
    assert "cut at max_session_duration" in session.reason
    assert find_groupable_columns(ROWS) == ROW_BY_ROW


RESULTS = ColumnTypes(
    dict.fromkeys(("window_start", "window_end", "_event_ts"), "timestamp") | {"user": "string", "n": "bigint"},
    True,
    frozenset({"window_start", "window_end"}),
)
LOOKUP = ColumnTypes({"id": "string", "name": "string"}, True)


def find_non_row_wise_parts(sql: str, **more: ColumnTypes) -> set[str]:
    findings = SqlFindings()
    resolve_query(sql, {"source": RESULTS, "users": LOOKUP, **more}, findings)
    assert not findings.problems
    return findings.non_row_wise


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT *, row_number() OVER (PARTITION BY window_start ORDER BY n DESC) AS r FROM source",
        "SELECT *, sum(n) OVER (PARTITION BY window_end, user) AS r FROM source",
        "SELECT window_start, count(*) AS c, max(_event_ts) AS _event_ts FROM source GROUP BY window_start",
        "SELECT window_start AS w, user, sum(n) AS c FROM source GROUP BY 2, 1",
        "SELECT window_start AS w, sum(n) AS c FROM source GROUP BY w HAVING sum(n) > 3",
        "SELECT upper(user) AS window_start, sum(n) AS c FROM source GROUP BY window_start, user",
        "SELECT w, sum(n) FROM (SELECT window_start AS w, n FROM source WHERE n > 1) GROUP BY w",
        "WITH t AS (SELECT window_start AS w, n FROM source) SELECT w, sum(n) FROM t GROUP BY w",
        "SELECT * FROM (SELECT *, rank() OVER (PARTITION BY window_start ORDER BY n) AS r FROM source) WHERE r < 3",
        "SELECT s.window_start, name, sum(n) AS c FROM source s LEFT JOIN users u ON s.user = u.id GROUP BY s.window_start, name",
        "SELECT a, sum(b) FROM (SELECT window_start, n FROM source) AS t(a, b) GROUP BY a",
    ],
)  # fmt: skip
def test_sql_may_group_rows_within_one_window(sql: str) -> None:
    assert find_non_row_wise_parts(sql) == set()


@pytest.mark.parametrize(
    ("sql", "construct"),
    [
        ("SELECT user, count(*) AS c FROM source GROUP BY user", "an aggregate (GROUP BY, count(), …)"),
        ("SELECT count(*) AS c FROM source", "an aggregate (GROUP BY, count(), …)"),
        ("SELECT date_trunc('DAY', window_start) AS d, sum(n) FROM source GROUP BY date_trunc('DAY', window_start)", "an aggregate (GROUP BY, count(), …)"),
        ("SELECT *, row_number() OVER (ORDER BY n) AS r FROM source", "a window function (OVER)"),
        ("SELECT *, row_number() OVER (PARTITION BY user ORDER BY n) AS r FROM source", "a window function (OVER)"),
        ("SELECT w, sum(n) FROM (SELECT user AS w, n FROM source) GROUP BY w", "an aggregate (GROUP BY, count(), …)"),
        ("SELECT w, sum(n) FROM (SELECT upper(window_start) AS w, n FROM source) GROUP BY w", "an aggregate (GROUP BY, count(), …)"),
        ("SELECT DISTINCT window_start FROM source", "DISTINCT"),
        ("SELECT * FROM source ORDER BY window_start", "ORDER BY"),
        ("SELECT * FROM source LIMIT 3", "LIMIT"),
        ("SELECT window_start, (SELECT max(n) FROM source) AS m FROM source GROUP BY window_start", "a subquery"),
    ],
)  # fmt: skip
def test_sql_may_not_group_rows_across_windows(sql: str, construct: str) -> None:
    assert construct in find_non_row_wise_parts(sql)


def test_sql_may_not_group_rows_of_a_source() -> None:
    """In a source, a column with the name `window_start` is not the start of a window."""
    findings = SqlFindings()
    sql = "SELECT window_start, count(*) AS n FROM source GROUP BY window_start"
    resolve_query(sql, {"source": ColumnTypes(RESULTS.types, True)}, findings)
    assert findings.non_row_wise == {"an aggregate (GROUP BY, count(), …)"}


STAGES = """
name = "top"

[connections.lake]
kind = "files"

[[sources]]
name = "clicks"
connection = "lake"
query = "clicks/*.jsonl"
format = "json"
schema = "user STRING, ts TIMESTAMP"

[[stages]]
name = "per_minute"

[stages.window]
WINDOW
event_time_column = "ts"
group_by = ["user"]
max_groups_per_window = 1000

[[stages.window.aggregations]]
agg = "count"
as = "n"

[[stages]]
name = "top"
sql = '''
SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY window_start ORDER BY n DESC, user) AS place FROM source)
WHERE place <= 3
'''

[target]
connection = "lake"
path = "out"

[state_store]
kind = "files"
path = "state"
"""
TUMBLING = 'kind = "tumbling"\nduration_ms = "1m"'
SESSION = 'kind = "session"\ngap_ms = "1m"\nmax_session_duration_ms = "1h"'


def test_sql_may_rank_the_rows_of_each_window() -> None:
    assert find_config_problems(STAGES.replace("WINDOW", TUMBLING)) == []
    assert find_config_problems(STAGES.replace("WINDOW", f'{TUMBLING}\nemit = "final"\nlate_data = "reopen"')) == []
    (line,) = find_config_problems(STAGES.replace("WINDOW", SESSION))
    assert line.startswith("stages[1].sql: must be row-wise, but it uses a window function (OVER)")
    assert line.endswith("a session that is cut at max_session_duration closes before a session that ends there")
    (line,) = find_config_problems(
        STAGES.replace("WINDOW", TUMBLING).replace("PARTITION BY window_start", "PARTITION BY user")
    )
    assert line.endswith('by its start or end; name "window_end" or "window_start" in GROUP BY or PARTITION BY')


def test_sql_may_not_group_rows_of_several_inputs() -> None:
    """The SQL runs over each input separately, so a group would have only a part of the rows of a window."""
    begin, end = STAGES.index("[[stages]]"), STAGES.index('[[stages]]\nname = "top"')
    first = STAGES[begin:end].replace("WINDOW", TUMBLING)
    again = first.replace('"per_minute"', '"others"\nfrom = "clicks"')
    both = (
        STAGES[:begin]
        + first
        + again
        + STAGES[end:].replace('name = "top"\n', 'name = "top"\nfrom = ["per_minute", "others"]\n')
    )
    (line,) = find_config_problems(both)
    assert line.startswith("stages[2].sql: must be row-wise, but it uses a window function (OVER)")
    assert line.endswith(
        "this SQL runs over each input of the stage separately, but a group may have rows of several inputs"
    )
    ranked = STAGES[end:].partition("[target]")[0]
    last = """[[stages]]
name = "all"
from = ["top", "top_of_others"]
sql = "SELECT user, n, place FROM source"

"""
    of_each = STAGES[:begin] + first + again + ranked.replace('name = "top"\n', 'name = "top"\nfrom = "per_minute"\n')
    of_each += ranked.replace('name = "top"\n', 'name = "top_of_others"\nfrom = "others"\n') + last
    of_each += "[target]" + STAGES.partition("[target]")[2]
    assert find_config_problems(of_each) == []
    grouped = of_each.replace(
        "SELECT user, n, place FROM source", "SELECT window_start, sum(n) AS n FROM source GROUP BY window_start"
    )
    (line,) = find_config_problems(grouped)
    assert "several inputs" in line
