"""The state of one config as that of the next, in an epoch of its own: other shards, another way to emit, a changed window.

    commit n        former rows ── read with the former window ─▶ carried ─▶ staged per new shard ─▶ commit n + 1
    old fingerprint                                                                                  new fingerprint

Before that commit nothing of the former state is touched, after it nothing of it is needed: a start that dies in between
does the same again, or finds it done. What may change is said by `evolution.compare`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any

import polars as pl

from slackwater.config.data import from_data
from slackwater.config.window import Window
from slackwater.core.dispatch import unregistered
from slackwater.core.hashing import shard_of
from slackwater.evolution import restore
from slackwater.joins import step
from slackwater.joins.buffer import Change
from slackwater.operators.base import Figures, Operator
from slackwater.operators.interval_join import IntervalJoin
from slackwater.operators.panes import Panes
from slackwater.operators.sessions import Sessions
from slackwater.operators.windowed import Windowed
from slackwater.state.protocol import Manifest, SegmentMeta, StateStore
from slackwater.windows import changed, sessions
from slackwater.windows.logic import LOOSE, LOOSE_TOLD


def memory_of(manifest: Manifest) -> dict[str, Any]:
    """What a state knows of former configs."""
    return {"gone_us": manifest.gone_us, "rows_from_us": manifest.rows_from_us, "revised": manifest.revised}


@singledispatch
def limited(operator: Operator, manifest: Manifest) -> Operator:
    """The operator with what a state remembers of former configs."""
    unregistered(operator, "slackwater.evolution.migrate.limited")


@limited.register(Windowed)
def _(operator: Windowed, manifest: Manifest) -> Operator:
    return operator.remembering(memory_of(manifest))


@limited.register
def _(operator: IntervalJoin, manifest: Manifest) -> Operator:
    return operator


@singledispatch
def onward(operator: Operator, manifest: Manifest) -> Operator:
    """The operator as it goes on from a state that is to be carried over to it."""
    unregistered(operator, "slackwater.evolution.migrate.onward")


@onward.register(Windowed)
def _(operator: Windowed, manifest: Manifest) -> Operator:
    return operator.after(former_of(operator, manifest), manifest.watermark_us)


@onward.register
def _(operator: IntervalJoin, manifest: Manifest) -> Operator:
    return operator


def former_of(operator: Windowed, manifest: Manifest) -> Windowed:
    """The window that a state was written for, with the aggregations of this one; the same one where the state does not tell.

    Raises ConfigError for a description that cannot be read.
    """
    window, emission = described_window(manifest) or operator.window, restore.emission_of(manifest)
    wrote: dict[str, Any] = {
        "aggregations": operator.window.aggregations,
        "late_data": "reopen" if emission["retain_us"] else "drop",
        "allowed_lateness_ms": emission["retain_us"] // 1000,
        "emit": "updates" if emission["updates"] else "on_close",
    }
    former = replace(operator, window=window.model_copy(update=wrote))
    return former.remembering(memory_of(manifest))


def described_window(manifest: Manifest) -> Window | None:
    """The window that a state describes, but for its aggregations, whose classes may be gone; None where it describes none."""
    if "window" not in manifest.described:
        return None
    data = {**manifest.described["window"], "aggregations": [{"agg": "count", "as": "__"}]}
    return from_data(Window, data, f"state of {manifest.pipeline}")


def reading(former: Windowed, manifest: Manifest) -> Windowed:
    """The former window with those aggregations only that are in the state and in the config."""
    kept = dict(manifest.fingerprint.get("aggregations", {}))
    return replace(former, aggs=tuple(a for a in former.aggs if kept.get(a.name) == a.fingerprint()))


@dataclass(frozen=True)
class Carrying:
    """One stage on its way from a commit to the next: `rows` and `before` as `read` found them, None for a join."""

    logic: Operator
    stage: int
    manifest: Manifest
    rows: pl.DataFrame
    before: pl.DataFrame
    rewritten: bool

    def manifest_of(self, store: StateStore, shards: int, clock_us: int) -> Manifest:
        """Stage the rows for these shards; the commit to make of it, without its description."""
        logic, epoch = self.logic, self.manifest.epoch + 1
        update: dict[str, Any] = {
            "epoch": epoch,
            "fingerprint": restore.fingerprint(logic),
            "emission": restore.emission(logic),
            "committed_us": clock_us,
            "shards": shards,
            "output": (),
            "letters": (),
            "emitted": 0,
        }
        return self.manifest.model_copy(update=update | _spread(logic, self, store, shards))


@singledispatch
def _spread(operator: Operator, found: Carrying, store: StateStore, shards: int) -> dict[str, Any]:
    """Stage the rows for these shards; what the commit says of them."""
    unregistered(operator, "slackwater.evolution.migrate.Carrying")


@_spread.register(Windowed)
def _(operator: Windowed, found: Carrying, store: StateStore, shards: int) -> dict[str, Any]:
    epoch = found.manifest.epoch + 1
    owner, owned = (shard_of(f["__kh"].to_numpy(), shards) for f in (found.rows, found.before))
    metas, parts = [], []
    for shard in range(shards):
        rows = found.rows.filter(pl.Series(owner == shard))
        before = found.before.filter(pl.Series(owned == shard)) if found.rewritten else None
        metas.append(store.shard(shard, shards, epoch, (), found.stage).adopt(operator, rows, before))
        parts.append(rows)
    figures = _figures(operator, parts, found.manifest.watermark_us)
    return {
        "waiting": _waits(operator, found),
        "segments": tuple(metas),
        "groups": figures.groups,
        "windows": figures.windows,
        "panes": figures.panes,
        **operator.memory,
    }


@_spread.register
def _(operator: IntervalJoin, found: Carrying, store: StateStore, shards: int) -> dict[str, Any]:
    none = (0,) * shards
    return {"segments": _buffered(operator, found, store, shards), "groups": none, "windows": none}


@singledispatch
def _figures(operator: Operator, parts: Sequence[pl.DataFrame], watermark: int) -> Figures:
    """What the commit counts of the rows of each shard."""
    unregistered(operator, "slackwater.evolution.migrate.Carrying")


@_figures.register
def _(operator: Panes, parts: Sequence[pl.DataFrame], watermark: int) -> Figures:
    none, panes = (0,) * len(parts), dict[int, list[int]]()
    for shard, rows in enumerate(parts):
        for start, n in rows["__start"].value_counts().iter_rows():
            panes.setdefault(start, [*none])[shard] = n
    return Figures(none, none, {p: tuple(groups) for p, groups in panes.items()})


@_figures.register
def _(operator: Sessions, parts: Sequence[pl.DataFrame], watermark: int) -> Figures:
    counts = [sessions.open_groups(operator, rows, watermark) for rows in parts]
    return Figures(tuple(keys for keys, _ in counts), tuple(open_ for _, open_ in counts))


def _waits(operator: Windowed, found: Carrying) -> bool:
    """Whether something is to be emitted though neither a row comes nor the watermark moves."""
    if operator.updates:
        return found.manifest.waiting or (found.rewritten and found.rows.height > 0)
    pieces = found.rows["__kind"].is_in([LOOSE, LOOSE_TOLD])  # of sessions: no pane is one here
    return bool((pieces & (found.rows["__due"] <= found.manifest.watermark_us)).any())


def _buffered(
    operator: IntervalJoin, found: Carrying, store: StateStore, shards: int
) -> tuple[tuple[SegmentMeta, ...], ...]:
    """The segments per shard of the same buffers, spread over another number of shards.

    What had expired by the lateness that was allowed so far stays expired.
    """
    manifest, epoch = found.manifest, found.manifest.epoch + 1
    gone = manifest.watermark_us - restore.emission_of(manifest)["retain_us"] + operator.allowed_us
    every: dict[int, pl.DataFrame] = {}
    for side in operator.sides:
        parts = [
            store.shard(shard, manifest.shards, epoch, metas, found.stage).buffers(operator).scan(side.which, gone)
            for shard, metas in enumerate(manifest.segments)
        ]
        every[side.which] = pl.concat(parts)
    segments = []
    for shard in range(shards):
        changes: dict[int, Change] = {}
        for which, rows in every.items():
            mine = rows.filter(pl.Series(shard_of(rows["__kh"].to_numpy(), shards) == shard))
            mine = mine.sort("__kh", "__ts", "__id")
            first = epoch * step.NUMBERS
            changes[which] = Change(
                mine.with_columns(pl.int_range(first, first + pl.len(), dtype=pl.Int64).alias("__id"))
            )
        segments.append(store.shard(shard, shards, epoch, (), found.stage).adopt_buffers(operator, changes))
    return tuple(segments)


@singledispatch
def read(operator: Operator, store: StateStore, manifest: Manifest, stage: int) -> Carrying:
    """The whole state of a stage, as this operator goes on with it. Changes nothing."""
    unregistered(operator, "slackwater.evolution.migrate.read")


@read.register(Windowed)
def _(operator: Windowed, store: StateStore, manifest: Manifest, stage: int) -> Carrying:
    former = former_of(operator, manifest)
    wrote = reading(former, manifest)
    after = operator.after(former, manifest.watermark_us)
    before = pl.concat(
        [
            store.shard(shard, manifest.shards, manifest.epoch + 1, metas, stage).reader(wrote).scan()
            for shard, metas in enumerate(manifest.segments)
        ]
    ).sort("__h", maintain_order=True)
    rows = changed.carried(former, after, before, manifest.watermark_us)
    before = operator.unrevised(changed.begun(operator, before)).select(operator.state_schema.keys())
    same = rows.height == before.height and rows.equals(before) and wrote.aggs == former.aggs
    return Carrying(after, stage, manifest, rows, before, rewritten=not same)


@read.register
def _(operator: IntervalJoin, store: StateStore, manifest: Manifest, stage: int) -> Carrying:
    return Carrying(operator, stage, manifest, pl.DataFrame(), pl.DataFrame(), False)


__all__ = ["Carrying", "described_window", "former_of", "limited", "memory_of", "onward", "read", "reading"]
