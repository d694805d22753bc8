"""The command line without Spark: output, exit codes and errors without a stack trace."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.command import GOOD, Command, CommandResult

from slackwater import __version__
from slackwater.errors import LimitExceededError, LockHeldError

TUMBLING = (
    GOOD.replace('"session"', '"tumbling"')
    .replace('gap_ms = "30s"\nmax_session_duration_ms = "2h"', 'duration_ms = "1m"')
    .split("[state_store]")[0]
)


def write_config(text: str, name: str = "p.toml") -> str:
    Path(name).write_text(text)
    return name


def make_run_command_fail(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def run(*args: Any, **kwargs: Any) -> None:
        raise error

    monkeypatch.setattr("slackwater.runner.run.run_pipeline", run)


def test_check_prints_a_one_line_summary_of_a_valid_config(run_slackwater: Command) -> None:
    Path("in").mkdir()
    expected = (
        f'p.toml: ok — session window over 1 source, 2 aggregations, state in files at "{Path.cwd() / "state"}"\n'
    )
    assert run_slackwater("check", write_config(GOOD)) == CommandResult(0, expected, "")


def test_check_prints_notes_after_the_summary(run_slackwater: Command) -> None:
    Path("in").mkdir()
    outcome = run_slackwater("check", write_config(TUMBLING))
    assert (outcome.code, outcome.err) == (0, "")
    first, second = outcome.out.splitlines()
    assert (
        first
        == "p.toml: ok — tumbling window over 1 source, 2 aggregations, state in memory, lost when the process ends"
    )
    assert second.startswith("p.toml: note: STATE IS IN MEMORY")


def test_check_prints_every_problem_on_a_separate_line(run_slackwater: Command) -> None:
    wrong = (
        GOOD.replace("gap_ms =", "gapp =").replace('["user_id"]', '"user_id"').replace('name = "user', 'nmae = "user')
    )
    outcome = run_slackwater("check", write_config(wrong))
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.splitlines() == [
        'p.toml: nmae: unknown key; did you mean "name"?',
        'p.toml: transform.window.gapp: unknown key; did you mean "gap"?',
        'p.toml: transform.window.group_by: found "user_id", expected a list; write ["user_id"]',
        'p.toml: transform.window.gap_ms: missing; a session window needs a gap, the time without rows after which a session ends, for example "30m"',
        "p.toml: name: missing; give the pipeline a name",
        "the keys are documented in docs/configuration.md#the-pipeline, docs/configuration.md#windows",
        "5 problems",
    ]


def test_check_of_a_missing_file_reports_one_problem(run_slackwater: Command) -> None:
    outcome = run_slackwater("check", "absent.toml")
    expected = "absent.toml: cannot be read (No such file or directory); expected a TOML file\n1 problem\n"
    assert outcome == CommandResult(2, "", expected)


@pytest.mark.parametrize("command", ["check", "explain", "run"])
def test_every_command_reports_broken_toml(run_slackwater: Command, command: str) -> None:
    outcome = run_slackwater(command, write_config("name = \n"))
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("p.toml: is not valid TOML: ")
    assert outcome.err.endswith("\n1 problem\n")


@pytest.mark.parametrize(
    ("base", "how"), [(GOOD, "carried through the SQL"), (TUMBLING, "found by reading the batch a second time")]
)
def test_explain_shows_the_cost_of_dead_letters_of_late_rows(run_slackwater: Command, base: str, how: str) -> None:
    late = (
        base.replace("group_by", 'late_data = "dlq"\ngroup_by')
        + '\n[dead_letter]\nconnection = "lake"\npath = "letters"\n'
    )
    outcome = run_slackwater("explain", write_config(late))
    assert outcome.code == 0
    assert f"late rows: dlq, one dead letter per row; their bytes are {how}" in outcome.out
    assert f'dead letters: parquet files in "{Path.cwd() / "letters"}", one per epoch' in outcome.out


def test_explain_prints_the_stages_of_the_plan(run_slackwater: Command) -> None:
    outcome = run_slackwater("explain", write_config(GOOD))
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert lines[0] == "user-sessions"
    stages = [line[2:13].strip() for line in lines if line.startswith("  ") and line[2] != " "]
    assert stages == [
        *("read", "event time", "sql", "lift", "shuffle", "step", "emit", "commit", "publish"),
        *("delivery", "state"),
    ]
    assert "  shuffle    Spark   by hash of user_id" in lines
    assert "  delivery   exactly once: the target keeps the last epoch with its rows and ignores an older one" in lines
    assert lines[-1].endswith(" at 1,000 groups")


def test_flush_option_requires_the_available_now_option(run_slackwater: Command) -> None:
    outcome = run_slackwater("run", write_config(GOOD), "--flush")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("--flush: needs --available-now")


def test_version_option_prints_the_version(run_slackwater: Command) -> None:
    assert run_slackwater("--version") == CommandResult(0, f"slackwater {__version__}\n", "")


def test_missing_command_shows_the_help(run_slackwater: Command) -> None:
    outcome = run_slackwater()
    assert all(word in outcome.out + outcome.err for word in ("run", "check", "explain", "demo"))


def test_unknown_option_exits_with_2(run_slackwater: Command) -> None:
    assert run_slackwater("run", write_config(GOOD), "--fast").code == 2


@pytest.mark.parametrize("error", [LockHeldError("held by host 4, process 12"), LimitExceededError("too many groups")])
def test_slackwater_error_exits_with_1_and_a_one_line_error(
    run_slackwater: Command, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    make_run_command_fail(monkeypatch, error)
    assert run_slackwater("run", write_config(GOOD)) == CommandResult(1, "", f"error: {error}\n")


def test_internal_error_exits_with_70_and_a_one_line_error(
    run_slackwater: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLACKWATER_DEBUG", raising=False)
    make_run_command_fail(monkeypatch, KeyError("first line\n  at org.apache.spark.Thing\n"))
    outcome = run_slackwater("run", write_config(GOOD))
    assert (outcome.code, outcome.out) == (70, "")
    assert outcome.err.startswith("internal error: KeyError: ")
    assert outcome.err.endswith("; run again with SLACKWATER_DEBUG=1 for the stack trace\n")
    assert len(outcome.err.splitlines()) == 1


def test_os_error_is_not_reported_as_an_internal_error(
    run_slackwater: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLACKWATER_DEBUG", raising=False)
    make_run_command_fail(monkeypatch, PermissionError(13, "Permission denied", "state/x"))
    assert run_slackwater("run", write_config(GOOD)) == CommandResult(1, "", 'error: Permission denied: "state/x"\n')


def test_internal_error_is_raised_if_slackwater_debug_is_set(
    run_slackwater: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACKWATER_DEBUG", "1")
    make_run_command_fail(monkeypatch, KeyError("gone"))
    with pytest.raises(KeyError, match="gone"):
        run_slackwater("run", write_config(GOOD))


def test_metrics_port_in_use_prevents_the_start(run_slackwater: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from slackwater.metrics import Metrics, serve_metrics

    make_run_command_fail(monkeypatch, AssertionError("must not be reached"))
    server = serve_metrics(Metrics(), 0)
    outcome = run_slackwater("run", write_config(GOOD), "--metrics-port", str(server.port))
    server.stop()
    expected = f"error: metrics cannot be served on 127.0.0.1:{server.port} (Address already in use); choose another --metrics-port\n"
    assert outcome == CommandResult(1, "", expected)


def test_check_imports_neither_spark_nor_dataframe_libraries(tmp_path: Path) -> None:
    """Imports make a command slow. The time depends on the machine (see `python -m benchmarks.cli_command_times`)."""
    config = tmp_path / "p.toml"
    config.write_text(GOOD)
    code = f"""
import sys
sys.argv = ["slackwater", "check", {str(config)!r}]
from slackwater.cli.main import main
try:
    main()
finally:
    print(sorted({{"pyspark", "polars", "pandas", "pyarrow", "numpy", "prometheus_client", "numba"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
