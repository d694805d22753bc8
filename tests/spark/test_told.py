"""What an epoch learns of its rows is the same whether they are observed on their way or asked beside the epoch's job."""

from __future__ import annotations

import datetime as dt
import os
import shutil
from typing import Any

import polars as pl
import pytest
from tests.support.events import simple
from tests.support.runner import Runner

import slackwater as sw
from slackwater.errors import EpochError
from slackwater.spark import told
from slackwater.state.files.store import FilesStore

pytestmark = pytest.mark.spark

BEGIN = dt.datetime(2024, 3, 1, tzinfo=dt.UTC)


def columnar(runner: Runner) -> sw.Source:
    """Three files by columns, an epoch each; in the second the newest rows go no further than the SQL, and two rows are bad."""
    for n, seconds in enumerate([[0, 1, 2], [10, None, 12, 900, 1e10], [20, 21, 60]]):
        at = [None if s is None else BEGIN + dt.timedelta(seconds=s) for s in seconds]
        users = ["left" if s == 900 else "a" for s in seconds]
        path = runner.home / "in" / f"{n}.parquet"
        path.parent.mkdir(exist_ok=True)
        pl.DataFrame({"user": users, "i": pl.Series(range(len(at)), dtype=pl.Int32), "ts": at}).write_parquet(path)
        os.utime(path, (1_600_000_000 + n, 1_600_000_000 + n))
    return sw.Source(
        name="events",
        connection=sw.FilesConnection(),
        query=str(runner.home / "in" / "*.parquet"),
        format="parquet",
        schema="user STRING, i INT, ts TIMESTAMP",
        max_files_per_trigger=1,
    )


def test_rows_of_files_by_columns_are_asked_beside_the_job(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    source = columnar(runner)
    beside: list[str] = []
    ask = told._ask

    def asked(timed: Any, wanted: Any) -> Any:
        beside.append("job")
        return ask(timed, wanted)

    monkeypatch.setattr(told, "_ask", asked)

    def run(many: int) -> tuple[Any, ...]:
        monkeypatch.setattr(told, "MANY_ROWS", many)
        for folder in ("state", "out"):
            shutil.rmtree(runner.home / folder, ignore_errors=True)
        runner.statuses.clear()
        sql = "SELECT user, i, _event_ts FROM source WHERE user <> 'left'"
        found = runner.run(source=source, transform_sql=sql, window=simple(lateness_ms="1m"), on_error="drop")
        with FilesStore(runner.home / "state", "test").peek() as snapshot:
            assert snapshot is not None
            clock = snapshot.commit.clocks["events"]
        return found.rows(), [s.counters for s in runner.statuses], clock

    observed = run(told.MANY_ROWS)
    assert not beside
    assert run(1) == observed
    assert len(beside) == 3, (
        "none of the first epoch, whose rows are not known yet; two of the second, as a time lay too far ahead"
    )
    assert observed[2].newest_at == str(runner.home / "in" / "1.parquet")
    assert observed[1][-1].rows_bad == 2


def test_rows_that_have_to_be_decoded_are_observed(runner: Runner) -> None:
    """Text would be parsed twice; and a stage's results are there already."""
    raw = runner.spark.createDataFrame([(1, None)], "__mark BIGINT, _corrupt_record STRING")
    assert not told.is_read_by_columns(raw)
    assert not told.is_read_by_columns(raw.select("_corrupt_record"))
    assert told.is_read_by_columns(raw.select("__mark"))


def test_a_job_beside_that_fails_is_told_in_a_line(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Any:
        raise RuntimeError("An error occurred while calling o1.x\nCaused by: java.io.IOException: the file is gone")

    monkeypatch.setattr(told, "MANY_ROWS", 1)
    monkeypatch.setattr(told, "_ask", failing)
    with pytest.raises(
        EpochError, match='not committed: the rows of source "events" cannot be counted: IOException: the file is gone'
    ):
        runner.run(source=columnar(runner), window=simple(), on_error="drop")
