"""A window compiled against the columns that are there: the private half of `config.window.Window`.

`WindowLogic` is what all windows share: keys, aggregations, the schema of a state row, lifting, merging and finishing.
`panes.PaneLogic` (tumbling, hopping) and `intervals.SessionLogic` add how intervals combine, and when they are due.
What a state row of it is, `kept` says.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import polars as pl

from slackwater.config.window import Window, allowed_ms
from slackwater.core.schema import Field
from slackwater.windows.aggregations import Agg, AggregationInput
from slackwater.windows.results import EmitResult
from slackwater.windows.state_rows import HIDDEN, NEVER, REVISED, Int64s, KeyedState

METADATA = [Field("_revision", "bigint"), Field("_final_at", "timestamp"), Field("_emit_reason", "string")]


def allowed_us(window: Window) -> int:
    """How long after its close a window may still be corrected."""
    return 1000 * allowed_ms(window)


@dataclass(frozen=True)
class WindowLogic(KeyedState):
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
        """What it knows of former configs: kept with the state, see `with_memory`."""
        return {"gone_us": self.gone_us}

    def with_memory(self, memory: Mapping[str, Any]) -> Self:
        """The window with what a state knows of former configs; `memory` may hold more than it asks for."""
        return replace(self, **{name: memory[name] for name in self.memory})

    def after(self, former: Self, watermark: int) -> Self:
        """The window as it goes on from a state of the former one: what that has forgotten stays forgotten."""
        return replace(self, gone_us=former.horizon(watermark))

    @cached_property
    def inputs(self) -> list[AggregationInput]:
        """The input columns of the aggregations, each once."""
        return list({i.field.name: i for a in self.aggs for i in a.inputs}.values())

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

    # -- rows ----------------------------------------------------------------------------------------------------

    def lift_rows(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows (`__kh`, `__ts`, keys, inputs) with their accumulators instead of the inputs."""
        keep = [c for c in ("__kh", "__ts", "__end", "__src") if c in rows.columns]
        lifted = [e for a in self.aggs for e in a.lift(rows, "__ts")]
        lifted_rows = rows.select(*keep, *self.key_names, *lifted)
        if all(lifted_rows.schema[name] == dtype for name, dtype in self.accumulators.items()):
            return lifted_rows
        return lifted_rows.cast(self.accumulators)  # type: ignore[arg-type]

    def merge_groups(self, frame: pl.DataFrame, group: Int64s, carried: Sequence[pl.Expr]) -> pl.DataFrame:
        """Merge rows with equal `group` (ascending): the first of keys, `carried` expressions, merged accumulators.

        Raises CapExceededError if a group outgrew the bound of its values, ValueRangeError if it can have no result.
        """
        if frame.is_empty():
            return frame
        heads = np.flatnonzero(np.diff(group, prepend=group[0] - 1))
        merged = frame
        if len(heads) < frame.height:
            columns = {c.name: c for a in self.aggs for c in a.fold(frame, heads)}
            remaining = [a for a in self.aggs if not set(a.accumulators) <= set(columns)]
            merged = (
                frame.with_columns(pl.Series("__g", group).set_sorted())
                .group_by("__g", maintain_order=True)
                .agg(*carried, *self._merged_revisions(frame), *(e for a in remaining for e in a.merge()))
                .drop("__g")
            )
            merged = merged.with_columns(**columns)
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
            remaining = [a for a in self.aggs if not set(a.accumulators) <= set(columns)]
            revisions = [c for c in self.revisions if c in parts.columns]  # rows of an epoch have none
            if remaining or revisions:
                rest = [*revisions, *(c for a in remaining for c in a.accumulators)]
                size = np.diff(heads, append=parts.height)
                several = np.repeat(size > 1, size)
                of_group = np.repeat(np.arange(len(heads)), size)[several]
                keys = [c[of_group] for c in carried if c.name in self.key_names]  # an aggregation may take them
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
                merged = agg.settle(merged)
        merged = merged.with_columns(*carried)
        for agg in self.aggs:
            agg.check_bound(merged, self.pipeline)
        return merged

    def _merged_revisions(self, frame: pl.DataFrame) -> list[pl.Expr]:
        if "__rev" not in frame.columns:
            return []
        return [pl.col("__rev").max(), pl.col("__out").explode().drop_nulls().unique().sort()]

    def output_frame(self, done: EmitResult) -> pl.DataFrame:
        """What an epoch emits as the output columns plus `__reason`; superseded rows carry their identity and NULLs."""
        rows = done.rows
        for agg in self.aggs:
            agg.check_bound(rows, self.pipeline)  # as `finish`, with the pipeline's name
        frame = self._with_identity(rows).with_columns(
            *(a.finish(rows).alias(a.name) for a in self.aggs),
            _utc(rows["__end"]).alias(self.window.window_end_column),
            _utc(rows["__final"]),
        )
        if done.superseded.height:
            gone = self._with_identity(done.superseded.with_columns(pl.lit("supersede").alias("__reason")))
            frame = pl.concat([frame, gone], how="diagonal_relaxed")
        hidden_names = dict(zip([f.name for f in METADATA], ("__rev", "__final", "__reason"), strict=True))
        columns = [pl.col(hidden_names.get(f.name, f.name)).cast(f.polars).alias(f.name) for f in self.output]
        return frame.select(*columns, "__reason")

    def _with_identity(self, rows: pl.DataFrame) -> pl.DataFrame:
        """What tells windows apart, with reason and revision."""
        columns = [*(rows[k] for k in self.key_names), rows["__reason"], rows["__rev"]]
        columns.append(_utc(rows["__start"]).alias(self.window.window_start_column))
        return pl.DataFrame(columns)

    def sorted_output(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The order of section 7: (window_start, keys), NULL first, NaN last."""
        if frame.height < 2:
            return frame
        return frame.sort([self.window.window_start_column, *self.key_names], nulls_last=False, maintain_order=True)


def _utc(us: pl.Series) -> pl.Series:
    return us.cast(pl.Datetime("us", "UTC"))
