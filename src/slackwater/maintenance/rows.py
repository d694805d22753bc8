"""Whether state rows are what their window or join makes of them. Each check says what is wrong, with a count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from slackwater.core.arrays import Int64s
from slackwater.core.hashing import key_hash, mix, shard_of
from slackwater.core.schema import Field
from slackwater.core.words import plural
from slackwater.evolution import restore
from slackwater.joins.buffer import places
from slackwater.joins.logic import JoinLogic, Side
from slackwater.state.files.buffers import meta_of
from slackwater.state.protocol import Manifest, SegmentMeta
from slackwater.windows import panes, sessions
from slackwater.windows.family import family
from slackwater.windows.logic import (
    DEAD,
    FLOOR,
    HIDDEN,
    LOOSE,
    LOOSE_TOLD,
    REVISED,
    SETTLED,
    TOLD,
    Logic,
)

_OF_SESSIONS, _OF_PANES = (SETTLED, LOOSE, FLOOR, DEAD, TOLD, LOOSE_TOLD), (SETTLED, LOOSE, DEAD)


def of_window(logic: Logic, rows: pl.DataFrame, shard: int, shards: int, exact: bool = True) -> Iterator[str]:
    """What is wrong with rows of one shard of a window, in the order of their file.

    `exact`: they were written for this way to emit; else only what does not depend on it is looked at.
    """
    wanted = {c: t for c, t in logic.state_schema.items() if exact or c not in REVISED}
    misfits = list(_misfits(rows, wanted))
    yield from misfits
    if misfits:
        return
    h, kh, kind, start, last, due = (rows[c].to_numpy() for c in HIDDEN)
    yield from _hashed(rows, logic.keys, logic.keys, shard, shards)
    yield from _counted(h[1:] < h[:-1], "not in the order of their units")
    yield from _counted(h != (kh if logic.is_session else mix(kh, start)), "in the unit of another key or pane")
    known = np.isin(kind, _OF_SESSIONS if logic.is_session else _OF_PANES)
    yield from _counted(~known, "of an unknown kind")
    alive = known & (kind != DEAD)
    yield from _counted(alive & (start > last), "that end before they start")
    if not logic.is_session:
        yield from _counted(alive & (start != panes.pane_start(logic, start)), "that start where no pane does")
        if exact:
            yield from _counted(alive & (due != panes.due(logic, start)), "that are due when their pane is not")
        return
    end = rows["__end"].to_numpy() if logic.dynamic else last + logic.gap_us
    yield from _counted(alive & (end < last), "whose gap ends before their last event")
    whole, floor, loose = np.isin(kind, (SETTLED, TOLD)), kind == FLOOR, np.isin(kind, (LOOSE, LOOSE_TOLD))
    late = (loose & (due > end + 1)) | (whole & (due != end + 1)) | (floor & (due != end + logic.reach_us + 1))
    yield from _counted(late, "that are due when their gap is not over")


def misdescribed(step: Logic | JoinLogic | None, manifest: Manifest) -> str:
    """What is wrong with what a stage says of itself; empty for nothing, and where it cannot be told (`step`: as it is described)."""
    if not isinstance(step, Logic):
        return ""
    wrote, found = dict(manifest.fingerprint), restore.fingerprint(step)
    wrong = [key for key in found if wrote.get(key) != found[key]]
    return f"has a fingerprint and a description that differ in {', '.join(wrong)}" if wrong else ""


def counted(logic: Logic, rows: pl.DataFrame, manifest: Manifest, shard: int) -> Iterator[str]:
    """What is wrong with the figures that a commit has of the visible rows of a shard."""
    if logic.is_session:
        found = sessions.open_groups(logic, rows, manifest.watermark_us)
        wanted = (manifest.groups[shard], manifest.windows[shard])
        if found != wanted:
            yield (
                f"{plural(found[0], 'key')} with {plural(found[1], 'open interval')}, the commit says {wanted[0]:,} with {wanted[1]:,}"
            )
        return
    there = dict(rows["__start"].value_counts().iter_rows())
    for start, groups in manifest.panes.items():
        if there.get(start, 0) != groups[shard]:
            yield f"{plural(there.get(start, 0), 'key')} in the pane at {start} µs, the commit says {groups[shard]:,}"


def of_side(logic: JoinLogic, kind: str, rows: pl.DataFrame, shard: int, shards: int) -> Iterator[str]:
    """What is wrong with buffered rows of one side, or with a list of places (`left+`, `left-`), in the order of their file."""
    side, what = side_of(logic, kind)
    if side is None:
        yield f"rows of a kind that no join has: {kind!r}"
        return
    misfits = list(_misfits(rows, dict(places().schema) if what else side.schema))
    yield from misfits
    if misfits:
        return
    kh, ts, id_ = (rows[c].to_numpy() for c in ("__kh", "__ts", "__id"))
    if what:
        yield from _counted(shard_of(kh, shards) != shard, f"that are not of shard {shard}")
        yield from _counted(id_[1:] < id_[:-1], "not in the order of their numbers")
        return
    yield from _hashed(rows, side.keys, shared_keys(logic), shard, shards)
    yield from _counted(
        (kh[1:] < kh[:-1]) | ((kh[1:] == kh[:-1]) & (ts[1:] < ts[:-1])), "not in the order of key and time"
    )


def side_of(logic: JoinLogic, kind: str) -> tuple[Side | None, str]:
    """The side of a segment, and whether it is a list: "+" of rows that found a partner, "-" of rows that had to go."""
    name, what = kind.rstrip("+-"), kind[len(kind.rstrip("+-")) :]
    return next((s for s in logic.sides if s.name == name and what in ("", "+", "-")), None), what


def shared_keys(logic: JoinLogic) -> list[Field]:
    """The keys of both sides in the types they are hashed in."""
    pairs = zip(logic.left.keys, logic.right.keys, strict=True)
    return [a if a.type == b.type else Field(a.name, "bigint") for a, b in pairs]


def figures(logic: Logic | JoinLogic, rows: pl.DataFrame, meta: SegmentMeta) -> Iterator[str]:
    """What is wrong with what a commit says of the times in a segment."""
    if isinstance(logic, JoinLogic):
        side, what = side_of(logic, meta.kind)
        assert side is not None
        found: Mapping[str, int] = meta_of(side, what, rows, meta.file, meta.bytes).model_dump(
            include={"first_due", "last_due", "close", "dead", "most"}
        )
    else:
        found = family(logic).stats(logic, rows)._asdict()
    for name, value in found.items():
        if getattr(meta, name) != value:
            yield f"its rows have {name} {value}, the commit says {getattr(meta, name)}"


def _misfits(rows: pl.DataFrame, wanted: Mapping[str, pl.DataType]) -> Iterator[str]:
    missing = [c for c in wanted if c not in rows.columns]
    if missing:
        yield f"columns are missing: {', '.join(missing)}"
    for name, dtype in wanted.items():
        if name not in missing and rows.schema[name] != dtype:
            yield f'column "{name}" is {rows.schema[name]}, expected {dtype}'
    nulls = [c for c in wanted if c in (*HIDDEN, "__ts", "__id") and c not in missing and rows[c].null_count()]
    if nulls:
        yield f"NULL in the columns {', '.join(nulls)}"


def _hashed(
    rows: pl.DataFrame, keys: Sequence[Field], shared: Sequence[Field], shard: int, shards: int
) -> Iterator[str]:
    kh = rows["__kh"].to_numpy()
    named = rows.select(pl.col(k.name).alias(s.name) for k, s in zip(keys, shared, strict=True)) if keys else rows
    yield from _counted(kh != _hashes(named, shared), "whose hash is not that of their key")
    yield from _counted(shard_of(kh, shards) != shard, f"that are not of shard {shard}")


def _hashes(rows: pl.DataFrame, keys: Sequence[Field]) -> Int64s:
    """The hash of each row's key; equal neighbours are hashed once."""
    return key_hash(rows, list(keys)).to_numpy()


def _counted(wrong: NDArray[np.bool_], what: str) -> Iterator[str]:
    if count := int(wrong.sum()):
        first = int(np.flatnonzero(wrong)[0])
        yield f"{count:,} row{'s' if count > 1 else ''} {what}, first row {first}"
