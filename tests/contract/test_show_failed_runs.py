"""`show` reports a failed last run from the history in every state store, so that old results do not look new."""

from __future__ import annotations

import threading
from pathlib import Path

import polars as pl
import pytest
from tests.support.command import GOOD, Command

from slackwater.config import toml
from slackwater.errors import BadRowError
from slackwater.runner.run import record_run
from slackwater.state.store_access import create_store

CONFIG = GOOD.replace("user-sessions", "clicks").partition('kind = "files"\npath = "state"')[0]


@pytest.fixture(params=["files", "postgres"])
def config_file(request: pytest.FixtureRequest, run_slackwater: Command) -> Path:
    """Write a config into the working directory and return its name."""
    store = 'kind = "files"\npath = "state"\n'
    if request.param == "postgres":
        url = request.getfixturevalue("postgres").database(f"shown_{abs(hash(request.node.name)):x}")
        store = f'kind = "postgres"\nurl = "{url}"\n'
    Path("p.toml").write_text(CONFIG + store)
    return Path("p.toml")


def record_finished_run(config: Path, error: BaseException | None, is_killed: bool = False) -> None:
    """Record a run with this outcome."""
    store = create_store(toml.load(config))
    store.open()
    try:
        with record_run(store, threading.Event(), lambda: 0, -1):
            if is_killed:
                raise KeyboardInterrupt
            if error is not None:
                raise error
    except (BadRowError, KeyboardInterrupt):
        if is_killed:
            (run,) = store.runs()[-1:]
            store.save_run(run.model_copy(update={"ended_us": None, "outcome": None, "last_epoch": None}))
    finally:
        store.close()


def test_failed_run_is_reported_on_stderr_with_a_one_line_message(config_file: Path, run_slackwater: Command) -> None:
    assert "start it with: slackwater run p.toml" in run_slackwater("show", str(config_file)).err
    record_finished_run(config_file, BadRowError("clicks: epoch 0: 1 bad row\nof many"))
    nothing, failed = run_slackwater("show", str(config_file)).err.splitlines()
    assert nothing == "clicks: nothing published yet"
    assert failed.startswith("clicks: the last run failed at 2")
    assert failed.endswith("Z: epoch 0: 1 bad row of many")
    Path("out").mkdir(exist_ok=True)
    pl.DataFrame({"user": ["a"], "n": [1]}).write_parquet("out/clicks-000000000.parquet")
    shown = run_slackwater("show", str(config_file), "--json")
    assert (shown.code, shown.out, shown.err) == (0, '{"user": "a", "n": 1}\n', f"{failed}\n")


def test_killed_run_is_reported_and_successful_run_is_not(config_file: Path, run_slackwater: Command) -> None:
    record_finished_run(config_file, BadRowError("clicks: no"))
    record_finished_run(config_file, None, is_killed=True)
    assert "was killed: it recorded no end" in run_slackwater("show", str(config_file)).err
    record_finished_run(config_file, None)
    assert "the last run" not in run_slackwater("show", str(config_file)).err


def test_failure_is_not_reported_while_another_run_is_active(config_file: Path, run_slackwater: Command) -> None:
    record_finished_run(config_file, BadRowError("clicks: no"))
    store = create_store(toml.load(config_file))
    store.open()
    assert "the last run" not in run_slackwater("show", str(config_file)).err
    store.close()
    assert "the last run failed" in run_slackwater("show", str(config_file)).err
