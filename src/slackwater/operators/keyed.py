"""Base class of operators that store values per key and emit rows in the epoch that reads them.

rows of a shard, by key and time ─┐                    ┌─▶ emitted rows: output
                                  ├─▶ advance (pure) ──┤
stored values of these keys ──────┘                    └─▶ new stored values: the keys' units

Stores, Spark, the in-process engine, migrations, verification, hot keys and `why` support `KeyedOperator`. A subclass
only defines `advance`, the stored values, and how it is restored from a commit (`from_state`). Keys never expire.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import polars as pl

from slackwater.core.humanize import plural
from slackwater.core.schema import Field, parse_field
from slackwater.core.sorted_arrays import distinct_values
from slackwater.core.value_limits import YEARS
from slackwater.operators.base import ShardTask, StageCounts
from slackwater.operators.immediate import ImmediateOperator
from slackwater.operators.reports import IngestReport
from slackwater.state.commit import SegmentMeta, StageState
from slackwater.windows.epoch_results import ExpiryBounds, SegmentStats
from slackwater.windows.state_rows import FAR, HIDDEN, NEVER, WHOLE, DueRowFilter, KeyedStateLayout

EVENT_TIME = "_event_ts"
KEY = "__key"  # hidden column: the number of a row's key within the epoch


@dataclass(frozen=True)
class KeyedOperator(KeyedStateLayout, ImmediateOperator):
    """Base class of operators that store values per key.

    `fields`: the output columns, including the keys. The event time follows them and is not part of `fields`.
    """

    pipeline: str
    keys: tuple[Field, ...]
    fields: tuple[Field, ...]

    KIND: ClassVar[str]  # kind in the fingerprint; also the reason for which rows are emitted

    @property
    @abstractmethod
    def accumulators(self) -> Mapping[str, pl.DataType]:
        """Return the columns stored for each key."""

    @abstractmethod
    def advance(self, rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the emitted rows with all their columns, and the new stored values per key: `KEY`, `accumulators`.

        `rows` are sorted by key, then by `__ts`, then by their values. They have `KEY`, `__ts`, the columns under their
        `slot`, and the stored values of their key, NULL for a new key. The function must be pure: equal rows give equal
        results.
        """

    # -- rows ----------------------------------------------------------------------------------------------------

    @property
    def added(self) -> Mapping[str, Field]:
        """Return the columns that are added after those of the rows, by the name under which `advance` returns them."""
        return {}

    @property
    def output(self) -> list[Field]:
        return [*self.fields, *self.added.values(), Field(EVENT_TIME, "timestamp")]

    @property
    def reasons(self) -> Sequence[str]:
        return (self.KIND,)

    def slot(self, position: int) -> str:
        """Return the name of a column while it is sent to a shard; normalized keys are sent separately."""
        return f"__c{position}"

    @property
    def slots(self) -> dict[str, Field]:
        return {self.slot(i): f for i, f in enumerate(self.fields)}

    def sorted_output(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Sort by event time, then by the comparable values; NULL first, NaN last."""
        by = [EVENT_TIME, *(f.name for f in self.fields if f.is_scalar)]
        return frame.sort(by, nulls_last=False, maintain_order=True)

    # -- state: one row per key ----------------------------------------------------------------------------------

    @cached_property
    def state_schema(self) -> dict[str, pl.DataType]:
        return {**HIDDEN, **{k.name: k.polars for k in self.keys}, **self.accumulators}

    def stats(self, state: pl.DataFrame) -> SegmentStats:
        return SegmentStats(FAR, NEVER, NEVER, FAR)

    def due_between(self, since: int, watermark: int, early: bool = False) -> DueRowFilter:
        return DueRowFilter((), (), (), NEVER, NEVER)

    def expiry_bounds(self, watermark: int) -> ExpiryBounds:
        return ExpiryBounds(NEVER, NEVER)

    def drop_expired(self, state: pl.DataFrame, watermark: int) -> pl.DataFrame:
        return state

    # -- on a shard ----------------------------------------------------------------------------------------------

    def ingest(self, task: ShardTask, rows: pl.DataFrame, origins: pl.Series | None = None) -> IngestReport:
        """Advance the keys of `rows`, which has `__kh`, `__ts`, the keys, and the columns under their `slot`."""
        if rows.is_empty():
            return IngestReport(shard=task.shard, segments=task.state.metas)
        by = ["__kh", *self.key_names]
        before = task.state.reader(self).units(distinct_values(np.sort(rows["__kh"].to_numpy())))
        of_key = (pl.col("__ts").min().alias("__from"), pl.col("__ts").max().alias("__upto"))
        keys = (
            rows.group_by(by, maintain_order=True)
            .agg(*of_key)
            .with_row_index(KEY)
            .join(before.select(*by, "__start", "__last", *self.accumulators), on=by, how="left", nulls_equal=True)
        )
        rows_with_state = rows.join(keys.select(*by, KEY, *self.accumulators), on=by, how="left", nulls_equal=True)
        order = [KEY, "__ts", *(name for name, f in self.slots.items() if f.is_scalar)]
        chosen, now = self.advance(rows_with_state.sort(order, nulls_last=False, maintain_order=True))
        after = self._units(keys, now, before)
        task.staging("before")
        segments = task.state.stage(self, after, before, task.since)
        outputs = (task.state.write_output(self._output(chosen)),) if chosen.height else ()
        task.staging("after")
        return IngestReport(
            shard=task.shard,
            segments=segments,
            rows=rows.height,
            used=rows.height,
            groups=after.height - before.height,
            outputs=outputs,
            reasons={self.KIND: chosen.height} if chosen.height else {},
        )

    def _units(self, keys: pl.DataFrame, now: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
        """Return the new state of the touched units; other keys with the same hash are kept unchanged."""
        new = (
            keys.drop(self.accumulators.keys())
            .join(now.select(pl.col(KEY).cast(keys.schema[KEY]), *self.accumulators), on=KEY)
            .select(
                pl.col("__kh").alias("__h"),
                "__kh",
                pl.lit(WHOLE).alias("__kind"),
                pl.min_horizontal("__start", "__from").alias("__start"),
                pl.max_horizontal("__last", "__upto").alias("__last"),
                pl.lit(YEARS[1]).alias("__due"),  # never due; Postgres stores it as a time
                *self.key_names,
                *self.accumulators,
            )
            .cast(self.state_schema)  # type: ignore[arg-type]
        )
        others = before.join(new, on=["__h", *self.key_names], how="anti", nulls_equal=True)
        return pl.concat([others, new]).sort("__h", *self.key_names, maintain_order=True)

    def _output(self, chosen: pl.DataFrame) -> pl.DataFrame:
        named = {**self.slots, **self.added}
        columns = [chosen[c].cast(f.polars).alias(f.name) for c, f in named.items()]
        time = chosen["__ts"].cast(pl.Datetime("us", "UTC")).alias(EVENT_TIME)
        return pl.DataFrame([*columns, time, pl.Series("__reason", [self.KIND]).new_from_index(0, chosen.height)])

    # -- in the commit -------------------------------------------------------------------------------------------

    @property
    def fingerprint(self) -> dict[str, Any]:
        return {
            "kind": self.KIND,
            "keys": [f"{k.name} {k.type}" for k in self.keys],
        }  # in this order, since the hash depends on it

    def description(self, data: Mapping[str, Any]) -> dict[str, Any]:
        return {"step": dict(data), "columns": {f.name: f.type for f in self.fields}}

    @staticmethod
    def columns_from_state(state: StageState) -> tuple[tuple[Field, ...], tuple[Field, ...]]:
        """Return the keys and columns that a state describes, for use in `from_state`."""
        fields = (Field(n, t) for n, t in state.described["columns"].items())
        return tuple(parse_field(k) for k in state.fingerprint["keys"]), tuple(fields)

    def counts_after_ingest(self, before: StageCounts, reports: Sequence[IngestReport]) -> StageCounts:
        groups = list(before.groups)
        for r in reports:
            groups[r.shard] += r.groups
        return replace(before, groups=tuple(groups))

    def open_counts(self, counts: StageCounts) -> tuple[int, int]:
        return 0, sum(counts.groups)

    def live_segments(self, metas: tuple[SegmentMeta, ...], since: int) -> tuple[SegmentMeta, ...]:
        return metas

    def state_text(self, counts: StageCounts) -> str:
        return f"{plural(sum(counts.groups), 'key')} kept"
