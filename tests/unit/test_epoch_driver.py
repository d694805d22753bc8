"""The epoch driver: failed publishes, commit times, changed configs and rebuilt pipelines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.support.local_pipeline_script import build_pipeline
from tests.support.single_stage_components import build_single_stage_driver

from slackwater.config.window import Aggregation, Window
from slackwater.connectors.files.target import FilesTarget
from slackwater.connectors.source import Batch
from slackwater.connectors.target import TargetTable
from slackwater.core.schema import Field
from slackwater.engine.epoch_driver import EpochDriver
from slackwater.engine.observer import DriverCallbacks, PendingPublish
from slackwater.errors import PublishError, StartError, StateError
from slackwater.operators.registry import compile_window
from slackwater.state.commit import BatchId
from slackwater.state.files.store import FilesStore
from slackwater.testing.local_engine import LocalEngine
from slackwater.testing.memory_target import START_US
from slackwater.testing.rows_without_spark import PolarsRowPreparer

COUNT = Aggregation(agg="count", as_="n")


def tumbling_window(**more: Any) -> Window:
    settings = {
        "kind": "tumbling",
        "duration_ms": 10,
        "group_by": ["k"],
        "max_groups_per_window": 9,
        "aggregations": [COUNT],
    }
    return Window(**{**settings, **more})


WINDOW = tumbling_window()
FIELDS = {"k": Field("k", "string"), "j": Field("j", "string")}


class FailingTarget:
    """A target that rejects every epoch while `down` is true."""

    guarantee, upserts, description = "exactly once", True, "memory"

    def __init__(self) -> None:
        self.down, self.epochs = False, list[int]()

    def open(self) -> None: ...

    def close(self) -> None: ...

    def publish(self, epoch: int, rows: pl.DataFrame, gone: pl.DataFrame | None = None, commit: str = "") -> None:
        if self.down:
            raise PublishError("down")
        self.epochs.append(epoch)


def start_epoch_driver(
    home: Path, target: Any, window: Window = WINDOW, state_id: str = "s", pending: Any = None
) -> EpochDriver:
    pipeline = build_pipeline(window, ["a"])
    logic = compile_window(pipeline, FIELDS)
    hooks = DriverCallbacks(lambda: START_US, on_waiting=(lambda epoch: None) if pending is None else pending.append)
    opened = build_single_stage_driver(
        pipeline, logic, FilesStore(home, "law"), target, LocalEngine(PolarsRowPreparer(logic, ["a"])), hooks
    )
    latest = opened.store.open()
    try:
        opened.start(latest, 1, {}, latest.state_id if latest else state_id)
    except BaseException:
        opened.store.close()
        raise
    return opened


def batch(number: int, *times: int) -> Batch:
    rows = {"ts": list(times), "k": ["x"] * len(times), "j": ["y"] * len(times)}
    frame = pl.DataFrame(rows, schema={"ts": pl.Int64, "k": pl.String, "j": pl.String})
    return Batch(BatchId(checkpoint="c", batch=number), {}, {"a": frame})


def test_unpublished_epoch_blocks_later_epochs(tmp_path: Path) -> None:
    target = FailingTarget()
    run = start_epoch_driver(tmp_path, target)
    run.run_batch(batch(0, 1000), 0)
    target.down = True
    with pytest.raises(PublishError):
        run.run_batch(batch(1, 50_000), 0)  # commits but cannot publish
    with pytest.raises(PublishError):
        run.run_batch(batch(2, 90_000), 0)  # fails until epoch 1 is published
    with pytest.raises(PublishError):
        run.tick(10**9)
    assert run.state.epoch == 1
    target.down = False
    run.run_batch(batch(2, 90_000), 0)
    assert target.epochs == [1, 2]
    run.store.close()


def test_commit_time_is_measured_at_the_end_of_a_long_epoch(tmp_path: Path) -> None:
    """Start a long epoch one minute before the commit. A restart reads the time of the commit."""
    run = start_epoch_driver(tmp_path, FailingTarget())
    now = START_US

    def work(step: str, epoch: int) -> None:
        nonlocal now
        now += 60_000_000 if step == "ingest.before" else 0

    run.hooks.clock_us = lambda: now
    run.hooks.faults.hit = work  # type: ignore[method-assign]
    run.run_batch(batch(0, 1000), 0)
    run.store.close()
    store = FilesStore(tmp_path, "law")
    latest = store.open()
    store.close()
    assert latest is not None
    assert latest.committed_us == START_US + 60_000_000


def test_unpublished_epoch_is_reported_as_pending_until_published(tmp_path: Path) -> None:
    target, pending = FailingTarget(), list[PendingPublish | None]()
    run = start_epoch_driver(tmp_path, target, pending=pending)
    run.run_batch(batch(0, 1000), 0)
    assert pending == []  # nothing is due yet
    target.down = True
    with pytest.raises(PublishError):
        run.run_batch(batch(1, 50_000), 0)
    run.store.close()
    waiting = PendingPublish(1, run.state.committed_us)
    assert pending == [waiting, waiting]
    assert [(w.missing, w.failed) for w in pending if w is not None] == [
        (("transform",), None),
        (("transform",), "transform"),
    ]
    with pytest.raises(PublishError):
        start_epoch_driver(tmp_path, target, pending=pending)  # the next start first publishes epoch 1
    target.down = False
    start_epoch_driver(tmp_path, target, pending=pending).store.close()
    assert pending == [*[waiting] * 5, None]


def test_changed_config_is_rejected_until_the_pending_epoch_is_published(tmp_path: Path) -> None:
    target = FailingTarget()
    run = start_epoch_driver(tmp_path, target)
    run.run_batch(batch(0, 1000), 0)
    target.down = True
    with pytest.raises(PublishError):
        run.run_batch(batch(1, 50_000), 0)
    run.store.close()
    target.down = False
    renamed = tumbling_window(window_start_column="begin")
    with pytest.raises(
        StartError, match=r"epoch 1 is committed but not yet published, and the config has changed since .columns"
    ):
        start_epoch_driver(tmp_path, target, renamed)
    start_epoch_driver(tmp_path, target).store.close()
    assert target.epochs == [1]
    start_epoch_driver(tmp_path, target, renamed).store.close()


@pytest.mark.semantics("restarts")
def test_state_of_a_window_with_reordered_keys_is_rejected(tmp_path: Path) -> None:
    """A start refuses a state that was written for a window with different keys."""
    both = tumbling_window(group_by=["k", "j"])
    run = start_epoch_driver(tmp_path, FailingTarget(), both)
    run.run_batch(batch(0, 1000), 0)
    run.store.close()
    turned = tumbling_window(group_by=["j", "k"])
    with pytest.raises(StateError, match="was written for another window"):
        start_epoch_driver(tmp_path, FailingTarget(), turned)


def test_state_of_a_window_with_reordered_aggregations_is_accepted(tmp_path: Path) -> None:
    two = [Aggregation(agg="count", as_="n"), Aggregation(agg="max", column="j", as_="m")]
    one, other = (tumbling_window(aggregations=a) for a in (two, two[::-1]))
    run = start_epoch_driver(tmp_path, FailingTarget(), one)
    run.run_batch(batch(0, 1000), 0)
    run.store.close()
    target = FailingTarget()
    run = start_epoch_driver(tmp_path, target, other)
    run.run_batch(batch(1, 2000), 0)
    run.run_batch(batch(2, 90_000), 0)
    assert target.epochs == [2]
    run.store.close()


def test_files_target_accepts_epoch_0_again_from_a_new_state(tmp_path: Path) -> None:
    """The marker of the target is higher than the new epochs, but belongs to another state."""
    table = TargetTable("p", (Field("n", "bigint"),), None, "first")
    first = FilesTarget(tmp_path, "parquet", table)
    first.publish(0, pl.DataFrame({"n": [1]}))
    first.publish(7, pl.DataFrame({"n": [2]}))
    second = FilesTarget(tmp_path, "parquet", TargetTable("p", table.fields, None, "second"))
    assert second.last_epoch() == -1
    second.publish(0, pl.DataFrame({"n": [3]}))
    second.publish(0, pl.DataFrame({"n": [9]}))
    second.publish(1, pl.DataFrame({"n": [4]}))
    assert sorted(pl.read_parquet(tmp_path / "*.parquet")["n"]) == [1, 2, 3, 4]
