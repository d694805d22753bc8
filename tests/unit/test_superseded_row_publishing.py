"""Superseded rows: their path from the staged output to the target, also after a crash."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.support.local_pipeline_script import build_pipeline
from tests.support.single_stage_components import build_single_stage_driver

from slackwater.config.window import Aggregation, Window
from slackwater.connectors.console.connector import ConsoleTarget
from slackwater.connectors.files.target import FilesTarget
from slackwater.connectors.kafka.message_encoding import KafkaMessageEncoder
from slackwater.connectors.kafka.target import KafkaTarget
from slackwater.connectors.target import TargetTable
from slackwater.core.schema import Field
from slackwater.engine.observer import DriverCallbacks
from slackwater.engine.publishing import split_deletes
from slackwater.engine.startup_recovery import first_commit
from slackwater.errors import StartError
from slackwater.operators.registry import compile_window
from slackwater.state.commit import Commit
from slackwater.state.files.store import FilesStore
from slackwater.testing.local_engine import LocalEngine
from slackwater.testing.memory_target import START_US
from slackwater.testing.rows_without_spark import PolarsRowPreparer
from slackwater.windows.compiled_window import CompiledWindow

COUNT = Aggregation(agg="count", as_="n")
SESSION = Window(kind="session", gap_ms=10, max_session_duration_ms=1000, group_by=["user"], aggregations=[COUNT])
TUMBLING = Window(kind="tumbling", duration_ms=10, group_by=["user"], max_groups_per_window=9, aggregations=[COUNT])
LOGIC = compile_window(build_pipeline(SESSION, ["a"]), {"user": Field("user", "string")})


def utc_time(seconds: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=seconds)


def staged_output(*rows: tuple[str | None, int, int | None, str], logic: CompiledWindow = LOGIC) -> pl.DataFrame:
    """Return staged output: user, window start in seconds, count (None if superseded), reason."""
    return pl.DataFrame(
        [(user, utc_time(s), None if n is None else utc_time(s + 10), s, n, reason) for user, s, n, reason in rows],
        schema={**{f.name: f.polars for f in logic.output}, "__reason": pl.String()},
        orient="row",
    )


SHARDS = [
    staged_output(("b", 300, None, "supersede"), ("b", 100, 8, "late")),
    staged_output(("a", 100, 1, "close"), (None, 300, None, "supersede"), ("a", 40, None, "supersede")),
]


def test_rows_and_superseded_rows_are_split_in_order() -> None:
    rows, gone = split_deletes(LOGIC, SHARDS, upserts=True)
    assert rows.rows() == [("a", utc_time(100), utc_time(110), 100, 1), ("b", utc_time(100), utc_time(110), 100, 8)]
    assert rows.columns == [f.name for f in LOGIC.output]
    assert gone.columns == ["user", "window_start", "session_id"]
    assert gone.rows() == [("a", utc_time(40), 40), (None, utc_time(300), 300), ("b", utc_time(300), 300)]


def test_output_for_an_append_only_target_contains_every_row() -> None:
    rows, gone = split_deletes(LOGIC, SHARDS, upserts=False)
    assert [(r[0], r[3], r[4]) for r in rows.rows()] == [
        ("a", 40, None), ("a", 100, 1), ("b", 100, 8), (None, 300, None), ("b", 300, None),
    ]  # fmt: skip
    assert gone.is_empty()


def test_identity_of_a_tumbling_window_has_no_session_id() -> None:
    logic = compile_window(build_pipeline(TUMBLING, ["a"]), {"user": Field("user", "string")})
    output = pl.DataFrame(
        {"window_start": [utc_time(0)], "window_end": None, "user": ["u"], "n": None, "__reason": "supersede"}
    )
    rows, gone = split_deletes(logic, [output], upserts=True)
    assert (rows.height, gone.columns, gone.rows()) == (0, ["user", "window_start"], [("u", utc_time(0))])


class RecordingTarget:
    """A target in memory that records what is published."""

    guarantee, description = "exactly once", "memory"

    def __init__(self, upserts: bool = True) -> None:
        self.upserts, self.epochs = upserts, list[tuple[int, list[Any], list[Any]]]()

    def open(self) -> None: ...

    def close(self) -> None: ...

    def publish(self, epoch: int, rows: pl.DataFrame, gone: pl.DataFrame | None = None, commit: str = "") -> None:
        assert gone is not None
        self.epochs.append((epoch, rows["n"].to_list(), gone["session_id"].to_list()))


def commit_unpublished_epoch(home: Path, **destination: Any) -> None:
    """Write a state whose epoch 0 is committed but not published, in the format of a single target."""
    store = FilesStore(home, "law")
    store.open()
    store.prepare(LOGIC)
    output = store.shard(0, 1, 0, ()).write_output(SHARDS[0])
    fields = {"target": ["out", None, None], "letters": None, "columns": [f.name for f in LOGIC.output], **destination}
    first = first_commit(["transform"], [LOGIC], 1, START_US, "s").model_dump(mode="json")
    former = {k: v for k, v in first.items() if k not in ("targets", "letters_to", "reached")}
    staged_output = {k: v for k, v in output.model_dump(mode="json").items() if k != "stage"}
    update = {"epoch": 0, "output": [staged_output], "emitted": 2, "destination": fields}
    store.commit(Commit.model_validate({**former, **update}))
    store.close()


def start_epoch_driver(home: Path, target: Any) -> None:
    store = FilesStore(home, "law")
    run = build_single_stage_driver(
        build_pipeline(SESSION, ["a"]),
        LOGIC,
        store,
        target,
        LocalEngine(PolarsRowPreparer(LOGIC, ["a"])),
        DriverCallbacks(lambda: START_US),
    )
    try:
        run.start(store.open(), 1, {}, "s")
    finally:
        store.close()


@pytest.mark.parametrize("destination", [{"upserts": True}, {}])
def test_publishing_a_pending_epoch_deletes_superseded_rows_once(tmp_path: Path, destination: Any) -> None:
    commit_unpublished_epoch(tmp_path, **destination)
    target = RecordingTarget()
    start_epoch_driver(tmp_path, target)
    start_epoch_driver(tmp_path, target)
    assert target.epochs == [(0, [8], [300])]


def test_append_only_target_receives_superseded_rows_as_rows(tmp_path: Path) -> None:
    commit_unpublished_epoch(tmp_path / "state", upserts=False)
    target = FilesTarget(tmp_path / "out", "parquet", TargetTable("law", tuple(LOGIC.output), LOGIC.identity, "s"))
    for _ in range(2):
        start_epoch_driver(tmp_path / "state", target)
    assert pl.read_parquet(tmp_path / "out" / "*.parquet")["n"].to_list() == [8, None]


def test_target_cannot_stop_upserting_while_an_epoch_is_pending(tmp_path: Path) -> None:
    commit_unpublished_epoch(tmp_path, upserts=True)
    with pytest.raises(
        StartError, match=r"committed but not yet published, and the config has changed since \(upserts\)"
    ):
        start_epoch_driver(tmp_path, RecordingTarget(upserts=False))


def test_tombstone_key_equals_the_key_of_its_row_byte_for_byte() -> None:
    for keys in (None, ["session_id", "user"]):
        rows, gone = split_deletes(LOGIC, [staged_output((None, 300, 4, "close"))], upserts=True)
        _, gone = split_deletes(LOGIC, [staged_output((None, 300, None, "supersede"))], upserts=True)
        written = KafkaMessageEncoder(TargetTable("p", tuple(LOGIC.output), LOGIC.identity), key_columns=keys)
        (key, value, _), (gone_key, nothing, headers) = *written.messages(rows), *written.tombstones(gone)
        assert key == gone_key
        assert value is not None and nothing is None and headers == []


def test_only_kafka_targets_of_rows_with_an_identity_upsert() -> None:
    table, letters = TargetTable("p", tuple(LOGIC.output), LOGIC.identity), TargetTable("p", tuple(LOGIC.output), None)
    assert not ConsoleTarget.upserts and not FilesTarget.upserts
    assert KafkaTarget({}, "t", table).upserts
    assert not KafkaTarget({}, "t", table, key_columns=["user"], upserts=False).upserts
    assert not KafkaTarget({}, "t", letters).upserts
