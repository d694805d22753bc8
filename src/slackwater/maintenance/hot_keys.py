"""The largest keys of a state: those with the most rows, and those whose windows counted the most events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import polars as pl

from slackwater.errors import raise_unregistered
from slackwater.evolution.operator_from_state import restore_operator
from slackwater.operators.base import Operator
from slackwater.operators.interval_join import IntervalJoinOperator
from slackwater.operators.keyed import KeyedOperator
from slackwater.operators.stateless import StatelessOperator
from slackwater.operators.window_base import WindowOperator
from slackwater.query.state_inspection import to_plain_key
from slackwater.state.protocol import Snapshot, StateStore
from slackwater.windows.state_rows import OPEN


@dataclass(frozen=True)
class HotKey:
    """A key in the state of a stage. Stages are numbered from 0.

    `events`: how many events its open and retained windows counted in total; None if no aggregation counts rows.
    """

    stage: int
    side: str  # "left" or "right" for a join, otherwise empty
    key: dict[str, Any]
    rows: int
    events: int | None


def find_hot_keys(store: StateStore, snapshot: Snapshot, count: int) -> list[HotKey]:
    """Return the `count` keys with the most rows, then the `count` keys with the most events, without repetitions.

    Raises StateError if the state does not describe the operator of a stage.
    """
    candidates = list[HotKey]()
    for number in range(len(snapshot.commit.stages)):
        for key in _keys(store, snapshot, number, count):
            candidates += [] if key in candidates else [key]
    by_rows = sorted(candidates, key=lambda k: -k.rows)[:count]
    by_events = sorted((k for k in candidates if k.events), key=lambda k: -(k.events or 0))[:count]
    return by_rows + [k for k in by_events if k not in by_rows]


def _keys(store: StateStore, snapshot: Snapshot, number: int, count: int) -> Iterator[HotKey]:
    """Yield the largest keys in each shard of a stage. A key belongs to exactly one shard."""
    step = restore_operator(snapshot.commit, number)
    for shard in range(snapshot.commit.shards):
        yield from _shard_keys(step, store, snapshot, number, shard, count)


@singledispatch
def _shard_keys(
    operator: Operator, store: StateStore, snapshot: Snapshot, number: int, shard: int, count: int
) -> Iterator[HotKey]:
    raise_unregistered(operator, "slackwater.maintenance.hot_keys")


@_shard_keys.register(WindowOperator)
def _(
    logic: WindowOperator, store: StateStore, snapshot: Snapshot, number: int, shard: int, count: int
) -> Iterator[HotKey]:
    rows = snapshot.reader(shard, logic, number).scan()
    counter = next((a for a in logic.aggs if a.spec.agg == "count" and not a.columns), None)
    events = pl.lit(None, pl.Int64)
    if counter is not None:
        events = pl.col(counter.part("n")).filter(pl.col("__kind").is_in(OPEN)).sum()
    grouped = rows.group_by(logic.key_names or ["__kh"]).agg(pl.len().alias("__rows"), events.alias("__events"))
    for by in ("__rows", *(["__events"] if counter is not None else [])):
        for row in grouped.top_k(count, by=by).iter_rows(named=True):
            yield HotKey(number, "", to_plain_key(row, logic.key_names), row["__rows"], row["__events"])


@_shard_keys.register
def _(
    logic: IntervalJoinOperator, store: StateStore, snapshot: Snapshot, number: int, shard: int, count: int
) -> Iterator[HotKey]:
    state, epoch = snapshot.commit.stages[number], snapshot.commit.epoch
    buffers = store.shard(shard, state.shards, epoch, state.segments[shard], number).buffers(logic)
    for side in logic.sides:
        names = [k.name for k in side.keys]
        rows = buffers.scan(side.which, state.watermark_us)
        for row in rows.group_by(names).agg(pl.len().alias("__rows")).top_k(count, by="__rows").iter_rows(named=True):
            yield HotKey(number, side.name, to_plain_key(row, names), row["__rows"], None)


@_shard_keys.register
def _(
    logic: KeyedOperator, store: StateStore, snapshot: Snapshot, number: int, shard: int, count: int
) -> Iterator[HotKey]:
    """Yield the keys with the most rows of state. Among keys with equally many rows, prefer those with later rows."""
    rows = logic.drop_expired(snapshot.reader(shard, logic, number).scan(), snapshot.commit.stages[number].watermark_us)
    grouped = rows.group_by(logic.key_names).agg(pl.len().alias("__rows"), pl.col("__last").max())
    for row in grouped.top_k(count, by=["__rows", "__last"]).iter_rows(named=True):
        yield HotKey(number, "", to_plain_key(row, logic.key_names), row["__rows"], None)


@_shard_keys.register
def _(
    logic: StatelessOperator, store: StateStore, snapshot: Snapshot, number: int, shard: int, count: int
) -> Iterator[HotKey]:
    yield from ()
