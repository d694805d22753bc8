"""Starting from what a store holds: does it fit this pipeline, and how does it become this pipeline's state."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from slackwater.config.data import as_data
from slackwater.config.step import Step
from slackwater.core.hashing import shard_of
from slackwater.engine import joining
from slackwater.errors import StartError, StateError
from slackwater.joins.logic import JoinLogic
from slackwater.state.protocol import Manifest, SourceRecord, StateStore
from slackwater.windows import sessions
from slackwater.windows.family import family
from slackwater.windows.logic import Logic


def fingerprint(logic: Logic | JoinLogic) -> dict[str, Any]:
    """What a state depends on; a change of any of it needs a new state. Readable, part of every manifest."""
    if isinstance(logic, JoinLogic):
        return joining.fingerprint(logic)
    w = logic.window
    return {
        "kind": w.kind,
        "duration_ms": w.duration_ms,
        "hop_ms": w.hop_ms,
        "offset_ms": w.offset_ms,
        "gap_ms": w.gap_ms,
        "max_session_duration_ms": w.max_session_duration_ms,
        "keys": [f"{k.name} {k.type}" for k in logic.keys],  # in order: it is part of the hash
        "aggregations": {a.name: a.fingerprint() for a in logic.aggs},
    }


def emission(logic: Logic | JoinLogic) -> dict[str, Any]:
    """How results are emitted, as far as the state shows it; a change of it needs no new state, but `reshard`."""
    if isinstance(logic, JoinLogic):
        return joining.emission(logic)
    return {"updates": logic.updates, "retain_us": logic.retain_us}


def emission_of(manifest: Manifest) -> dict[str, Any]:
    """How the windows of a state were emitted."""
    return {"updates": False, "retain_us": 0} | dict(manifest.emission)


def described(step: Step, logic: Logic | JoinLogic) -> dict[str, Any]:
    """The window with the types of its columns, from which `bind_window` makes the same logic; empty for what it cannot tell.

    Part of every manifest, so that a state can be read without a config.
    """
    window = None if isinstance(logic, JoinLogic) else as_data(step)
    if window is None or isinstance(logic, JoinLogic):
        return {}
    columns = {f.name: f.type for f in (*logic.keys, *(i.source for i in logic.inputs))}
    return {"window": window, "columns": columns}


def check_fingerprints(logics: Sequence[Logic | JoinLogic], manifest: Manifest) -> None:
    """The same for every stage; also if the state has more or fewer of them."""
    stages = manifest.stages
    if len(stages) != len(logics):
        raise StateError(
            f"{logics[0].pipeline}: the state in epoch {manifest.epoch} has {len(stages)} stages, the config {len(logics)}; "
            "change the config back, or give the pipeline a new name or state path to start over"
        )
    for logic, stage in zip(logics, stages, strict=True):
        check_fingerprint(logic, stage)


def check_fingerprint(logic: Logic | JoinLogic, manifest: Manifest) -> None:
    """Raise StateError, naming what changed, if the state was written for another window."""
    new, old = fingerprint(logic), dict(manifest.fingerprint)
    changed = [
        f"{name}: state has {old.get(name)!r}, config has {value!r}"
        for name, value in new.items()
        if old.get(name) != value
    ]
    if changed:
        raise StateError(
            f"{logic.pipeline}: the state in epoch {manifest.epoch} was written for another {'join' if isinstance(logic, JoinLogic) else 'window'} ({'; '.join(changed)}); "
            "change the config back, or give the pipeline a new name or state path to start over"
        )


def first_manifest(logics: Sequence[Logic | JoinLogic], shards: int, clock_us: int, state_id: str = "") -> Manifest:
    """The state before the first epoch, of all stages; never committed itself."""
    logic, *more = logics
    return Manifest(
        pipeline=logic.pipeline,
        state_id=state_id,
        epoch=-1,
        fingerprint=fingerprint(logic),
        emission=emission(logic),
        committed_us=clock_us,
        shards=shards,
        segments=((),) * shards,
        groups=(0,) * shards,
        windows=(0,) * shards,
        then=first_manifest(more, shards, clock_us, state_id) if more else None,
    )


def with_descriptions(manifest: Manifest, found: Sequence[Mapping[str, Any]]) -> Manifest:
    """The state with what its stages are, as this config has them."""
    mine, *more = found
    then = manifest.then and with_descriptions(manifest.then, more)
    return manifest.model_copy(update={"described": mine, "then": then})


def with_sources(manifest: Manifest, names: Sequence[str], schemas: Mapping[str, str]) -> Manifest:
    """The state with the sources of this config: new ones begin, removed ones are forgotten (so is their offset)."""
    return manifest.model_copy(
        update={
            "sources": {n: manifest.sources.get(n, SourceRecord()) for n in names},
            "schemas": dict(schemas),
        }
    )


def reshard(
    logic: Logic | JoinLogic, store: StateStore, manifest: Manifest, shards: int, clock_us: int, stage: int = 0
) -> Manifest:
    """The same state as an epoch of its own, spread over another number of shards, or for another way to emit it."""
    changed = {"epoch": manifest.epoch + 1, "emission": emission(logic), "committed_us": clock_us, "shards": shards}
    changed |= {"output": (), "letters": (), "emitted": 0}
    if isinstance(logic, JoinLogic):
        segments = joining.reshard(logic, store, manifest, shards, emission_of(manifest)["retain_us"], stage)
        none = (0,) * shards
        return manifest.model_copy(update={**changed, "segments": segments, "groups": none, "windows": none})
    return manifest.model_copy(update={**changed, **_resharded(logic, store, manifest, shards, stage)})


def _resharded(logic: Logic, store: StateStore, manifest: Manifest, shards: int, stage: int) -> dict[str, Any]:
    """What becomes of the state of windows."""
    kind, epoch, watermark = family(logic), manifest.epoch + 1, manifest.watermark_us
    everything = pl.concat(
        [
            store.shard(shard, manifest.shards, epoch, metas, stage).reader(logic).scan()
            for shard, metas in enumerate(manifest.segments)
        ]
    )
    former = emission_of(manifest)
    everything = kind.forget(logic, kind.renewed(logic, everything, former["updates"]), watermark)
    rewritten = not logic.is_session and former != emission(logic)  # sessions say themselves what was emitted of them
    owner = pl.Series(shard_of(everything["__kh"].to_numpy(), shards))
    metas, groups, windows = [], [], []
    panes: dict[int, list[int]] = {}
    for shard in range(shards):
        rows = everything.filter(owner == shard).sort("__h", maintain_order=True)
        metas.append(store.shard(shard, shards, epoch, (), stage).adopt(logic, rows, rewritten))
        keys, open_ = sessions.open_groups(logic, rows, watermark) if logic.is_session else (0, 0)
        groups.append(keys)
        windows.append(open_)
        if not logic.is_session:
            for start, n in rows["__start"].value_counts().iter_rows():
                panes.setdefault(start, [0] * shards)[shard] = n
    return {
        "waiting": logic.updates and not former["updates"],
        "segments": tuple(metas),
        "groups": tuple(groups),
        "windows": tuple(windows),
        "panes": {p: tuple(g) for p, g in panes.items()},
    }


def check_schema(source: str, before: str | None, now: str) -> list[str]:
    """Compare a source's columns (Spark's JSON) with those it was first read with.

    Raises StartError for a missing or changed column, by name; returns warnings about new ones.
    """
    if before is None:
        return []
    old, new = _types(before), _types(now)
    wrong = [f'"{c}" is {new.get(c, "missing")}, was {t}' for c, t in old.items() if new.get(c) != t]
    if wrong:
        raise StartError(
            f'source "{source}": its columns changed since the first start: {"; ".join(wrong)}; restore them in the schema'
        )
    added = [c for c in new if c not in old]
    return [f'source "{source}": columns that are new since the first start: {", ".join(added)}'] if added else []


def _types(schema: str) -> dict[str, str]:
    return {
        f["name"]: json.dumps(f["type"]) if isinstance(f["type"], dict) else f["type"]
        for f in json.loads(schema)["fields"]
    }
