"""A window compiled against the available columns: the internal counterpart of `config.window.Window`.

`CompiledWindow` has what all windows share: keys, aggregations, the state schema, lifting, merging and finishing.
`pane_windows.CompiledPaneWindow` (tumbling, hopping) and `session_intervals.CompiledSessionWindow` define how state
rows combine and when they are due. The columns of a state row are described in `state_rows`. `IngestResult` and
`EmitResult` are what an epoch does to the windows of a shard.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import polars as pl

from slackwater.config.window import Window, effective_allowed_lateness_ms
from slackwater.core.schema import Field
from slackwater.windows.aggregations import AggregationInput, AggregationKind
from slackwater.windows.state_rows import HIDDEN, NEVER, REVISED, Int64s, KeyedStateLayout

METADATA = [Field("_revision", "bigint"), Field("_final_at", "timestamp"), Field("_emit_reason", "string")]


def allowed_lateness_us(window: Window) -> int:
    """Return how long (µs) a window can be corrected after it closes."""
    return 1000 * effective_allowed_lateness_ms(window)


@dataclass(frozen=True)
class ResultCounts:
    """Counts for one shard and epoch: what happened to its rows, and how its open groups changed."""

    used: int = 0
    late: int = 0
    late_idle: int = 0
    late_windows: int = 0
    refused: int = 0
    groups: int = 0  # change in the number of groups: keys with open sessions, or (key, pane)
    windows: int = 0  # change in the number of open windows


@dataclass(frozen=True)
class IngestResult:
    """The outcome of merging rows into the units (state rows with equal `__h`) that they touch."""

    state: pl.DataFrame
    counts: ResultCounts
    late: pl.DataFrame  # keys, `__start`, and `__n`, `__idle` and `__row` if the rows had them
    new_groups: dict[int, int]  # panes: start -> number of keys first seen in it


@dataclass(frozen=True)
class EmitResult:
    """The results that an epoch emits on one shard, and the state rows that it changes.

    `rows` has keys, `__start`, `__end`, `__final`, `__rev`, `__reason` and accumulators. `superseded` has keys,
    `__start` and `__rev` of results that no longer exist but are still in the target.
    """

    rows: pl.DataFrame
    state: pl.DataFrame
    superseded: pl.DataFrame
    groups: int = 0
    windows: int = 0


@dataclass(frozen=True)
class CompiledWindow(KeyedStateLayout):
    """A compiled window: pure functions, without a clock or I/O. All times are in µs.

    `gone_us`: windows that close at or before this time left the state under an earlier config and do not come back
    (see `windows.state_conversion`).
    """

    pipeline: str
    window: Window
    keys: tuple[Field, ...]
    aggs: tuple[AggregationKind, ...]
    gone_us: int = NEVER

    @cached_property
    def allowed_us(self) -> int:
        """Return how long (µs) a window can be corrected after it closes."""
        return allowed_lateness_us(self.window)

    @cached_property
    def retain_us(self) -> int:
        """Return how long (µs) a closed window stays in the state.

        With emit = "final" this is 0, since the allowed lateness delays the watermark itself.
        """
        return 0 if self.window.emit == "final" else self.allowed_us

    @cached_property
    def updates(self) -> bool:
        return self.window.emit == "updates"

    @cached_property
    def revises(self) -> bool:
        """Return whether a window may be emitted more than once."""
        return self.updates or self.retain_us > 0

    @cached_property
    def revisions(self) -> list[str]:
        """Return the columns of a state row that record its emissions."""
        return ["__rev", "__out"] if self.revises else []

    def horizon(self, watermark: int) -> int:
        """Return the horizon (µs): windows that closed at or before it have left the state."""
        return max(watermark - self.retain_us, self.gone_us)

    @property
    def earlier_settings(self) -> Mapping[str, Any]:
        """Return the effects of earlier configs to store with the state; `with_earlier_settings` restores them."""
        return {"gone_us": self.gone_us}

    def with_earlier_settings(self, earlier: Mapping[str, Any]) -> Self:
        """Return the window with the effects of earlier configs that a state stores. Unrelated entries are ignored."""
        return replace(self, **{name: earlier[name] for name in self.earlier_settings})

    def continue_from(self, former: Self, watermark: int) -> Self:
        """Return this window, prepared to continue a state of `former`. Windows that left it do not enter it again."""
        return replace(self, gone_us=former.horizon(watermark))

    @cached_property
    def inputs(self) -> list[AggregationInput]:
        """Return the distinct input columns of all aggregations."""
        return list({i.field.name: i for a in self.aggs for i in a.inputs}.values())

    @cached_property
    def accumulators(self) -> dict[str, pl.DataType]:
        return {name: dtype for a in self.aggs for name, dtype in a.accumulators.items()}

    @cached_property
    def state_schema(self) -> dict[str, pl.DataType]:
        revised = REVISED if self.revises else {}
        return {**HIDDEN, **self.ends, **revised, **{k.name: k.polars for k in self.keys}, **self.accumulators}

    @cached_property
    def emitted_columns(self) -> list[str]:
        """Return the columns of the emitted rows of an `EmitResult`."""
        return ["__kh", *self.key_names, "__start", "__end", "__final", "__rev", "__reason", *self.accumulators]

    @cached_property
    def superseded_columns(self) -> list[str]:
        """Return the columns of the superseded rows of an `EmitResult`."""
        return ["__kh", *self.key_names, "__start", "__rev"]

    @property
    def ends(self) -> dict[str, pl.DataType]:
        """Return the state column that stores how far a session's rows extend; empty if other columns determine it."""
        return {}

    # -- output --------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def output(self) -> list[Field]:
        """Return the output columns in the documented order."""

    @property
    def bounds(self) -> list[Field]:
        """Return the output columns for the start and the end of a window."""
        return [Field(name, "timestamp") for name in (self.window.window_start_column, self.window.window_end_column)]

    @property
    def values(self) -> list[Field]:
        """Return the output columns that follow the keys, the start and end of the window, and the session id."""
        return [*(a.output for a in self.aggs), *(METADATA if self.window.emit_metadata else [])]

    @property
    def identity(self) -> tuple[str, ...]:
        """Return the output columns that identify a window."""
        return (*self.key_names, self.window.window_start_column)

    @property
    def retraction(self) -> tuple[str, ...]:
        """Return the output columns that have values in a superseded row."""
        return self.identity

    # -- rows ----------------------------------------------------------------------------------------------------

    def lift_rows(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Replace the input columns of rows (`__kh`, `__ts`, keys, inputs) with accumulators."""
        keep = [c for c in ("__kh", "__ts", "__end", "__src") if c in rows.columns]
        lifted = [e for a in self.aggs for e in a.lift(rows, "__ts")]
        lifted_rows = rows.select(*keep, *self.key_names, *lifted)
        if all(lifted_rows.schema[name] == dtype for name, dtype in self.accumulators.items()):
            return lifted_rows
        return lifted_rows.cast(self.accumulators)  # type: ignore[arg-type]

    def merge_runs(self, parts: pl.DataFrame, heads: Int64s, carried: Sequence[pl.Series]) -> pl.DataFrame:
        """Merge the accumulators (and revisions) of each run of adjacent rows. A single row is returned unchanged.

        Args:
            parts: The rows; the rows of each run are adjacent.
            heads: The position at which each run begins.
            carried: Additional columns with one value per run; at least the keys.

        Raises CapExceededError if a group exceeds a limit of its aggregation, and ValueRangeError if a result does not
        fit its type.
        """
        merged = parts[heads]
        if len(heads) < parts.height:
            columns = {c.name: c for a in self.aggs for c in a.merge_adjacent(parts, heads)}
            remaining = [a for a in self.aggs if not set(a.accumulators) <= set(columns)]
            revisions = [c for c in self.revisions if c in parts.columns]  # new rows have none
            if remaining or revisions:
                rest = [*revisions, *(c for a in remaining for c in a.accumulators)]
                size = np.diff(heads, append=parts.height)
                several = np.repeat(size > 1, size)
                of_group = np.repeat(np.arange(len(heads)), size)[several]
                keys = [
                    c[of_group] for c in carried if c.name in self.key_names
                ]  # `merge` of a custom aggregation may use them
                groups = parts.select(rest).filter(pl.Series(several)).with_columns(*keys)
                merged_groups = (
                    groups.with_columns(pl.Series("__g", of_group).set_sorted())
                    .group_by("__g", maintain_order=True)
                    .agg(*self._merged_revisions(parts), *(e for a in remaining for e in a.merge()))
                )
                index = np.arange(len(heads))
                index[size > 1] = np.arange(merged_groups.height) + len(heads)
                columns |= {c: pl.concat([merged[c], merged_groups[c]], rechunk=True)[index] for c in rest}
            merged = merged.with_columns(**columns)
            for agg in self.aggs:
                merged = agg.to_stored_form(merged)
        merged = merged.with_columns(*carried)
        for agg in self.aggs:
            agg.check_limit(merged, self.pipeline)
        return merged

    def _merged_revisions(self, frame: pl.DataFrame) -> list[pl.Expr]:
        if "__rev" not in frame.columns:
            return []
        return [pl.col("__rev").max(), pl.col("__out").explode().drop_nulls().unique().sort()]

    def output_frame(self, done: EmitResult) -> pl.DataFrame:
        """Return the output columns and `__reason` of emitted rows. In superseded rows, the aggregations are NULL."""
        rows = done.rows
        for agg in self.aggs:
            agg.check_limit(rows, self.pipeline)  # as in `finish`, but with the pipeline's name
        frame = self._with_identity(rows).with_columns(
            *(a.finish(rows).alias(a.name) for a in self.aggs),
            _utc(rows["__end"]).alias(self.window.window_end_column),
            _utc(rows["__final"]),
        )
        if done.superseded.height:
            gone = self._with_identity(done.superseded.with_columns(pl.lit("supersede").alias("__reason")))
            frame = pl.concat([frame, gone], how="diagonal_relaxed")
        hidden_names: dict[str, str] = {}
        if self.window.emit_metadata:  # otherwise, a key may have such a name
            hidden_names = dict(zip([f.name for f in METADATA], ("__rev", "__final", "__reason"), strict=True))
        columns = [pl.col(hidden_names.get(f.name, f.name)).cast(f.polars).alias(f.name) for f in self.output]
        return frame.select(*columns, "__reason")

    def _with_identity(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the columns that identify the window of each row, together with its reason and revision."""
        columns = [*(rows[k] for k in self.key_names), rows["__reason"], rows["__rev"]]
        columns.append(_utc(rows["__start"]).alias(self.window.window_start_column))
        return pl.DataFrame(columns)

    def sorted_output(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Sort by (window_start, keys), with NULL first and NaN last."""
        if frame.height < 2:
            return frame
        return frame.sort([self.window.window_start_column, *self.key_names], nulls_last=False, maintain_order=True)


def _utc(us: pl.Series) -> pl.Series:
    return us.cast(pl.Datetime("us", "UTC"))
