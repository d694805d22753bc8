"""The commit as a pure fold: previous manifest, what the shards report, next manifest. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

from slackwater.config.pipeline import Pipeline
from slackwater.config.step import allowed_ms
from slackwater.core.time import iso
from slackwater.engine.protocol import IngestOutcome, SourceStats
from slackwater.engine.status import Buffered, Counters, SourceStatus, Status
from slackwater.errors import StateError
from slackwater.operators.base import SIDES, Figures, Operator
from slackwater.operators.task import EmitReport
from slackwater.sources.base import Batch, Replayed
from slackwater.state.protocol import Manifest, PartitionRecord, SourceRecord
from slackwater.watermark import NO_WATERMARK, Heard, SourceClock

NOTHING = Heard(0, None)


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


def clocks(pipeline: Pipeline, manifest: Manifest) -> dict[str, SourceClock]:
    """The sources of a config with their clocks as committed."""
    step, window = pipeline.transform.step, pipeline.transform.window
    # what is to be final when it is emitted waits for its late rows: the watermark does
    waits = 1000 * allowed_ms(window) if window and window.emit == "final" else 0
    return {
        s.name: manifest.sources.get(s.name, SourceRecord()).clock(
            waits + 1000 * (step.lateness_ms if s.lateness_ms is None else s.lateness_ms),
            1000 * step.source_idleness_ms,
            None if step.max_jump_ms is None else 1000 * step.max_jump_ms,
        )
        for s in pipeline.sources
    }


def figures(manifest: Manifest) -> Figures:
    """What a commit counts of the state of a stage."""
    return Figures(manifest.groups, manifest.windows, manifest.panes, manifest.counters.get("sides", {}))


def ingested(
    operator: Operator,
    before: Manifest,
    epoch: int,
    batch: Batch,
    outcome: IngestOutcome,
    clocks: Mapping[str, SourceClock],
    watermark: int,
) -> Manifest:
    """The previous commit with an epoch's rows folded in, before emission."""
    segments, after = list(before.segments), operator.ingested(figures(before), outcome.reports)
    late: Counter[str] = Counter(before.counters.get("late", {}))
    letters: Counter[str] = Counter(before.counters.get("letters", {}))
    totals: Counter[str] = Counter({k: v for k, v in before.counters.items() if isinstance(v, int)})
    for r in outcome.reports:
        segments[r.shard] = r.segments
        late.update({"lateness": r.late - r.late_idle, "idle": r.late_idle})
        totals.update(
            rows_bad=r.bad, rows_sql=r.rows, rows_used=r.used, rows_refused=r.refused, late_windows=r.late_windows
        )
        totals.update(rows_partly_late=r.partly_late)
        if r.overflows.count:
            totals.update(overflows=r.overflows.count)
    for stats in outcome.sources.values():
        totals.update(rows_in=stats.rows, rows_bad=stats.bad)
    totals.update(rows_bad=sum(u.rows for u in outcome.unfit))
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
            "groups": after.groups,
            "windows": after.windows,
            "panes": after.panes,
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
                "late": {k: v for k, v in late.items() if v},
                "emitted": dict(reasons),
                "letters": dict(letters),
                **({"sides": after.sides} if after.sides else {}),
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
    operator: Operator,
    clock_us: int,
    telling: bool = False,
    since: int = NO_WATERMARK,
) -> Manifest:
    """The manifest to commit: with the staged output, and without the panes and segments that are over.

    `telling`: windows that were changed and are open were emitted, too. `since`: the watermark that the epoch before
    committed, at which nothing needs what is over any more.
    """
    segments, after = list(manifest.segments), operator.emitted(figures(manifest), reports, manifest.watermark_us)
    reasons: Counter[str] = Counter(manifest.counters.get("emitted", {}))
    for r in reports:
        segments[r.shard] = r.segments
        reasons.update(r.reasons)
    counters = {**manifest.counters, "emitted": dict(reasons)}
    if beyond := sum(r.overflows.count for r in reports):
        counters["overflows"] = counters.get("overflows", 0) + beyond
    if after.sides:
        counters["sides"] = after.sides
    return manifest.model_copy(
        update={
            "committed_us": clock_us,
            "segments": tuple(operator.living(metas, since) for metas in segments),
            "groups": after.groups,
            "windows": after.windows,
            "panes": after.panes,
            "told_us": clock_us if telling else manifest.told_us,
            "waiting": operator.updates and not telling and manifest.waiting,
            "output": (*manifest.output, *(o for r in reports for o in r.outputs)),
            "emitted": manifest.emitted + sum(o.rows for r in reports for o in r.outputs),
            "counters": counters,
        }
    )


def status(
    pipeline: Pipeline,
    last: Operator,
    manifest: Manifest,
    clocks: Mapping[str, SourceClock],
    outcome: IngestOutcome | None,
    phases: Mapping[str, float],
    seconds: float,
    clock_us: int,
    last_end_us: int | None,
) -> Status:
    """What the outside is told after a commit. `last`: whose results the target gets."""
    step, shown = pipeline.transform.step, pipeline.last.transform.step
    windows, groups = last.size(figures(manifest.stages[-1]))
    return Status(
        pipeline=pipeline.name,
        window_kind="join" if pipeline.last.transform.window is None else shown.kind,
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
        windows_active=windows,
        groups=groups,
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
