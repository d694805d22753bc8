"""A window compiled against the columns that are there: the private half of `config.window.Window`.

`Logic` holds what both window families share: keys, aggregations, the schema of a state row, lifting, merging and
finishing. `panes.py` (tumbling, hopping) and `sessions.py` add how intervals combine, and when they are due.

A state row is one interval with its accumulators:

| column     | meaning                                                                                     |
|------------|---------------------------------------------------------------------------------------------|
| `__h`      | int64, where the row is found: the key's hash, for panes mixed with the pane's start         |
| `__kh`     | int64, the key's hash                                                                        |
| `__kind`   | what the row is (below)                                                                      |
| `__start`  | µs UTC, start of the pane, or first event of the session                                     |
| `__last`   | µs UTC, last event of the session (panes: the start again)                                   |
| `__due`    | µs UTC, the watermark at which the row wants a visit: it closes, or is out of its last window|
| `__end`    | µs UTC, how far the session's rows reach (only where each row brings its own gap)           |
| `__rev`    | how often it was emitted: the largest revision of what was merged (only if windows are revised)|
| `__out`    | sessions: the starts under which the target holds what was merged (only if windows are revised)|
| keys, accumulators | typed as in the input                                                                |

All rows with one `__h` are a *unit*: it is read and replaced as a whole, and the newest version wins. A row whose time
is over needs no delete: whether it is open, closed, retained or gone follows from the watermark alone.

          close              close + allowed lateness (reopen)
    open    │     retained     │    gone
    ────────┴──────────────────┴───────────▶ watermark
            emitted            rows of it are late for good
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from slackwater.config.window import Window, allowed_ms
from slackwater.core.schema import Field
from slackwater.watermark import NO_WATERMARK
from slackwater.windows.aggregations import Agg, Input

Int64s = NDArray[np.int64]

SETTLED = 0  # a whole session; a pane whose emission follows from the watermark
LOOSE = 1  # a piece of a run that may be cut; a pane that was changed and waits to be emitted
FLOOR = 2  # how far the sessions of a key that left the state reached
DEAD = 3  # a unit that goes
TOLD, LOOSE_TOLD = 4, 5  # a SETTLED session, a LOOSE piece that the target holds as it stands
ROW = 9  # not in the state: a row of this epoch
OPEN = (SETTLED, LOOSE, TOLD, LOOSE_TOLD)

HIDDEN: dict[str, pl.DataType] = {
    "__h": pl.Int64(),
    "__kh": pl.Int64(),
    "__kind": pl.Int8(),
    "__start": pl.Int64(),
    "__last": pl.Int64(),
    "__due": pl.Int64(),
}


REVISED: dict[str, pl.DataType] = {"__rev": pl.Int64(), "__out": pl.List(pl.Int64())}

METADATA = [Field("_revision", "bigint"), Field("_final_at", "timestamp"), Field("_emit_reason", "string")]

FAR = 1 << 62  # a time after every other
NEVER = -FAR  # a time before every other


class Stats(NamedTuple):
    """What a set of state rows says about itself, so that it need not be opened; watermarks in µs (see `SegmentMeta`)."""

    first_due: int
    last_due: int
    close: int
    dead: int


Span = tuple[int, int]  # after < time <= upto, in µs


class Visit(NamedTuple):
    """Which state rows want a visit in an epoch; in µs. A store finds them by `__kind`, `__due` and `__start`."""

    moves: tuple[Span, ...]  # of the watermark: a set of rows with no emission in one of them need not be opened
    settled: tuple[Span, ...]  # SETTLED rows with __due in one of these
    told: tuple[Span, ...]  # TOLD rows likewise
    loose_upto: int  # LOOSE and LOOSE_TOLD rows with __due <= loose_upto
    start_before: int  # of all these, those with __start < start_before

    def mask(self, kind: NDArray[np.int8], start: Int64s, due: Int64s) -> NDArray[np.bool_]:
        result = ((kind == LOOSE) | (kind == LOOSE_TOLD)) & (due <= self.loose_upto)
        for wanted, spans in ((SETTLED, self.settled), (TOLD, self.told)):
            for after, upto in spans:
                result |= (kind == wanted) & (due > after) & (due <= upto)
        result &= start < self.start_before
        return result

    def touches(self, first_due: int, last_due: int) -> bool:
        """Whether rows with these `Stats` may want a visit."""
        return any(first_due <= upto and last_due > after for after, upto in self.moves)


class Forgotten(NamedTuple):
    """Which state rows no longer matter: a unit goes once this holds for all its rows; `__due` in µs."""

    settled_upto: int
    floor_upto: int


@dataclass(frozen=True)
class Counts:
    """What became of the rows of one epoch in one shard, and how its open groups changed."""

    used: int = 0
    late: int = 0
    late_idle: int = 0
    late_windows: int = 0
    refused: int = 0
    groups: int = 0  # change in the number of groups: keys with open sessions, or (key, pane)
    windows: int = 0  # change in the number of open windows


@dataclass(frozen=True)
class Ingested:
    """Outcome of folding rows into the touched units: the units' new rows, the counts, the rows late for good."""

    state: pl.DataFrame
    counts: Counts
    late: pl.DataFrame  # keys, `__start` and what else the rows came with (`__n`, `__idle`, `__row`)
    new_groups: dict[int, int]  # panes: start -> number of keys first seen in it


@dataclass(frozen=True)
class Emitted:
    """What an epoch emits, and the units to replace.

    rows: keys, `__start`, `__end`, `__final`, `__rev`, `__reason`, accumulators. superseded: keys, `__start` and `__rev` of
    what the target holds and is no more.
    """

    rows: pl.DataFrame
    state: pl.DataFrame
    superseded: pl.DataFrame
    groups: int = 0
    windows: int = 0


def allowed_us(window: Window) -> int:
    """How long after its close a window may still be corrected."""
    return 1000 * allowed_ms(window)


@dataclass(frozen=True)
class Logic:
    """A compiled window. Times in microseconds; pure: no clock, no I/O.

    `gone_us`, `rows_from_us`: what a former config of the state has forgotten stays forgotten (see `windows.changed`):
    windows that close at or before the first are gone, and rows before the second are late by themselves. `revised`: there
    are sessions that were emitted under a former config.
    """

    pipeline: str
    window: Window
    keys: tuple[Field, ...]
    aggs: tuple[Agg, ...]
    gone_us: int = NEVER
    rows_from_us: int = NEVER
    revised: bool = False

    @property
    def is_session(self) -> bool:
        return self.window.kind == "session"

    @property
    def duration_us(self) -> int:
        return (self.window.duration_ms or 0) * 1000

    @property
    def hop_us(self) -> int:
        return (self.window.hop_ms or self.window.duration_ms or 0) * 1000

    @property
    def offset_us(self) -> int:
        return self.window.offset_ms * 1000

    @property
    def gap_us(self) -> int:
        """The gap of every row; 0 where each row brings its own."""
        return 0 if isinstance(self.window.gap_ms, str) else (self.window.gap_ms or 0) * 1000

    @property
    def dynamic(self) -> bool:
        """Whether each row brings its own gap: it holds [ts, ts + gap], as `__end`, and sessions are rows that touch."""
        return isinstance(self.window.gap_ms, str)

    @property
    def reach_us(self) -> int:
        """No row holds more than this beyond its time."""
        return self.cap_us if self.dynamic else self.gap_us

    @property
    def cap_us(self) -> int:
        return (self.window.max_session_duration_ms or 0) * 1000

    @property
    def allowed_us(self) -> int:
        return allowed_us(self.window)

    @property
    def retain_us(self) -> int:
        """How long a closed window stays in the state. With emit = "final" the watermark itself waits that long instead."""
        return 0 if self.window.emit == "final" else self.allowed_us

    @property
    def updates(self) -> bool:
        return self.window.emit == "updates"

    @property
    def revises(self) -> bool:
        """Whether a window may be emitted more than once."""
        return self.updates or self.retain_us > 0 or self.revised

    @property
    def revisions(self) -> list[str]:
        """The columns of a state row that say what was emitted of it."""
        return ["__rev", "__out"] if self.revises else []

    def horizon(self, watermark: int) -> int:
        """Windows whose close is at or before it are gone."""
        return max(watermark - self.retain_us, self.gone_us)

    @cached_property
    def key_names(self) -> list[str]:
        return [k.name for k in self.keys]

    @cached_property
    def inputs(self) -> list[Input]:
        """The input columns of the aggregations, each once."""
        return list({i.field.name: i for a in self.aggs for i in a.inputs}.values())

    @property
    def lifts_in_sql(self) -> bool:
        """Whether every aggregation has a form in Spark SQL; else rows go to the shards one by one and are lifted there."""
        return all(a.lift_sql("__ts") is not None for a in self.aggs)

    @cached_property
    def accumulators(self) -> dict[str, pl.DataType]:
        return {name: dtype for a in self.aggs for name, dtype in a.accumulators.items()}

    @cached_property
    def state_schema(self) -> dict[str, pl.DataType]:
        revised = REVISED if self.revises else {}
        ends = {"__end": pl.Int64()} if self.dynamic else {}
        return {**HIDDEN, **ends, **revised, **{k.name: k.polars for k in self.keys}, **self.accumulators}

    @cached_property
    def output(self) -> list[Field]:
        """The columns of section 7, in order."""
        w = self.window
        bounds = [Field(w.window_start_column, "timestamp"), Field(w.window_end_column, "timestamp")]
        values = [a.output for a in self.aggs]
        if w.emit_metadata:
            values += METADATA
        if self.is_session:
            return [*self.keys, *bounds, Field("session_id", "bigint"), *values]
        return [*bounds, *self.keys, *values]

    @property
    def identity(self) -> tuple[str, ...]:
        """The output columns that tell windows apart."""
        return (*self.key_names, self.window.window_start_column)

    def empty_state(self) -> pl.DataFrame:
        return empty(self.state_schema)

    def unrevised(self, rows: pl.DataFrame) -> pl.DataFrame:
        return unrevised(rows, self.state_schema)

    def lift_rows(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows (`__kh`, `__ts`, keys, inputs) with their accumulators instead of the inputs."""
        keep = [c for c in ("__kh", "__ts", "__end", "__src") if c in rows.columns]
        lifted = [e for a in self.aggs for e in a.lift(rows, "__ts")]
        found = rows.select(*keep, *self.key_names, *lifted)
        if all(found.schema[name] == dtype for name, dtype in self.accumulators.items()):
            return found
        return found.cast(self.accumulators)  # type: ignore[arg-type]

    def merge_groups(self, frame: pl.DataFrame, group: Int64s, carried: Sequence[pl.Expr]) -> pl.DataFrame:
        """Merge rows with equal `group` (ascending): the first of keys, `carried` expressions, merged accumulators.

        Raises CapExceededError if a group outgrew the bound of its values, ValueRangeError if it can have no result.
        """
        if frame.is_empty():
            return frame
        heads = np.flatnonzero(np.diff(group, prepend=group[0] - 1))
        merged = frame
        if len(heads) < frame.height:
            merged = (
                frame.with_columns(pl.Series("__g", group).set_sorted())
                .group_by("__g", maintain_order=True)
                .agg(*carried, *self._merged_revisions(frame), *(e for a in self.aggs for e in a.merge()))
                .drop("__g")
            )
            merged = merged.with_columns(frame[k][heads] for k in self.key_names)
            merged = merged.select(c for c in frame.columns if c in merged.columns)
            for agg in self.aggs:
                merged = agg.settle(merged)
        for agg in self.aggs:
            agg.check_bound(merged, self.pipeline)
        return merged

    def _merged_revisions(self, frame: pl.DataFrame) -> list[pl.Expr]:
        if "__rev" not in frame.columns:
            return []
        return [pl.col("__rev").max(), pl.col("__out").explode().drop_nulls().unique().sort()]

    def output_frame(self, done: Emitted) -> pl.DataFrame:
        """What an epoch emits as the output columns plus `__reason`; superseded rows carry their identity and NULLs."""
        rows = done.rows
        for agg in self.aggs:
            agg.check_bound(rows, self.pipeline)  # as `finish`, with the pipeline's name
        frame = self._identified(rows).with_columns(
            *(a.finish(rows).alias(a.name) for a in self.aggs),
            _utc(rows["__end"]).alias(self.window.window_end_column),
            _utc(rows["__final"]),
        )
        if done.superseded.height:
            gone = self._identified(done.superseded.with_columns(pl.lit("supersede").alias("__reason")))
            frame = pl.concat([frame, gone], how="diagonal_relaxed")
        of = dict(zip([f.name for f in METADATA], ("__rev", "__final", "__reason"), strict=True))
        found = [pl.col(of.get(f.name, f.name)).cast(f.polars).alias(f.name) for f in self.output]
        return frame.select(*found, "__reason")

    def _identified(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Keys, window start and session id, with reason and revision."""
        from slackwater.core.hashing import session_ids

        columns = [*(rows[k] for k in self.key_names), rows["__reason"], rows["__rev"]]
        columns.append(_utc(rows["__start"]).alias(self.window.window_start_column))
        if self.is_session:
            columns.append(session_ids(rows, self.keys, "__start").alias("session_id"))
        return pl.DataFrame(columns)

    def sorted_output(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The order of section 7: (window_start, keys), NULL first, NaN last."""
        if frame.height < 2:
            return frame
        return frame.sort([self.window.window_start_column, *self.key_names], nulls_last=False, maintain_order=True)


_EMPTY: dict[tuple[tuple[str, pl.DataType], ...], pl.DataFrame] = {}


def empty(schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """No rows with these columns; frames are never changed in place, so one serves all."""
    columns = tuple(schema.items())
    if columns not in _EMPTY:
        _EMPTY[columns] = pl.DataFrame(schema=schema)
    return _EMPTY[columns]


def unrevised(rows: pl.DataFrame, schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Rows with the columns of revisions, where the schema has any: nothing of them was emitted yet."""
    if "__rev" not in schema or "__rev" in rows.columns:
        return rows
    return rows.with_columns(pl.lit(0, pl.Int64).alias("__rev"), pl.lit([], pl.List(pl.Int64)).alias("__out"))


def _utc(us: pl.Series) -> pl.Series:
    return us.cast(pl.Datetime("us", "UTC"))


def sorted_by_key(frame: pl.DataFrame, keys: Sequence[str], *then: str) -> tuple[pl.DataFrame, Int64s]:
    """Sort by (`__kh`, key, then…) and number the keys 0, 1, … in that order.

    Hashes of different keys may collide; they are told apart by the keys themselves. That sort is slower, so it is only
    done when two neighbours with one hash differ in their keys.
    """
    frame = frame.sort(["__kh", *then], maintain_order=True)
    hashes = frame["__kh"].to_numpy()
    changed = np.ones(frame.height, dtype=bool)
    changed[1:] = hashes[1:] != hashes[:-1]
    if keys and not bool(changed.all()):
        differs = frame.select(pl.any_horizontal(pl.col(k).ne_missing(pl.col(k).shift(1)) for k in keys)).to_series()
        if bool((differs.to_numpy() & ~changed).any()):
            frame = frame.sort(["__kh", *keys, *then], maintain_order=True)
            hashes = frame["__kh"].to_numpy()
            changed[1:] = hashes[1:] != hashes[:-1]
            differs = frame.select(
                pl.any_horizontal(pl.col(k).ne_missing(pl.col(k).shift(1)) for k in keys)
            ).to_series()
            changed |= differs.to_numpy()
            changed[0] = True
    return frame, np.cumsum(changed) - 1


def late_sample(rows: pl.DataFrame, keys: Sequence[str], time: str, limit: int = 3) -> list[dict[str, object]]:
    """A few late rows for the log: keys and event time in microseconds."""
    return [{**{k: r[k] for k in keys}, "event_us": r[time]} for r in rows.head(limit).iter_rows(named=True)]


__all__ = [
    "DEAD",
    "FAR",
    "FLOOR",
    "LOOSE",
    "LOOSE_TOLD",
    "NO_WATERMARK",
    "OPEN",
    "ROW",
    "SETTLED",
    "TOLD",
    "Counts",
    "Emitted",
    "Ingested",
    "Logic",
    "Stats",
]
