"""The state of one config as that of the next, in an epoch of its own: other shards, another way to emit, a changed window.

    commit n        former rows ── read with the former window ─▶ carried ─▶ staged per new shard ─▶ commit n + 1
    old fingerprint                                                                                  new fingerprint

Before that commit nothing of the former state is touched, after it nothing of it is needed: a start that dies in between
does the same again, or finds it done. What may change is said by `evolution.compare`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from slackwater.config.data import from_data
from slackwater.config.window import Window
from slackwater.core.hashing import shard_of
from slackwater.evolution import restore
from slackwater.joins.logic import JoinLogic
from slackwater.operators import interval_join
from slackwater.operators.base import Step
from slackwater.state.protocol import Manifest, StateStore
from slackwater.windows import changed, sessions
from slackwater.windows.logic import LOOSE, LOOSE_TOLD, Logic


def limited(logic: Step, manifest: Manifest) -> Step:
    """The logic with what a state remembers of former configs."""
    if isinstance(logic, JoinLogic):
        return logic
    return replace(logic, gone_us=manifest.gone_us, rows_from_us=manifest.rows_from_us, revised=manifest.revised)


def onward(logic: Step, manifest: Manifest) -> Step:
    """The logic as it goes on from a state that is to be carried over to it."""
    if isinstance(logic, JoinLogic):
        return logic
    return changed.remembering(former_of(logic, manifest), logic, manifest.watermark_us)


def former_of(logic: Logic, manifest: Manifest) -> Logic:
    """The window that a state was written for, with the aggregations of `logic`; the same one where the state does not tell.

    Raises ConfigError for a description that cannot be read.
    """
    window, emission = described_window(manifest) or logic.window, restore.emission_of(manifest)
    wrote: dict[str, Any] = {
        "aggregations": logic.window.aggregations,
        "late_data": "reopen" if emission["retain_us"] else "drop",
        "allowed_lateness_ms": emission["retain_us"] // 1000,
        "emit": "updates" if emission["updates"] else "on_close",
    }
    made = limited(replace(logic, window=window.model_copy(update=wrote)), manifest)
    assert isinstance(made, Logic)
    return made


def described_window(manifest: Manifest) -> Window | None:
    """The window that a state describes, but for its aggregations, whose classes may be gone; None where it describes none."""
    if "window" not in manifest.described:
        return None
    data = {**manifest.described["window"], "aggregations": [{"agg": "count", "as": "__"}]}
    return from_data(Window, data, f"state of {manifest.pipeline}")


def reading(former: Logic, manifest: Manifest) -> Logic:
    """The former window with those aggregations only that are in the state and in the config."""
    kept = dict(manifest.fingerprint.get("aggregations", {}))
    return replace(former, aggs=tuple(a for a in former.aggs if kept.get(a.name) == a.fingerprint()))


@dataclass(frozen=True)
class Carrying:
    """One stage on its way from a commit to the next: `rows` and `before` as `read` found them, None for a join."""

    logic: Step
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
        if isinstance(logic, JoinLogic):
            before_us = restore.emission_of(self.manifest)["retain_us"]
            none = (0,) * shards
            update["segments"] = interval_join.reshard(logic, store, self.manifest, shards, before_us, self.stage)
            update |= {"groups": none, "windows": none}
        else:
            update |= self._spread(logic, store, shards) | {
                "gone_us": logic.gone_us,
                "rows_from_us": logic.rows_from_us,
            }
        return self.manifest.model_copy(update=update)

    def _spread(self, logic: Logic, store: StateStore, shards: int) -> dict[str, Any]:
        watermark, epoch = self.manifest.watermark_us, self.manifest.epoch + 1
        owner, owned = (shard_of(f["__kh"].to_numpy(), shards) for f in (self.rows, self.before))
        metas, groups, windows = [], [], []
        panes: dict[int, list[int]] = {}
        for shard in range(shards):
            rows = self.rows.filter(pl.Series(owner == shard))
            before = self.before.filter(pl.Series(owned == shard)) if self.rewritten else None
            metas.append(store.shard(shard, shards, epoch, (), self.stage).adopt(logic, rows, before))
            keys, open_ = sessions.open_groups(logic, rows, watermark) if logic.is_session else (0, 0)
            groups.append(keys)
            windows.append(open_)
            if not logic.is_session:
                for start, n in rows["__start"].value_counts().iter_rows():
                    panes.setdefault(start, [0] * shards)[shard] = n
        return {
            "waiting": self._waits(logic, watermark),
            "segments": tuple(metas),
            "groups": tuple(groups),
            "windows": tuple(windows),
            "panes": {p: tuple(g) for p, g in panes.items()},
        }

    def _waits(self, logic: Logic, watermark: int) -> bool:
        """Whether something is to be emitted though neither a row comes nor the watermark moves."""
        if logic.updates:
            return self.manifest.waiting or (self.rewritten and self.rows.height > 0)
        behind = self.rows["__kind"].is_in([LOOSE, LOOSE_TOLD]) & (self.rows["__due"] <= watermark)
        return logic.is_session and bool(behind.any())


def read(logic: Step, store: StateStore, manifest: Manifest, stage: int) -> Carrying:
    """The whole state of a stage, as `logic` goes on with it. Changes nothing."""
    if isinstance(logic, JoinLogic):
        return Carrying(logic, stage, manifest, pl.DataFrame(), pl.DataFrame(), False)
    former = former_of(logic, manifest)
    wrote = reading(former, manifest)
    after = changed.remembering(former, logic, manifest.watermark_us)
    before = pl.concat(
        [
            store.shard(shard, manifest.shards, manifest.epoch + 1, metas, stage).reader(wrote).scan()
            for shard, metas in enumerate(manifest.segments)
        ]
    ).sort("__h", maintain_order=True)
    rows = changed.carried(former, after, before, manifest.watermark_us)
    before = logic.unrevised(changed.begun(logic, before)).select(logic.state_schema.keys())
    same = rows.height == before.height and rows.equals(before) and wrote.aggs == former.aggs
    return Carrying(after, stage, manifest, rows, before, rewritten=not same)


__all__ = ["Carrying", "described_window", "former_of", "limited", "onward", "read", "reading"]
