"""The work of one shard in one epoch: read the touched state, fold, stage. Runs in a Spark worker or in this process.

A task is deterministic and may run twice: it reads files that a commit named and writes files with fresh names, which
count for nothing until the driver commits a manifest that names them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import polars as pl

from slackwater.core.arrays import distinct, member
from slackwater.core.hashing import mix
from slackwater.operators.dead_letters import BAD_GAP, LATE, ORIGIN, bad_gap_letters, late_letters
from slackwater.operators.lateness import late_by
from slackwater.operators.task import EmitReport, IngestReport, Overflows, ShardTask, StagedLetters, plain
from slackwater.state.protocol import OutputMeta
from slackwater.windows import panes, session_emission, sessions
from slackwater.windows.family import family
from slackwater.windows.logic import Emitted, Logic, late_sample


def ingest(task: ShardTask, rows: pl.DataFrame, origins: pl.Series | None = None) -> IngestReport:
    """Fold one epoch's rows (see `spark.epoch_sql` for their columns) into a shard and stage its new state.

    `origins`: where each row came from (see `operators.dead_letters`), for sessions under `late_data = "dlq"`; the late rows' become
    letters here. For tumbling and hopping windows rows arrive folded, and the engine stages their letters.
    """
    logic = task.windows
    if rows.is_empty():
        return IngestReport(shard=task.shard, segments=task.state.metas)
    rows, origins, bad = _with_gaps(logic, with_idle(task, rows), origins)
    reader = task.state.reader(logic)
    refused = partly_late = 0
    if logic.is_session:
        if origins is not None:
            rows = rows.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("__row"))
        total = rows.height
        state = reader.units(distinct(rows["__kh"].to_numpy()))
        room = None if task.bound is None else max(task.bound - task.groups, 0)
        done = sessions.ingest(logic, rows, state, task.watermark, room)
    else:
        total = int(rows["__n"].sum())
        partly_late = int(rows["__n"].filter(rows["__start"] < panes.late_before(logic, task.watermark)).sum())
        rows = rows.with_columns(pl.Series("__h", mix(rows["__kh"].to_numpy(), rows["__start"].to_numpy())))
        if task.bound is not None and _may_exceed(task, rows):
            existing = panes.forget(logic, reader.scan(), task.watermark)
            rows, refused = panes.admit(logic, rows, existing, task.watermark, task.bound)
        state = reader.units(distinct(rows["__h"].to_numpy()))
        done = panes.ingest(logic, rows, state, task.watermark)
        partly_late -= done.counts.late
    counts = done.counts
    if task.hit:
        task.hit("stage.before")
    staged = task.state.stage(logic, done.state, state, task.since)
    late = (
        None
        if origins is None or task.late is None
        else done.late.with_columns(origins[done.late["__row"]].alias(ORIGIN))
    )
    letters = _stage_letters(task, late, bad if task.keeps_bad else None)
    alone = _alone(task, done.late, rows)
    if task.hit:
        task.hit("stage.after")
    return IngestReport(
        shard=task.shard,
        segments=staged,
        rows=total,
        used=counts.used,
        late=counts.late,
        late_idle=counts.late_idle,
        late_windows=counts.late_windows,
        late_by=late_by(logic, done.late, task.watermark),
        partly_late=partly_late,
        refused=counts.refused + refused,
        groups=counts.groups,
        windows=counts.windows,
        new_groups=done.new_groups,
        late_sample=tuple(
            {k: plain(v) for k, v in s.items()} for s in late_sample(done.late, logic.key_names, "__start")
        ),
        outputs=() if alone is None else (task.state.stage_output(logic.output_frame(alone)),),
        reasons={} if alone is None else {"standalone": alone.rows.height},
        bad=bad.height,
        bad_sample=tuple({k: plain(v) for k, v in s.items()} for s in late_sample(bad, logic.key_names, "__ts")),
        letters=letters,
        overflows=Overflows() if alone is None else _overflows(logic, alone.rows),
    )


def _overflows(logic: Logic, rows: pl.DataFrame) -> Overflows:
    """The results of windows that did not fit their type."""
    count, sample = 0, list[dict[str, object]]()
    for agg in logic.aggs:
        beyond = agg.overflowed(rows) if agg.spec.on_overflow == "null" else None
        if beyond is not None:
            count += int(beyond.sum())
            found = late_sample(rows.filter(beyond), logic.key_names, "__start")
            sample += [{"aggregation": agg.name, **{k: plain(v) for k, v in s.items()}} for s in found]
    return Overflows(count=count, sample=tuple(sample[:3]))


def _alone(task: ShardTask, late: pl.DataFrame, rows: pl.DataFrame) -> Emitted | None:
    """`late_data = "standalone"`: the results that late rows form by themselves; None where there are none."""
    logic = task.windows
    if logic.window.late_data != "standalone":
        return None
    if logic.is_session:
        found = session_emission.standalone(logic, late) if late.height else None
    else:
        found = panes.standalone(logic, rows, task.watermark)
    if found is None or found.is_empty():
        return None
    return Emitted(found, logic.empty_state(), found.clear())


def _with_gaps(
    logic: Logic, rows: pl.DataFrame, origins: pl.Series | None
) -> tuple[pl.DataFrame, pl.Series | None, pl.DataFrame]:
    """The rows whose gap is one, with their origins, and the others."""
    if not logic.dynamic:
        return rows, origins, rows.clear()
    usable = rows["__end"].is_not_null()
    bad = rows.filter(~usable)
    if origins is None:
        return rows.filter(usable), None, bad
    return rows.filter(usable), origins.filter(usable), bad.with_columns(origins.filter(~usable).alias(ORIGIN))


def _stage_letters(task: ShardTask, late: pl.DataFrame | None, bad: pl.DataFrame | None) -> StagedLetters | None:
    """Stage the letters of a shard's late rows and of its rows without a gap; None where there are none of both."""
    frames, reasons = [], {}
    if late is not None and late.height and task.late is not None:
        frames.append(_letters_of_late(task, late))
        reasons[LATE] = late.height
    if bad is not None and bad.height:
        frames.append(bad_gap_letters(bad, task.state.epoch, task.windows.pipeline))
        reasons[BAD_GAP] = bad.height
    return StagedLetters(output=task.state.stage_output(pl.concat(frames)), reasons=reasons) if frames else None


def with_idle(task: ShardTask, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows that tell whether their source or partition is idle, where they told which it is."""
    if "__src" not in rows.columns:
        return rows
    return rows.with_columns(pl.col("__src").is_in(list(task.idle_sources)).alias("__idle")).drop("__src")


def stage_late(task: ShardTask, rows: pl.DataFrame) -> StagedLetters:
    """Stage the letters of late rows: `__start` (event time, µs), `_origin`, and `__idle` where sources may be idle."""
    return StagedLetters(output=task.state.stage_output(_letters_of_late(task, rows)), reasons={LATE: rows.height})


def _letters_of_late(task: ShardTask, rows: pl.DataFrame) -> pl.DataFrame:
    assert task.late is not None
    return late_letters(task.windows, rows, task.watermark, task.state.epoch, task.late.pipeline, task.late.held_by)


def _may_exceed(task: ShardTask, rows: pl.DataFrame) -> bool:
    """Whether any open window could hold more groups than the bound, if every lifted row were a new group."""
    counts = dict(task.pane_groups or {})
    for start, n in rows["__start"].value_counts().iter_rows():
        counts[start] = counts.get(start, 0) + n
    totals = panes.window_totals(task.windows, counts, task.watermark)
    return max(totals.values(), default=0) > (task.bound or 0)


def is_due(task: ShardTask) -> bool:
    """Whether anything of a shard wants a visit between two watermarks."""
    visit = family(task.windows).visit(task.windows, task.since, task.watermark, task.telling)
    return not task.state.reader(task.windows).due(visit).is_empty()


def emit(task: ShardTask) -> EmitReport:
    """Stage the windows of a shard that close between two watermarks, and the state that changes with them."""
    logic = task.windows
    kind = family(logic)
    reader = task.state.reader(logic)
    due = reader.due(kind.visit(logic, task.since, task.watermark, task.telling))
    if due.is_empty():
        return EmitReport(shard=task.shard, segments=task.state.metas)
    if not logic.is_session and logic.revises:
        more = panes.siblings(logic, due, task.since, task.watermark)
        due = pl.concat([due, reader.units(more[~member(more, distinct(due["__h"].to_numpy()))])])
    done = kind.emit(logic, due, task.since, task.watermark, task.telling)
    if task.flush:
        done = replace(done, rows=done.rows.with_columns(pl.col("__reason").replace("close", "flush")))
    outputs: tuple[OutputMeta, ...] = ()
    if done.rows.height or done.superseded.height:
        outputs = (task.state.stage_output(logic.output_frame(done)),)
    last_end = done.rows["__end"].filter(done.rows["__reason"] != "update").max()
    reasons = Counter(dict(done.rows["__reason"].value_counts().iter_rows()))
    reasons.update(supersede=done.superseded.height)
    return EmitReport(
        shard=task.shard,
        segments=(task.state.stage(logic, done.state, due, task.since) if done.state.height else task.state.metas),
        outputs=outputs,
        reasons={k: n for k, n in reasons.items() if n},
        groups=done.groups,
        windows=done.windows,
        last_end_us=last_end if isinstance(last_end, int) else None,
        overflows=_overflows(logic, done.rows),
    )


def count_groups(task: ShardTask, windows: list[int]) -> dict[int, int]:
    """The exact number of groups in each of these hopping windows of a shard."""
    state = task.state.reader(task.windows).scan()
    return panes.exact_totals(task.windows, state, windows)
