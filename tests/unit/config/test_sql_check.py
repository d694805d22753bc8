"""`check` of SQL without Spark: valid SQL is accepted, and each mistake is reported with the config key.

tests/spark/test_static_sql_check_against_spark.py compares the results with Spark, over the same cases.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.sql_check_cases import (
    ACCEPTED,
    DDL,
    NO_DDL,
    REFUSED,
    UNREAD,
    build_sql_case_config,
    load_sql_case_pipeline,
)

from slackwater.config import static_sql_check, toml
from slackwater.config.sql import schema_ddl
from slackwater.core import schema

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: " ".join(case.values())[:80] or "as it is")
def test_sql_that_spark_accepts_is_never_refused(case: dict[str, str]) -> None:
    assert static_sql_check.check_sql(load_sql_case_pipeline(**case)).problems == []


@pytest.mark.parametrize(
    ("case", "key", "message"), REFUSED, ids=lambda x: " ".join(x.values())[:80] if isinstance(x, dict) else ""
)
def test_every_mistake_is_reported_with_config_key(case: dict[str, str], key: str, message: str) -> None:
    problems = static_sql_check.check_sql(load_sql_case_pipeline(**case)).problems
    assert [line for line in problems if line.startswith(f"{key}: ") and message in line], problems
    assert all("\n" not in line for line in problems)


@pytest.mark.parametrize(("case", "message"), UNREAD)
def test_unsupported_sql_is_reported_as_not_checked(case: dict[str, str], message: str) -> None:
    checked = static_sql_check.check_sql(load_sql_case_pipeline(**case))
    assert checked.problems == []
    assert any(message in line for line in checked.unchecked), checked.unchecked


def test_all_mistakes_are_reported_at_once() -> None:
    case = {
        "query": "SELECT usr_id, amount FROM source",
        "keys": '"user"',
        "time": "n",
        "aggregation": 'agg = "sum"\ncolumn = "x"',
    }
    keys = [line.partition(": ")[0] for line in static_sql_check.check_sql(load_sql_case_pipeline(**case)).problems]
    assert keys == [
        "transform.window.event_time_unit",
        "transform.sql",
        "transform.sql",
        "transform.window.group_by",
        "transform.window.aggregations[1].column",
    ]


def test_config_and_sql_mistakes_are_reported_together() -> None:
    """Report an unknown config key together with a column that the schema does not contain."""
    text = build_sql_case_config(query="SELECT usr_id AS user_id, amount, _event_ts FROM source").replace(
        "max_groups_per_window = 1000", "max_groups = 1"
    )
    data: list[str] = []
    import tomllib

    draft = toml.Pipeline.parse_partial(tomllib.loads(text), "p.toml", "", data)
    assert [line for line in data if "max_groups" in line]
    assert [line for line in static_sql_check.check_draft_sql(draft).problems if 'did you mean "user_id"?' in line]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ({"schema": ""}, "sources[0].schema: none is declared"),
        ({"schema": "", "sql": "", "length": 'gap_ms = "silence"\nmax_session_duration_ms = "1h"'}, 'transform.window.gap_ms: "silence" is not a duration, so it is read as a SQL expression'),
        ({"query": "SELECT user_id, amount, _event_ts FROM source JOIN dim ON true"}, '"dim" is neither "source" nor a lookup; Spark will look for it'),
        ({"query": "SELECT user_id, amount, _event_ts FROM source JOIN lake.dim ON true"}, 'table "lake.dim" is in a catalog'),
        ({"time": "n + 1", "unit": 'event_time_unit = "s"'}, "its type is known only when the pipeline starts"),
        ({"spark": '[spark]\n"spark.sql.caseSensitive" = true'}, 'because [spark] sets "spark.sql.caseSensitive"'),
        ({"query": "SELECT a:b.c AS user_id, amount, _event_ts FROM source"}, "this check cannot parse the SQL"),
    ],
)  # fmt: skip
def test_sql_with_unknown_types_is_reported_as_not_checked(case: dict[str, str], message: str) -> None:
    findings = static_sql_check.check_sql(load_sql_case_pipeline(**case))
    assert findings.problems == []
    assert [line for line in findings.unchecked if message in line], findings.unchecked


@pytest.mark.semantics("event-time")
@pytest.mark.parametrize(
    ("expression", "part"),
    [
        ("rand() * 1000", "rand()"),
        ("unix_millis(current_timestamp())", "current_timestamp()"),
        ("(SELECT max(id) FROM range(3))", "a subquery"),
        ("sum(n) OVER ()", "a window function (OVER)"),
        ("reflect('java.lang.Math', 'random')", "reflect() or java_method()"),
        ("CASE WHEN TIMESTAMP 'now' > TIMESTAMP '2020-01-01' THEN 1 ELSE 2 END", "TIMESTAMP 'now'"),
    ],
)
def test_gap_and_event_time_expressions_must_be_row_wise(expression: str, part: str) -> None:
    """`check` refuses a gap or event time expression that may return different values for the same row."""
    gap = f'gap_ms = "{expression}"\nmax_session_duration_ms = "1h"'
    for key, case in (("gap_ms", {"length": gap}), ("event_time_column", {"time": expression})):
        problems = static_sql_check.check_sql(load_sql_case_pipeline(**case)).problems
        assert f'transform.window.{key}: "{expression}" must be row-wise, but it uses {part}' in problems


def test_every_pipeline_in_documentation_passes_check() -> None:
    names = re.findall(
        r"\$\{(\w+)\}", "".join(p.read_text() for p in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")))
    )
    env = dict.fromkeys(names, "postgresql://h/d")
    own_code = re.compile('agg = "shop:|kind = "journal"|class = "card_rules:')  # classes that only the pages define
    seen = 0
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for text in re.findall(r"^```toml\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE):
            if "[target]" in text and re.search(r"^name = ", text, re.MULTILINE) and not own_code.search(text):
                assert static_sql_check.check_sql(toml.loads(text, page.name, env)).problems == [], page.name
                seen += 1
    assert seen >= 2


JOIN = """name = "paid"
[connections.bus]
kind = "kafka"
bootstrap_servers = "b:9092"
[connections.lake]
kind = "files"
[[sources]]
name = "orders"
connection = "bus"
query = "orders"
schema = "id BIGINT, shop STRING, total DOUBLE"
[[sources]]
name = "payments"
connection = "bus"
query = "payments"
schema = "order_id INT, amount DOUBLE, note STRUCT<a: INT>"
[[stages]]
name = "paid"
[stages.join]
kind = "inner"
left_source = "orders"
right_source = "payments"
left_keys = ["id"]
right_keys = ["order_id"]
time_window_ms = "5m"
right_sql = "SELECT order_id, amount, _event_ts FROM source WHERE _offset >= 0"
[[stages]]
name = "counts"
sql = "SELECT left_shop AS shop, right_amount, _event_ts FROM source"
[stages.window]
kind = "tumbling"
duration_ms = "1m"
group_by = ["shop"]
max_groups_per_window = 10
[[stages.window.aggregations]]
agg = "sum"
column = "right_amount"
as = "revenue"
[target]
connection = "lake"
path = "out"
[state_store]
kind = "in_memory"
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("id BIGINT", "id BIGINT", None),
        ('left_keys = ["id"]', 'left_keys = ["idd"]', 'stages[0].join.left_keys: column "idd" does not come out of the left side; did you mean "id"?'),
        ('right_keys = ["order_id"]', 'right_keys = ["amount"]', 'stages[0].join: keys: "id" of the left side is bigint and "amount" of the right side is double'),
        ("SELECT order_id, amount,", "SELECT order_id, amuont,", 'stages[0].join.right_sql: source "payments": column "amuont" does not exist; did you mean "amount"?'),
        ('"SELECT order_id, amount, _event_ts', '"SELECT order_id, amount', 'stages[0].join.right_sql: source "payments": does not select "_event_ts"'),
        ("left_shop AS shop", "shop", 'stages[1].sql: column "shop" does not exist; did you mean "left_shop"?'),
        ('group_by = ["shop"]', 'group_by = ["shops"]', 'stages[1].window.group_by: column "shops" does not come out of the SQL; did you mean "shop"?'),
        ('column = "right_amount"', 'column = "shop"', "stages[1].window.aggregations[0].column: sum needs a number"),
        ('time_window_ms = "5m"', 'time_window_ms = "5m"\noutput_left_columns = ["shopp"]', 'stages[0].join.output_left_columns: column "shopp" does not come out of the left side'),
    ],
)  # fmt: skip
def test_check_reports_mistakes_in_sql_of_joins_and_stages(old: str, new: str, message: str | None) -> None:
    findings = static_sql_check.check_sql(toml.loads(JOIN.replace(old, new), "p.toml"))
    if message is None:
        assert (findings.problems, findings.unchecked) == ([], [])
    else:
        assert [line for line in findings.problems if line.startswith(message)], findings.problems


def test_scalar_types_of_ddl_schemas_equal_the_types_of_the_state() -> None:
    assert set(schema_ddl.SCALARS) == {*schema._SIMPLE, "decimal"}
    assert schema.NUMBERS == schema_ddl.NUMBERS


@pytest.mark.parametrize(("text", "columns"), DDL.items())
def test_schemas_are_parsed_as_spark_parses_them(text: str, columns: dict[str, str]) -> None:
    assert schema_ddl.parse_ddl_columns(text) == columns


@pytest.mark.parametrize("text", NO_DDL)
def test_an_invalid_schema_is_refused(text: str) -> None:
    with pytest.raises(schema_ddl.DdlError, match=r".+"):
        schema_ddl.parse_ddl_columns(text)


def test_invalid_schema_from_an_environment_variable_is_hidden_in_the_error() -> None:
    text = build_sql_case_config(schema='schema = "${SCHEMA}"')
    with pytest.raises(Exception, match="is not a valid Spark schema") as raised:
        toml.loads(text, "p.toml", {"SCHEMA": "hidden STRNG"})
    assert "STRNG" not in str(raised.value)


@pytest.mark.parametrize("many", [3_000, 30_000])
@pytest.mark.parametrize("text", ["amount + {}1", "CASE WHEN {}true THEN 1 END"])
def test_oversized_sql_is_reported_as_not_checked(text: str, many: int) -> None:
    """The SQL is nested too deeply for a recursive parser, or has too many words to be read in a second."""
    inner = ("1 + " if "amount" in text else "amount = 1 OR ") * many
    findings = static_sql_check.check_sql(
        load_sql_case_pipeline(query=f"SELECT user_id, amount, {text.format(inner)} AS x, _event_ts FROM source")
    )
    assert findings.problems == []
    (line,) = [line for line in findings.unchecked if line.startswith("transform.sql: ")]
    assert "nested too deeply" in line or "this check reads at most 20,000" in line
