"""`slackwater test` and the files that `slackwater init` writes, on Spark: results, differences and rewriting."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.support.case_selection import exhaustive, select_cases

from slackwater.cli.check import run_test_files as run_path
from slackwater.cli.init import InitOptions, write_first_config
from slackwater.testing.case_runner import CaseResult, LoadedCase

pytestmark = pytest.mark.spark

PLUGIN = "slackwater.testing.pytest_plugin"
SQL = "SELECT user_id, amount, _event_ts FROM source WHERE kind = 'click'"
PIPELINE = f"""
name = "clicks"
[connections]
lake = {{ kind = "files" }}
db = {{ kind = "postgres", url = "postgresql://nobody@nowhere/x" }}
[[sources]]
name = "events"
connection = "lake"
query = "in/*.jsonl"
format = "json"
schema = "user_id STRING, kind STRING, amount DOUBLE, ts TIMESTAMP"
[transform]
on_error = "drop"
sql = "{SQL}"
[transform.window]
kind = "session"
gap_ms = "30m"
max_session_duration_ms = "12h"
event_time_column = "ts"
emit = "updates"
group_by = ["user_id"]
aggregations = [{{ agg = "count", as = "clicks" }}, {{ agg = "sum", column = "amount", as = "amount" }}]
[target]
connection = "db"
table = "clicks"
[state_store]
kind = "files"
path = "state"
"""
TEST = """# a session, a view that the SQL leaves out, and what goes wrong
[[steps]]
rows = [
  { user_id = "u1", kind = "click", amount = 1.5, ts = 2024-03-01T09:00:00Z },
  { user_id = "u1", kind = "view", ts = "2024-03-01T09:01:00Z" },
  "not json",
]

[[steps]]
crash = "commit.after"

[[steps]]
files = ["more.jsonl"]

[[steps]]
restart = { shards = 3 }

[[steps]]
rows.events = [{ user_id = "u2", kind = "click", ts = 2024-03-01T09:00:00Z }]

[expect]
rows = [  # the target replaces rows, so each session is in it once
  { user_id = "u1", window_start = 2024-03-01T09:00:00Z, clicks = 2, amount = 2.0 },
  { user_id = "u3", window_start = 2024-03-01T12:00:00Z, clicks = 1 },  # whose amount is NULL
]
late = [{ user_id = "u2" }]
bad = [{ _reason = "undecodable", _value = "not json" }]
"""
MORE = [
    {"user_id": "u1", "kind": "click", "amount": 0.5, "ts": "2024-03-01T09:10:00Z"},
    {"user_id": "u3", "kind": "click", "ts": "2024-03-01T12:00:00Z"},
]


@pytest.fixture
def project_folder(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "clicks.toml").write_text(PIPELINE)
    (tmp_path / "tests" / "clicks.toml").write_text(TEST)
    (tmp_path / "tests" / "more.jsonl").write_text("".join(json.dumps(row) + "\n" for row in MORE))
    return tmp_path


def run_case_file(file: Path, spark: Any) -> CaseResult:
    return LoadedCase.read(file).run(spark)


def test_file_with_crash_restart_and_files_steps_passes(spark: Any, project_folder: Path, capsys: Any) -> None:
    assert run_path(project_folder) == 0
    assert re.search(r"ok +\S+tests/clicks\.toml \(\d+\.\d\d s\)\n1 passed in", capsys.readouterr().out)


def test_difference_is_printed_and_update_rewrites_expectation(spark: Any, project_folder: Path, capsys: Any) -> None:
    file = project_folder / "tests" / "clicks.toml"
    wrong = TEST.replace("clicks = 2", "clicks = 7").replace('late = [{ user_id = "u2" }]', "late = []")
    file.write_text(wrong)
    assert run_path(file) == 1
    said = capsys.readouterr().out
    assert "  rows: 1 row differs in clicks\n" in said
    assert "  ~ differs     user_id=u1 window_start=2024-03-01T09:00:00Z  clicks: expected 7, found 2" in said
    assert "  late rows: 1 unexpected row" in said and "0 passed" not in said
    assert run_path(project_folder / "clicks.toml", update=True) == 0
    assert file.read_text().partition("late = ")[0] == TEST.partition("late = ")[0]
    assert run_path(file) == 0


def test_stopped_pipeline_is_reported_unless_expected(spark: Any, project_folder: Path, capsys: Any) -> None:
    (project_folder / "clicks.toml").write_text(PIPELINE.replace('"drop"', '"fail"'))
    assert run_path(project_folder) == 1
    assert re.search(r"  the pipeline stopped: .*undecodable: not json", capsys.readouterr().out)
    (project_folder / "tests" / "clicks.toml").write_text(
        f'{TEST.partition("[expect]")[0]}[expect]\nfails = "bad row"\n'
    )
    assert run_path(project_folder) == 0


def test_invalid_test_file_does_not_stop_other_test_files(spark: Any, project_folder: Path, capsys: Any) -> None:
    (project_folder / "tests" / "broken.toml").write_text('pipeline = "../clicks.toml"\n[[steps]]\nrowz = []\n')
    assert run_path(project_folder) == 2
    said = capsys.readouterr().out
    assert 'steps[0].rowz: unknown key; did you mean "rows"?' in said and "1 passed, 1 wrong in" in said


def test_join_followed_by_window_over_topics_passes(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "shops.toml").write_text(
        """
name = "shops"
[connections]
bus = { kind = "kafka", bootstrap_servers = "nowhere:1" }
lake = { kind = "files" }
[[sources]]
name = "orders"
connection = "bus"
query = "orders"
payload_format = "json"
schema = "id BIGINT, amount DOUBLE"
[[sources]]
name = "payments"
connection = "bus"
query = "payments"
payload_format = "json"
schema = "id BIGINT, shop STRING"
[[stages]]
name = "paid"
on_error = "dlq"
[stages.join]
kind = "inner"
left_source = "orders"
right_source = "payments"
left_keys = ["id"]
right_keys = ["id"]
time_window_ms = "1h"
left_sql = "SELECT *, CAST(amount * 100 AS BIGINT) AS cents FROM source"
[[stages]]
name = "per_shop"
sql = "SELECT upper(right_shop) AS shop, left_cents AS cents, _event_ts FROM source"
[stages.window]
kind = "tumbling"
duration_ms = "1h"
max_groups_per_window = 100
group_by = ["shop"]
aggregations = [{ agg = "sum", column = "cents", as = "cents" }]
[target]
connection = "lake"
path = "out"
[dead_letter]
connection = "lake"
path = "letters"
[state_store]
kind = "files"
path = "state"
"""
    )
    file = tmp_path / "tests" / "shops.toml"
    file.write_text(
        """
[[steps]]
rows.orders = [{ id = 1, amount = 2.5, _event_ts = 2024-03-01T09:10:00Z }, { id = 2, amount = 1, _event_ts = 2024-03-01T09:20:00Z }]
rows.payments = [{ id = 1, shop = "a", _event_ts = 2024-03-01T09:30:00Z }, "{"]
[[steps]]
restart = { shards = 3 }
[[steps]]
rows.payments = [{ id = 2, shop = "a", _event_ts = 2024-03-01T09:40:00Z }]
[expect]
rows = [{ shop = "A", cents = 350 }]
bad = [{ _reason = "undecodable" }]
"""
    )
    assert run_case_file(file, spark).lines() == []


def test_example_of_the_testing_docs_page_passes(spark: Any, tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    (tmp_path / "tests").mkdir()
    (tmp_path / "sessions.toml").write_text((root / "examples" / "sessions" / "sessions.toml").read_text())
    file = tmp_path / "tests" / "sessions.toml"
    file.write_text((root / "docs" / "testing.md").read_text().partition("```toml\n")[2].partition("```")[0])
    assert run_case_file(file, spark).lines() == []


def test_pytest_plugin_runs_test_files(spark: Any, project_folder: Path) -> None:
    import pytest as inner

    class Seen:
        def __init__(self) -> None:
            self.reports: list[Any] = []

        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.when == "call":
                self.reports.append(report)

    (project_folder / "test_more.py").write_text(
        f"def test_it(slackwater_test):\n    assert slackwater_test({str(project_folder / 'tests' / 'clicks.toml')!r}).ok\n"
    )
    (project_folder / "tests" / "wrong.toml").write_text(
        'pipeline = "../clicks.toml"\n' + TEST.replace("clicks = 2", "clicks = 7")
    )
    seen, plugins = Seen(), entry_points(group="pytest11")
    plugin_options = [] if PLUGIN in [e.value for e in plugins] else ["-p", PLUGIN]
    options = [
        *plugin_options,
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
        "-q",
        "--rootdir",
    ]
    code = inner.main([*options, str(project_folder), str(project_folder)], plugins=[seen])
    assert code == 1
    outcomes = {r.nodeid.rpartition("/")[2]: r.outcome for r in seen.reports}
    assert outcomes == {
        "clicks.toml::clicks": "passed",
        "wrong.toml::wrong": "failed",
        "test_more.py::test_it": "passed",
    }
    (failed,) = [r for r in seen.reports if r.outcome == "failed"]
    assert "clicks: expected 7, found 2" in failed.longreprtext and "Traceback" not in failed.longreprtext


# -- configs written by init


def write_jsonl_file(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def iso_time(second: int) -> str:
    return f"2024-03-01T09:{second // 60:02}:{second % 60:02}Z"


def click_rows(count: int = 20, **more: Any) -> list[dict[str, Any]]:
    return [{"user_id": f"u{n % 3}", "amount": n / 4, "ts": iso_time(10 * n), **more} for n in range(count)]


def write_init_sample(name: str, home: Path) -> dict[str, Any]:
    """Return the options of `init` for a kind of data."""
    if name == "nested times":
        rows = [{"user_id": f"u{n % 3}", "meta": {"at": iso_time(n)}, "tags": [1, None]} for n in range(20)]
        return {"samples": (write_jsonl_file(home / "in.jsonl", rows),)}
    if name == "fractions of seconds":
        return {
            "samples": (
                write_jsonl_file(
                    home / "in.jsonl", [{"user": f"u{n % 3}", "ts": 1709283600.25 + n} for n in range(20)]
                ),
            )
        }
    if name == "csv":
        file = home / "in.csv"
        file.write_text("user;ts;amount;note\n" + "".join(f"0{n % 3};{iso_time(n)};{n / 8};a\n" for n in range(20)))
        return {"samples": (file,), "kind": "tumbling"}
    if name == "parquet":
        frame = pl.DataFrame(click_rows()).with_columns(pl.col("ts").str.to_datetime(time_unit="us", time_zone="UTC"))
        frame.write_parquet(home / "in.parquet")
        return {"samples": (home / "in.parquet",), "kind": "hopping"}
    if name == "kafka":
        return {
            "samples": (write_jsonl_file(home / "in.jsonl", click_rows()),),
            "source": "kafka",
            "topics": ("clicks",),
        }
    if name == "kafka, its own time":
        rows = [{"user_id": f"u{n % 3}"} for n in range(20)]
        return {"samples": (write_jsonl_file(home / "in.jsonl", rows),), "source": "kafka"}
    if name == "bad rows":
        file = write_jsonl_file(home / "in.jsonl", click_rows())
        file.write_text(file.read_text() + 'broken\n{"user_id": "u1", "amount": 1}\n')
        return {"samples": (file,)}
    left = write_jsonl_file(
        home / "orders.jsonl", [{"order_id": f"o{n}", "ts": iso_time(n), "price": n} for n in range(40)]
    )
    right = write_jsonl_file(
        home / "paid.jsonl", [{"order_id": f"o{n * 2}", "ts": iso_time(2 * n + 30), "ok": True} for n in range(20)]
    )
    return {"samples": (left, right), "kind": "join"}


@pytest.mark.parametrize(
    "name",
    select_cases(
        ["nested times", "kafka, its own time", "join", "fractions of seconds", "csv", "parquet", "kafka", "bad rows"],
        keep=3,
    ),
)
def test_config_written_by_init_passes_generated_test(spark: Any, tmp_path: Path, capsys: Any, name: str) -> None:
    write_first_config(InitOptions(tmp_path / "first.toml", **write_init_sample(name, tmp_path)))
    said = capsys.readouterr().out
    assert "a test with" in said, said
    file = tmp_path / "tests" / "first.toml"
    assert re.search(r"^rows = \[\n", file.read_text(), re.MULTILINE)
    outcome = run_case_file(file, spark)
    assert outcome.lines() == []
    assert len(outcome.differences["rows"].actual) > 0


STAGES = """
name = "busy"
[connections.lake]
kind = "files"
[[sources]]
name = "events"
connection = "lake"
query = "in/*.jsonl"
format = "json"
schema = "user STRING, kind STRING, ts TIMESTAMP"
[[stages]]
name = "clicks"
sql = "SELECT user, ts, _event_ts FROM source WHERE kind = 'click'"
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
sql = "SELECT n, _event_ts FROM source"
[stages.window]
kind = "tumbling"
duration_ms = "1h"
max_groups_per_window = 10
aggregations = [{ agg = "count", as = "visits" }, { agg = "sum", column = "n", as = "clicks" }]
[[stages]]
name = "busiest"
sql = "SELECT window_start, clicks FROM source WHERE clicks > 2"
[[targets]]
from = "busiest"
connection = "lake"
path = "busiest"
[[targets]]
name = "all"
from = "hours"
connection = "lake"
path = "hours"
[state_store]
kind = "files"
path = "state"
"""
OF_STAGES = """
[[steps]]
rows = [
  { user = "a", kind = "click", ts = 2024-03-01T09:00:00Z },
  { user = "a", kind = "click", ts = 2024-03-01T09:10:00Z },
  { user = "a", kind = "view", ts = 2024-03-01T09:20:00Z },
  { user = "b", kind = "click", ts = 2024-03-01T09:05:00Z },
]
[[steps]]
crash = "commit.after"
[[steps]]
rows = [{ user = "c", kind = "click", ts = 2024-03-01T12:00:00Z }]
[[steps]]
restart = { shards = 3 }

[expect.rows]
busiest = [{ window_start = 2024-03-01T09:00:00Z, clicks = 3 }]
all = [
  { window_start = 2024-03-01T09:00:00Z, visits = 2, clicks = 3 },
  { window_start = 2024-03-01T12:00:00Z, visits = 1, clicks = 1 },
]

[expect.stages]
visits = [  # what hours reads
  { user = "a", window_start = 2024-03-01T09:00:00Z, n = 2 },
  { user = "b", window_start = 2024-03-01T09:05:00Z, n = 1 },
  { user = "c", window_start = 2024-03-01T12:00:00Z, n = 1 },
]
"""


@exhaustive(beside="test_slackwater_test_command.py::test_file_with_crash_restart_and_files_steps_passes")
def test_rows_of_each_target_and_stage_are_compared(spark: Any, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "busy.toml").write_text(STAGES)
    file = tmp_path / "tests" / "busy.toml"
    file.write_text(OF_STAGES)
    assert run_case_file(file, spark).lines() == []
    wrong = OF_STAGES.replace("n = 2 }", "n = 5 }").replace("visits = 2, clicks = 3", "visits = 2, clicks = 4")
    file.write_text(wrong)
    assert run_path(file, update=True) == 0
    said = capsys.readouterr().out
    for line in (
        'rows of target "all": 1 row differs in clicks',
        'rows of stage "visits": ',
    ):
        assert line in said
    assert run_case_file(file, spark).ok
    assert "# what hours reads" in file.read_text()


@exhaustive(beside="test_slackwater_test_command.py::test_file_with_crash_restart_and_files_steps_passes")
def test_command_runs_tests_of_current_directory(project_folder: Path) -> None:
    """Run `slackwater test` in a subprocess, in the directory of the config."""
    done = subprocess.run(
        [sys.executable, "-m", "slackwater.cli.main", "test"],
        cwd=project_folder,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed in" in done.stdout
    assert done.stderr == "starting Spark for 1 test …\n"
