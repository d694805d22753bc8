"""The work of one shard of a join in one epoch: match, buffer, stage. Runs in a Spark worker or in this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import polars as pl

from slackwater.core.hashing import shard_of
from slackwater.core.words import plural
from slackwater.errors import CapExceededError
from slackwater.joins import step
from slackwater.joins.buffer import Change
from slackwater.joins.logic import MATCH, UNMATCHED, JoinLogic
from slackwater.joins.slots import Slots
from slackwater.operators.dead_letters import LATE, ORIGIN, late_letters
from slackwater.operators.lateness import late_by
from slackwater.operators.task import EmitReport, IngestReport, ShardTask, SideReport, StagedLetters, plain
from slackwater.state.protocol import Manifest, OutputMeta, SegmentMeta, StateStore

PLAIN = ("__kh", "__ts")
SAMPLE = 3


class _Outbox:
    """Puts output aside, in frames that are neither many nor huge."""

    def __init__(self, task: ShardTask) -> None:
        self._state, self._held, self._rows = task.state, list[pl.DataFrame](), 0
        self.outputs: list[OutputMeta] = []

    def take(self, frame: pl.DataFrame) -> None:
        self._held.append(frame)
        self._rows += frame.height
        if self._rows >= step.MOST:
            self.flush()

    def flush(self) -> tuple[OutputMeta, ...]:
        if self._held:
            self.outputs.append(self._state.stage_output(pl.concat(self._held)))
            self._held, self._rows = [], 0
        return tuple(self.outputs)


def ingest(task: ShardTask, rows: pl.DataFrame, origins: pl.Series | None = None) -> IngestReport:
    """Match one epoch's rows: `__side`, `__kh`, `__ts`, the columns of `Slots`, and `__src` where sources may be idle.

    `origins`: where each row came from, where late rows become letters.
    """
    logic = task.join
    if rows.is_empty():
        return IngestReport(shard=task.shard, segments=task.state.metas)
    if "__src" in rows.columns:
        rows = rows.with_columns(pl.col("__src").is_in(list(task.idle_sources)).alias("__idle"))
    if origins is not None:
        rows = rows.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("__row"))
    slots, more = Slots.between(logic), [c for c in (*PLAIN, "__idle", "__row") if c in rows.columns]
    new = {side.which: slots.apart(rows, side.which, more) for side in logic.sides}
    outbox, epoch = _Outbox(task), task.state.epoch
    try:
        done = step.ingest(logic, new, task.state.buffers(logic), task.watermark, epoch, outbox.take)
    except step.TooManyError as error:
        raise CapExceededError(
            f"{logic.pipeline}: {plural(error.rows, 'row')} of the {error.side.name} side wait for partners with {error.key}, "
            f'max_rows_per_key is {logic.max_rows_per_key:,}; raise it, or set on_state_cap = "drop_oldest"; nothing of this '
            "epoch was committed"
        ) from None
    if task.hit:
        task.hit("stage.before")
    segments = task.state.stage_changes(logic, done.changes, task.watermark)
    outputs = outbox.flush()
    letters = _late_letters(task, done.late, origins)
    if task.hit:
        task.hit("stage.after")
    tallies = [done.tallies.get(side.which, step.Tally()) for side in logic.sides]
    late, missing = sum(t.late for t in tallies), _uncounted(logic, tallies)
    reasons = {MATCH: done.matches, UNMATCHED: sum(t.unmatched for t in tallies)}
    return IngestReport(
        shard=task.shard,
        segments=segments,
        rows=rows.height,
        used=rows.height - late - missing,
        late=late,
        late_idle=sum(t.late_idle for t in tallies),
        late_by=sum((Counter(late_by(logic, found, task.watermark)) for found in done.late.values()), Counter()),
        late_sample=_sample(logic, done.late),
        outputs=outputs,
        reasons={k: n for k, n in reasons.items() if n},
        letters=letters,
        sides=tuple(
            SideReport(
                buffered=t.buffered,
                late=t.late,
                null_keys=t.null_keys,
                keyless=0 if logic.sides[which].outer else t.null_keys,
                matched=t.matched,
                unmatched=t.unmatched,
                evicted=t.evicted,
                crowd=done.crowd.get(which),
            )
            for which, t in enumerate(tallies)
        ),
    )


def _uncounted(logic: JoinLogic, tallies: list[step.Tally]) -> int:
    """Rows that have no key, on a side whose rows come out in pairs only."""
    return sum(t.null_keys for t, side in zip(tallies, logic.sides, strict=True) if not side.outer)


def _sample(logic: JoinLogic, late: Mapping[int, pl.DataFrame]) -> tuple[dict[str, Any], ...]:
    found: list[dict[str, Any]] = []
    for which, rows in late.items():
        side = logic.sides[which]
        names = {f"{side.source}.{k.name}": k.name for k in side.keys}
        some = rows.head(SAMPLE).select(
            pl.col("__ts").alias("event_us"), *(pl.col(c).alias(n) for n, c in names.items())
        )
        found += [{k: plain(v) for k, v in row.items()} for row in some.iter_rows(named=True)]
    return tuple(found[:SAMPLE])


def _late_letters(task: ShardTask, late: Mapping[int, pl.DataFrame], origins: pl.Series | None) -> StagedLetters | None:
    if task.late is None or origins is None:
        return None
    frames = [
        late_letters(
            task.join,
            rows.select(pl.col("__ts").alias("__start"), origins[rows["__row"]].alias(ORIGIN), pl.col("^__idle$")),
            task.watermark,
            task.state.epoch,
            task.late.pipeline,
            task.late.held_by,
        )
        for rows in late.values()
        if rows.height
    ]
    if not frames:
        return None
    letters = pl.concat(frames)
    return StagedLetters(output=task.state.stage_output(letters), reasons={LATE: letters.height})


# -- rows out ----------------------------------------------------------------------------------------------------------


def touched(metas: tuple[SegmentMeta, ...], since: int, watermark: int) -> bool:
    """Whether an outer row may expire between two watermarks."""
    return any(m.first_due <= watermark and m.last_due > since for m in metas)


def is_due(task: ShardTask) -> bool:
    buffers, logic = task.state.buffers(task.join), task.join
    return any(buffers.due(s.which, task.since, task.watermark).height for s in logic.sides if s.outer)


def emit(task: ShardTask) -> EmitReport:
    """Stage the outer rows that expire without a partner."""
    outbox = _Outbox(task)
    counts = step.emit(task.join, task.state.buffers(task.join), task.since, task.watermark, outbox.take)
    total = sum(counts.values())
    return EmitReport(
        shard=task.shard,
        segments=task.state.metas,
        outputs=outbox.flush(),
        reasons={UNMATCHED: total} if total else {},
        unmatched=(counts.get(0, 0), counts.get(1, 0)),
    )


# -- start -------------------------------------------------------------------------------------------------------------


def fingerprint(logic: JoinLogic) -> dict[str, Any]:
    """What the state of a join depends on; a change of any of it needs a new state."""
    return {
        "kind": "join",
        "outer": [s.name for s in logic.sides if s.outer],
        "bounds_us": [logic.left.low_us, logic.left.high_us],
        "keys": [[f"{k.name} {k.type}" for k in s.keys] for s in logic.sides],
        "columns": [[f"{f.name} {f.type}" for f in s.fields] for s in logic.sides],
    }


def emission(logic: JoinLogic) -> dict[str, Any]:
    """What may change between runs, and rewrites the state."""
    return {"updates": False, "retain_us": logic.allowed_us}


def reshard(
    logic: JoinLogic, store: StateStore, manifest: Manifest, shards: int, before_us: int, stage: int = 0
) -> tuple[tuple[SegmentMeta, ...], ...]:
    """The segments per shard of the same buffers, spread over another number of shards.

    `before_us`: how late rows were allowed to be so far; what had expired by that stays expired.
    """
    epoch, watermark = manifest.epoch + 1, manifest.watermark_us
    gone = watermark - before_us + logic.allowed_us
    every: dict[int, pl.DataFrame] = {}
    for side in logic.sides:
        parts = [
            store.shard(shard, manifest.shards, epoch, metas, stage).buffers(logic).scan(side.which, gone)
            for shard, metas in enumerate(manifest.segments)
        ]
        every[side.which] = pl.concat(parts)
    found = []
    for shard in range(shards):
        changes: dict[int, Change] = {}
        for which, rows in every.items():
            mine = rows.filter(pl.Series(shard_of(rows["__kh"].to_numpy(), shards) == shard))
            mine = mine.sort("__kh", "__ts", "__id")
            first = epoch * step.NUMBERS
            changes[which] = Change(
                mine.with_columns(pl.int_range(first, first + pl.len(), dtype=pl.Int64).alias("__id"))
            )
        found.append(store.shard(shard, shards, epoch, (), stage).adopt_buffers(logic, changes))
    return tuple(found)
