"""Build the next commit from the previous one and the reports of the shards, as pure functions without I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from slackwater.config.join import SIDES
from slackwater.config.pipeline import Pipeline
from slackwater.config.step_base import effective_allowed_lateness_ms
from slackwater.connectors.source import Batch, ReplayRecord
from slackwater.core.humanize import format_iso
from slackwater.core.lateness_histogram import update_histogram
from slackwater.engine.engine_interface import IngestOutcome, SourceStats
from slackwater.engine.observer import BufferCounts, Counters, SourceStatus, StageStatus, Status
from slackwater.errors import StateError, Topic
from slackwater.operators.base import Operator
from slackwater.operators.reports import EmitReport, StageCounts
from slackwater.state.commit import (
    ClockRecord,
    Commit,
    PartitionRecord,
    SourceRecord,
    StageState,
)
from slackwater.watermark import NO_WATERMARK, SourceClock, output_watermark


def add_time_spans(outcome: IngestOutcome, clocks: Mapping[str, SourceClock]) -> IngestOutcome:
    """Add spans of the newest event times to the statistics of each source whose clock must detect jumps."""
    sources = dict(outcome.sources)
    for name, stats in outcome.sources.items():
        jump = clocks[name].jump_us
        if jump is not None and clocks[name].needs_spans(stats.activity):
            spans = outcome.spans(name, jump)
            parts = {p: replace(h, spans=spans.get(p, ())) for p, h in stats.partitions.items()}
            sources[name] = replace(stats, spans=spans.get("", ()), partitions=parts)
    return replace(outcome, sources=sources)


def sum_counters(commit: Commit) -> Counters:
    """Return the cumulative counters of a commit.

    Rows are counted in the stages that read sources, and results in the stages whose results are published.
    """
    totals: dict[str, Any] = {}
    for counted in (*(s.counters for s in commit.source_stages), commit.counters):
        totals = _add_counters(totals, counted)
    for name in ("overflows", "late_between_stages"):
        totals[name] = sum(stage.counters.get(name, 0) for stage in commit.stages)
    if commit.sources:
        readers = [s for s in commit.stages if not s.clocks.keys() & commit.sources.keys()]
        totals["late_between_stages"] += sum(sum(s.counters.get("late", {}).values()) for s in readers)
    totals["emitted"] = {}
    for stage in commit.published_stages:
        totals["emitted"] = _add_counters(totals["emitted"], stage.counters.get("emitted", {}))
    return _counters(commit, totals)


def _counters(commit: Commit, values: Mapping[str, Any]) -> Counters:
    names = {f.name for f in fields(Counters)}
    if unknown := values.keys() - names:
        raise StateError(
            f"{commit.pipeline}: the state in epoch {commit.epoch} has a counter that this version does not know: "
            f"{min(unknown)[:100]}; restore the state from a backup, or install the version that wrote it",
            Topic.STATE_OF_OTHER_VERSION,
        )
    return Counters(**values)


def _add_counters(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Add up two mappings of counters, including nested mappings."""
    total = dict(one)
    for name, value in other.items():
        if isinstance(value, Mapping):
            total[name] = _add_counters(total.get(name, {}), value)
        else:
            total[name] = total.get(name, 0) + value
    return total


def final_wait_us(pipeline: Pipeline) -> int:
    """Return how long (µs) the watermark waits for late rows if only final results are emitted; otherwise 0."""
    window = pipeline.transform.window
    return 1000 * effective_allowed_lateness_ms(window) if window and window.emit == "final" else 0


def input_clocks(pipeline: Pipeline, state: StageState) -> dict[str, SourceClock]:
    """Return the committed clocks of the inputs of a stage, by name. `pipeline` must describe only this stage."""
    step, waits = pipeline.transform.step, final_wait_us(pipeline)
    return {
        s.name: state.clocks.get(s.name, ClockRecord()).clock(
            waits + 1000 * (step.lateness_ms if s.lateness_ms is None else s.lateness_ms),
            1000 * step.source_idleness_ms,
            None if step.max_jump_ms is None else 1000 * step.max_jump_ms,
        )
        for s in pipeline.sources
    }


def late_cause(state: StageState) -> str:
    """Return the cause to record for late rows whose source was not idle: "flush" or "lateness"."""
    return "flush" if state.is_flushed else "lateness"


def read_stage_counts(state: StageState) -> StageCounts:
    """Return the counts that a commit contains for the state of a stage."""
    return StageCounts(state.groups, state.windows, state.panes, state.counters.get("sides", {}))


def apply_ingest(
    operator: Operator,
    before: StageState,
    batch: Batch,
    outcome: IngestOutcome,
    clocks: Mapping[str, SourceClock],
    watermark: int,
    late_results: int = 0,
) -> StageState:
    """Return the state of a stage after the rows of an epoch were added, before emission.

    Args:
        operator: The operator of the stage.
        before: The state of the stage in the previous commit.
        batch: The rows of the epoch.
        outcome: The outcome of ingesting these rows.
        clocks: The clocks of the inputs after these rows.
        watermark: The watermark of the stage after these rows.
        late_results: The number of late results from other stages.
    """
    segments, after = list(before.segments), operator.counts_after_ingest(read_stage_counts(before), outcome.reports)
    cause, holds = late_cause(before), list(before.holds or ())
    late: Counter[str] = Counter(before.counters.get("late", {}))
    letters: Counter[str] = Counter(before.counters.get("letters", {}))
    reasons: Counter[str] = Counter(before.counters.get("emitted", {}))
    totals: Counter[str] = Counter({k: v for k, v in before.counters.items() if isinstance(v, int)})
    for r in outcome.reports:
        segments[r.shard] = r.segments
        late.update({cause: r.late - r.late_idle, "idle": r.late_idle})
        reasons.update(r.reasons)
        if r.holds is not None:
            holds[r.shard] = r.holds
        totals.update(
            rows_bad=r.bad,
            rows_sql=r.rows,
            rows_used=r.used,
            rows_refused=r.refused,
            late_windows=r.late_windows,
            rows_partly_late=r.partly_late,
        )
        if r.duplicates:
            totals.update(rows_duplicate=r.duplicates)
        if r.overflows.count:
            totals.update(overflows=r.overflows.count)
    for stats in outcome.sources.values():
        totals.update(rows_in=stats.rows, rows_bad=stats.bad)
    totals.update(rows_bad=sum(u.rows for u in outcome.unstorable))
    lateness = {"lateness": before.counters["lateness"]} if "lateness" in before.counters else {}
    if outcome.reports and batch.replayed is None:
        judged = sum(r.used + r.late + r.refused for r in outcome.reports)
        of_us = {name: c.lateness_us for name, c in clocks.items()}
        histograms = [r.late_by for r in outcome.reports]
        lateness = {"lateness": update_histogram(lateness.get("lateness", {}), judged, histograms, of_us)}
    for staged in outcome.letters:
        letters.update(staged.reasons)
    if late_results:
        totals.update(late_between_stages=late_results)
    totals.update(rows_lost=sum(lost for name, lost in batch.lost.items() if name in clocks))
    return before.model_copy(
        update={
            "watermark_us": watermark,
            "segments": tuple(segments),
            "groups": after.groups,
            "windows": after.windows,
            "panes": after.panes,
            "holds": None if before.holds is None else tuple(holds),
            "clocks": {
                name: _clock(before.clocks.get(name, ClockRecord()), clock, outcome.sources.get(name))
                for name, clock in clocks.items()
            },
            "waiting": before.waiting or any(r.used for r in outcome.reports),
            "counters": {
                **totals,
                **lateness,
                "late": {k: v for k, v in late.items() if v},
                "emitted": dict(reasons),
                "letters": dict(letters),
                **({"sides": after.sides} if after.sides else {}),
            },
        }
    )


def add_replay_record(commit: Commit, replayed: ReplayRecord) -> Commit:
    """Return the commit with a record of the dead letters that were applied or tried."""
    counters = {**commit.counters, "replayed": commit.counters.get("replayed", 0) + replayed.count}
    if replayed.late:
        counters["replayed_late"] = counters.get("replayed_late", 0) + replayed.late
    names = commit.replayed if replayed.record is None else (*commit.replayed, replayed.record)
    tried = () if replayed.tried is None else (replayed.tried,)
    return commit.model_copy(update={"replayed": names, "tried": tried, "counters": counters})


def add_target_counts(commit: Commit) -> Commit:
    """Add the number of rows in this epoch to the total of each target."""
    before = commit.counters.get("targets", {})
    counted = {name: before.get(name, 0) + commit.rows_of(name) for name in commit.targets}
    return commit.model_copy(update={"counters": {**commit.counters, "targets": counted}})


def add_phase_times(commit: Commit, seconds: Mapping[str, float]) -> Commit:
    """Add seconds per phase to the totals over all epochs. Phases after a commit count toward the next commit."""
    spent: Counter[str] = Counter(commit.counters.get("spent_us", {}))
    spent.update({phase: round(1e6 * s) for phase, s in seconds.items()})
    return commit.model_copy(update={"counters": {**commit.counters, "spent_us": dict(spent)}})


def advance_offsets(before: Commit, batch: Batch) -> dict[str, SourceRecord]:
    """Return the source records for the next commit, with the offsets after `batch`."""
    return {
        name: record if (offsets := batch.offsets.get(name)) is None else record.model_copy(update={"offsets": offsets})
        for name, record in before.sources.items()
    }


def _clock(before: ClockRecord, clock: SourceClock, stats: SourceStats | None) -> ClockRecord:
    stats = stats or SourceStats()
    return ClockRecord(
        max_event_us=clock.max_event_us,
        quiet_us=clock.quiet_us,
        idle=clock.idle,
        partitions={
            name: PartitionRecord(max_event_us=p.max_event_us, quiet_us=p.quiet_us, idle=p.idle, spans=p.spans)
            for name, p in clock.partitions.items()
        },
        rows=before.rows + stats.rows,
        usable=before.usable + stats.usable,
        spans=clock.spans,
        newest_at=before.newest_at if clock.max_event_us != stats.max_event_us else stats.place or before.newest_at,
    )


def apply_emission(
    state: StageState,
    reports: Sequence[EmitReport],
    operator: Operator,
    clock_us: int,
    early: bool = False,
    since: int = NO_WATERMARK,
) -> StageState:
    """Return the state of a stage to commit, without expired panes and segments.

    Args:
        state: The state of the stage after the rows of the epoch were added.
        reports: The reports of the shards that emitted results.
        operator: The operator of the stage.
        clock_us: The wall clock (µs UTC).
        early: Whether changed open windows were emitted as well.
        since: The watermark of the previous commit. Segments that expired before this time are removed.
    """
    segments, after = (
        list(state.segments),
        operator.counts_after_emit(read_stage_counts(state), reports, state.watermark_us),
    )
    watermark, holds = state.watermark_us, list(state.holds or ())
    reasons: Counter[str] = Counter(state.counters.get("emitted", {}))
    for r in reports:
        segments[r.shard] = r.segments
        reasons.update(r.reasons)
        if r.holds is not None:
            holds[r.shard] = r.holds
    holds = [tuple(h for h in of_shard if h[2] > watermark) for of_shard in holds]
    hold = operator.watermark_hold_us(watermark, (h for of_shard in holds for h in of_shard))
    counters = {**state.counters, "emitted": dict(reasons)}
    if beyond := sum(r.overflows.count for r in reports):
        counters["overflows"] = counters.get("overflows", 0) + beyond
    if after.sides:
        counters["sides"] = after.sides
    return state.model_copy(
        update={
            "segments": tuple(operator.live_segments(metas, since) for metas in segments),
            "groups": after.groups,
            "windows": after.windows,
            "panes": after.panes,
            "holds": None if state.holds is None else tuple(holds),
            "output_watermark_us": output_watermark(state.promised_us, watermark, hold),
            "emitted_us": clock_us if early else state.emitted_us,
            "waiting": operator.updates and not early and state.waiting,
            "counters": counters,
        }
    )


def build_status(
    pipeline: Pipeline,
    operators: Sequence[Operator],
    commit: Commit,
    clocks: Mapping[str, SourceClock],
    outcomes: Mapping[str, IngestOutcome],
    phases: Mapping[str, float],
    seconds: float,
    clock_us: int,
    last_end_us: int | None,
) -> Status:
    """Build the status to report after a commit.

    Args:
        pipeline: The pipeline.
        operators: The operators, in the order of the stages.
        commit: The commit.
        clocks: The clocks of the sources, by source.
        outcomes: The outcomes of ingesting the rows of the epoch, by stage.
        phases: The seconds per phase of the epoch.
        seconds: The duration of the epoch.
        clock_us: The wall clock (µs UTC).
        last_end_us: The latest end of a window that this epoch emitted; None if it emitted none.
    """
    step, last = pipeline.transform.step, operators[-1]
    stages = tuple(_stage(commit, s, o, outcomes.get(s.name)) for s, o in zip(commit.stages, operators, strict=True))
    read = [outcomes[s.name] for s in commit.source_stages if s.name in outcomes]
    records = commit.clocks
    return Status(
        pipeline=pipeline.name,
        window_kind=last.fingerprint["kind"],
        reasons=tuple(last.reasons),
        late_policy=step.late_data,
        epoch=commit.epoch,
        rows=sum(s.rows for outcome in read for s in outcome.sources.values()),
        emitted=commit.emitted,
        written={name: sum(o.rows for o in commit.output_of(t.stage)) for name, t in commit.targets.items()},
        late=sum(r.late for outcome in read for r in outcome.reports),
        seconds=seconds,
        phases=phases,
        clock_us=clock_us,
        watermark_us=None if commit.watermark_us == NO_WATERMARK else commit.watermark_us,
        sources=tuple(
            SourceStatus(
                name,
                records[name].rows,
                c.max_event_us,
                None if c.watermark_us <= NO_WATERMARK else c.watermark_us,
                c.idle,
                c.quiet_us,
            )
            for name, c in clocks.items()
        ),
        windows_active=stages[-1].open,
        groups=stages[-1].groups,
        state_bytes=commit.state_bytes,
        counters=sum_counters(commit),
        buffered=stages[0].buffered,
        stages=stages,
        emit_lag_seconds=None if last_end_us is None else (clock_us - last_end_us) / 1e6,
    )


def _stage(commit: Commit, state: StageState, operator: Operator, outcome: IngestOutcome | None) -> StageStatus:
    is_join = state.fingerprint.get("kind") == "join"
    windows, groups = operator.count_open_groups(read_stage_counts(state))
    return StageStatus(
        name=state.name,
        kind=str(state.fingerprint.get("kind", "")),
        watermark_us=None if state.watermark_us == NO_WATERMARK else state.watermark_us,
        open=windows,
        groups=groups,
        rows=sum(m.rows for m in state.metas if not m.kind.endswith(("+", "-"))),
        bytes=sum(m.bytes for m in state.metas),
        counters=_counters(commit, state.counters),
        buffered=_buffer_counts(state, outcome) if is_join else {},
    )


def _buffer_counts(state: StageState, outcome: IngestOutcome | None) -> dict[str, BufferCounts]:
    counts = {}
    for which, name in enumerate(SIDES):
        hot_keys = [] if outcome is None else [r.sides[which].hot_key for r in outcome.reports if r.sides]
        counts[name] = BufferCounts(
            sum(m.rows for m in state.metas if m.kind == name),
            max((c for c in hot_keys if c is not None), default=None),
        )
    return counts


def format_late_sample(sample: Mapping[str, object]) -> str:
    """Format the key and time of a late row for the log."""
    event = sample["event_us"]
    keys = " ".join(f"{k}={v}" for k, v in sample.items() if k != "event_us")
    return f"{keys or '(no key)'} at {format_iso(event if isinstance(event, int) else 0)}"
