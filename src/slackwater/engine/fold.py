"""The commit as a pure fold: previous manifest, what the shards report, next manifest. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

from slackwater.config.pipeline import Pipeline
from slackwater.core.lateness import folded
from slackwater.core.time import iso
from slackwater.engine.protocol import IngestOutcome, SourceStats
from slackwater.engine.status import Buffered, Counters, SourceStatus, Status
from slackwater.errors import StateError
from slackwater.joins.logic import JoinLogic
from slackwater.operators.base import Step
from slackwater.operators.task import EmitReport
from slackwater.sources.base import Batch, Replayed
from slackwater.state.protocol import Manifest, PartitionRecord, SegmentMeta, SourceRecord
from slackwater.watermark import NO_WATERMARK, Heard, SourceClock
from slackwater.windows.logic import Logic, allowed_us
from slackwater.windows.panes import window_totals

NOTHING = Heard(0, None)
SIDES = ("left", "right")


def heard(stats: SourceStats | None) -> Heard:
    return NOTHING if stats is None else Heard(stats.rows, stats.max_event_us, stats.partitions, stats.spans)


def with_spans(outcome: IngestOutcome, clocks: Mapping[str, SourceClock]) -> IngestOutcome:
    """What was delivered, with more of its event times where a clock asks for them."""
    found = dict(outcome.sources)
    for name, stats in outcome.sources.items():
        jump = clocks[name].jump_us
        if jump is not None and clocks[name].asks(heard(stats)):
            spans = outcome.spans(name, jump)
            parts = {p: replace(h, spans=spans.get(p, ())) for p, h in stats.partitions.items()}
            found[name] = replace(stats, spans=spans.get("", ()), partitions=parts)
    return replace(outcome, sources=found)


def counters(manifest: Manifest) -> Counters:
    """The cumulative counters of a commit: rows as the first stage counts them, results as the last one does."""
    overflows = sum(stage.counters.get("overflows", 0) for stage in manifest.stages)
    emitted = manifest.stages[-1].counters.get("emitted", {})
    known = {f.name for f in fields(Counters)}
    if unknown := manifest.counters.keys() - known:
        raise StateError(
            f"{manifest.pipeline}: the state in epoch {manifest.epoch} has a counter that this version does not know: "
            f"{min(unknown)[:100]}; restore it from a copy, or install the version that wrote it"
        )
    return Counters(**{**manifest.counters, "emitted": emitted, "overflows": overflows})


def waits_us(pipeline: Pipeline) -> int:
    """What is to be final when it is emitted waits for its late rows: the watermark does."""
    window = pipeline.transform.window
    return allowed_us(window) if window and window.emit == "final" else 0


def clocks(pipeline: Pipeline, manifest: Manifest) -> dict[str, SourceClock]:
    """The sources of a config with their clocks as committed."""
    step, waits = pipeline.transform.step, waits_us(pipeline)
    return {
        s.name: manifest.sources.get(s.name, SourceRecord()).clock(
            waits + 1000 * (step.lateness_ms if s.lateness_ms is None else s.lateness_ms),
            1000 * step.source_idleness_ms,
            None if step.max_jump_ms is None else 1000 * step.max_jump_ms,
        )
        for s in pipeline.sources
    }


def ingested(
    before: Manifest,
    epoch: int,
    batch: Batch,
    outcome: IngestOutcome,
    clocks: Mapping[str, SourceClock],
    watermark: int,
) -> Manifest:
    """The previous commit with an epoch's rows folded in, before emission."""
    segments, groups, windows = list(before.segments), list(before.groups), list(before.windows)
    panes = {p: list(g) for p, g in before.panes.items()}
    late: Counter[str] = Counter(before.counters.get("late", {}))
    letters: Counter[str] = Counter(before.counters.get("letters", {}))
    totals: Counter[str] = Counter({k: v for k, v in before.counters.items() if isinstance(v, int)})
    for r in outcome.reports:
        segments[r.shard] = r.segments
        groups[r.shard] += r.groups
        windows[r.shard] += r.windows
        for pane, n in r.new_groups.items():
            panes.setdefault(pane, [0] * before.shards)[r.shard] += n
        late.update({"lateness": r.late - r.late_idle, "idle": r.late_idle})
        totals.update(
            rows_bad=r.bad, rows_sql=r.rows, rows_used=r.used, rows_refused=r.refused, late_windows=r.late_windows
        )
        totals.update(rows_partly_late=r.partly_late)
        if r.overflows.count:
            totals.update(overflows=r.overflows.count)
    sides = {name: Counter(found) for name, found in before.counters.get("sides", {}).items()}
    for r in outcome.reports:
        for name, side in zip(SIDES, r.sides, strict=False):
            sides.setdefault(name, Counter()).update(side.model_dump(exclude={"crowd"}))
    for stats in outcome.sources.values():
        totals.update(rows_in=stats.rows, rows_bad=stats.bad)
    totals.update(rows_bad=sum(u.rows for u in outcome.unfit))
    kept = {k: before.counters[k] for k in ("lateness", "spent_us") if k in before.counters}
    if outcome.reports and batch.replayed is None:
        judged = sum(r.used + r.late + r.refused for r in outcome.reports)
        of_us = {name: c.lateness_us for name, c in clocks.items()}
        kept["lateness"] = folded(kept.get("lateness", {}), judged, [r.late_by for r in outcome.reports], of_us)
    reasons: Counter[str] = Counter(before.counters.get("emitted", {}))
    for r in outcome.reports:
        reasons.update(r.reasons)
    for staged in outcome.letters:
        letters.update(staged.reasons)
    totals.update(rows_lost=sum(batch.lost.values()))
    return before.model_copy(
        update={
            "epoch": epoch,
            "watermark_us": watermark,
            "segments": tuple(segments),
            "groups": tuple(groups),
            "windows": tuple(windows),
            "panes": {p: tuple(g) for p, g in panes.items()},
            "sources": {
                name: _source(before.sources[name], clock, outcome.sources.get(name), batch.offsets.get(name))
                for name, clock in clocks.items()
            },
            "batch": batch.id or before.batch,
            "output": tuple(o for r in outcome.reports for o in r.outputs),
            "letters": tuple(staged.output for staged in outcome.letters),
            "emitted": sum(o.rows for r in outcome.reports for o in r.outputs),
            "waiting": before.waiting or any(r.used for r in outcome.reports),
            "counters": {
                **totals,
                **kept,
                "late": {k: v for k, v in late.items() if v},
                "emitted": dict(reasons),
                "letters": dict(letters),
                **({"sides": {name: dict(found) for name, found in sides.items()}} if sides else {}),
            },
        }
    )


def with_replayed(manifest: Manifest, replayed: Replayed) -> Manifest:
    """A commit in which dead letters were applied, or tried."""
    counters = {**manifest.counters, "replayed": manifest.counters.get("replayed", 0) + replayed.count}
    names = manifest.replayed if replayed.record is None else (*manifest.replayed, replayed.record)
    tried = () if replayed.tried is None else (replayed.tried,)
    return manifest.model_copy(update={"replayed": names, "tried": tried, "counters": counters})


def corrected(before: Manifest, updates: bool) -> Manifest:
    """The next commit, before windows are corrected in it; sources and watermark stay."""
    nothing = {"output": (), "letters": (), "emitted": 0}
    return before.model_copy(update={"epoch": before.epoch + 1, "waiting": updates, **nothing})


def timed(manifest: Manifest, seconds: Mapping[str, float]) -> Manifest:
    """With the time that epochs spent in their phases added up; of the latest one in those that it has behind it."""
    spent: Counter[str] = Counter(manifest.counters.get("spent_us", {}))
    spent.update({phase: round(1e6 * s) for phase, s in seconds.items()})
    return manifest.model_copy(update={"counters": {**manifest.counters, "spent_us": dict(spent)}})


def _source(
    before: SourceRecord, clock: SourceClock, stats: SourceStats | None, offsets: Mapping[str, object] | None
) -> SourceRecord:
    stats = stats or SourceStats()
    return SourceRecord(
        max_event_us=clock.max_event_us,
        quiet_us=clock.quiet_us,
        idle=clock.idle,
        partitions={
            name: PartitionRecord(max_event_us=p.max_event_us, quiet_us=p.quiet_us, idle=p.idle, spans=p.spans)
            for name, p in clock.partitions.items()
        },
        rows=before.rows + stats.rows,
        usable=before.usable + stats.usable,
        offsets=before.offsets if offsets is None else offsets,
        spans=clock.spans,
        newest_at=before.newest_at if clock.max_event_us != stats.max_event_us else stats.place or before.newest_at,
    )


def emitted(
    manifest: Manifest,
    reports: Sequence[EmitReport],
    logic: Step,
    clock_us: int,
    telling: bool = False,
    since: int = NO_WATERMARK,
) -> Manifest:
    """The manifest to commit: with the staged output, and without the panes and segments that are over.

    `telling`: windows that were changed and are open were emitted, too. `since`: the watermark that the epoch before
    committed, at which nothing needs what is over any more.
    """
    segments, groups, windows = list(manifest.segments), list(manifest.groups), list(manifest.windows)
    reasons: Counter[str] = Counter(manifest.counters.get("emitted", {}))
    for r in reports:
        segments[r.shard] = r.segments
        groups[r.shard] += r.groups
        windows[r.shard] += r.windows
        reasons.update(r.reasons)
    counters = {**manifest.counters, "emitted": dict(reasons)}
    if beyond := sum(r.overflows.count for r in reports):
        counters["overflows"] = counters.get("overflows", 0) + beyond
    if isinstance(logic, JoinLogic):
        counters["sides"] = _with_unmatched(manifest, reports)
    panes = manifest.panes
    if panes and isinstance(logic, Logic):
        panes = {p: g for p, g in panes.items() if window_totals(logic, {p: 1}, manifest.watermark_us)}
    return manifest.model_copy(
        update={
            "committed_us": clock_us,
            "segments": tuple(without_dead(metas, isinstance(logic, JoinLogic), since) for metas in segments),
            "groups": tuple(groups),
            "windows": tuple(windows),
            "panes": panes,
            "told_us": clock_us if telling else manifest.told_us,
            "waiting": logic.updates and not telling and manifest.waiting,
            "output": (*manifest.output, *(o for r in reports for o in r.outputs)),
            "emitted": manifest.emitted + sum(o.rows for r in reports for o in r.outputs),
            "counters": counters,
        }
    )


def without_dead(metas: tuple[SegmentMeta, ...], independent: bool, since: int) -> tuple[SegmentMeta, ...]:
    """The segments of a shard without those that are over, also where no new row touched the shard.

    Of windows only the oldest may go: else they would uncover older versions of what they hold. A join's are `independent`.
    Those without a file (in Postgres) are the figures of a table, from which the commit deletes what is over.
    """
    if independent:
        return tuple(m for m in metas if m.dead > since or not _is_file(m))
    kept = next((i for i, m in enumerate(metas) if m.dead > since or not _is_file(m)), len(metas))
    return metas[kept:]


def _is_file(meta: SegmentMeta) -> bool:
    return "/" in meta.file


def _with_unmatched(manifest: Manifest, reports: Sequence[EmitReport]) -> dict[str, dict[str, int]]:
    """The counters of a join's sides, with the rows that came out without a partner."""
    sides = {name: Counter(manifest.counters.get("sides", {}).get(name, {})) for name in SIDES}
    for r in reports:
        for name, count in zip(SIDES, r.unmatched, strict=True):
            sides[name]["unmatched"] += count
    return {name: dict(found) for name, found in sides.items()}


def status(
    pipeline: Pipeline,
    manifest: Manifest,
    clocks: Mapping[str, SourceClock],
    outcome: IngestOutcome | None,
    phases: Mapping[str, float],
    seconds: float,
    clock_us: int,
    last_end_us: int | None,
) -> Status:
    """What the outside is told after a commit."""
    step, last = pipeline.transform.step, pipeline.last.transform.step
    after = manifest.stages[-1]
    is_session = last.kind == "session"
    pane_groups = sum(sum(g) for g in after.panes.values())
    return Status(
        pipeline=pipeline.name,
        window_kind="join" if pipeline.last.transform.window is None else last.kind,
        late_policy=step.late_data,
        epoch=manifest.epoch,
        rows=sum(s.rows for s in outcome.sources.values()) if outcome else 0,
        emitted=manifest.emitted,
        late=sum(r.late for r in outcome.reports) if outcome else 0,
        seconds=seconds,
        phases=phases,
        clock_us=clock_us,
        watermark_us=None if manifest.watermark_us == NO_WATERMARK else manifest.watermark_us,
        sources=tuple(
            SourceStatus(
                name,
                manifest.sources[name].rows,
                c.max_event_us,
                None if c.max_event_us is None else c.watermark_us,
                c.idle,
                c.quiet_us,
            )
            for name, c in clocks.items()
        ),
        windows_active=sum(after.windows) if is_session else pane_groups,
        groups=sum(after.groups) if is_session else pane_groups,
        state_bytes=manifest.state_bytes,
        counters=counters(manifest),
        buffered={} if pipeline.transform.join is None else _buffered(manifest, outcome),
        emit_lag_seconds=None if last_end_us is None else (clock_us - last_end_us) / 1e6,
    )


def _buffered(manifest: Manifest, outcome: IngestOutcome | None) -> dict[str, Buffered]:
    metas = [m for shard in manifest.segments for m in shard]
    found = {}
    for which, name in enumerate(SIDES):
        crowds = [r.sides[which].crowd for r in outcome.reports if r.sides] if outcome else []
        found[name] = Buffered(
            sum(m.rows for m in metas if m.kind == name), max((c for c in crowds if c is not None), default=None)
        )
    return found


def late_text(sample: Mapping[str, object]) -> str:
    """A late row's coordinates for the log."""
    event = sample["event_us"]
    keys = " ".join(f"{k}={v}" for k, v in sample.items() if k != "event_us")
    return f"{keys or '(no key)'} at {iso(event if isinstance(event, int) else 0)}"
