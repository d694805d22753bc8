"""The operator of interval joins, which matches rows of two inputs and buffers them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import polars as pl

from slackwater.config.join import SIDES
from slackwater.core.humanize import plural
from slackwater.core.lateness_histogram import build_lateness_histogram
from slackwater.core.schema import parse_field
from slackwater.errors import LimitExceededError
from slackwater.joins import match_rows
from slackwater.joins.compiled_join import MATCH, UNMATCHED, CompiledJoin, JoinSide, ShuffleColumns, build_join_side
from slackwater.operators.base import SAMPLE, NonWindowOperator, ShardTask, is_segment_expired, sample_rows
from slackwater.operators.dead_letters import (
    LATE,
    build_late_dead_letters,
    find_late_dead_letters,
    stage_dead_letters,
    tag_rows,
)
from slackwater.operators.reports import EmitReport, IngestReport, SideReport, StageCounts
from slackwater.state.commit import Hold, OutputMetadata, SegmentMetadata, StageState
from slackwater.watermark import NO_WATERMARK

PLAIN = ("__kh", "__ts")


class _JoinOutput:
    """Collects output frames, and stages them once they total at least `match_rows.MOST` rows."""

    def __init__(self, task: ShardTask) -> None:
        self._state, self._held, self._rows = task.state, list[pl.DataFrame](), 0
        self.outputs: list[OutputMetadata] = []

    def take(self, frame: pl.DataFrame) -> None:
        self._held.append(frame)
        self._rows += frame.height
        if self._rows >= match_rows.MOST:
            self.flush()

    def flush(self) -> tuple[OutputMetadata, ...]:
        if self._held:
            self.outputs.append(self._state.write_output(pl.concat(self._held)))
            self._held, self._rows = [], 0
        return tuple(self.outputs)


@dataclass(frozen=True)
class IntervalJoinOperator(CompiledJoin, NonWindowOperator):
    """Matches the rows of two inputs on one shard, and stages pairs and changed buffers."""

    def late_threshold(self, watermark: int) -> int:
        return watermark - self.allowed_us

    def watermark_hold_us(self, watermark: int, holds: Iterable[Hold]) -> int:
        return watermark if watermark <= NO_WATERMARK else watermark - self.lag_us

    @property
    def reasons(self) -> Sequence[str]:
        return (MATCH, UNMATCHED)

    def input_index(self, source: str) -> int:
        return 0 if source == self.left.source else 1

    def ingest(self, task: ShardTask, rows: pl.DataFrame, origins: pl.Series | None = None) -> IngestReport:
        """Match an epoch's rows with their partners, buffer them, and stage the pairs.

        `rows` has `__side`, `__kh`, `__ts`, the columns of `ShuffleColumns`, and `__src` if sources may be idle.
        """
        if rows.is_empty():
            return IngestReport(shard=task.shard, segments=task.state.metas)
        rows = tag_rows(task, rows, origins)
        slots, more = ShuffleColumns.from_logic(self), [c for c in (*PLAIN, "__idle", "__row") if c in rows.columns]
        new = {side.which: slots.select_side(rows, side.which, more) for side in self.sides}
        outbox, epoch = _JoinOutput(task), task.state.epoch
        try:
            done = match_rows.ingest_rows(self, new, task.state.buffers(self), task.watermark, epoch, outbox.take)
        except match_rows.RowsPerKeyExceededError as error:
            raise LimitExceededError(
                f"{self.pipeline}: {plural(error.rows, 'row')} of the {error.side.name} side with {error.key} wait for "
                f"partners, but max_rows_per_key is {self.max_rows_per_key:,}; raise it, or set "
                'on_state_cap = "drop_oldest"; this epoch was not committed'
            ) from None
        task.staging("before")
        segments = task.state.write_changes(self, done.changes, task.watermark)
        outputs = outbox.flush()
        frames = [find_late_dead_letters(task, side_rows, origins, "__ts") for side_rows in done.late.values()]
        letters = stage_dead_letters(task, {LATE: [frame for side_frames in frames for frame in side_frames]})
        task.staging("after")
        tallies = [done.tallies.get(side.which, match_rows.SideCounts()) for side in self.sides]
        late = sum(t.late for t in tallies)
        missing = sum(t.null_keys for t, side in zip(tallies, self.sides, strict=True) if not side.outer)
        reasons = {MATCH: done.matches, UNMATCHED: sum(t.unmatched for t in tallies)}
        return IngestReport(
            shard=task.shard,
            segments=segments,
            rows=rows.height,
            used=rows.height - late - missing,
            late=late,
            late_idle=sum(t.late_idle for t in tallies),
            late_by=sum((self._count_late_by_step(r["__ts"], task.watermark) for r in done.late.values()), Counter()),
            late_sample=self._sample(done.late),
            outputs=outputs,
            reasons={k: n for k, n in reasons.items() if n},
            letters=letters,
            sides=tuple(
                SideReport(
                    buffered=t.buffered,
                    late=t.late,
                    null_keys=t.null_keys,
                    keyless=0 if self.sides[which].outer else t.null_keys,
                    matched=t.matched,
                    unmatched=t.unmatched,
                    evicted=t.evicted,
                    hot_key=done.hot_key.get(which),
                )
                for which, t in enumerate(tallies)
            ),
        )

    def _sample(self, late: Mapping[int, pl.DataFrame]) -> tuple[dict[str, Any], ...]:
        sample: list[dict[str, Any]] = []
        for which, rows in late.items():
            side = self.sides[which]
            sample += sample_rows(rows, "__ts", {f"{side.source}.{k.name}": k.name for k in side.keys})
        return tuple(sample[:SAMPLE])

    def _count_late_by_step(self, times: pl.Series, watermark: int) -> Counter[str]:
        return Counter(build_lateness_histogram(watermark - self.allowed_us - times.to_numpy()))

    def late_dead_letters(self, task: ShardTask, rows: pl.DataFrame) -> pl.DataFrame:
        return build_late_dead_letters(task, rows)

    # -- emission ------------------------------------------------------------------------------------------------

    def may_be_due(self, metas: Sequence[SegmentMetadata], since: int, watermark: int, early: bool) -> bool:
        """Return whether a row of an outer side may expire between two watermarks, without reading the shard."""
        return any(m.first_due <= watermark and m.last_due > since for m in metas)

    def is_due(self, task: ShardTask) -> bool:
        buffers = task.state.buffers(self)
        return any(buffers.due(s.which, task.since, task.watermark).height for s in self.sides if s.outer)

    def emit(self, task: ShardTask) -> EmitReport:
        """Stage the rows of outer sides that expire without a partner between two watermarks."""
        outbox = _JoinOutput(task)
        counts = match_rows.emit_unmatched_rows(self, task.state.buffers(self), task.since, task.watermark, outbox.take)
        total = sum(counts.values())
        return EmitReport(
            shard=task.shard,
            segments=task.state.metas,
            outputs=outbox.flush(),
            reasons={UNMATCHED: total} if total else {},
            unmatched=(counts.get(0, 0), counts.get(1, 0)),
        )

    # -- in the commit -------------------------------------------------------------------------------------------

    @property
    def fingerprint(self) -> dict[str, Any]:
        return {
            "kind": "join",
            "outer": [s.name for s in self.sides if s.outer],
            "bounds_us": [self.left.low_us, self.left.high_us],
            "keys": [[f"{k.name} {k.type}" for k in s.keys] for s in self.sides],
            "columns": [[f"{f.name} {f.type}" for f in s.fields] for s in self.sides],
        }

    @property
    def emission(self) -> dict[str, Any]:
        return {"updates": False, "retain_us": self.allowed_us}

    def description(self, data: Mapping[str, Any]) -> dict[str, Any]:
        return {"join": {k: v for k, v in data.items() if k not in ("left_sql", "right_sql")}}

    @classmethod
    def from_state(cls, pipeline: str, state: StageState) -> Self:
        """Restore a join that can read and rewrite the buffers of a stage, but not process rows."""
        allowed = int(state.emission.get("retain_us", 0))
        left, right = (_side_of(state.fingerprint, which, allowed) for which in (0, 1))
        return cls(pipeline, left, right, allowed, "later", None, False)

    def counts_after_ingest(self, before: StageCounts, reports: Sequence[IngestReport]) -> StageCounts:
        sides = {name: Counter(counts) for name, counts in before.sides.items()}
        for r in reports:
            for name, side in zip(SIDES, r.sides, strict=False):
                sides.setdefault(name, Counter()).update(side.model_dump(exclude={"hot_key"}))
        return replace(before, sides={name: dict(counts) for name, counts in sides.items()})

    def counts_after_emit(self, before: StageCounts, reports: Sequence[EmitReport], watermark: int) -> StageCounts:
        sides = {name: Counter(before.sides.get(name, {})) for name in SIDES}
        for r in reports:
            for name, count in zip(SIDES, r.unmatched, strict=True):
                sides[name]["unmatched"] += count
        return replace(before, sides={name: dict(counts) for name, counts in sides.items()})

    def live_segments(self, metas: tuple[SegmentMetadata, ...], since: int) -> tuple[SegmentMetadata, ...]:
        """Drop all expired segments. The segments of a join do not depend on each other."""
        return tuple(m for m in metas if not is_segment_expired(m, since))


def _side_of(fingerprint: Mapping[str, Any], which: int, allowed_us: int) -> JoinSide:
    """Restore a side of a join from the fingerprint, without output columns."""
    keys, columns = ([parse_field(text) for text in fingerprint[part][which]] for part in ("keys", "columns"))
    low, high = fingerprint["bounds_us"]
    outer = SIDES[which] in fingerprint["outer"]
    return build_join_side(which, SIDES[which], keys, columns, (), int(low), int(high), allowed_us, outer)
