"""A committed epoch that its target always rejects. `outbox skip` moves it to the dead letters and loses no row."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pytest
from tests.support.single_stage_components import build_single_stage_driver, build_single_stage_target

from slackwater.cli.main import main
from slackwater.config import toml
from slackwater.connectors.source import Batch
from slackwater.core.dead_letter_columns import DeadLetterFilter
from slackwater.core.schema import Field
from slackwater.dead_letters import dead_letter_reader
from slackwater.engine.observer import DriverCallbacks
from slackwater.errors import PublishError
from slackwater.operators import registry as compiling
from slackwater.runner.component_factory import create_dead_letter_writer
from slackwater.state.store_access import create_store
from slackwater.testing.local_engine import LocalEngine
from slackwater.testing.rows_without_spark import PolarsRowPreparer

S = 1_000_000


@pytest.fixture
def database_url(postgres: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    yield postgres.database(f"aside_{abs(hash(request.node.name)):x}")


def write_config(home: Path, url: str, state: str, letters: bool = True) -> Path:
    """Write the config of a pipeline into a table, with its state in files or in the database of the table."""
    state_store = (
        f'kind = "files"\npath = "{home}/state"'
        if state == "files"
        else f'kind = "postgres"\nurl = "{url}"\npath = "{home}/state"'
    )
    file = home / "p.toml"
    file.write_text(
        f"""
name = "p"
[connections.lake]
kind = "files"
[connections.db]
kind = "postgres"
url = "{url}"
[[sources]]
name = "a"
connection = "lake"
query = "{home}/in"
format = "json"
schema = "ts BIGINT, k STRING"
[transform]
on_error = "{"dlq" if letters else "drop"}"
[transform.window]
kind = "tumbling"
duration_ms = 1000
event_time_column = "ts"
event_time_unit = "us"
group_by = ["k"]
max_groups_per_window = 100
aggregations = [{{agg = "count", as = "n"}}]
[target]
connection = "db"
table = "public.out"
[state_store]
{state_store}
"""
        + (f'[dead_letter]\nconnection = "lake"\npath = "{home}/letters"\n' if letters else "")
    )
    return file


class RunningPipeline:
    """A pipeline on the in-process engine. All other parts are built from the config as the command line does."""

    def __init__(self, file: Path) -> None:
        self.pipeline = toml.load(file)
        logic = compiling.compile_window(self.pipeline, {"k": Field("k", "string")})
        self.store = create_store(self.pipeline)
        latest = self.store.open()
        state = latest.state_id if latest else "s1"
        self.target, self.letters = (
            build_single_stage_target(self.pipeline, logic, state),
            create_dead_letter_writer(self.pipeline, state),
        )
        self.target.open()
        self.driver = build_single_stage_driver(
            self.pipeline,
            logic,
            self.store,
            self.target,
            LocalEngine(PolarsRowPreparer(logic, ["a"])),
            DriverCallbacks(lambda: 4 * 10**15),
            self.letters,
        )
        try:
            self.driver.start(latest, 1, {}, state)
        except BaseException:
            self.stop()
            raise

    def run_epoch(self, *rows: tuple[int, str]) -> None:
        frame = pl.DataFrame(rows, schema={"ts": pl.Int64, "k": pl.String}, orient="row")
        self.driver.run_batch(Batch(None, {}, {"a": frame}), 0)

    def stop(self) -> None:
        self.store.close()
        self.target.close()


def run_outbox_command(monkeypatch: pytest.MonkeyPatch, *arguments: Any) -> int:
    monkeypatch.setattr(sys, "argv", ["slackwater", "outbox", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def read_table_rows(url: str) -> list[tuple[str, int]]:
    with psycopg.connect(url) as db:
        return db.execute("SELECT k, n FROM out ORDER BY window_start, k").fetchall()


@pytest.fixture(params=["files", "postgres"])
def blocked_pipeline_config(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> Path:
    """Return a pipeline whose table always rejects epoch 1: one of its rows violates a check constraint."""
    file = write_config(tmp_path, database_url, request.param)
    run = RunningPipeline(file)
    run.run_epoch((0, "first"), (1 * S, "fine"), (1 * S, "wrong"))
    with psycopg.connect(database_url) as db:
        db.execute("ALTER TABLE out ADD CHECK (k <> 'wrong')")
    with pytest.raises(
        PublishError,
        match=r"did not accept epoch 1 \(.*check constraint.*\); the epoch is committed and will be published at the next start; if this cannot be fixed, run: slackwater outbox show$",
    ):
        run.run_epoch((3 * S, "next"), (60 * S, "later"))
    assert run.driver.state.epoch == 1
    run.stop()
    return file


def test_skipped_epoch_becomes_dead_letters_without_loss_or_duplicates(
    blocked_pipeline_config: Path,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    with pytest.raises(PublishError, match="did not accept epoch 1"):
        RunningPipeline(blocked_pipeline_config)
    before = read_table_rows(database_url)
    assert run_outbox_command(monkeypatch, "show", blocked_pipeline_config) == 0
    shown = capsys.readouterr().out
    assert "p: epoch 1 was committed at" in shown
    assert '"k":"wrong"' in shown
    assert f"slackwater outbox skip {blocked_pipeline_config} 1" in shown
    assert run_outbox_command(monkeypatch, "skip", blocked_pipeline_config, 7) != 0
    assert "epoch 7 is not waiting to be published, but epoch 1 is" in capsys.readouterr().err
    assert run_outbox_command(monkeypatch, "skip", blocked_pipeline_config, 1) == 0
    assert "epoch 1 was skipped. Its rows are now in the dead letters" in capsys.readouterr().out
    letters = dead_letter_reader.read_newest(toml.load(blocked_pipeline_config), DeadLetterFilter())
    assert set(letters["reason"]) == {"not published"}
    assert set(letters["epoch"]) == {1}
    names = [bytes(v).decode() for v in letters["value"]]
    assert any("wrong" in n for n in names)
    assert run_outbox_command(monkeypatch, "show", blocked_pipeline_config) == 0
    assert "no epoch is pending" in capsys.readouterr().out
    # a second skip changes nothing
    assert run_outbox_command(monkeypatch, "skip", blocked_pipeline_config, 1) != 0
    assert "no epoch is waiting to be published" in capsys.readouterr().err
    run = RunningPipeline(blocked_pipeline_config)
    run.run_epoch((120 * S, "z"))
    run.driver.flush()
    run.stop()
    after = read_table_rows(database_url)
    assert after[: len(before)] == before
    every = [*(k for k, _ in after), *(n for n in names)]
    for name in ("first", "fine", "wrong", "next", "later", "z"):
        assert any(name in e for e in every), name
    assert len(dead_letter_reader.read_newest(toml.load(blocked_pipeline_config), DeadLetterFilter())) == letters.height


def test_skip_without_dead_letters_writes_the_epoch_to_a_directory(
    blocked_pipeline_config: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = blocked_pipeline_config.read_text().split("[dead_letter]")[0]
    blocked_pipeline_config.write_text(text.replace('"dlq"', '"drop"'))
    assert run_outbox_command(monkeypatch, "skip", blocked_pipeline_config, 1) != 0
    assert "the config has no [dead_letter]; add one, or name a directory: --to DIR" in capsys.readouterr().err
    assert run_outbox_command(monkeypatch, "skip", blocked_pipeline_config, 1, "--to", tmp_path / "kept") == 0
    rows = pl.read_parquet(tmp_path / "kept" / "p-000000001-rows.parquet")
    assert "wrong" in rows["k"].to_list()
    RunningPipeline(blocked_pipeline_config).stop()


def test_skip_is_refused_while_the_pipeline_is_running(
    blocked_pipeline_config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = create_store(toml.load(blocked_pipeline_config))
    store.open()
    try:
        assert run_outbox_command(monkeypatch, "show", blocked_pipeline_config) == 0  # `show` takes no lock
        assert run_outbox_command(monkeypatch, "skip", blocked_pipeline_config, 1) != 0
        assert "already running" in capsys.readouterr().err
    finally:
        store.close()


def test_skip_after_a_crash_does_not_duplicate_dead_letters(
    blocked_pipeline_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slackwater.runner import pending_output

    pipeline = toml.load(blocked_pipeline_config)
    with pending_output.lock_pending_epoch(pipeline, 1) as (store, commit):
        pending = pending_output._read_pending(store, commit, commit.missing(store.delivered_targets()))
        pending_output._write_letters(pipeline, commit, pending, None)
    assert run_outbox_command(monkeypatch, "skip", blocked_pipeline_config, 1) == 0
    assert dead_letter_reader.read_newest(pipeline, DeadLetterFilter()).height == pending.total > 0


def test_restart_publishes_the_epoch_once_the_table_accepts_it(
    blocked_pipeline_config: Path, database_url: str
) -> None:
    with psycopg.connect(database_url) as db:
        db.execute("ALTER TABLE out DROP CONSTRAINT out_k_check")
    run = RunningPipeline(blocked_pipeline_config)
    run.driver.flush()
    run.stop()
    assert [k for k, _ in read_table_rows(database_url)] == ["first", "fine", "wrong", "next", "later"]


def test_outbox_show_without_a_state_is_reported(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_config(tmp_path, database_url, "files")
    assert run_outbox_command(monkeypatch, "show", file) != 0
    assert "there is no state yet" in capsys.readouterr().err
