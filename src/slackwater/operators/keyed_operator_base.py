"""Base class of operators that store rows of state per key, with timers in event time.

rows sorted by key and time ──────┐                    ┌─▶ emitted rows: output
                                  ├─▶ advance (pure) ──┤
rows of state of these keys ──────┘                    └─▶ new rows of state, each with a timer

                                  ┌─▶ emitted rows: output
rows of state that are due ─▶ expire (pure)
                                  └─▶ rows of state with later timers

Stores, engines, migrations, verification, hot-key reports and `why` work with any `KeyedOperator`. A subclass defines
only its columns of state, `advance`, and `expire` if its timers emit rows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
import polars as pl

from slackwater.config.error_text import suggest_or_list_words
from slackwater.config.keyed_step import KEY, TIME, TIMER, KeyedResult
from slackwater.config.pipeline import Pipeline
from slackwater.config.step_base import KeyedStep
from slackwater.core.column_names import EVENT_TIME
from slackwater.core.humanize import plural
from slackwater.core.lateness_histogram import build_lateness_histogram
from slackwater.core.schema import Field, parse_field
from slackwater.core.sorted_arrays import distinct_values
from slackwater.errors import EpochError, StartError
from slackwater.operators.base import NonWindowOperator, ShardTask, StateRowOperator, count_idle
from slackwater.operators.dead_letters import (
    LATE,
    build_late_dead_letters,
    find_late_dead_letters,
    stage_dead_letters,
    tag_rows,
)
from slackwater.operators.reports import EmitReport, IngestReport, StageCounts
from slackwater.operators.timer_state_layout import TimerStateLayout, limit_timer
from slackwater.state.commit import Hold, OutputMetadata, StageState
from slackwater.watermark import NO_WATERMARK


@dataclass(frozen=True)
class KeyedOperator(TimerStateLayout, StateRowOperator, NonWindowOperator):
    """Base class of operators that store rows of state per key.

    `fields`: the columns of the input rows, without the event time.
    """

    pipeline: str
    keys: tuple[Field, ...]
    fields: tuple[Field, ...]

    KIND: ClassVar[str]  # kind in the fingerprint, and the reason for every emitted row
    TAKES_LATE_ROWS: ClassVar[bool] = False  # whether rows behind the watermark are used, not late
    EXPIRES_ROWS_ALONE: ClassVar[bool] = False  # whether one call of `expire` may receive different timers for one key

    @abstractmethod
    def advance(self, rows: pl.DataFrame, state: pl.DataFrame, watermark: int) -> KeyedResult:
        """Return the rows to emit, and the new state of the keys that occur in an epoch's rows.

        The method must be pure: equal arguments give equal results.

        Args:
            rows: The epoch's rows, sorted by key, event time and values. Columns: `KEY`, `TIME` and `fields`.
            state: The rows of state of these keys, sorted by key. Columns: `KEY`, `TIMER`, the keys, `state_fields`.
            watermark: The watermark (µs) of the previous epoch. No timer in `state` is at or before it.
        """

    def expire(self, due: pl.DataFrame, watermark: int) -> KeyedResult:
        """Return the rows to emit for rows of state that are due, and new rows of state for the same keys.

        Each row of state is passed exactly once, and is then no longer part of the state. Within one call, all rows of
        a key have the same timer, unless `EXPIRES_ROWS_ALONE` is set. The method must be pure.

        Args:
            due: The rows of state that are due, sorted by key. Columns: `KEY`, `TIMER`, the keys, `state_fields`.
            watermark: The watermark (µs) that has reached the timers.
        """
        return KeyedResult()

    @property
    def lag_us(self) -> int:
        """Return the maximum time (µs) by which an emitted row may be behind the watermark."""
        return 0

    @property
    def reach_us(self) -> int:
        """Return the maximum time (µs) from the event time of a row to its timer."""
        return 0

    # -- rows ----------------------------------------------------------------------------------------------------

    @property
    def kind(self) -> str:
        return self.KIND

    @property
    def added(self) -> Sequence[Field]:
        """Return the output columns that the operator appends to the columns of the input rows."""
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
        """Return the name under which the column at this position is sent to a shard. Keys are sent separately."""
        return f"__c{position}"

    @property
    def slots(self) -> dict[str, Field]:
        """Return the input columns, keyed by the names under which they are sent to a shard."""
        return {self.slot(i): f for i, f in enumerate(self.fields)}

    def sorted_output(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Sort emitted rows by event time, then by all columns with an order. NULL comes first, NaN last."""
        by = [EVENT_TIME, *(f.name for f in self.output_fields if f.is_scalar)]
        return frame.sort(by, nulls_last=False, maintain_order=True)

    @property
    def emits_late_rows(self) -> bool:
        return self.TAKES_LATE_ROWS

    def late_threshold(self, watermark: int) -> int:
        return NO_WATERMARK if self.TAKES_LATE_ROWS else watermark

    def watermark_hold_us(self, watermark: int, holds: Iterable[Hold]) -> int:
        return watermark if watermark <= NO_WATERMARK else watermark - self.lag_us

    # -- on a shard: rows ------------------------------------------------------------------------------------------

    def ingest(self, task: ShardTask, rows: pl.DataFrame, origins: pl.Series | None = None) -> IngestReport:
        """Pass an epoch's rows to `advance`, and stage the results and the new state.

        `rows` has `__kh`, `__ts`, the keys, and all input columns under the names of `slot`.
        """
        if rows.is_empty():
            return IngestReport(shard=task.shard, segments=task.state.metas)
        total, rows = rows.height, tag_rows(task, rows, origins)
        is_late = pl.col(TIME) < self.late_threshold(task.watermark)
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
        letters = stage_dead_letters(task, {LATE: find_late_dead_letters(task, late, origins, TIME)})
        task.staging("after")
        emitted = sum(o.rows for o in outputs)
        return IngestReport(
            shard=task.shard,
            segments=segments,
            rows=total,
            used=rows.height,
            late=late.height,
            late_idle=count_idle(late),
            late_by=build_lateness_histogram(task.watermark - late[TIME].to_numpy()) if late.height else {},
            late_sample=self.sample(late, TIME),
            duplicates=result.duplicates,
            groups=change.groups,
            windows=change.windows,
            outputs=outputs,
            letters=letters,
            reasons={self.kind: emitted} if emitted else {},
        )

    def _number_keys(self, rows: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
        """Return the distinct keys of an epoch's rows, with a number and the first and last event time of each key."""
        times = (pl.col(TIME).min().alias("__from"), pl.col(TIME).max().alias("__upto"))
        return rows.group_by(by, maintain_order=True).agg(*times).with_row_index(KEY)

    def _rows_by_key(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Convert rows to the order and the column names that `advance` expects."""
        order = [KEY, TIME, *(name for name, f in self.slots.items() if f.is_scalar)]
        named = (pl.col(slot).alias(f.name) for slot, f in self.slots.items())
        return rows.sort(order, nulls_last=False, maintain_order=True).select(KEY, TIME, *named)

    def late_dead_letters(self, task: ShardTask, rows: pl.DataFrame) -> pl.DataFrame:
        return build_late_dead_letters(task, rows, keys=self.keys)

    def _write_output(self, task: ShardTask, frames: Sequence[pl.DataFrame | None]) -> tuple[OutputMetadata, ...]:
        """Convert the emitted rows to the output columns, and stage them."""
        named = [self._output(frame) for frame in frames if frame is not None and frame.height]
        return (task.state.write_output(pl.concat(named)),) if named else ()

    def _output(self, rows: pl.DataFrame) -> pl.DataFrame:
        columns = [rows[f.name].cast(f.polars) for f in self.output_fields]
        time = rows[TIME].cast(pl.Datetime("us", "UTC")).alias(EVENT_TIME)
        return pl.DataFrame([*columns, time, pl.Series("__reason", [self.kind]).new_from_index(0, rows.height)])

    # -- on a shard: timers ----------------------------------------------------------------------------------------

    def emit(self, task: ShardTask) -> EmitReport:
        """Expire the rows of state that are due between two watermarks."""
        units = self.read_due_units(task)
        if units.is_empty():
            return EmitReport(shard=task.shard, segments=task.state.metas)
        live, rest = self.drop_expired(units, task.since), self.drop_expired(units, task.watermark)
        due = live.filter(pl.col("__due") <= limit_timer(task.watermark))
        frames, added = self._expire(due, task.watermark)
        rest = pl.concat([rest, added])
        state = rest.join(added.select("__h").unique(), on="__h", how="semi", maintain_order="left")
        segments = task.state.metas
        if state.height:
            state = state.sort("__h", *self.key_names, maintain_order=True)
            segments = task.state.stage(self, state, units, task.since)
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
        """Call `expire` until no timer is due. Return the emitted frames, and the new rows of state.

        Each round fires the earliest due timer of each key. Therefore, the result is the same whether the watermark
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
        """Raise EpochError unless every timer that `expire` has set is later than the due timer of its key.

        `fired`: the rows of state that were passed to `expire`. `state`: the rows of state that it returned.
        """
        earliest = fired.group_by(KEY).agg(pl.col("__due").min())
        timers = state.select(pl.col(KEY).cast(fired.schema[KEY]), TIMER).join(earliest, on=KEY, how="left")
        if (wrong := timers.filter(pl.col("__due").is_null() | (pl.col(TIMER) <= pl.col("__due")))).height:
            new_timer, handled = wrong.row(0)[1:]
            if handled is None:
                raise EpochError(
                    f"{self.pipeline}: expire of {self.kind} returned a row for a key whose timer is not due; return "
                    "rows only for keys whose timers are due"
                )
            raise EpochError(
                f"{self.pipeline}: expire of {self.kind} returned a row with the timer {new_timer} µs for a key whose "
                f"timer at {handled} µs is due; return a later timer"
            )

    # -- in the commit -------------------------------------------------------------------------------------------

    @property
    def fingerprint(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "keys": [f"{k.name} {k.type}" for k in self.keys],  # the hash depends on the order of the keys
            "state": [f"{f.name} {f.type}" for f in self.state_fields],
        }

    def description(self, data: Mapping[str, Any]) -> dict[str, Any]:
        return {"step": dict(data), "columns": {f.name: f.type for f in self.fields}}

    def count_open_groups(self, counts: StageCounts) -> tuple[int, int]:
        return 0, sum(counts.groups)

    def state_text(self, counts: StageCounts) -> str:
        """Describe the size of the state in a short phrase for users."""
        keys, rows = sum(counts.groups), sum(counts.windows)
        return f"{plural(keys, 'key')} kept" + (f" in {plural(rows, 'row')}" if rows != keys else "")


@dataclass(frozen=True)
class StoredKeyedOperator(KeyedOperator):
    """A keyed operator that was restored from a state. It can read and rewrite rows of state, but not process input.

    Restoring it does not load the code of the operator, because a state must not decide which code is loaded.
    """

    stored_kind: str = ""
    stored_fields: tuple[Field, ...] = ()

    KIND: ClassVar[str] = "keyed"

    @property
    def kind(self) -> str:
        return self.stored_kind

    @property
    def state_fields(self) -> Sequence[Field]:
        return self.stored_fields

    @classmethod
    def from_state(cls, pipeline: str, state: StageState) -> Self:
        """Restore the operator from the state of a stage.

        Raises KeyError, TypeError or ValueError if the state does not describe a keyed operator.
        """
        wrote = state.fingerprint
        keys, stored = (tuple(parse_field(text) for text in wrote[part]) for part in ("keys", "state"))
        fields = tuple(Field(n, t) for n, t in state.described.get("columns", {}).items())
        return cls(pipeline, keys, fields, str(wrote["kind"]), stored)

    def advance(self, rows: pl.DataFrame, state: pl.DataFrame, watermark: int) -> NoReturn:
        raise NotImplementedError("an operator that was restored from a state does not run")


def bind_keyed_step(
    pipeline: Pipeline, columns: Mapping[str, Mapping[str, Field]]
) -> tuple[tuple[Field, ...], tuple[Field, ...]]:
    """Return the key columns of a keyed step, and all input columns except the event time.

    `columns`: the output columns of the SQL, by source. Raises StartError, with one line per problem.
    """
    step, first = pipeline.transform.step, next(iter(columns.values()))
    assert isinstance(step, KeyedStep)
    where = f"{pipeline.name}: {step.CONFIG_PATH}"
    fields = tuple(f for f in first.values() if f.name != EVENT_TIME)
    every = [find_scalar_problem(f"{where}.keys", name, first) for name in step.keys]
    every += [find_result_problem(where, f, f.name.startswith("__")) for f in fields]
    problems = [problem for problem in every if problem is not None]
    for name in step.added_columns:
        if name in first:
            problems.append(
                f'{where}: the SQL selects a column "{name}", which this step adds itself; rename the column in the SQL'
            )
    if problems:
        raise StartError("\n".join(problems))
    return tuple(first[k] for k in step.keys), fields


def find_scalar_problem(where: str, name: str, columns: Mapping[str, Field]) -> str | None:
    """Return a message if a column does not exist or does not have a scalar type. `where`: prefix of the message."""
    if name not in columns:
        return f'{where}: column "{name}" does not come out of the SQL{suggest_or_list_words(name, columns)}'
    if columns[name].is_scalar:
        return None
    return f'{where}: column "{name}" has type {columns[name].type}, expected a scalar type; cast it in the SQL'


def find_result_problem(where: str, field: Field, is_reserved: bool) -> str | None:
    """Return a message if a column cannot be part of the results. `where`: prefix of the message."""
    if is_reserved:
        return f'{where}: column "{field.name}" has a name that Slackwater reserves; rename it'
    if field.is_result_type:
        return None
    return (
        f'{where}: column "{field.name}" has type {field.type}, which no target supports; cast it in the SQL, '
        "or convert it to text with to_json()"
    )
