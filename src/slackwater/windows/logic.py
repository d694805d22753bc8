"""A window compiled against the columns that are there: the private half of `config.window.Window`.

`Logic` is what all windows share: keys, aggregations, the schema of a state row, lifting, merging and finishing.
`panes.PaneLogic` (tumbling, hopping) and `intervals.SessionLogic` add how intervals combine, and when they are due.

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

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from slackwater.config.window import Window, allowed_ms
from slackwater.core.schema import Field
from slackwater.windows.aggregations import Agg, Input
from slackwater.windows.outcomes import Emitted, Forgotten, Stats

Int64s = NDArray[np.int64]

WHOLE = CLEAN = 0  # a whole session; a pane whose emission follows from the watermark
FRAGMENT = DIRTY = 1  # a part of a run that may be cut; a pane that was changed and waits to be emitted
FLOOR = 2  # how far the sessions of a key that left the state reached
TOMBSTONE = 3  # a unit that goes
EMITTED, EMITTED_FRAGMENT = 4, 5  # a WHOLE session, a FRAGMENT that the target holds as it stands
ROW = 9  # not in the state: a row of this epoch
OPEN = (WHOLE, FRAGMENT, EMITTED, EMITTED_FRAGMENT)

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

Span = tuple[int, int]  # after < time <= upto, in µs


class Due(NamedTuple):
    """Which state rows want a visit in an epoch; in µs. A store finds them by `__kind`, `__due` and `__start`."""

    moves: tuple[Span, ...]  # of the watermark: a set of rows with no emission in one of them need not be opened
    whole: tuple[Span, ...]  # WHOLE (of panes: CLEAN) rows with __due in one of these
    emitted: tuple[Span, ...]  # EMITTED rows likewise
    pending_upto: int  # FRAGMENT (DIRTY) and EMITTED_FRAGMENT rows with __due <= pending_upto
    start_before: int  # of all these, those with __start < start_before

    def mask(self, kind: NDArray[np.int8], start: Int64s, due: Int64s) -> NDArray[np.bool_]:
        result = ((kind == FRAGMENT) | (kind == EMITTED_FRAGMENT)) & (due <= self.pending_upto)
        for wanted, spans in ((WHOLE, self.whole), (EMITTED, self.emitted)):
            for after, upto in spans:
                result |= (kind == wanted) & (due > after) & (due <= upto)
        result &= start < self.start_before
        return result

    def touches(self, first_due: int, last_due: int) -> bool:
        """Whether rows with these `Stats` may want a visit."""
        return any(first_due <= upto and last_due > after for after, upto in self.moves)


def allowed_us(window: Window) -> int:
    """How long after its close a window may still be corrected."""
    return 1000 * allowed_ms(window)


@dataclass(frozen=True)
class Logic(ABC):
    """A compiled window. Times in microseconds; pure: no clock, no I/O.

    `gone_us`: what a former config of the state has forgotten stays forgotten (see `windows.changed`): windows that close at
    or before it are gone.
    """

    pipeline: str
    window: Window
    keys: tuple[Field, ...]
    aggs: tuple[Agg, ...]
    gone_us: int = NEVER

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
        return self.updates or self.retain_us > 0

    @property
    def revisions(self) -> list[str]:
        """The columns of a state row that say what was emitted of it."""
        return ["__rev", "__out"] if self.revises else []

    def horizon(self, watermark: int) -> int:
        """Windows whose close is at or before it are gone."""
        return max(watermark - self.retain_us, self.gone_us)

    @property
    def memory(self) -> Mapping[str, Any]:
        """What it knows of former configs: kept with the state, see `remembering`."""
        return {"gone_us": self.gone_us}

    def remembering(self, memory: Mapping[str, Any]) -> Self:
        """The window with what a state knows of former configs; `memory` may hold more than it asks for."""
        return replace(self, **{name: memory[name] for name in self.memory})

    def after(self, former: Self, watermark: int) -> Self:
        """The window as it goes on from a state of the former one: what that has forgotten stays forgotten."""
        return replace(self, gone_us=former.horizon(watermark))

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
        return {**HIDDEN, **self.ends, **revised, **{k.name: k.polars for k in self.keys}, **self.accumulators}

    @property
    def ends(self) -> dict[str, pl.DataType]:
        """The column of a state row that says how far its rows reach, where that does not follow from its times."""
        return {}

    # -- what comes out ------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def output(self) -> list[Field]:
        """The columns of section 7, in order."""

    @property
    def bounds(self) -> list[Field]:
        """The output columns that say when a window begins and ends."""
        return [Field(name, "timestamp") for name in (self.window.window_start_column, self.window.window_end_column)]

    @property
    def values(self) -> list[Field]:
        """The output columns behind keys and bounds."""
        return [*(a.output for a in self.aggs), *(METADATA if self.window.emit_metadata else [])]

    @property
    def identity(self) -> tuple[str, ...]:
        """The output columns that tell windows apart."""
        return (*self.key_names, self.window.window_start_column)

    @property
    def retraction(self) -> tuple[str, ...]:
        """The output columns that a superseded row still has."""
        return self.identity

    # -- what is due, and what is over ---------------------------------------------------------------------------

    @abstractmethod
    def stats(self, state: pl.DataFrame) -> Stats:
        """Of a set of state rows that is not empty."""

    @abstractmethod
    def due_between(self, since: int, watermark: int, early: bool = False) -> Due:
        """The rows whose unit wants a visit when the watermark goes from `since` to `watermark`.

        `early`: all that were changed and not emitted, too.
        """

    @abstractmethod
    def forgotten(self, watermark: int) -> Forgotten:
        """Which state rows no longer matter."""

    @abstractmethod
    def forget(self, state: pl.DataFrame, watermark: int) -> pl.DataFrame:
        """State rows without those that no longer matter."""

    # -- rows ----------------------------------------------------------------------------------------------------

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

    def merge_runs(self, parts: pl.DataFrame, heads: Int64s, carried: Sequence[pl.Series]) -> pl.DataFrame:
        """Merge rows of accumulators (and revisions) that stand together; `heads`: where each group begins.

        `carried`: of each group, its keys at least.

        A group of one row is as it was. Raises as `merge_groups`.
        """
        merged = parts[heads]
        if len(heads) < parts.height:
            columns = {c.name: c for a in self.aggs for c in a.fold(parts, heads)}
            left = [a for a in self.aggs if not set(a.accumulators) <= set(columns)]
            if left or self.revises:
                rest = [*self.revisions, *(c for a in left for c in a.accumulators)]
                size = np.diff(heads, append=parts.height)
                several = np.repeat(size > 1, size)
                of_group = np.repeat(np.arange(len(heads)), size)[several]
                keys = [c[of_group] for c in carried if c.name in self.key_names]  # an aggregation may take them
                groups = parts.select(rest).filter(pl.Series(several)).with_columns(*keys)
                found = (
                    groups.with_columns(pl.Series("__g", of_group).set_sorted())
                    .group_by("__g", maintain_order=True)
                    .agg(*self._merged_revisions(parts), *(e for a in left for e in a.merge()))
                )
                at = np.arange(len(heads))
                at[size > 1] = np.arange(found.height) + len(heads)
                columns |= {c: pl.concat([merged[c], found[c]], rechunk=True)[at] for c in rest}
            merged = merged.with_columns(**columns)
            for agg in self.aggs:
                merged = agg.settle(merged)
        merged = merged.with_columns(*carried)
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
        """What tells windows apart, with reason and revision."""
        columns = [*(rows[k] for k in self.key_names), rows["__reason"], rows["__rev"]]
        columns.append(_utc(rows["__start"]).alias(self.window.window_start_column))
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
