"""A window compiled against the columns that are there: the private half of `config.window.Window`.

`Logic` holds what both window families share: keys, aggregations, the schema of a state row, lifting, merging and
finishing. `panes.py` (tumbling, hopping) and `sessions.py` add how intervals combine, and when they are due.

A state row is one interval with its accumulators:

| column     | meaning                                                                                     |
|------------|---------------------------------------------------------------------------------------------|
| `__h`      | int64, where the row is found: the key's hash, for panes mixed with the pane's start         |
| `__kh`     | int64, the key's hash                                                                        |
| `__kind`   | SETTLED, LOOSE, FLOOR or DEAD (below)                                                        |
| `__start`  | µs UTC, start of the pane, or first event of the session                                     |
| `__last`   | µs UTC, last event of the session (panes: the start again)                                   |
| `__due`    | µs UTC, the watermark at which the row wants a visit: it closes, or is out of its last window|
| keys, accumulators | typed as in the input                                                                |

All rows with one `__h` are a *unit*: it is read and replaced as a whole, and the newest version wins. A row whose time
is over needs no delete: whether it is open, closed or forgotten follows from the watermark alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from slackwater.config.window import Window
from slackwater.core.schema import Field
from slackwater.watermark import NO_WATERMARK
from slackwater.windows.aggregations import Agg, Input

Int64s = NDArray[np.int64]

SETTLED, LOOSE, FLOOR, DEAD = 0, 1, 2, 3
ROW = 9  # not in the state: a row of this epoch

HIDDEN: dict[str, pl.DataType] = {
    "__h": pl.Int64(),
    "__kh": pl.Int64(),
    "__kind": pl.Int8(),
    "__start": pl.Int64(),
    "__last": pl.Int64(),
    "__due": pl.Int64(),
}


FAR = 1 << 62  # a time after every other
NEVER = -FAR  # a time before every other


class Stats(NamedTuple):
    """What a set of state rows says about itself, so that it need not be opened; watermarks in µs (see `SegmentMeta`)."""

    first_due: int
    last_due: int
    close: int
    dead: int


class Visit(NamedTuple):
    """Which state rows want a visit when the watermark moves; in µs. A store finds them by `__kind`, `__due` and `__start`."""

    settled_after: int  # SETTLED rows with settled_after < __due <= settled_upto
    settled_upto: int
    loose_upto: int  # LOOSE rows with __due <= loose_upto
    start_before: int  # of both, those with __start < start_before

    def mask(self, kind: NDArray[np.int8], start: Int64s, due: Int64s) -> NDArray[np.bool_]:
        settled = (kind == SETTLED) & (due > self.settled_after) & (due <= self.settled_upto)
        result: NDArray[np.bool_] = (settled | ((kind == LOOSE) & (due <= self.loose_upto))) & (
            start < self.start_before
        )
        return result


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
    """Windows that closed: keys, `__start`, `__last`, `__end`, `__reason` and accumulators; and units to replace."""

    rows: pl.DataFrame
    state: pl.DataFrame
    groups: int
    windows: int


@dataclass(frozen=True)
class Logic:
    """A compiled window. Times in microseconds; pure: no clock, no I/O."""

    pipeline: str
    window: Window
    keys: tuple[Field, ...]
    aggs: tuple[Agg, ...]

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
        return (self.window.gap_ms or 0) * 1000

    @property
    def cap_us(self) -> int:
        return (self.window.max_session_duration_ms or 0) * 1000

    @property
    def key_names(self) -> list[str]:
        return [k.name for k in self.keys]

    @property
    def inputs(self) -> list[Input]:
        """The input columns of the aggregations, each once."""
        found = {a.input.field.name: a.input for a in self.aggs if a.input is not None}
        return list(found.values())

    @property
    def accumulators(self) -> dict[str, pl.DataType]:
        return {name: dtype for a in self.aggs for name, dtype in a.accumulators.items()}

    @property
    def state_schema(self) -> dict[str, pl.DataType]:
        return {**HIDDEN, **{k.name: k.polars for k in self.keys}, **self.accumulators}

    @property
    def output(self) -> list[Field]:
        """The columns of section 7, in order."""
        w = self.window
        bounds = [Field(w.window_start_column, "timestamp"), Field(w.window_end_column, "timestamp")]
        values = [a.output for a in self.aggs]
        if self.is_session:
            return [*self.keys, *bounds, Field("session_id", "bigint"), *values]
        return [*bounds, *self.keys, *values]

    @property
    def identity(self) -> tuple[str, ...]:
        """The output columns that tell windows apart."""
        return (*self.key_names, self.window.window_start_column)

    def empty_state(self) -> pl.DataFrame:
        return pl.DataFrame(schema=self.state_schema)

    def lift_rows(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows (`__kh`, `__ts`, keys, inputs) with their accumulators instead of the inputs."""
        keep = [c for c in ("__kh", "__ts", "__src") if c in rows.columns]
        lifted = [e for a in self.aggs for e in a.lift(rows, "__ts")]
        return rows.select(*keep, *self.key_names, *lifted).cast(self.accumulators)  # type: ignore[arg-type]

    def merge_groups(self, frame: pl.DataFrame, group: Int64s, carried: Sequence[pl.Expr]) -> pl.DataFrame:
        """Merge rows with equal `group` (ascending): the first of keys, `carried` expressions, merged accumulators."""
        if frame.is_empty():
            return frame
        heads = np.flatnonzero(np.diff(group, prepend=group[0] - 1))
        if len(heads) == frame.height:
            return frame
        merged = (
            frame.with_columns(pl.Series("__g", group).set_sorted())
            .group_by("__g", maintain_order=True)
            .agg(*carried, *(e for a in self.aggs for e in a.merge()))
            .drop("__g")
        )
        merged = merged.with_columns(frame[k][heads] for k in self.key_names)
        merged = merged.select(c for c in frame.columns if c in merged.columns)
        for agg in self.aggs:
            agg.check_bound(merged, self.pipeline)
        return merged

    def output_frame(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Emitted rows as the output columns plus `__reason`; `rows` has keys, `__start`, `__end`, accumulators."""
        from slackwater.core.hashing import session_ids

        w = self.window
        columns: dict[str, pl.Series] = {k.name: rows[k.name] for k in self.keys}
        for name, hidden in ((w.window_start_column, "__start"), (w.window_end_column, "__end")):
            columns[name] = rows[hidden].cast(pl.Datetime("us")).dt.replace_time_zone("UTC").alias(name)
        if self.is_session:
            columns["session_id"] = session_ids(rows, self.keys, "__start")
        columns |= {a.name: a.finish(rows) for a in self.aggs}
        frame = pl.DataFrame([columns[f.name].alias(f.name) for f in self.output])
        return frame.with_columns(rows["__reason"]).cast({f.name: f.polars for f in self.output})

    def sorted_output(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The order of section 7: (window_start, keys), NULL first, NaN last."""
        return frame.sort([self.window.window_start_column, *self.key_names], nulls_last=False, maintain_order=True)


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
    "NO_WATERMARK",
    "ROW",
    "SETTLED",
    "Counts",
    "Emitted",
    "Ingested",
    "Logic",
    "Stats",
]
