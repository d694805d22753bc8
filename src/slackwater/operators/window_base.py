"""Base class of the operators of tumbling, hopping and session windows: due rows, reports and limits.

A task is deterministic and may run twice. It reads files that a commit references, and writes files with new names,
which take effect only when the next commit references them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile
from typing import Any

import polars as pl

from slackwater.core.schema import Field
from slackwater.operators.base import Recount, ShardTask, StageCounts, is_segment_expired
from slackwater.operators.late_row_histogram import count_late_rows_by_lateness
from slackwater.operators.reports import EmitReport, IngestReport, OverflowCounts, to_report_value
from slackwater.state.commit import Hold, OutputMeta, SegmentMeta
from slackwater.windows.compiled_window import CompiledWindow
from slackwater.windows.epoch_results import EmitResult, IngestResult

EVENT_TIME = "_event_ts"
Report = dict[str, Any]  # fields of an `IngestReport`


@dataclass(frozen=True)
class WindowOperator(CompiledWindow):
    """The operator of a window; subclasses add what is specific to their kind of window."""

    @abstractmethod
    def ingest(self, task: ShardTask, rows: pl.DataFrame, origins: pl.Series | None = None) -> IngestReport: ...

    @abstractmethod
    def emit(self, task: ShardTask) -> EmitReport: ...

    @abstractmethod
    def late_before(self, watermark: int) -> int: ...

    @abstractmethod
    def late_letters(self, task: ShardTask, rows: pl.DataFrame) -> pl.DataFrame: ...

    @abstractmethod
    def counts_after_ingest(self, before: StageCounts, reports: Sequence[IngestReport]) -> StageCounts: ...

    @abstractmethod
    def counts_after_emit(self, before: StageCounts, reports: Sequence[EmitReport], watermark: int) -> StageCounts: ...

    @abstractmethod
    def open_counts(self, counts: StageCounts) -> tuple[int, int]: ...

    @abstractmethod
    def check_group_limit(self, counts: StageCounts, watermark: int, recount: Recount) -> None: ...

    @property
    def is_preaggregated(self) -> bool:
        return False

    @property
    @abstractmethod
    def last_instant_us(self) -> int:
        """Return the time (µs) from a window's last instant to its end: 0 if the window includes its end, else 1."""

    @property
    def reasons(self) -> Sequence[str]:
        return ("close", "flush")

    @property
    def row_columns(self) -> list[Field]:
        return [*self.output, Field(EVENT_TIME, "timestamp")]

    def as_rows(self, results: pl.DataFrame) -> pl.DataFrame:
        """Add `_event_ts`, the last instant of each window.

        While a window is open, the watermark is never after this instant.
        """
        end = results[self.window.window_end_column]
        return results.with_columns((end - pl.duration(microseconds=self.last_instant_us)).alias(EVENT_TIME))

    def hold_us(self, watermark: int, holds: Iterable[Hold]) -> int:
        return watermark  # a window that is open at a watermark never ends before that watermark

    @property
    def emits_late_rows(self) -> bool:
        return False

    def read_holds(self, task: ShardTask) -> tuple[Hold, ...]:
        return ()

    def find_shard_holds(self, rows: pl.DataFrame) -> tuple[Hold, ...]:
        """Find the watermark holds of a shard in its state rows."""
        return ()

    def find_changed_holds(self, task: ShardTask, state: pl.DataFrame) -> tuple[Hold, ...] | None:
        """Return the watermark holds of a shard after its changed units became `state`; None if no hold changed."""
        return None

    @property
    def early_us(self) -> int:
        return 1000 * self.window.emit_interval_ms

    @property
    def group_limit(self) -> int | None:
        return self.window.max_groups_per_window if self.window.on_state_cap == "drop_new_groups" else None

    @property
    def fails_above(self) -> int | None:
        """Return the number of groups above which an epoch fails; None if it never fails."""
        return self.window.max_groups_per_window if self.window.on_state_cap == "fail" else None

    def input_index(self, source: str) -> int:
        return 0

    def may_be_due(self, metas: Sequence[SegmentMeta], since: int, watermark: int, early: bool) -> bool:
        due = self.due_between(since, watermark, early)
        return any(due.may_select(m.first_due, m.last_due) for m in metas)

    def is_due(self, task: ShardTask) -> bool:
        return not self.due(task).is_empty()

    def due(self, task: ShardTask) -> pl.DataFrame:
        """Return all state rows of the units in a shard that are due between the two watermarks of a task."""
        return task.state.reader(self).due(self.due_between(task.since, task.watermark, task.early))

    def live_segments(self, metas: tuple[SegmentMeta, ...], since: int) -> tuple[SegmentMeta, ...]:
        """Drop the expired segments before the first unexpired one. Dropping others would expose older row versions."""
        return tuple(dropwhile(lambda meta: is_segment_expired(meta, since), metas))

    # -- in the commit -------------------------------------------------------------------------------------------

    @property
    def fingerprint(self) -> dict[str, Any]:
        lengths = ("duration_ms", "hop_ms", "offset_ms", "gap_ms", "max_session_duration_ms")
        values = {key: getattr(self.window, key) for key in lengths}
        return {
            "kind": self.window.kind,
            **{key: int(value) if isinstance(value, int) else value for key, value in values.items()},
            "keys": [f"{k.name} {k.type}" for k in self.keys],  # in this order, since the hash depends on it
            "aggregations": {a.name: a.fingerprint() for a in self.aggs},
        }

    @property
    def emission(self) -> dict[str, Any]:
        return {"updates": self.updates, "retain_us": self.retain_us}

    def description(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Describe the window, including column types, so that `bind_window` can rebuild the same logic."""
        columns = {f.name: f.type for f in (*self.keys, *(i.source for i in self.inputs))}
        return {"window": data, "columns": columns}

    # -- reports -------------------------------------------------------------------------------------------------

    def ingest_report(
        self, task: ShardTask, done: IngestResult, before: pl.DataFrame, alone: pl.DataFrame | None
    ) -> Report:
        """Stage the outcome of an epoch's rows, and return fields for the report.

        `before`: all previous rows of the touched units. `alone`: late rows as separate results; None if there are
        none.
        """
        counts = done.counts
        return {
            "shard": task.shard,
            "segments": task.state.stage(self, done.state, before, task.since),
            "holds": self.find_changed_holds(task, done.state),
            **(self._stage_standalone(task, alone) if alone is not None else {}),
            "used": counts.used,
            "late": counts.late,
            "late_idle": counts.late_idle,
            "late_windows": counts.late_windows,
            "late_by": count_late_rows_by_lateness(self, done.late, task.watermark),
            "refused": counts.refused,
            "groups": counts.groups,
            "windows": counts.windows,
            "new_groups": done.new_groups,
            "late_sample": self.sample(done.late, "__start"),
        }

    def _stage_standalone(self, task: ShardTask, rows: pl.DataFrame) -> Report:
        """Stage late rows as separate results (`late_data = "standalone"`)."""
        if rows.is_empty():
            return {}
        frame = self.output_frame(EmitResult(rows, self.empty_state(), rows.clear()))
        return {
            "outputs": (task.state.write_output(frame),),
            "reasons": {"standalone": rows.height},
            "overflows": self.overflows(rows),
        }

    def emit_report(self, task: ShardTask, done: EmitResult, before: pl.DataFrame) -> EmitReport:
        """Stage the results that an epoch emits. `before`: all previous rows of the units that are due."""
        if task.flush:
            done = replace(done, rows=done.rows.with_columns(pl.col("__reason").replace("close", "flush")))
        outputs: tuple[OutputMeta, ...] = ()
        if done.rows.height or done.superseded.height:
            outputs = (task.state.write_output(self.output_frame(done)),)
        last_end = done.rows["__end"].filter(done.rows["__reason"] != "update").max()
        reasons = Counter(dict(done.rows["__reason"].value_counts().iter_rows()))
        reasons.update(supersede=done.superseded.height)
        return EmitReport(
            shard=task.shard,
            segments=(
                task.state.stage(self, done.state, before, task.since) if done.state.height else task.state.metas
            ),
            outputs=outputs,
            holds=self.find_changed_holds(task, done.state),
            reasons={k: n for k, n in reasons.items() if n},
            groups=done.groups,
            windows=done.windows,
            last_end_us=last_end if isinstance(last_end, int) else None,
            overflows=self.overflows(done.rows),
        )

    def overflows(self, rows: pl.DataFrame) -> OverflowCounts:
        """Count the results in `rows` that overflowed their type, and take a few samples."""
        count, sample = 0, list[dict[str, object]]()
        for agg in self.aggs:
            beyond = agg.overflowed(rows) if agg.spec.on_overflow == "null" else None
            if beyond is not None:
                count += int(beyond.sum())
                sample += [{"aggregation": agg.name, **s} for s in self.sample(rows.filter(beyond), "__start")]
        return OverflowCounts(count=count, sample=tuple(sample[:3]))

    def sample(self, rows: pl.DataFrame, time: str, limit: int = 3) -> tuple[dict[str, Any], ...]:
        """Return a few rows for the log: their keys, and their event times (µs) from the column `time`."""
        return tuple(
            {**{k: to_report_value(r[k]) for k in self.key_names}, "event_us": to_report_value(r[time])}
            for r in rows.head(limit).iter_rows(named=True)
        )


def empty_report(task: ShardTask) -> IngestReport:
    """Return the report of a shard that received no rows."""
    return IngestReport(shard=task.shard, segments=task.state.metas)
