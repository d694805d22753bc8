"""Base class of operators that store rows of state per key, with timers in event time.

rows sorted by key and time ──────┐                    ┌─▶ emitted rows: output
                                  ├─▶ advance (pure) ──┤
rows of state of these keys ──────┘                    └─▶ new rows of state, each with a timer

                                  ┌─▶ emitted rows: output
rows of state that are due ─▶ expire (pure)
                                  └─▶ rows of state with later timers

Stores, Spark, the in-process engine, migrations, verification, hot keys and `why` work with any `KeyedOperator`. A
subclass defines only its columns of state, `advance`, and `expire` if its timers emit rows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import polars as pl

from slackwater.config.keyed_function import KEY, TIME, TIMER, KeyedResult
from slackwater.core.humanize import plural
from slackwater.core.lateness_histogram import build_lateness_histogram
from slackwater.core.schema import Field
from slackwater.core.sorted_arrays import distinct_values
from slackwater.errors import EpochError
from slackwater.operators.base import ShardTask, StageCounts, flag_idle_sources, is_segment_expired
from slackwater.operators.dead_letters import LATE, ORIGIN, build_late_letters
from slackwater.operators.keyed_state import TimedStateLayout, limit_timer
from slackwater.operators.non_window_base import NonWindowOperator
from slackwater.operators.reports import EmitReport, IngestReport, LetterFile, to_report_value
from slackwater.state.commit import Hold, OutputMeta, SegmentMeta
from slackwater.watermark import NO_WATERMARK

EVENT_TIME = "_event_ts"
_SAMPLE = 3


@dataclass(frozen=True)
class KeyedOperator(TimedStateLayout, NonWindowOperator):
    """Base class of operators that store rows of state per key.

    `fields`: the columns of the rows that the operator reads, without the event time.
    """

    pipeline: str
    keys: tuple[Field, ...]
    fields: tuple[Field, ...]

    KIND: ClassVar[str]  # kind in the fingerprint; also the reason for which rows are emitted
    TAKES_LATE_ROWS: ClassVar[bool] = False  # rows behind the watermark are used, not late
    EXPIRES_ROWS_ALONE: ClassVar[bool] = False  # `expire` gets rows of one key with different timers in one call

    @abstractmethod
    def advance(self, rows: pl.DataFrame, state: pl.DataFrame, watermark: int) -> KeyedResult:
        """Return the rows to emit, and the new state of the keys that occur in an epoch's rows.

        The function must be pure: equal arguments give equal results.

        Args:
            rows: The epoch's rows, sorted by key, event time and values. Columns: `KEY`, `TIME` and `fields`.
            state: The rows of state of these keys, sorted by key. Columns: `KEY`, `TIMER`, the keys, `state_fields`.
            watermark: The watermark (µs) of the previous epoch. No timer in `state` is at or before it.
        """

    def expire(self, due: pl.DataFrame, watermark: int) -> KeyedResult:
        """Return the rows to emit for rows of state whose timers are due, and new rows of state for the same keys.

        Each row of state is passed exactly once, and has left the state by then. Within one call, all rows of a key
        have the same timer, unless `EXPIRES_ROWS_ALONE`. The function must be pure.

        Args:
            due: The rows of state that are due, sorted by key. Columns: `KEY`, `TIMER`, the keys, `state_fields`.
            watermark: The watermark (µs) that has reached their timers.
        """
        return KeyedResult()

    @property
    def lag_us(self) -> int:
        """Return how far (µs) the event time of an emitted row may be behind the watermark."""
        return 0

    @property
    def reach_us(self) -> int:
        """Return how long (µs) after the event time of a row its timer may be."""
        return 0

    # -- rows ----------------------------------------------------------------------------------------------------

    @property
    def kind(self) -> str:
        return self.KIND

    @property
    def added(self) -> Sequence[Field]:
        """Return the output columns that follow the columns of the input rows."""
        return ()

    @property
    def output_fields(self) -> Sequence[Field]:
        """Return the columns of the emitted rows, without the event time."""
        return [*self.fields, *self.added]

    @property
    def output(self) -> list[Field]:
        return [*self.output_fields, Field(EVENT_TIME, "timestamp")]

    @property
    def reasons(self) -> Sequence[str]:
        return (self.kind,)

    def slot(self, position: int) -> str:
        """Return the name under which a column is sent to a shard. Normalized keys are sent separately."""
        return f"__c{position}"

    @property
    def slots(self) -> dict[str, Field]:
        return {self.slot(i): f for i, f in enumerate(self.fields)}

    def sorted_output(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Sort emitted rows by event time, then by the columns that can be compared; NULL first, NaN last."""
        by = [EVENT_TIME, *(f.name for f in self.output_fields if f.is_scalar)]
        return frame.sort(by, nulls_last=False, maintain_order=True)

    @property
    def emits_late_rows(self) -> bool:
        return self.TAKES_LATE_ROWS

    def late_before(self, watermark: int) -> int:
        return NO_WATERMARK if self.TAKES_LATE_ROWS else watermark

    def hold_us(self, watermark: int, holds: Iterable[Hold]) -> int:
        return watermark if watermark <= NO_WATERMARK else watermark - self.lag_us

    def input_index(self, source: str) -> int:
        return 0

    # -- on a shard: rows ------------------------------------------------------------------------------------------

    def ingest(self, task: ShardTask, rows: pl.DataFrame, origins: pl.Series | None = None) -> IngestReport:
        """Advance the keys of `rows`, which has `__kh`, `__ts`, the keys, and all columns under the names of `slot`."""
        if rows.is_empty():
            return IngestReport(shard=task.shard, segments=task.state.metas)
        total, rows = rows.height, flag_idle_sources(task, rows)
        if origins is not None:
            rows = rows.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("__row"))
        is_late = pl.col(TIME) < self.late_before(task.watermark)
        late, rows = rows.filter(is_late), rows.filter(~is_late)
        before = task.state.reader(self).units(distinct_values(np.sort(rows["__kh"].to_numpy())))
        by = ["__kh", *self.key_names]
        keys = self._number_keys(rows, by)
        live = self.drop_expired(before, task.watermark).join(
            keys.select(*by, KEY), on=by, how="left", nulls_equal=True, maintain_order="left"
        )
        result = self.advance(
            self._rows_by_key(rows.join(keys.select(*by, KEY), on=by, how="left", nulls_equal=True)),
            self.state_frame(live.drop_nulls(KEY)),
            task.watermark,
        )
        change = self.replace_state(keys, live, result, task.watermark)
        task.staging("before")
        segments = task.state.stage(self, change.rows, before, task.since)
        outputs = self._write_output(task, [result.rows])
        letters = self._stage_letters(task, late, origins)
        task.staging("after")
        emitted = sum(o.rows for o in outputs)
        return IngestReport(
            shard=task.shard,
            segments=segments,
            rows=total,
            used=rows.height,
            late=late.height,
            late_idle=int(late["__idle"].sum()) if "__idle" in late.columns else 0,
            late_by=build_lateness_histogram(task.watermark - late[TIME].to_numpy()) if late.height else {},
            late_sample=self._sample(late),
            duplicates=result.duplicates,
            groups=change.groups,
            windows=change.windows,
            outputs=outputs,
            letters=letters,
            reasons={self.kind: emitted} if emitted else {},
        )

    def _number_keys(self, rows: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
        """Return the distinct keys of an epoch's rows, each with a number and its first and last event times."""
        times = (pl.col(TIME).min().alias("__from"), pl.col(TIME).max().alias("__upto"))
        return rows.group_by(by, maintain_order=True).agg(*times).with_row_index(KEY)

    def _rows_by_key(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return rows in the order, and with the column names, that `advance` expects."""
        order = [KEY, TIME, *(name for name, f in self.slots.items() if f.is_scalar)]
        named = (pl.col(slot).alias(f.name) for slot, f in self.slots.items())
        return rows.sort(order, nulls_last=False, maintain_order=True).select(KEY, TIME, *named)

    def _sample(self, late: pl.DataFrame) -> tuple[dict[str, Any], ...]:
        some = late.head(_SAMPLE).select(pl.col(TIME).alias("event_us"), *self.key_names)
        return tuple({k: to_report_value(v) for k, v in row.items()} for row in some.iter_rows(named=True))

    def _stage_letters(self, task: ShardTask, late: pl.DataFrame, origins: pl.Series | None) -> LetterFile | None:
        if task.late is None or origins is None or late.is_empty():
            return None
        times = (pl.col(TIME).alias("__start"), pl.col("^__idle$"))
        letters = self.late_letters(task, late.select(*times, *self.key_names, origins[late["__row"]].alias(ORIGIN)))
        return LetterFile(output=task.state.write_output(letters), reasons={LATE: letters.height})

    def late_letters(self, task: ShardTask, rows: pl.DataFrame) -> pl.DataFrame:
        return build_late_letters(task, rows, keys=self.keys)

    def _write_output(self, task: ShardTask, frames: Sequence[pl.DataFrame | None]) -> tuple[OutputMeta, ...]:
        """Stage the emitted rows, converted to the columns of the output."""
        named = [self._output(frame) for frame in frames if frame is not None and frame.height]
        return (task.state.write_output(pl.concat(named)),) if named else ()

    def _output(self, rows: pl.DataFrame) -> pl.DataFrame:
        columns = [rows[f.name].cast(f.polars) for f in self.output_fields]
        time = rows[TIME].cast(pl.Datetime("us", "UTC")).alias(EVENT_TIME)
        return pl.DataFrame([*columns, time, pl.Series("__reason", [self.kind]).new_from_index(0, rows.height)])

    # -- on a shard: timers ----------------------------------------------------------------------------------------

    def may_be_due(self, metas: Sequence[SegmentMeta], since: int, watermark: int, early: bool) -> bool:
        due = self.due_between(since, watermark)
        return any(due.may_select(m.first_due, m.last_due) for m in metas)

    def is_due(self, task: ShardTask) -> bool:
        return not self._due_units(task).is_empty()

    def _due_units(self, task: ShardTask) -> pl.DataFrame:
        """Return all state rows of the units in which a timer is due between the two watermarks of a task."""
        return task.state.reader(self).due(self.due_between(task.since, task.watermark))

    def emit(self, task: ShardTask) -> EmitReport:
        """Expire the rows of state that are due between two watermarks."""
        units = self._due_units(task)
        if units.is_empty():
            return EmitReport(shard=task.shard, segments=task.state.metas)
        live, rest = self.drop_expired(units, task.since), self.drop_expired(units, task.watermark)
        due = live.filter(pl.col("__due") <= limit_timer(task.watermark))
        frames, added = self._expire(due, task.watermark)
        rest = pl.concat([rest, added])
        state = rest.join(added.select("__h").unique(), on="__h", how="semi", maintain_order="left")
        segments = task.state.metas
        if state.height:
            segments = task.state.stage(
                self, state.sort("__h", *self.key_names, maintain_order=True), units, task.since
            )
        outputs = self._write_output(task, frames)
        emitted, counts = sum(o.rows for o in outputs), zip(self.count_rows(rest), self.count_rows(live), strict=True)
        groups, windows = (after - before for after, before in counts)
        return EmitReport(
            shard=task.shard,
            segments=segments,
            outputs=outputs,
            reasons={self.kind: emitted} if emitted else {},
            groups=groups,
            windows=windows,
            last_end_us=int(due["__due"].max()) if emitted else None,  # type: ignore[arg-type]
        )

    def _expire(self, due: pl.DataFrame, watermark: int) -> tuple[list[pl.DataFrame | None], pl.DataFrame]:
        """Call `expire` until no timer is due; return the emitted frames, and the rows of state that remain.

        Each round handles the earliest due timer of each key, so that the result is the same whether the watermark
        advances in one step or in several.

            timers of a key   5    9            watermark 10: round 1 expires 5, which adds 7;
                                                round 2 expires 7, round 3 expires 9
        """
        by, frames, added = ["__kh", *self.key_names], list[pl.DataFrame | None](), [self.empty_state()]
        spans = due.group_by(by, maintain_order=True).agg(
            pl.col("__start").min().alias("__from"), pl.col("__last").max().alias("__upto")
        )
        keys = spans.with_row_index(KEY)
        while due.height:
            earliest = pl.lit(True) if self.EXPIRES_ROWS_ALONE else pl.col("__due") == pl.col("__due").min().over(by)
            now, due = due.filter(earliest), due.filter(~earliest)
            numbered = now.join(keys.select(*by, KEY), on=by, nulls_equal=True, maintain_order="left")
            result = self.expire(self.state_frame(numbered), watermark)
            frames.append(result.rows)
            if result.state is None or result.state.is_empty():
                continue
            self._check_timers(numbered, result.state)
            new = self.state_rows(keys, result.state, NO_WATERMARK)
            is_due = pl.col("__due") <= limit_timer(watermark)
            due = pl.concat([due, new.filter(is_due)])
            added.append(new.filter(~is_due))
        return frames, pl.concat(added)

    def _check_timers(self, fired: pl.DataFrame, state: pl.DataFrame) -> None:
        """Raise EpochError unless every timer that `expire` has set is later than the timer that it handled."""
        earliest = fired.group_by(KEY).agg(pl.col("__due").min())
        timers = state.select(pl.col(KEY).cast(fired.schema[KEY]), TIMER).join(earliest, on=KEY, how="left")
        if (wrong := timers.filter(pl.col("__due").is_null() | (pl.col(TIMER) <= pl.col("__due")))).height:
            new_timer, handled = wrong.row(0)[1:]
            raise EpochError(
                f"{self.pipeline}: expire of {self.kind} set a timer that cannot be reached. Found {new_timer} µs for a timer "
                f"at {handled} µs, expected a later time of a key that is due. Correct expire."
            )

    # -- in the commit -------------------------------------------------------------------------------------------

    @property
    def fingerprint(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "keys": [f"{k.name} {k.type}" for k in self.keys],  # in this order, since the hash depends on it
            "state": [f"{f.name} {f.type}" for f in self.state_fields],
        }

    def description(self, data: Mapping[str, Any]) -> dict[str, Any]:
        return {"step": dict(data), "columns": {f.name: f.type for f in self.fields}}

    def counts_after_ingest(self, before: StageCounts, reports: Sequence[IngestReport]) -> StageCounts:
        return _add_counts(before, reports)

    def counts_after_emit(self, before: StageCounts, reports: Sequence[EmitReport], watermark: int) -> StageCounts:
        return _add_counts(before, reports)

    def open_counts(self, counts: StageCounts) -> tuple[int, int]:
        return 0, sum(counts.groups)

    def live_segments(self, metas: tuple[SegmentMeta, ...], since: int) -> tuple[SegmentMeta, ...]:
        """Drop the expired segments before the first unexpired one. Dropping others would expose older row versions."""
        count = next((n for n, meta in enumerate(metas) if not is_segment_expired(meta, since)), len(metas))
        return metas[count:]

    def state_text(self, counts: StageCounts) -> str:
        """Describe the stored state in a short phrase, for users."""
        keys, rows = sum(counts.groups), sum(counts.windows)
        return f"{plural(keys, 'key')} kept" + (f" in {plural(rows, 'row')}" if rows != keys else "")


def _add_counts(before: StageCounts, reports: Sequence[IngestReport | EmitReport]) -> StageCounts:
    groups, windows = list(before.groups), list(before.windows)
    for r in reports:
        groups[r.shard] += r.groups
        windows[r.shard] += r.windows
    return replace(before, groups=tuple(groups), windows=tuple(windows))


__all__ = ["EVENT_TIME", "KEY", "TIME", "TIMER", "KeyedOperator", "KeyedResult"]
