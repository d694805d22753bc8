"""Migrate a state to a different shard count, emission mode or window, in a separate epoch.

    commit n        former rows ── read with the former window ─▶ converted ─▶ staged per new shard ─▶ commit n + 1
    old fingerprint                                                                                    new fingerprint

The old state stays unchanged until commit n + 1, and is not needed afterward. If the process dies during a migration,
the next start repeats it. `evolution.config_state_comparison` decides which changes are allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any

import polars as pl

from slackwater.core.hashing import shard_of
from slackwater.errors import raise_unregistered
from slackwater.evolution.pipeline_from_state import (
    described_window,
    read_earlier_settings,
    stored_emission,
    with_stored_accumulators,
)
from slackwater.joins import match_rows
from slackwater.joins.join_buffers import BufferChange
from slackwater.operators.base import NonWindowOperator, Operator
from slackwater.operators.interval_join import IntervalJoinOperator
from slackwater.operators.keyed_operator_base import KeyedOperator, StoredKeyedOperator
from slackwater.operators.reports import StageCounts
from slackwater.operators.stateless import StatelessOperator
from slackwater.operators.window_operator_base import WindowOperator
from slackwater.operators.window_operators import PaneWindowOperator, SessionWindowOperator
from slackwater.state.commit import SegmentMetadata, StageState
from slackwater.state.protocol import StateStore
from slackwater.windows import window_state_conversion
from slackwater.windows.compiled_session_window import count_open_sessions
from slackwater.windows.state_layout import EMITTED_FRAGMENT, FRAGMENT


@singledispatch
def operator_for_state(operator: Operator, state: StageState, migrated: bool) -> Operator:
    """Return the operator with the lasting effects of earlier configs that the state of its stage stores.

    `migrated`: whether the state is migrated for this operator.
    """
    raise_unregistered(operator, "slackwater.evolution.state_migration.operator_for_state")


@operator_for_state.register(WindowOperator)
def _(operator: WindowOperator, state: StageState, migrated: bool) -> Operator:
    if migrated:
        return operator.continue_from(_former_window(operator, state), state.watermark_us)
    return operator.with_earlier_settings(read_earlier_settings(state))


@operator_for_state.register(NonWindowOperator)
def _(operator: Operator, state: StageState, migrated: bool) -> Operator:
    return operator


def _former_window(operator: WindowOperator, state: StageState) -> WindowOperator:
    """Return the operator of the window that a state was written for, with the aggregations of `operator`.

    If the state does not describe a window, the window of `operator` is used. Raises ConfigError if the description
    cannot be read.
    """
    window, emission = described_window(state) or operator.window, stored_emission(state)
    wrote: dict[str, Any] = {
        "aggregations": operator.window.aggregations,
        "late_data": "reopen" if emission["retain_us"] else "drop",
        "allowed_lateness_ms": emission["retain_us"] // 1000,
        "emit": "updates" if emission["updates"] else "on_close",
    }
    former = replace(operator, window=window.model_copy(update=wrote))
    return former.with_earlier_settings(read_earlier_settings(state))


def _with_common_aggregations(former: WindowOperator, state: StageState) -> WindowOperator:
    """Return the former window with only the aggregations that state and config share, in the form of the state."""
    fingerprints = dict(state.fingerprint.get("aggregations", {}))
    aggs = with_stored_accumulators(former, state).aggs
    return replace(former, aggs=tuple(a for a in aggs if fingerprints.get(a.name) == a.fingerprint()))


@dataclass(frozen=True)
class StageMigration:
    """The migration of one stage.

    Args:
        operator: The operator that continues the stage.
        number: The index of the stage.
        epoch: The epoch of the migration.
        state: The stage in the latest commit.
        rows: The converted state rows; empty for joins and stages without state.
        before: The state rows before the conversion; empty for joins and stages without state.
        rewritten: Whether the conversion changed any row.
    """

    operator: Operator
    number: int
    epoch: int
    state: StageState
    rows: pl.DataFrame
    before: pl.DataFrame
    rewritten: bool

    def write_shards(self, store: StateStore, shards: int) -> StageState:
        """Stage the rows for this number of shards. Return the stage to commit, still with its previous description."""
        identity = {"fingerprint": self.operator.fingerprint, "emission": self.operator.emission}
        return self.state.model_copy(update=identity | _write_rows(self.operator, self, store, shards))


@singledispatch
def _write_rows(operator: Operator, migration: StageMigration, store: StateStore, shards: int) -> dict[str, Any]:
    """Write the migrated rows, split into this number of shards. Return the fields of the stage for the commit."""
    raise_unregistered(operator, "slackwater.evolution.state_migration._write_rows")


@_write_rows.register(WindowOperator)
def _(operator: WindowOperator, migration: StageMigration, store: StateStore, shards: int) -> dict[str, Any]:
    metas, parts = _replace_rows(operator, migration, store, shards)
    counts = _count_rows(operator, parts, migration.state.watermark_us)
    return {
        "waiting": _has_pending_output(operator, migration),
        "segments": metas,
        "groups": counts.groups,
        "windows": counts.windows,
        "panes": counts.panes,
        "holds": tuple(operator.find_shard_watermark_holds(rows) for rows in parts),
        **operator.earlier_settings,
    }


@_write_rows.register
def _(operator: KeyedOperator, migration: StageMigration, store: StateStore, shards: int) -> dict[str, Any]:
    metas, parts = _replace_rows(operator, migration, store, shards)
    counts = [operator.count_state(rows, migration.state.watermark_us) for rows in parts]
    groups, windows = (tuple(count[n] for count in counts) for n in (0, 1))
    return {"segments": metas, "groups": groups, "windows": windows, "holds": ((),) * shards}


@_write_rows.register
def _(operator: IntervalJoinOperator, migration: StageMigration, store: StateStore, shards: int) -> dict[str, Any]:
    return _no_counts(shards) | {"segments": _write_buffers(operator, migration, store, shards)}


@_write_rows.register
def _(operator: StatelessOperator, migration: StageMigration, store: StateStore, shards: int) -> dict[str, Any]:
    return _no_counts(shards) | {"segments": ((),) * shards}


def _no_counts(shards: int) -> dict[str, Any]:
    """Return the count fields of a stage for which a commit counts neither keys nor windows."""
    return {"groups": (0,) * shards, "windows": (0,) * shards, "holds": ((),) * shards}


def _replace_rows(
    operator: WindowOperator | KeyedOperator, migration: StageMigration, store: StateStore, shards: int
) -> tuple[tuple[tuple[SegmentMetadata, ...], ...], list[pl.DataFrame]]:
    """Stage the rows of each new shard. Return the segments and the rows of each shard."""
    owner, owned = (shard_of(f["__kh"].to_numpy(), shards) for f in (migration.rows, migration.before))
    metas, parts = [], []
    for shard in range(shards):
        rows = migration.rows.filter(pl.Series(owner == shard))
        before = migration.before.filter(pl.Series(owned == shard)) if migration.rewritten else None
        new_shard = store.shard(shard, shards, migration.epoch, (), migration.number)
        metas.append(new_shard.replace_rows(operator, rows, before))
        parts.append(rows)
    return tuple(metas), parts


@singledispatch
def _count_rows(operator: Operator, parts: Sequence[pl.DataFrame], watermark: int) -> StageCounts:
    """Count the open windows and their groups. `parts`: the state rows of each shard. `watermark`: in µs."""
    raise_unregistered(operator, "slackwater.evolution.state_migration._count_rows")


@_count_rows.register
def _(operator: PaneWindowOperator, parts: Sequence[pl.DataFrame], watermark: int) -> StageCounts:
    none, panes = (0,) * len(parts), dict[int, list[int]]()
    for shard, rows in enumerate(parts):
        for start, n in rows["__start"].value_counts().iter_rows():
            panes.setdefault(start, [*none])[shard] = n
    return StageCounts(none, none, {p: tuple(groups) for p, groups in panes.items()})


@_count_rows.register
def _(operator: SessionWindowOperator, parts: Sequence[pl.DataFrame], watermark: int) -> StageCounts:
    counts = [count_open_sessions(operator, rows, watermark) for rows in parts]
    return StageCounts(tuple(keys for keys, _ in counts), tuple(open_ for _, open_ in counts))


def _has_pending_output(operator: WindowOperator, migration: StageMigration) -> bool:
    """Return whether the next epoch must emit results even without new rows and with an unchanged watermark."""
    if operator.updates:
        return migration.state.waiting or (migration.rewritten and migration.rows.height > 0)
    fragments = migration.rows["__kind"].is_in([FRAGMENT, EMITTED_FRAGMENT])  # only sessions have fragments
    return bool((fragments & (migration.rows["__due"] <= migration.state.watermark_us)).any())


def _write_buffers(
    operator: IntervalJoinOperator, migration: StageMigration, store: StateStore, shards: int
) -> tuple[tuple[SegmentMetadata, ...], ...]:
    """Rewrite the join buffers for a different number of shards. Return the segments of each shard.

    Rows that have expired under the previous allowed lateness stay expired.
    """
    state, epoch = migration.state, migration.epoch
    gone = state.watermark_us - stored_emission(state)["retain_us"] + operator.allowed_us
    every: dict[int, pl.DataFrame] = {}
    for side in operator.sides:
        parts = [
            store.shard(shard, state.shards, epoch, metas, migration.number).buffers(operator).scan(side.which, gone)
            for shard, metas in enumerate(state.segments)
        ]
        every[side.which] = pl.concat(parts)
    segments = []
    for shard in range(shards):
        changes: dict[int, BufferChange] = {}
        for which, rows in every.items():
            shard_rows = rows.filter(pl.Series(shard_of(rows["__kh"].to_numpy(), shards) == shard))
            first = epoch * match_rows.NUMBERS
            numbers = pl.int_range(first, first + pl.len(), dtype=pl.Int64).alias("__id")
            changes[which] = BufferChange(shard_rows.sort("__kh", "__ts", "__id").with_columns(numbers))
        segments.append(store.shard(shard, shards, epoch, (), migration.number).replace_buffers(operator, changes))
    return tuple(segments)


@singledispatch
def read_stage_state(
    operator: Operator, store: StateStore, state: StageState, epoch: int, number: int
) -> StageMigration:
    """Read the entire state of a stage and convert it for `operator`. Nothing is written.

    Args:
        operator: The operator that continues the stage.
        store: The state store.
        state: The stage in the latest commit.
        epoch: The epoch of the migration.
        number: The index of the stage.
    """
    raise_unregistered(operator, "slackwater.evolution.state_migration.read_stage_state")


@read_stage_state.register(WindowOperator)
def _(operator: WindowOperator, store: StateStore, state: StageState, epoch: int, number: int) -> StageMigration:
    former = _former_window(operator, state)
    wrote = _with_common_aggregations(former, state)
    after = operator.continue_from(former, state.watermark_us)
    before = _scan_shards(wrote, store, state, epoch, number)
    rows = window_state_conversion.convert_window_state(former, after, before, state.watermark_us)
    before = operator.add_revision_columns(window_state_conversion.complete_accumulators(operator, before))
    before = before.select(operator.state_schema.keys())
    same = rows.height == before.height and rows.equals(before) and wrote.aggs == former.aggs
    return StageMigration(after, number, epoch, state, rows, before, rewritten=not same)


@read_stage_state.register
def _(operator: KeyedOperator, store: StateStore, state: StageState, epoch: int, number: int) -> StageMigration:
    """Read the rows with their stored columns. Added columns of state are NULL."""
    former = StoredKeyedOperator.from_state(operator.pipeline, state)
    stored = _scan_shards(former, store, state, epoch, number)
    added = {name: dtype for name, dtype in operator.state_schema.items() if name not in stored.columns}
    rows = stored.with_columns(pl.lit(None, dtype).alias(name) for name, dtype in added.items())
    rows = rows.select(list(operator.state_schema))
    return StageMigration(operator, number, epoch, state, rows, rows, rewritten=bool(added))


@read_stage_state.register(IntervalJoinOperator)
@read_stage_state.register(StatelessOperator)
def _(operator: Operator, store: StateStore, state: StageState, epoch: int, number: int) -> StageMigration:
    return StageMigration(operator, number, epoch, state, pl.DataFrame(), pl.DataFrame(), False)


def _scan_shards(
    former: WindowOperator | StoredKeyedOperator, store: StateStore, state: StageState, epoch: int, number: int
) -> pl.DataFrame:
    """Return all rows of a stage as `former` stored them, sorted by `__h`."""
    shards = (store.shard(shard, state.shards, epoch, metas, number) for shard, metas in enumerate(state.segments))
    return pl.concat([shard.reader(former).scan() for shard in shards]).sort("__h", maintain_order=True)


__all__ = ["StageMigration", "operator_for_state", "read_stage_state"]
