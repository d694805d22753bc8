"""`show` selects rows and columns and prints a table, CSV or a SQL result. Python objects print like the commands."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support import show_command_targets
from tests.support.show_command_targets import ShowCommandTarget
from typer.testing import CliRunner

import slackwater as sw
from slackwater.cli import main as cli
from slackwater.testing import LocalPipeline

place_at = show_command_targets.show_command_target_factory


@pytest.fixture
def config_file(place_at: Callable[[str], ShowCommandTarget]) -> Path:
    """Return a config whose target contains three rows."""
    place = place_at("parquet")
    place.publish((0, "a", 3), (1, 'b, "c"', 1), (2, None, 2))
    return place.file


def run_show(file: Path, *more: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(cli.app, ["show", str(file), *more])
    return done.exit_code, done.stdout, done.stderr or str(done.exception or "")


def parse_users(out: str) -> list[Any]:
    return [json.loads(line)["user"] for line in out.splitlines()]


def test_show_selects_rows_and_columns(config_file: Path) -> None:
    assert parse_users(run_show(config_file, "--json", "--where", "n > 1 AND user IS NOT NULL")[1]) == ["a"]
    assert parse_users(run_show(config_file, "--json", "--where", """user = 'b, "c"'""")[1]) == ['b, "c"']
    code, out, _ = run_show(config_file, "--columns", "n,user", "--limit", "1")
    assert (code, out.splitlines()[0].split()) == (0, ["n", "user"])
    assert run_show(config_file, "--columns", "n", "--columns", "user", "--csv")[1].splitlines()[0] == "n,user"


def test_csv_output_parses_back_to_the_same_values(config_file: Path) -> None:
    read = list(csv.DictReader(io.StringIO(run_show(config_file, "--csv")[1])))
    assert [r["user"] for r in read] == ["a", 'b, "c"', ""]
    assert read[0]["window_start"] == "2024-03-01T09:00:00Z"


def test_sql_query_runs_on_all_rows(config_file: Path) -> None:
    code, out, _ = run_show(config_file, "--json", "--sql", "SELECT sum(n) AS total, count(*) AS k FROM result")
    assert (code, json.loads(out)) == (0, {"total": 6, "k": 3})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--where", "no = 1"], "where: "),
        (["--where", "n = 1; DROP TABLE result"], "where: "),
        (["--columns", "nn"], 'columns: "nn" is not a column of the result'),
        (["--sql", "SELECT nope FROM result"], "sql: "),
        (["--sql", "SELEC"], "sql: "),
        (["--sql", "SELECT 1 FROM other"], "sql: "),
        (
            ["--sql", "SELECT 1", "--where", "n = 1"],
            "--sql and --where: found both, expected one; express the selection in the SQL",
        ),
        (["--sql", "SELECT 1", "--follow"], "--sql and --follow: found both"),
        (["--json", "--csv"], "--json and --csv: found both, expected one; remove one of them"),
    ],
)
def test_invalid_options_are_reported_with_a_one_line_error(
    config_file: Path, options: list[str], message: str
) -> None:
    code, out, err = run_show(config_file, *options)
    assert (code != 0, out) == (True, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_plan_prints_the_output_of_explain_and_local_result_prints_a_table(config_file: Path) -> None:
    plan = sw.describe(sw.load(str(config_file)))
    assert str(plan) + "\n" == CliRunner().invoke(cli.app, ["explain", str(config_file)]).stdout
    assert repr(plan).startswith("Plan(")
    window = sw.Window(
        kind="tumbling",
        duration_ms="1m",
        group_by=["k"],
        max_groups_per_window=9,
        aggregations=[sw.Aggregation(agg="count", as_="n")],
    )
    with LocalPipeline(window, {"k": "string"}) as test:
        test.pipe([{"k": "a", "ts": 1}, {"k": "a", "ts": 2}])
        test.flush()
        result = test.result()
    lines = str(result).splitlines()
    assert lines[0].split()[:3] == ["window_start", "window_end", "k"]
    assert lines[-1] == "1 row in the target; of the rows read: 2 used, 0 late, 0 bad"
    assert repr(result).startswith("LocalResult(")


@pytest.mark.spark
def test_run_status_and_handle_return_the_results(spark: Any, config_file: Path) -> None:
    home = config_file.parent
    shutil.rmtree(home / "out")
    (home / "in").mkdir()
    (home / "in/1.jsonl").write_text('{"user": "a", "ts": "2024-03-01T09:00:01Z"}\n')
    pipeline = sw.load(str(config_file))
    status = sw.run(pipeline, available_now=True, flush=True, spark=spark, on_notice=lambda level, line: None)
    assert status is not None
    assert status.results()["n"].to_list() == [1]
    with sw.run(pipeline, available_now=True, spark=spark, background=True) as handle:
        handle.wait()
        assert handle.results().equals(status.results())
    answer = sw.why(pipeline)
    assert str(answer).splitlines()[0].startswith("p: epoch ")
    assert repr(answer).startswith("WhyReport(")
