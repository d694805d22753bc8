"""`show` says that the last run failed, from the history in every kind of state, so that old results are not taken for new."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import polars as pl
import pytest

from slackwater.cli import main as cli
from slackwater.config import toml
from slackwater.errors import BadRowError
from slackwater.runner.assemble import store_of
from slackwater.runner.run_history import noted

CONFIG = """name = "clicks"
[connections.lake]
kind = "files"
[[sources]]
name = "events"
connection = "lake"
query = "in/*.jsonl"
format = "json"
schema = "user STRING, ts TIMESTAMP"
[transform.window]
kind = "tumbling"
duration = "1m"
event_time_column = "ts"
group_by = ["user"]
[[transform.window.aggregations]]
agg = "count"
as = "n"
[target]
connection = "lake"
path = "out"
[state_store]
"""


@pytest.fixture(params=["files", "postgres"])
def config(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    store = 'kind = "files"\npath = "state"\n'
    if request.param == "postgres":
        url = request.getfixturevalue("postgres").database(f"shown_{abs(hash(request.node.name)):x}")
        store = f'kind = "postgres"\nurl = "{url}"\n'
    Path("p.toml").write_text(CONFIG + store)
    return Path("p.toml")


def ended(config: Path, error: BaseException | None, is_killed: bool = False) -> None:
    """Note a run that ended like that."""
    store = store_of(toml.load(config))
    store.open()
    try:
        with noted(store, threading.Event(), lambda: 0, -1):
            if is_killed:
                raise KeyboardInterrupt
            if error is not None:
                raise error
    except (BadRowError, KeyboardInterrupt):
        if is_killed:
            (run,) = store.runs()[-1:]
            store.note_run(run.model_copy(update={"ended_us": None, "outcome": None, "last_epoch": None}))
    finally:
        store.close()


def said(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[str, str]:
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["slackwater", "show", str(config), *more])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code
    out = capsys.readouterr()
    return out.out, out.err


def test_the_failure_is_one_line_behind_the_results(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "it has not run: slackwater run p.toml" in said(config, monkeypatch, capsys)[1]
    ended(config, BadRowError("clicks: epoch 0: 1 bad row\nof many"))
    nothing, failed = said(config, monkeypatch, capsys)[1].splitlines()
    assert nothing == "clicks: nothing published yet"
    assert failed.startswith("clicks: the last run failed at 2")
    assert failed.endswith("Z: epoch 0: 1 bad row of many")
    Path("out").mkdir(exist_ok=True)
    pl.DataFrame({"user": ["a"], "n": [1]}).write_parquet("out/clicks-000000000.parquet")
    out, err = said(config, monkeypatch, capsys, "--json")
    assert (out, err) == ('{"user": "a", "n": 1}\n', f"{failed}\n")


def test_a_run_that_was_killed_is_told_and_one_that_ended_well_is_not(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended(config, BadRowError("clicks: no"))
    ended(config, None, is_killed=True)
    assert "was killed: it noted no end" in said(config, monkeypatch, capsys)[1]
    ended(config, None)
    assert "the last run" not in said(config, monkeypatch, capsys)[1]


def test_while_another_run_is_up_nothing_is_told(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended(config, BadRowError("clicks: no"))
    store = store_of(toml.load(config))
    store.open()
    assert "the last run" not in said(config, monkeypatch, capsys)[1]
    store.close()
    assert "the last run failed" in said(config, monkeypatch, capsys)[1]
