"""Test files of pipelines: their keys and discovery, and the comparison and update of rows."""

from __future__ import annotations

import datetime as dt
import doctest
import json
import re
import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tests.laws.generators.fixed_stage_graph_runs import build_stage_pipeline, counting_stage

import slackwater as sw
from slackwater.config import json_schema
from slackwater.errors import ConfigError, StartError
from slackwater.testing import LocalPipeline, case_file, local_pipeline
from slackwater.testing.case_runner import CaseResult, LoadedCase, update_case
from slackwater.testing.local_pipeline import LocalResult
from slackwater.testing.row_comparison import compare_rows, equal_values

DOCS = Path(__file__).resolve().parents[2] / "docs" / "testing.md"
PIPELINE = """
name = "clicks"
[connections.lake]
kind = "files"
[[sources]]
name = "events"
connection = "lake"
query = "in/*.jsonl"
format = "json"
schema = "user_id STRING, ts TIMESTAMP"
[transform.window]
kind = "session"
gap_ms = "30m"
max_session_duration_ms = "12h"
event_time_column = "ts"
group_by = ["user_id"]
aggregations = [{ agg = "count", as = "clicks" }]
[target]
connection = "lake"
path = "out"
[state_store]
kind = "files"
path = "state"
"""


def write_case(home: Path, content: str, name: str = "clicks.toml") -> Path:
    (home / "clicks.toml").write_text(PIPELINE)
    (home / "tests").mkdir(exist_ok=True)
    file = home / "tests" / name
    file.write_text(content)
    return file


# -- keys of a test file


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "steps: missing; write at least one [[steps]] with rows"),
        (
            "[[steps]]",
            "steps[0].rows: missing; a step needs one of rows, files, quiet, crash, restart, replay or flush",
        ),
        ("[[steps]]\nrow = []", 'steps[0].row: unknown key; did you mean "rows"?'),
        ("[[steps]]\nquiet_ms = 1", 'steps[0].quiet_ms: unknown key; did you mean "quiet"?'),
        ('[[steps]]\nquiet = "soon"', 'steps[0].quiet: found "soon", expected a duration of 0 or more'),
        ('[[steps]]\ncrash = "comit.before"', 'did you mean "commit.before"?'),
        ("[[steps]]\nrows = 3", "steps[0].rows: found 3, expected a list of rows"),
        ("[[steps]]\nrows = [3]", "steps[0].rows[0]: found 3, expected a table, or a raw record as a string"),
        ("[[steps]]\nrows.events = [3]", "steps[0].rows.events[0]: found 3, expected a table"),
        ("[[steps]]\nrows.evnts = []", 'steps[0].rows.evnts: is not a source of the pipeline; did you mean "events"?'),
        ('[[steps]]\nfiles = ["gone.jsonl"]', 'gone.jsonl" does not exist; expected a path relative to this test'),
        (
            '[[steps]]\nrows = []\nquiet = "1h"',
            "steps[0].quiet: cannot be combined with rows, because a step does one thing",
        ),
        ("[[steps]]\nrestart = { shard = 3 }", 'steps[0].restart.shard: unknown key; did you mean "shards"?'),
        ("[[steps]]\nrows = []\n[expect]\nletters = []", 'expect.letters: unknown key; did you mean "bad"?'),
        ("[[steps]]\nrows = []\n[expect]\nrows = [1]", "expect.rows[0]: found 1, expected a table"),
        ("[[steps]]\nrows = []\n[expect]\nrows.clicks = [1]", "expect.rows.clicks[0]: found 1, expected a table"),
        ("[[steps]]\nrows = []\n[expect]\nrows.clicks = 1", "expect.rows.clicks: found 1, expected a list of rows"),
        (
            "[[steps]]\nrows = []\n[expect]\nrows.hours = []",
            "expect.rows.hours: is not a target of the pipeline; expected one of transform",
        ),
        (
            "[[steps]]\nrows = []\n[expect]\nstages.hours = []",
            "expect.stages.hours: is not a stage of the pipeline; this pipeline has a single [transform]; write expect.rows",
        ),
        ("[[steps]]\nrows = []\n[expect]\nstages = []", "expect.stages: found [], expected a list of rows per stage"),
        ('pipeline = "gone.toml"\n[[steps]]\nrows = []', 'gone.toml" does not exist; expected the path of a config'),
        ('clock = "noon"\n[[steps]]\nrows = []', 'clock: found "noon", expected a time'),
    ],
)
def test_invalid_test_file_is_reported_in_one_line_with_its_key(tmp_path: Path, content: str, message: str) -> None:
    file = write_case(tmp_path, content)
    with pytest.raises(ConfigError) as raised:
        LoadedCase.read(file)
    (line,) = raised.value.problems
    assert line.startswith(f"{file}: ") and message in line


def test_invalid_config_is_reported_with_its_file(tmp_path: Path) -> None:
    file = write_case(tmp_path, "[[steps]]\nrows = []")
    (tmp_path / "clicks.toml").write_text(PIPELINE.replace("group_by", "gruop_by"))
    with pytest.raises(
        ConfigError, match=r'clicks\.toml: transform\.window\.gruop_by: unknown key; did you mean "group_by"'
    ):
        LoadedCase.read(file)


def test_json_schema_accepts_valid_files_and_refuses_unknown_keys(tmp_path: Path) -> None:
    valid = Draft202012Validator(json_schema.build_schema(case_file.TestCase, "tests"))
    page = DOCS.read_text().partition("```toml\n")[2].partition("```")[0]
    assert not [e.message for e in valid.iter_errors(json.loads(json.dumps(tomllib.loads(page), default=str)))]
    for wrong in (
        {},
        {"steps": [{"row": []}]},
        {"steps": [{"crash": "now"}]},
        {"steps": [], "expect": {"letters": []}},
    ):
        assert not valid.is_valid(wrong)


# -- discovery of test files


def test_config_under_test_is_explicit_or_matched_by_file_name(tmp_path: Path) -> None:
    file = write_case(tmp_path, "[[steps]]\nrows = []", "clicks-late.toml")
    assert case_file.tested_config(file, None) == tmp_path / "clicks.toml"
    (tmp_path / "clicks-late.toml").write_text(PIPELINE)
    assert case_file.tested_config(file, None) == tmp_path / "clicks-late.toml"
    assert case_file.tested_config(file, "../clicks.toml") == file.parent / "../clicks.toml"
    other = write_case(tmp_path, "[[steps]]\nrows = []", "other.toml")
    with pytest.raises(
        ConfigError,
        match=r"pipeline: missing, and the name of this file does not match .* \(clicks-late\.toml, clicks\.toml\); write",
    ):
        case_file.tested_config(other, None)


def test_case_files_are_discovered_by_directory_config_or_file(tmp_path: Path) -> None:
    one = write_case(tmp_path, "[[steps]]\nrows = []")
    late = write_case(tmp_path, "[[steps]]\nrows = []", "clicks-late.toml")
    (tmp_path / "other.toml").write_text(PIPELINE)
    other = write_case(tmp_path, 'pipeline = "../other.toml"\n[[steps]]\nrows = []', "z.toml")
    assert case_file.find_cases(tmp_path) == [late, one, other]
    assert case_file.find_cases(tmp_path / "tests") == [late, one, other]
    assert case_file.find_cases(tmp_path / "clicks.toml") == [late, one]
    assert case_file.find_cases(one) == [one]
    with pytest.raises(ConfigError, match="contains no tests"):
        (tmp_path / "empty").mkdir()
        case_file.find_cases(tmp_path / "empty")


# -- comparison of rows


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (1, 1.0, True),
        (0.1 + 0.2, 0.3, True),
        (1, True, False),
        (float("nan"), float("nan"), True),
        ("2024-03-01T09:00:00Z", dt.datetime(2024, 3, 1, 9, tzinfo=dt.UTC), True),
        (
            dt.datetime(2024, 3, 1, 10, tzinfo=dt.timezone(dt.timedelta(hours=1))),
            dt.datetime(2024, 3, 1, 9, tzinfo=dt.UTC),
            True,
        ),
        ("1.50", Decimal("1.5"), True),
        ("x", Decimal("1.5"), False),
        (None, 0, False),
        (["a"], ["a", "b"], False),
        ({"a": 1}, {"a": 1, "b": None}, True),
        ("text", b"text", True),
        ("2024-03-01", dt.date(2024, 3, 1), True),
    ],
)
def test_expected_values_are_compared_by_typed_value(a: Any, b: Any, same: bool) -> None:
    assert equal_values(a, b) is equal_values(b, a) is same


def test_a_difference_is_reported_by_row_and_column() -> None:
    start = dt.datetime(2024, 3, 1, 9, tzinfo=dt.UTC)
    expected = [{"user": "a", "n": 1}, {"user": "b", "n": 2}, {"user": "c"}]
    actual = [
        {"user": "a", "start": start, "n": 1},
        {"user": "b", "start": start, "n": 3},
        {"user": "d", "start": start, "n": 9},
    ]
    assert compare_rows(expected, actual, ["user", "start", "n"], ["user"]).lines("rows") == [
        "rows: 1 missing row, 1 unexpected row, 1 row differs in n",
        "  - missing     user=c",
        "  + unexpected  user=d n=9",
        "  ~ differs     user=b  n: expected 2, found 3",
    ]


def test_rows_compare_as_multisets_and_ignore_unlisted_columns() -> None:
    assert not compare_rows([{"n": 1}, {"n": 1}], [{"n": 1, "x": 3}, {"n": 1, "x": 4}], ["n", "x"])
    twice = compare_rows([{"n": 1}], [{"n": 1}, {"n": 1}], ["n"])
    assert (len(twice.unexpected), twice.missing) == (1, [])
    assert compare_rows([], [{"n": 1}], ["n"]).lines("late rows") == [
        "late rows: 1 unexpected row",
        "  + unexpected  n=1",
    ]


SEVERAL = """
name = "busy"
[connections.lake]
kind = "files"
[[sources]]
name = "clicks"
connection = "lake"
query = "clicks/*.jsonl"
format = "json"
schema = "user STRING, ts TIMESTAMP"
[[stages]]
name = "visits"
[stages.window]
kind = "session"
gap_ms = "30m"
max_session_duration_ms = "12h"
event_time_column = "ts"
group_by = ["user"]
aggregations = [{ agg = "count", as = "n" }]
[[stages]]
name = "hours"
[stages.window]
kind = "tumbling"
duration_ms = "1h"
max_groups_per_window = 10
aggregations = [{ agg = "count", as = "visits" }]
[[targets]]
from = "visits"
connection = "lake"
path = "visits"
[[targets]]
from = "hours"
connection = "lake"
path = "hours"
[state_store]
kind = "files"
path = "state"
"""
FILE = """# about clicks
[[steps]]
rows = [ { user_id = "u1" } ]  # one row

[expect]
# what comes of it
rows = [
  { user_id = "a", n = 1 },  # stays
  { user_id = "b", n = 2 },  # changes
  { user_id = "c", n = 3 },
]
"""


def test_update_rewrites_only_differing_rows_and_keeps_comments(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text(FILE)
    rows = case_file.load_case(file).expect.rows[""]
    assert rows is not None
    actual = [{"user_id": "a", "n": 1}, {"user_id": "b", "n": 5}, {"user_id": "d", "n": None}]
    outcome = CaseResult(
        file,
        {
            "rows": compare_rows(rows, actual, ["user_id", "n"], ["user_id"]),
            "late": compare_rows([], [{"x": 1}], ["x"]),
        },
    )
    assert update_case(file, outcome)
    assert file.read_text().startswith(FILE.replace("n = 2", "n = 5").partition('  { user_id = "c"')[0])
    again = case_file.load_case(file).expect
    assert again.rows[""] == ({"user_id": "a", "n": 1}, {"user_id": "b", "n": 5}, {"user_id": "d"})
    assert again.late == ({"x": 1},)
    content = file.read_text()
    assert not update_case(
        file, CaseResult(file, {"rows": compare_rows(again.rows[""], actual, ["user_id", "n"], ["user_id"])})
    )
    assert file.read_text() == content


def test_update_rewrites_targets_and_stages_by_name(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text("""[[steps]]
rows = []

[expect]
rows.hours = [{ h = 1, n = 2 }]  # per hour
rows."a b" = []

[expect.stages]
visits = [
  { user = "a", n = 1 },  # one
]
""")
    expect = case_file.load_case(file).expect
    outcome = CaseResult(
        file,
        {
            "rows.hours": compare_rows(expect.rows["hours"], [{"h": 1, "n": 3}], ["h", "n"], ["h"]),
            "rows.a b": compare_rows(expect.rows["a b"], [{"x": 1}], ["x"]),
            "stages.visits": compare_rows(expect.stages["visits"], [{"user": "a", "n": 4}], ["user", "n"], ["user"]),
        },
    )
    assert outcome.lines() == [
        'rows of target "hours": 1 row differs in n',
        "  ~ differs     h=1  n: expected 2, found 3",
        'rows of target "a b": 1 unexpected row',
        "  + unexpected  x=1",
        'rows of stage "visits": 1 row differs in n',
        "  ~ differs     user=a  n: expected 1, found 4",
    ]
    assert update_case(file, outcome)
    text = file.read_text()
    assert "rows.hours = [{ h = 1, n = 3 }]  # per hour" in text
    assert '{ user = "a", n = 4 },  # one' in text
    again = case_file.load_case(file).expect
    assert dict(again.rows) == {"hours": ({"h": 1, "n": 3},), "a b": ({"x": 1},)}
    assert dict(again.stages) == {"visits": ({"user": "a", "n": 4},)}


# -- a pipeline without Spark


def test_rows_of_a_stage_without_a_target_can_be_read() -> None:
    """The rows of w are available after a crash and resharding, and are not in a table of the result.

    w ─▶ x ─▶ target
    """
    pipeline = build_stage_pipeline(counting_stage("w", "a"), counting_stage("x", "w", "total"))
    rows = [{"k": "x", "v": n, "ts": n * 7_000} for n in range(40)]

    def run_story(*watched: str) -> LocalResult:
        with LocalPipeline(pipeline, {"k": "string", "v": "bigint"}, extra_stages=watched) as test:
            test.pipe(rows[:20])
            test.crash("write.after")
            test.pipe(rows[20:])
            test.restart(shards=3)
            test.flush()
            return test.result()

    watched_run = run_story("w", "x")
    assert list(watched_run.tables) == ["x"]
    assert set(watched_run.stages) == {"x", "w"}
    assert watched_run.table.equals(run_story().table)
    assert watched_run.stages["w"]["total"].sum() == sum(range(40))
    assert watched_run.stages["w"].height == 14


def test_expected_rows_require_a_target_name_if_there_are_several(tmp_path: Path) -> None:
    file = write_case(tmp_path, "[[steps]]\nrows = []\n[expect]\nrows = []\nstages.vists = []")
    (tmp_path / "clicks.toml").write_text(SEVERAL)
    with pytest.raises(ConfigError) as raised:
        LoadedCase.read(file)
    assert list(raised.value.problems) == [
        f"{file}: expect.rows: does not name a target; write rows.visits or rows.hours",
        f'{file}: expect.stages.vists: is not a stage of the pipeline; did you mean "visits"?',
    ]


def test_example_in_the_testing_docs_runs() -> None:
    (example,) = [b for b in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL) if "LocalPipeline" in b]
    exec(example, {})


def test_docstring_example_of_local_pipeline_runs() -> None:
    assert doctest.testmod(local_pipeline).failed == 0
    assert doctest.testmod(local_pipeline).attempted > 3


def build_pipeline(**more: Any) -> sw.Pipeline:
    window = sw.Window(
        kind="session",
        gap_ms=more.pop("gap_ms", "30m"),
        max_session_duration_ms="12h",
        event_time_column=more.pop("time", "ts"),
        group_by=["user_id"],
        aggregations=[sw.Aggregation(agg="count", as_="clicks")],
    )
    return sw.pipeline(
        name="clicks",
        connections={"lake": sw.FilesConnection()},
        source="lake",
        source_query="in",
        source_format="json",
        window=window,
        target=sw.Target(connection="lake", path="out", format="parquet"),
        state_store=sw.StateStore(kind="files", path="state"),
        **{"source_schema": "user_id STRING, ts TIMESTAMP", **more},
    )


@pytest.mark.parametrize(
    ("more", "sql"),
    [
        ({"transform_sql": "SELECT *\n FROM source"}, 'transform.sql = "SELECT * FROM source"'),
        ({"time": "ts + INTERVAL 1 HOUR"}, 'event_time_column = "ts + INTERVAL 1 HOUR"'),
        ({"gap_ms": "CASE WHEN true THEN 1 END"}, 'gap = "CASE WHEN true THEN 1 END"'),
    ],
)
def test_sql_without_a_spark_session_is_refused_and_quoted(more: dict[str, Any], sql: str) -> None:
    with pytest.raises(StartError) as raised:
        LocalPipeline(build_pipeline(**more))
    assert f"clicks: this SQL needs Spark: {sql}; pass a Spark session as session=" in str(raised.value)


def test_config_without_sql_runs_without_spark() -> None:
    time_text = "2024-03-01T{}:00Z".format
    with LocalPipeline(build_pipeline()) as test:
        test.pipe(
            [{"user_id": "u1", "ts": time_text("09:00")}, {"user_id": "u1", "ts": dt.datetime(2024, 3, 1, 9, 20)}]
        )
        test.crash("commit.after", shards=3)
        test.pipe([{"user_id": "u1", "ts": time_text("11:00")}])
        test.restart(shards=1)
        test.pipe(
            [{"user_id": "u2", "ts": time_text("09:00")}]
        )  # late, and reported although the config only counts it
        test.flush()
        result = test.result()
    assert sorted(result.table["clicks"]) == [1, 2]
    assert [r["reason"] for r in result.letters] == ["late"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"evnts": []}, 'source "evnts" does not exist; expected one of in'),
        (["broken"], "only Spark can read; pass a Spark session as session="),
        ([{"user_id": 3, "ts": 1}], 'column "user_id" is string, but a row of the test has a value of another type'),
    ],
)
def test_invalid_input_rows_are_reported(rows: Any, message: str) -> None:
    with LocalPipeline(build_pipeline()) as test, pytest.raises(sw.SlackwaterError, match=message):
        test.pipe(rows)


def test_source_without_a_schema_is_refused() -> None:
    with pytest.raises(StartError, match='source "in" declares no schema; pass schema='):
        LocalPipeline(build_pipeline(source_schema=None))
