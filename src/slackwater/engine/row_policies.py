"""Apply the policies for bad, late, lost and refused rows, and log these rows.

`check_group_limit` enforces `max_groups_per_window` over all shards, and `divide_group_limit` divides the limit among
the shards. `ClockSkewWarnings` warns of event times that jump ahead. It never changes how a row is treated.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from slackwater.config.error_text import format_config_duration
from slackwater.config.join import SIDES
from slackwater.config.pipeline import Pipeline
from slackwater.connectors.source import Batch
from slackwater.core.column_names import EVENT_TIME
from slackwater.core.humanize import format_duration, format_iso, plural
from slackwater.engine import next_commit
from slackwater.engine.engine_interface import Engine, IngestOutcome
from slackwater.errors import BadRowError, EpochError, StartError, Topic
from slackwater.operators import unstorable_rows
from slackwater.operators.base import Operator, ShardCount, ShardTask
from slackwater.operators.dead_letters import LATE, OUTSIDE
from slackwater.operators.reports import EmitReport, IngestReport
from slackwater.state.commit import StageState
from slackwater.watermark import CONFIRMS, SourceClock, watermark_holder

log = logging.getLogger("slackwater")

FEW = 10  # the minimum number of late rows for a warning
APART_US = 3_600_000_000  # the minimum difference (µs) between the newest event times of two warnings
ADVICE = "a clock in the input may be wrong: set max_jump to hold such rows back, correct them at the source, or raise lateness"


def enforce_row_policies(pipeline: Pipeline, before: StageState, epoch: int, outcome: IngestOutcome) -> None:
    """Raise BadRowError, StartError or EpochError if an epoch must not be committed.

    `before`: the state of the stage in the previous commit.
    """
    _judge_bad_rows(pipeline, before, epoch, outcome)
    _check_letters(pipeline, epoch, outcome)


def log_losses(pipeline: Pipeline, before: StageState, epoch: int, batch: Batch, outcome: IngestOutcome) -> None:
    """Log the rows of an epoch that were not used."""
    _log_lost(pipeline, epoch, batch)
    _log_units(pipeline, epoch, outcome)
    _log_late(pipeline, before, epoch, outcome)
    _log_join(pipeline, epoch, outcome)
    log_overflows(pipeline, epoch, outcome.reports)


def log_overflows(pipeline: Pipeline, epoch: int, reports: Sequence[IngestReport | EmitReport]) -> None:
    """Log the results that were emitted as NULL because their values overflowed the type of the column."""
    count = sum(r.overflows.count for r in reports)
    if count:
        sample = [dict(s) for r in reports for s in r.overflows.sample][:3]
        named = "; ".join(f'"{s.pop("aggregation")}" of {next_commit.format_late_sample(s)}' for s in sample)
        do = "result does" if count == 1 else "results do"
        log.warning(
            f"{pipeline.name}: epoch {epoch}: {count} {do} not fit the type of the column; NULL is emitted instead "
            f'(on_overflow = "null"): {named}'
        )


def log_late_results(
    pipeline: Pipeline, stage: str, epoch: int, source: str, rows: pl.DataFrame, watermark: int
) -> None:
    """Log the `rows` from the stage `source` that are behind the watermark of the stage that reads them."""
    if rows.is_empty():
        return
    shown = rows.select(c for c in rows.columns if not c.startswith("_") and not rows.schema[c].is_nested()).head(3)
    times = rows[EVENT_TIME].dt.timestamp("us").head(3)
    sample = "; ".join(
        f"{' '.join(f'{k}={v}' for k, v in row.items())[:200]} at {format_iso(us)}"
        for row, us in zip(shown.iter_rows(named=True), times, strict=True)
    )
    log.warning(
        f'{pipeline.name}: epoch {epoch}: {plural(rows.height, "result")} of stage "{source}" arrived too late for stage '
        f'"{stage}" (watermark {format_iso(watermark)}), as may happen after a config change; the watermark is used '
        f"as their event time: {sample}"
    )


def _judge_bad_rows(pipeline: Pipeline, before: StageState, epoch: int, outcome: IngestOutcome) -> None:
    """Log bad rows, or raise BadRowError if `on_error` is "fail".

    Raises StartError if a source has returned at least 1000 rows so far, but none of them is usable.
    """
    step, of_rows = pipeline.transform.step, pipeline.transform.is_stateless
    for name, stats in outcome.sources.items():
        clock = before.clocks[name]
        rows, usable = clock.rows + stats.rows, clock.usable + stats.usable
        if rows >= 1000 and usable == 0:
            if of_rows:
                raise StartError(
                    f'{pipeline.name}: source "{name}": none of its first {plural(rows, "row")} can be read; check its schema',
                    Topic.SOURCE_SCHEMA,
                )
            raise StartError(
                f'{pipeline.name}: source "{name}": none of its first {plural(rows, "row")} has a usable event time; '
                + (stats.unit_hint or f'check event_time_column "{step.event_time_column}" and event_time_unit'),
                Topic.EVENT_TIME,
            )
        if not stats.bad:
            continue
        problem = (
            f'{pipeline.name}: epoch {epoch}: source "{name}": {plural(stats.bad, "bad row")} ({stats.undecodable:,} undecodable, '
            + ("" if of_rows else f"{stats.future:,} more than {format_duration(step.max_future_ms)} in the future, ")
            + (f"{stats.outside:,} with an {OUTSIDE}, " if stats.outside else "")
            + f'{stats.bad - stats.undecodable - stats.future - stats.outside:,} without a usable event time in "{step.event_time_column}")'
            + (f"; {stats.unit_hint}" if stats.unit_hint else "")
        )
        _reject(pipeline, problem, outcome.bad_samples.get(name, ()), "correct the input")
    for rejected in outcome.unstorable:
        why = "; ".join(f"{n}: {unstorable_rows.REASONS[reason]}" for reason, n in sorted(rejected.reasons.items()))
        problem = (
            f'{pipeline.name}: epoch {epoch}: source "{rejected.source}": {plural(rejected.rows, "bad row")} ({why})'
        )
        _reject(pipeline, problem, rejected.samples, "correct the input or the SQL")
    bad = sum(r.bad for r in outcome.reports)
    if bad:
        window = pipeline.transform.window
        assert window is not None  # rows of a join have no gap
        problem = (
            f"{pipeline.name}: epoch {epoch}: {plural(bad, 'bad row')} whose gap ({window.gap_ms}) is not both positive and less than "
            f"max_session_duration ({format_duration(window.max_session_duration_ms or 0)})"
        )
        samples = [next_commit.format_late_sample(s) for r in outcome.reports for s in r.bad_sample][:3]
        _reject(pipeline, problem, samples, "correct the expression")


def _reject(pipeline: Pipeline, problem: str, samples: Sequence[str], remedy: str) -> None:
    """Log bad rows with a sample, or raise BadRowError if `on_error` is "fail"."""
    sample, on_error = "; ".join(samples), pipeline.transform.on_error
    if on_error == "fail":
        raise BadRowError(
            f"{problem}: {sample}; {remedy}, or set on_error in [transform] to count and drop such rows "
            '("drop"), or to keep them as dead letters ("dlq")'
        )
    log.warning("%s %s: %s", problem, "sent to the dead letters" if on_error == "dlq" else "dropped", sample)


def _check_letters(pipeline: Pipeline, epoch: int, outcome: IngestOutcome) -> None:
    """Raise EpochError if the number of late rows differs from the number of dead letters for late rows.

    For some windows, the batch is read a second time to write the dead letters, and may have changed in between.
    """
    late = sum(r.late + r.partly_late for r in outcome.reports)
    letters = sum(staged.reasons.get(LATE, 0) for staged in outcome.letters)
    if pipeline.keeps_late_rows and late != letters:
        raise EpochError(
            f"{pipeline.name}: epoch {epoch}: the input changed between two reads ({plural(late, 'late row')}, but "
            f"{plural(letters, 'dead letter')}), so this epoch was not committed; the next start runs it again",
            Topic.INPUT_CHANGED,
        )


def _log_lost(pipeline: Pipeline, epoch: int, batch: Batch) -> None:
    for name, lost in batch.lost.items():
        were = plural(lost, "record was", "records were")
        log.warning(f'{pipeline.name}: epoch {epoch}: source "{name}": {were} deleted before being read')


def _log_units(pipeline: Pipeline, epoch: int, outcome: IngestOutcome) -> None:
    for name, stats in outcome.sources.items():
        if stats.unit_hint and not stats.bad and stats.max_event_us is not None:  # else it is logged with the bad rows
            log.warning(
                f'{pipeline.name}: epoch {epoch}: source "{name}": its first rows have event times up to '
                f"{format_iso(stats.max_event_us)}, far from the current time; {stats.unit_hint}"
            )


def _log_late(pipeline: Pipeline, before: StageState, epoch: int, outcome: IngestOutcome) -> None:
    late, partly = sum(r.late for r in outcome.reports), sum(r.partly_late for r in outcome.reports)
    keeps_late = pipeline.keeps_late_rows
    if late or (partly and keeps_late):
        samples = [next_commit.format_late_sample(s) for r in outcome.reports for s in r.late_sample][:3]
        if keeps_late:
            done = f"sent to the dead letters{f', {partly} of them late for some windows only' if partly else ''}"
        else:
            done = "emitted by themselves" if pipeline.transform.step.late_data == "standalone" else "dropped"
        rows = plural(late + partly if keeps_late else late, "late row was", "late rows were")
        log.warning(
            f"{pipeline.name}: epoch {epoch}: {rows} {done} "
            f"(watermark {format_iso(before.watermark_us)}){': ' if samples else ''}{'; '.join(samples)}"
        )
    refused = sum(r.refused for r in outcome.reports)
    if refused:
        most = pipeline.transform.window.max_groups_per_window if pipeline.transform.window else None
        rows = plural(refused, "row of a new group was", "rows of new groups were")
        log.warning(
            f"{pipeline.name}: epoch {epoch}: {rows} refused, because max_groups_per_window ({most}) is reached"
        )


def _log_join(pipeline: Pipeline, epoch: int, outcome: IngestOutcome) -> None:
    join = pipeline.transform.join
    for which, (name, source) in enumerate(zip(SIDES, join.sources if join else (), strict=False)):
        reports = [r.sides[which] for r in outcome.reports if r.sides]
        most = join.max_rows_per_key if join else 0
        for hot_key in (r.hot_key for r in reports if r.hot_key):
            log.warning(
                f'{pipeline.name}: epoch {epoch}: {plural(hot_key[0], "row")} of the {name} side ("{source}") with '
                f"{hot_key[1]} wait for partners; max_rows_per_key is {most}"
            )
        for count, text in (
            (
                sum(r.evicted for r in reports),
                f"dropped early as the oldest of a key, because max_rows_per_key is {most}",
            ),
            (sum(r.keyless for r in reports), "dropped, because a key column of the join is NULL"),
        ):
            if count:
                rows, outcome_text = plural(count, "row"), f"{'was' if count == 1 else 'were'} {text}"
                log.warning(f'{pipeline.name}: epoch {epoch}: {rows} of the {name} side ("{source}") {outcome_text}')


def divide_group_limit(limit: int, shards: int, shard: int) -> int:
    """Return one shard's share of a limit. Shares differ by at most one and add up to the limit."""
    return limit // shards + (1 if shard < limit % shards else 0)


def check_group_limit(
    operator: Operator, engine: Engine, before: StageState, after: StageState, tasks: Sequence[ShardTask]
) -> None:
    """Raise LimitExceededError if the state has more groups than allowed; see `Operator.check_group_limit`."""

    def recount(shard_count: ShardCount) -> Mapping[int, int]:
        return engine.count(
            [replace(t, state=t.state.with_segments(after.segments[t.shard])) for t in tasks], shard_count
        )

    operator.check_group_limit(next_commit.read_stage_counts(after), before.watermark_us, recount)


@dataclass
class ClockSkewWarnings:
    """Warns of event times that jump ahead and are therefore held back or make other rows late.

    It counts rows since the watermark last moved, and remembers which warnings it logged. The state contains neither,
    so warnings are logged again after a restart.
    """

    pipeline: Pipeline
    watermark_us: int | None = None
    rows: int = 0
    late: int = 0
    reported: dict[str, int] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)

    def check_late_rows(
        self, before: StageState, clocks: Mapping[str, SourceClock], epoch: int, outcome: IngestOutcome
    ) -> None:
        """Warn if most of the rows read since the watermark last moved are late. `before`: the last commit."""
        if before.watermark_us != self.watermark_us:
            self.watermark_us, self.rows, self.late = before.watermark_us, 0, 0
        self.rows += sum(r.rows for r in outcome.reports)
        self.late += sum(r.late - r.late_idle for r in outcome.reports)
        if self.late < FEW or 2 * self.late <= self.rows:
            return
        newest_times = {name: c.max_event_us for name, c in clocks.items() if c.max_event_us is not None}
        name = watermark_holder(clocks) or max(newest_times, key=lambda n: newest_times[n], default=None)
        newest = newest_times.get(name or "")
        if name is None or newest is None or abs(newest - self.reported.get(name, newest - APART_US)) < APART_US:
            return
        self.reported[name] = newest
        record = before.clocks.get(name)
        location = f", read from {record.newest_at}" if record is not None and record.newest_at else ""
        log.warning(
            f"{self.pipeline.name}: epoch {epoch}: most rows are late ({self.late} of {self.rows}), because the watermark "
            f'is at {format_iso(before.watermark_us)}: the newest event time of source "{name}" is {format_iso(newest)}'
            f"{location}; {ADVICE}"
        )

    def check_jumps(self, clocks: Mapping[str, SourceClock], epoch: int, outcome: IngestOutcome) -> None:
        """Warn about event times that the clocks hold back, because they jump ahead by more than `max_jump`.

        Call this after the clocks have processed the epoch.
        """
        for source, clock in clocks.items():
            for name, partition_clock in {
                source: clock,
                **{f"{source}, {p}": c for p, c in clock.partitions.items()},
            }.items():
                ahead = partition_clock.held_spans if partition_clock.max_event_us is not None else ()
                newest = ahead[-1][1] if ahead else None
                if newest is None or newest == self.held.get(name):
                    continue
                self.held[name] = newest
                stats = outcome.sources.get(source)
                location = (
                    f" (read from {stats.place})" if stats and stats.place and stats.max_event_us == newest else ""
                )
                jump = self.pipeline.transform.step.max_jump_ms or 0
                log.warning(
                    f'{self.pipeline.name}: epoch {epoch}: the event time of source "{name}" jumps from '
                    f"{format_iso(partition_clock.max_event_us or 0)} to {format_iso(newest)}{location}, by more than "
                    f"max_jump ({format_config_duration(jump)}); these rows are used, but do not advance the watermark "
                    f"of the source until there are {CONFIRMS} of them ({sum(n for _, _, n in ahead)} so far)"
                )
