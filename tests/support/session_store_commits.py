"""Commits and rows of one small session window, for tests of stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
from tests.support.single_stage_components import build_single_stage_commit

from slackwater.config.window import Aggregation, Window
from slackwater.core.schema import Field
from slackwater.state.commit import Commit
from slackwater.state.protocol import Snapshot
from slackwater.windows.aggregations import bind_aggregation
from slackwater.windows.compiled_session_window import CompiledSessionWindow
from slackwater.windows.state_layout import CLEAN, TOMBSTONE


def build_session_commit(epoch: int, **more: object) -> Commit:
    return build_single_stage_commit(epoch, **more)


KEY = Field("user", "string")
COUNT = Aggregation(agg="count", as_="n")
WINDOW = Window(kind="session", gap_ms=10, max_session_duration_ms=1000, group_by=["user"], aggregations=[COUNT])
LOGIC = CompiledSessionWindow("p", WINDOW, (KEY,), (bind_aggregation(COUNT, None),))


def build_open_session_rows(*users: str) -> pl.DataFrame:
    """Return one open session per user."""
    count = len(users)
    return pl.DataFrame(
        {
            "__h": list(range(count)), "__kh": list(range(count)), "__kind": [CLEAN] * count, "__start": [0] * count,
            "__last": [5] * count, "__due": [10_006] * count, "user": list(users), "n.n": [1] * count,
        },
        schema=LOGIC.state_schema,
    )  # fmt: skip


Make = Callable[[], Any]


def open_session_store(make: Make) -> Any:
    store = make()
    store.open()
    store.prepare(LOGIC)
    return store


def commit_sessions_of_users(store: Any, before: Commit | None, *users: str) -> Commit:
    """Commit an epoch after which exactly these users have a session."""
    epoch = before.epoch + 1 if before else 0
    metas = before.stages[0].segments[0] if before else ()
    shard = store.shard(0, 1, epoch, metas)
    old, new = shard.reader(LOGIC).scan(), build_open_session_rows(*users)
    gone = old.filter(~pl.col("__h").is_in(new["__h"].implode())).with_columns(
        pl.lit(TOMBSTONE, pl.Int8).alias("__kind")
    )
    metas = shard.stage(LOGIC, pl.concat([new, gone]).sort("__h"), old, -(1 << 62))
    done: Commit = store.commit(build_session_commit(epoch, segments=(metas,), windows=(len(users),)))
    store.collect_garbage()
    return done


def read_session_users(snapshot: Snapshot | None) -> list[str]:
    assert snapshot is not None
    return sorted(snapshot.reader(0, LOGIC).scan()["user"])
