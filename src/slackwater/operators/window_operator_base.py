"""Base class of the window operators: holds, limits, reports and the description in the commit."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from slackwater.core.column_names import EVENT_TIME
from slackwater.core.schema import Field
from slackwater.operators.base import SAMPLE, ShardTask, StateRowOperator
from slackwater.operators.reports import EmitReport, OverflowCounts
from slackwater.state.commit import Hold, OutputMetadata
from slackwater.windows.compiled_window import CompiledWindow, EmitResult, IngestResult

Report = dict[str, Any]  # fields of an `IngestReport`


@dataclass(frozen=True)
class WindowOperator(CompiledWindow, StateRowOperator):
    """Base class of the operators of tumbling, hopping and session windows.

    A task is deterministic and may run twice. It writes files with new names, which take effect when a commit
    references them.
    """

    @property
    @abstractmethod
    def last_instant_us(self) -> int:
        """Return the time (µs) from a window's last instant to its end: 0 if the end is part of the window, else 1."""

    @property
    def reasons(self) -> Sequence[str]:
        return ("close", "flush")

    @property
    def row_columns(self) -> list[Field]:
        return [*self.output, Field(EVENT_TIME, "timestamp")]

    def as_rows(self, results: pl.DataFrame) -> pl.DataFrame:
        """Add `_event_ts`, the last instant of each window. While a window is open, the watermark has not passed it."""
        end = results[self.window.window_end_column]
        return results.with_columns((end - pl.duration(microseconds=self.last_instant_us)).alias(EVENT_TIME))

    def find_shard_watermark_holds(self, rows: pl.DataFrame) -> tuple[Hold, ...]:
        """Return the watermark holds of a shard. `rows`: all its state rows, sorted by `__h`."""
        return ()

    def find_changed_watermark_holds(self, task: ShardTask, state: pl.DataFrame) -> tuple[Hold, ...] | None:
        """Return the new watermark holds of a shard; None if unchanged. `state`: the new rows of all changed units."""
        return None

    @property
    def early_emission_interval_us(self) -> int:
        return 1000 * self.window.emit_interval_ms

    @property
    def group_limit(self) -> int | None:
        return self.window.max_groups_per_window if self.window.on_state_cap == "drop_new_groups" else None

    @property
    def fails_above(self) -> int | None:
        """Return the number of groups above which an epoch fails; None if there is no such limit."""
        return self.window.max_groups_per_window if self.window.on_state_cap == "fail" else None

    @abstractmethod
    def count_late_by_step(self, late: pl.DataFrame, watermark: int) -> dict[str, int]:
        """Count late rows by the additional lateness that they would have needed (see `core.lateness_histogram`).

        `late`: as in `IngestResult`. `watermark`: the watermark (µs) of the previous epoch.
        """

    def has_forgotten(self, watermark: int) -> bool:
        """Return whether an earlier config has dropped windows from the state that this config would still retain."""
        return self.horizon(watermark) > watermark - self.retain_us

    # -- in the commit -------------------------------------------------------------------------------------------

    @property
    def fingerprint(self) -> dict[str, Any]:
        lengths = ("duration_ms", "hop_ms", "offset_ms", "gap_ms", "max_session_duration_ms")
        values = {key: getattr(self.window, key) for key in lengths}
        return {
            "kind": self.window.kind,
            **{key: int(value) if isinstance(value, int) else value for key, value in values.items()},
            "keys": [f"{k.name} {k.type}" for k in self.keys],  # the hash depends on the order of the keys
            "aggregations": {a.name: a.fingerprint() for a in self.aggs},
        }

    @property
    def emission(self) -> dict[str, Any]:
        return {"updates": self.updates, "retain_us": self.retain_us}

    def description(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Describe the window and its column types. `registry.bind_window` can rebuild the same operator from them."""
        columns = {f.name: f.type for f in (*self.keys, *(i.source for i in self.inputs))}
        return {"window": data, "columns": columns}

    # -- reports -------------------------------------------------------------------------------------------------

    def ingest_report(
        self, task: ShardTask, done: IngestResult, before: pl.DataFrame, alone: pl.DataFrame | None
    ) -> Report:
        """Stage the new state after an epoch's rows have been merged, and return fields of the `IngestReport`.

        Args:
            task: The task of the shard.
            done: The result of the merge.
            before: All previous state rows of the touched units.
            alone: Late rows as separate results; None without such results.
        """
        counts = done.counts
        return {
            "shard": task.shard,
            "segments": task.state.stage(self, done.state, before, task.since),
            "holds": self.find_changed_watermark_holds(task, done.state),
            **(self._stage_standalone(task, alone) if alone is not None else {}),
            "used": counts.used,
            "late": counts.late,
            "late_idle": counts.late_idle,
            "late_windows": counts.late_windows,
            "late_by": self.count_late_by_step(done.late, task.watermark) if done.late.height else {},
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
        """Stage the results of an epoch and the new state. `before`: all previous rows of the units that are due."""
        if task.flush:
            done = replace(done, rows=done.rows.with_columns(pl.col("__reason").replace("close", "flush")))
        outputs: tuple[OutputMetadata, ...] = ()
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
            holds=self.find_changed_watermark_holds(task, done.state),
            reasons={k: n for k, n in reasons.items() if n},
            groups=done.groups,
            windows=done.windows,
            last_end_us=last_end if isinstance(last_end, int) else None,
            overflows=self.overflows(done.rows),
        )

    def overflows(self, rows: pl.DataFrame) -> OverflowCounts:
        """Count the results that overflowed their type and are emitted as NULL, and take a few samples."""
        count, sample = 0, list[dict[str, object]]()
        for agg in self.aggs:
            beyond = agg.overflowed(rows) if agg.spec.on_overflow == "null" else None
            if beyond is not None:
                count += int(beyond.sum())
                sample += [{"aggregation": agg.name, **s} for s in self.sample(rows.filter(beyond), "__start")]
        return OverflowCounts(count=count, sample=tuple(sample[:SAMPLE]))
