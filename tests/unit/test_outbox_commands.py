"""`slackwater outbox` with a files target: an epoch that cannot be published is shown and skipped."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.support.single_stage_components import build_single_stage_driver, build_single_stage_target

from slackwater.cli.main import main
from slackwater.config import toml
from slackwater.connectors.source import Batch
from slackwater.core.dead_letter_columns import DeadLetterFilter
from slackwater.core.schema import Field
from slackwater.dead_letters import dead_letter_reader
from slackwater.engine.epoch_driver import EpochDriver
from slackwater.engine.observer import DriverCallbacks
from slackwater.errors import PublishError
from slackwater.operators import registry as compiling
from slackwater.runner.component_factory import create_dead_letter_writer
from slackwater.state.store_access import create_store
from slackwater.testing.local_engine import LocalEngine
from slackwater.testing.rows_without_spark import PolarsRowPreparer

S = 1_000_000


def write_outbox_config(home: Path) -> Path:
    file = home / "p.toml"
    file.write_text(
        f"""
name = "p"
[connections.lake]
kind = "files"
[[sources]]
name = "a"
connection = "lake"
query = "{home}/in"
format = "json"
schema = "ts TIMESTAMP, k STRING"
[transform]
on_error = "dlq"
[transform.window]
kind = "tumbling"
duration_ms = 1000
event_time_column = "ts"
group_by = ["k"]
max_groups_per_window = 100
aggregations = [{{agg = "count", as = "n"}}]
[target]
connection = "lake"
path = "{home}/out"
[dead_letter]
connection = "lake"
path = "{home}/letters"
[state_store]
kind = "files"
path = "{home}/state"
"""
    )
    return file


def start_epoch_driver(file: Path) -> EpochDriver:
    pipeline = toml.load(file)
    logic = compiling.compile_window(pipeline, {"k": Field("k", "string")})
    store = create_store(pipeline)
    latest, state = store.open(), "00ff00ff00ff00ff"
    parts = (
        build_single_stage_target(pipeline, logic, state),
        LocalEngine(PolarsRowPreparer(logic, ["a"])),
        DriverCallbacks(lambda: 4 * 10**15),
    )
    driver = build_single_stage_driver(pipeline, logic, store, *parts, create_dead_letter_writer(pipeline, state))
    try:
        driver.start(latest, 1, {}, state)
    except BaseException:
        store.close()
        raise
    return driver


def run_epoch(driver: EpochDriver, *rows: tuple[int, str]) -> None:
    frame = pl.DataFrame(rows, schema={"ts": pl.Int64, "k": pl.String}, orient="row")
    driver.run_batch(Batch(None, {}, {"a": frame}), 0)


def run_outbox_command(monkeypatch: pytest.MonkeyPatch, *arguments: Any) -> int:
    monkeypatch.setattr(sys, "argv", ["slackwater", "outbox", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.fixture
def unpublished_epoch_config(tmp_path: Path) -> Path:
    file = write_outbox_config(tmp_path)
    (tmp_path / "out").write_text("in the way")
    driver = start_epoch_driver(file)
    with pytest.raises(
        PublishError,
        match=r"did not accept epoch 0 \(.*will be published at the next start; if this cannot be fixed, run: slackwater outbox show$",
    ):
        run_epoch(driver, (0, "a"), (1, "b"), (60 * S, "c"))
    driver.store.close()
    return file


def test_outbox_shows_and_skips_the_pending_epoch(
    unpublished_epoch_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(PublishError):
        start_epoch_driver(unpublished_epoch_config)
    assert run_outbox_command(monkeypatch, "show", unpublished_epoch_config, "--limit", 1) == 0
    shown = capsys.readouterr().out
    assert "p: epoch 0 was committed at" in shown
    assert "2 rows, 0 dead letters" in shown
    assert "and 1 row more" in shown
    assert run_outbox_command(monkeypatch, "skip", unpublished_epoch_config, 7) != 0
    assert "epoch 7 is not waiting to be published, but epoch 0 is" in capsys.readouterr().err
    assert run_outbox_command(monkeypatch, "skip", unpublished_epoch_config, 0) == 0
    assert "The next start continues after this epoch" in capsys.readouterr().out
    letters = dead_letter_reader.read_newest(toml.load(unpublished_epoch_config), DeadLetterFilter())
    assert set(letters["reason"]) == {"not published"}
    assert sorted(json.loads(v)["k"] for v in letters["value"]) == ["a", "b"]
    assert run_outbox_command(monkeypatch, "show", unpublished_epoch_config) == 0
    assert "no epoch is pending" in capsys.readouterr().out
    assert run_outbox_command(monkeypatch, "skip", unpublished_epoch_config, 0) != 0
    assert "no epoch is waiting to be published" in capsys.readouterr().err
    (tmp_path / "out").unlink()
    driver = start_epoch_driver(unpublished_epoch_config)
    run_epoch(driver, (120 * S, "d"))
    driver.flush()
    driver.store.close()
    assert sorted(pl.concat(map(pl.read_parquet, (tmp_path / "out").glob("*.parquet")))["k"]) == ["c", "d"]


def test_outbox_skip_writes_the_rows_to_a_directory(
    unpublished_epoch_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_outbox_command(monkeypatch, "skip", unpublished_epoch_config, 0, "--to", tmp_path / "kept") == 0
    rows = pl.read_parquet(tmp_path / "kept" / "p-000000000-rows.parquet")
    assert sorted(rows["k"]) == ["a", "b"]
    (tmp_path / "out").unlink()
    start_epoch_driver(unpublished_epoch_config).store.close()


def test_outbox_skip_is_refused_during_a_run(
    unpublished_epoch_config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = create_store(toml.load(unpublished_epoch_config))
    store.open()
    try:
        assert run_outbox_command(monkeypatch, "show", unpublished_epoch_config) == 0
        assert run_outbox_command(monkeypatch, "skip", unpublished_epoch_config, 0) != 0
        assert "already running" in capsys.readouterr().err
    finally:
        store.close()


def test_outbox_skip_after_a_crash_does_not_duplicate_dead_letters(
    unpublished_epoch_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slackwater.runner import pending_output

    pipeline = toml.load(unpublished_epoch_config)
    with pending_output.lock_pending_epoch(pipeline, 0) as (store, commit):
        pending = pending_output._read_pending(store, commit, commit.missing(store.delivered_targets()))
        pending_output._write_letters(pipeline, commit, pending, None)
    assert run_outbox_command(monkeypatch, "skip", unpublished_epoch_config, 0) == 0
    assert dead_letter_reader.read_newest(pipeline, DeadLetterFilter()).height == 2


def test_outbox_show_without_a_state_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_outbox_command(monkeypatch, "show", write_outbox_config(tmp_path)) != 0
    assert "there is no state yet" in capsys.readouterr().err


def test_old_name_of_outbox_skip_refers_to_the_new_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_outbox_command(monkeypatch, "set-aside", "p.toml", 0) != 0
    assert '"outbox set-aside" is now called "outbox skip"' in capsys.readouterr().err
