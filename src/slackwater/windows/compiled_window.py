"""A window compiled against the available columns: the internal counterpart of `config.window.Window`.

`CompiledWindow` is the common base: keys, aggregations, the state schema, lifting, merging and finishing.
`pane_windows.CompiledPaneWindow` (tumbling, hopping) and `compiled_session_window.CompiledSessionWindow` define how state
rows combine and when they are due. `state_layout` describes the columns of a state row.
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
from slackwater.windows.aggregations import AggregateFunction, AggregationInput
from slackwater.windows.state_layout import HIDDEN, NEVER, REVISED, Int64s, KeyedStateLayout

METADATA = [Field("_revision", "bigint"), Field("_final_at", "timestamp"), Field("_emit_reason", "string")]


def allowed_lateness_us(window: Window) -> int:
    """Return the time (µs) for which a window can be corrected after it closes."""
    return 1000 * effective_allowed_lateness_ms(window)


@dataclass(frozen=True)
class ResultCounts:
    """Row counts of one shard and epoch, and the changes in the numbers of groups and open windows."""

    used: int = 0
    late: int = 0
    late_idle: int = 0  # late rows from idle sources
    late_windows: int = 0  # number of windows that late rows missed, added up over the rows
    refused: int = 0  # rows of new groups over the limit
    groups: int = 0  # change in the number of groups: keys with open sessions, or (key, pane)
    windows: int = 0  # change in the number of open windows


@dataclass(frozen=True)
class IngestResult:
    """Result of merging an epoch's rows into the units that they touch. A unit is all state rows with equal `__h`."""

    state: pl.DataFrame  # the new rows of all touched units
    counts: ResultCounts
    late: pl.DataFrame  # keys and `__start`; also `__n`, `__idle` and `__row` if the input rows have them
    new_groups: dict[int, int]  # panes: number of new groups by the start of the pane


@dataclass(frozen=True)
class EmitResult:
    """Results that an epoch emits on one shard, and the state rows that change."""

    rows: pl.DataFrame  # keys, `__start`, `__end`, `__final`, `__rev`, `__reason` and accumulators
    state: pl.DataFrame  # the new rows of all changed units
    superseded: pl.DataFrame  # keys, `__start` and `__rev` of results in the target that are no longer valid
    groups: int = 0  # change in the number of groups
    windows: int = 0  # change in the number of open windows


@dataclass(frozen=True)
class CompiledWindow(KeyedStateLayout):
    """A window compiled against its input columns. Its methods are pure functions. All times are in µs.

    Windows that closed at or before `gone_us` left the state under an earlier config, and are not restored (see
    `windows.window_state_conversion`).
    """

    pipeline: str
    window: Window
    keys: tuple[Field, ...]
    aggs: tuple[AggregateFunction, ...]
    gone_us: int = NEVER

    @cached_property
    def allowed_us(self) -> int:
        """Return the allowed lateness (µs): how long a window can be corrected after it closes."""
        return allowed_lateness_us(self.window)

    @cached_property
    def retain_us(self) -> int:
        """Return the time (µs) for which a closed window stays in the state.

        With emit = "final" it is 0, because the allowed lateness delays the watermark itself.
        """
        return 0 if self.window.emit == "final" else self.allowed_us

    @cached_property
    def updates(self) -> bool:
        """Return whether open windows are emitted again when they change (emit = "updates")."""
        return self.window.emit == "updates"

    @cached_property
    def revises(self) -> bool:
        """Return whether a window may be emitted more than once."""
        return self.updates or self.retain_us > 0

    @cached_property
    def revisions(self) -> list[str]:
        """Return the state columns that record emissions; empty if no window is emitted more than once."""
        return ["__rev", "__out"] if self.revises else []

    def horizon(self, watermark: int) -> int:
        """Return the horizon (µs). Windows that closed at or before the horizon have left the state."""
        return max(watermark - self.retain_us, self.gone_us)

    @property
    def earlier_settings(self) -> Mapping[str, Any]:
        """Return the settings that depend on earlier configs. A state stores them for `with_earlier_settings`."""
        return {"gone_us": self.gone_us}

    def with_earlier_settings(self, earlier: Mapping[str, Any]) -> Self:
        """Return this window with the `earlier_settings` of a stored state. Unrelated entries are ignored."""
        return replace(self, **{name: earlier[name] for name in self.earlier_settings})

    def continue_from(self, former: Self, watermark: int) -> Self:
        """Return this window, set up to continue the state of `former`, whose expired windows are not restored."""
        return replace(self, gone_us=former.horizon(watermark))

    @cached_property
    def inputs(self) -> list[AggregationInput]:
        """Return the distinct input columns of all aggregations."""
        return list({i.field.name: i for a in self.aggs for i in a.inputs}.values())

    @cached_property
    def accumulators(self) -> dict[str, pl.DataType]:
        """Return the name and type of each accumulator column of all aggregations."""
        return {name: dtype for a in self.aggs for name, dtype in a.accumulators.items()}

    @cached_property
    def state_schema(self) -> dict[str, pl.DataType]:
        revised = REVISED if self.revises else {}
        return {**HIDDEN, **self.ends, **revised, **{k.name: k.polars for k in self.keys}, **self.accumulators}

    @cached_property
    def emitted_columns(self) -> list[str]:
        """Return the columns of `EmitResult.rows`."""
        return ["__kh", *self.key_names, "__start", "__end", "__final", "__rev", "__reason", *self.accumulators]

    @cached_property
    def superseded_columns(self) -> list[str]:
        """Return the columns of `EmitResult.superseded`."""
        return ["__kh", *self.key_names, "__start", "__rev"]

    @property
    def ends(self) -> dict[str, pl.DataType]:
        """Return the state column `__end`, with its type; empty if other columns determine the end of a window."""
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
        """Return the output columns of the aggregations, followed by those of `emit_metadata`."""
        return [*(a.output for a in self.aggs), *(METADATA if self.window.emit_metadata else [])]

    @property
    def identity(self) -> tuple[str, ...]:
        """Return the names of the output columns that identify a window."""
        return (*self.key_names, self.window.window_start_column)

    @property
    def retraction(self) -> tuple[str, ...]:
        """Return the names of the output columns that are set in a superseded row. All others are NULL."""
        return self.identity

    # -- rows ----------------------------------------------------------------------------------------------------

    def lift_rows(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Replace the input columns of rows with accumulators. `rows` has `__kh`, `__ts`, the keys and the inputs."""
        keep = [c for c in ("__kh", "__ts", "__end", "__src") if c in rows.columns]
        lifted = [e for a in self.aggs for e in a.lift(rows, "__ts")]
        lifted_rows = rows.select(*keep, *self.key_names, *lifted)
        if all(lifted_rows.schema[name] == dtype for name, dtype in self.accumulators.items()):
            return lifted_rows
        return lifted_rows.cast(self.accumulators)  # type: ignore[arg-type]

    def merge_runs(self, parts: pl.DataFrame, heads: Int64s, carried: Sequence[pl.Series]) -> pl.DataFrame:
        """Merge the accumulators and revisions of each run of adjacent rows. A run of one row stays unchanged.

        Args:
            parts: The rows with their accumulators and revisions, run after run.
            heads: The position of the first row of each run.
            carried: Additional columns of the result, with one value per run; at least the keys.

        Raises LimitExceededError if a group exceeds a limit of its aggregation, and ValueRangeError if a result does not
        fit its type.
        """
        merged = parts[heads]
        if len(heads) < parts.height:
            columns = {c.name: c for a in self.aggs for c in a.merge_adjacent(parts, heads)}
            remaining = [a for a in self.aggs if not set(a.accumulators) <= set(columns)]
            revisions = [c for c in self.revisions if c in parts.columns]  # new rows have no revisions
            if remaining or revisions:
                rest = [*revisions, *(c for a in remaining for c in a.accumulators)]
                size = np.diff(heads, append=parts.height)
                several = np.repeat(size > 1, size)
                of_group = np.repeat(np.arange(len(heads)), size)[several]
                # the merge of a custom aggregation may read the keys
                keys = [c[of_group] for c in carried if c.name in self.key_names]
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
        """Convert the emitted and superseded rows of an epoch to output rows, with their reasons in `__reason`.

        Superseded rows have no values in the columns of the aggregations.
        """
        rows = done.rows
        for agg in self.aggs:
            agg.check_limit(rows, self.pipeline)  # `finish` checks again, but its error does not name the pipeline
        frame = self._with_identity(rows).with_columns(
            *(a.finish(rows).alias(a.name) for a in self.aggs),
            _utc(rows["__end"]).alias(self.window.window_end_column),
            _utc(rows["__final"]),
        )
        if done.superseded.height:
            gone = self._with_identity(done.superseded.with_columns(pl.lit("supersede").alias("__reason")))
            frame = pl.concat([frame, gone], how="diagonal_relaxed")
        hidden_names: dict[str, str] = {}
        if self.window.emit_metadata:  # otherwise, a key column may have one of these names
            hidden_names = dict(zip([f.name for f in METADATA], ("__rev", "__final", "__reason"), strict=True))
        columns = [pl.col(hidden_names.get(f.name, f.name)).cast(f.polars).alias(f.name) for f in self.output]
        return frame.select(*columns, "__reason")

    def _with_identity(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the columns that identify the window of each row, and the reason and revision of each row."""
        columns = [*(rows[k] for k in self.key_names), rows["__reason"], rows["__rev"]]
        columns.append(_utc(rows["__start"]).alias(self.window.window_start_column))
        return pl.DataFrame(columns)

    def sorted_output(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Sort output rows by window start and keys, with NULL first and NaN last."""
        if frame.height < 2:
            return frame
        return frame.sort([self.window.window_start_column, *self.key_names], nulls_last=False, maintain_order=True)


def _utc(us: pl.Series) -> pl.Series:
    return us.cast(pl.Datetime("us", "UTC"))
