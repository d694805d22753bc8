"""Configs with published rows in their targets, for every kind of target."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.support import iceberg_tables
from tests.support.single_stage_components import build_single_stage_target

from slackwater.config import toml
from slackwater.connectors.target import TargetWriter
from slackwater.core.schema import Field
from slackwater.operators.registry import compile_window

CONFIG = """name = "p"
[connections.lake]
kind = "files"
[connections.out]
CONNECTION
[[sources]]
name = "clicks"
connection = "lake"
query = "in/*.jsonl"
format = "json"
schema = "user STRING, ts TIMESTAMP"
[transform.window]
kind = "tumbling"
duration_ms = "1m"
event_time_column = "ts"
group_by = ["user"]
max_groups_per_window = 10
[[transform.window.aggregations]]
agg = "count"
as = "n"
[target]
connection = "out"
PLACE
[state_store]
kind = "files"
path = "HOME/state"
"""
PLACES = ("parquet", "json", "csv", "delta", "delta append", "iceberg", "iceberg append", "postgres", "kafka")
NINE = dt.datetime(2024, 3, 1, 9, tzinfo=dt.UTC)
Row = tuple[int, str | None, int]  # minute, user, n


class ShowCommandTarget:
    """Config, and the target that the runner of this config publishes to."""

    def __init__(self, file: Path, ready: Callable[[], None]) -> None:
        self.file, self.pipeline, self._ready = file, toml.load(file), ready
        self.logic = compile_window(self.pipeline, {"user": Field("user", "string")})
        self.state_id, self.epoch = uuid.uuid4().hex, 0
        self._target: TargetWriter | None = None

    def publish(self, *rows: Row, gone: Sequence[Row] = ()) -> None:
        if self._target is None:
            self._ready()
            self._target = build_single_stage_target(self.pipeline, self.logic, self.state_id)
            self._target.open()
        assert self._target is not None
        self._target.publish(self.epoch, self._to_frame(rows), self._to_frame(gone) if gone else None)
        self.epoch += 1

    def close(self) -> None:
        if self._target is not None:
            self._target.close()

    def _to_frame(self, rows: Sequence[Row]) -> pl.DataFrame:
        def whole(minute: int, user: str | None, n: int) -> dict[str, Any]:
            start = NINE + dt.timedelta(minutes=minute)
            columns = {"user": user, "n": n, "window_start": start, "window_end": start + dt.timedelta(minutes=1)}
            return {f.name: columns.get(f.name) for f in self.logic.output}

        return pl.DataFrame([whole(*r) for r in rows], schema={f.name: f.polars for f in self.logic.output})


@pytest.fixture
def show_command_target_factory(
    tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[[str], ShowCommandTarget]]:
    places: list[ShowCommandTarget] = []

    def make(place: str) -> ShowCommandTarget:
        ready: Callable[[], None] = lambda: None  # noqa: E731
        path = f'path = "{tmp_path}/out"'
        if place.startswith("delta"):
            connection, where = 'kind = "delta"', path + ('\nmode = "append"' if "append" in place else "")
        elif place.startswith("iceberg"):
            connection = iceberg_tables.sql_catalog_connection(tmp_path)
            where = 'table = "shop.clicks"' + ('\nmode = "append"' if "append" in place else "")
        elif place == "postgres":
            url = request.getfixturevalue("postgres").database(f"show{uuid.uuid4().hex[:8]}")
            connection, where = f'kind = "postgres"\nurl = "{url}"', 'table = "clicks"'
        elif place == "kafka":
            broker, topic = request.getfixturevalue("kafka"), f"show{uuid.uuid4().hex[:8]}"
            ready = lambda: broker.create(topic, 2)  # noqa: E731
            connection, where = f'kind = "kafka"\nbootstrap_servers = "{broker.address}"', f'topic = "{topic}"'
        elif place == "console":
            connection, where = 'kind = "console"', ""
        else:
            connection, where = 'kind = "files"', f'{path}\nformat = "{place}"'
        file = tmp_path / "p.toml"
        text = CONFIG.replace("CONNECTION", connection).replace("PLACE", where).replace("HOME", str(tmp_path))
        file.write_text(text)
        places.append(ShowCommandTarget(file, ready))
        return places[-1]

    yield make
    for one in places:
        one.close()
