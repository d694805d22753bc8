"""Replay dead letters through the pipeline.

    letters ─ not applied yet ─┬─ bad rows ──▶ event time ─▶ SQL ─▶ an ordinary epoch of the rows that are now usable
                               └─ late rows ─▶ event time ─▶ SQL ─▶ corrections ─▶ an epoch of corrections
                                                 target: stored windows ─┘

Both kinds of epoch are ordinary commits with staged output. Each commit lists the dead letters that it applies. After
a crash, the next start publishes the output, and no dead letter is applied twice. Dead letters never move a watermark.
A dead letter that cannot be applied stays pending, and the commit counts the attempt (`dead_letters.dead_letter_reader`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatch
from typing import Any

import numpy as np
import polars as pl

from slackwater.connectors.source import Batch, ReplayRecord
from slackwater.connectors.target import ReadableTarget, TargetWriter
from slackwater.dead_letters.closed_window_corrections import compute_corrections
from slackwater.dead_letters.dead_letter_reader import AttemptLedger, format_applied_lines
from slackwater.engine.epoch_driver import EpochDriver
from slackwater.errors import StartError, Topic, raise_unregistered
from slackwater.operators import unstorable_rows
from slackwater.operators.base import Operator
from slackwater.operators.dead_letters import BAD_GAP, LATE, ORIGIN_FIELDS, UNPUBLISHED
from slackwater.operators.interval_join import IntervalJoinOperator
from slackwater.operators.keyed_operator_base import KeyedOperator
from slackwater.operators.stateless import StatelessOperator
from slackwater.operators.window_operators import PaneWindowOperator, SessionWindowOperator

Payload = Callable[[pl.DataFrame], Mapping[str, Any]]  # converts dead letters with `__letter` to rows by source

_ORIGIN = [f.name for f in ORIGIN_FIELDS]

GONE = "the SQL no longer returns a row with this event time"
NO_ROW = "the source returns no row for the dead letter"
DROPPED = 'the row is late now, and late_data = "drop" would drop it; set late_data = "dlq" and replay again'
NO_GAP = "rows without a usable gap are detected only after the SQL, which may have turned one row into several; send them again"
UNFIT = (
    "rows that the target or the state cannot store are detected only after the SQL; correct them and send them again"
)
RESULT = "results that the target did not accept, skipped by outbox skip; they are not rows of a source"
_NOT_REPLAYABLE = {BAD_GAP: NO_GAP, **dict.fromkeys(unstorable_rows.REASONS, UNFIT), UNPUBLISHED: RESULT}
UNCLEAR = "the SQL turns the row into several rows, and it is unknown which of them were late"


@dataclass
class ReplayResult:
    """The outcome of a replay.

    Args:
        applied: The number of dead letters that were applied.
        remaining: The number of dead letters that were not applied, by reason.
        before: The number of dead letters that an earlier replay has applied.
        reasons: The number of emitted results, by reason: late, supersede, …
        renewed: The number of new dead letters that replace applied ones, by reason.
        refused: The number of rows of applied dead letters that were refused because of a limit.
    """

    applied: int = 0
    remaining: Counter[str] = field(default_factory=Counter)
    before: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    renewed: Counter[str] = field(default_factory=Counter)
    refused: int = 0


# -- selection of letters --------------------------------------------------------------------------------------------


def _pending_letters(letters: pl.DataFrame, ledger: AttemptLedger) -> tuple[pl.DataFrame, int]:
    """Return the pending dead letters with `__id` and `__tries`, and the number of applied dead letters.

    Letters with the fewest attempts come first, so that unreadable letters do not block others. Letters with equal
    numbers of attempts are sorted by age, the oldest first.
    """
    judged = ledger.with_attempts(letters)
    todo = judged.filter(~pl.col("__applied")).drop("__applied")
    todo = todo.sort("__tries", "epoch", "event_time", "__id", nulls_last=False, maintain_order=True)
    return todo, judged.height - todo.height


def _take_oldest(letters: pl.DataFrame, limit: int | None) -> pl.DataFrame:
    """Return the first `limit` dead letters (all for None), and every letter that is equal to one of them."""
    if limit is None:
        return letters
    same = ["epoch", "__id"]
    return letters.join(letters.head(limit).select(same).unique(), on=same, how="semi", maintain_order="left")


def count_replayable_late_rows(letters: pl.DataFrame, ledger: AttemptLedger, limit: int | None) -> int:
    """Return how many dead letters of late rows a replay of at most `limit` letters would process."""
    return _take_oldest(_pending_letters(letters, ledger)[0], limit).filter(pl.col("reason") == LATE).height


def _ledger(driver: EpochDriver) -> AttemptLedger:
    return AttemptLedger.from_commit(driver.state, driver.store.read_list)


def _write_attempts(
    driver: EpochDriver, applied: pl.DataFrame, remaining: pl.DataFrame, late: bool = False
) -> ReplayRecord:
    """Write the lists of attempts for the next epoch. Return the record by which the commit references both lists.

    Args:
        driver: The driver.
        applied: The dead letters that the epoch applies.
        remaining: The dead letters that were tried but not applied.
        late: Whether the applied dead letters are late rows.
    """
    epoch, store = driver.state.epoch + 1, driver.store
    lines = _ledger(driver).update_attempts(remaining, applied)
    record = store.write_list(epoch, format_applied_lines(applied)) if applied.height else None
    tried = store.write_list(epoch, lines) if lines else None
    return ReplayRecord(record, applied.height, tried, applied.height if late else 0)


# -- bad rows --------------------------------------------------------------------------------------------------------


@dataclass
class _SplitLetters:
    """Dead letters of bad rows: `good` if the row is usable now, otherwise `bad` with the reason in `__why`."""

    good: pl.DataFrame
    bad: pl.DataFrame


def _replay_bad_rows(driver: EpochDriver, letters: pl.DataFrame, payload: Payload, dry: bool) -> ReplayResult:
    """Replay bad rows as an ordinary epoch. Rows that are still bad remain dead letters with one more attempt."""
    if letters.is_empty():
        return ReplayResult()
    judged = _split_letters(driver, letters, payload)
    # these settings turn a late row into a dead letter or a separate result; otherwise it would be dropped
    keeps_late_rows = driver.pipeline.keeps_late_rows or driver.pipeline.transform.step.late_data == "standalone"
    if judged.good.height and not keeps_late_rows:
        judged = _separate_late(driver, judged, payload)
    reasons = judged.bad["__why"].value_counts()
    result = ReplayResult(applied=judged.good.height, remaining=Counter(dict(reasons.iter_rows())))
    tried = judged.bad.drop("__why")
    if judged.good.is_empty():
        if not dry:
            driver.record_attempts(_write_attempts(driver, judged.good, tried))
        return result
    if dry:
        outcome = driver.dry_run(_batch(judged.good, payload))
        result.renewed = sum((Counter(s.reasons) for s in outcome.letters), Counter())
        result.refused = sum(r.refused for r in outcome.reports)
        return result
    former = driver.state.stages[0].counters
    driver.run_batch(_batch(judged.good, payload, _write_attempts(driver, judged.good, tried)), 0)
    counters = driver.state.stages[0].counters
    result.renewed = Counter(counters.get("letters", {})) - Counter(former.get("letters", {}))
    result.refused = counters.get("rows_refused", 0) - former.get("rows_refused", 0)
    return result


def _batch(letters: pl.DataFrame, payload: Payload, replayed: ReplayRecord | None = None) -> Batch:
    rows = payload(_number_letters(letters)[0])
    return Batch(None, {}, {name: frame.drop("__letter") for name, frame in rows.items()}, replayed=replayed)


def _number_letters(letters: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Number the dead letters that must be read. Return them with `__letter`, and their numbers by `epoch` and `__id`.

    A record of a topic is read once, no matter how many letters it has.
    """
    once = pl.col("offset").is_null() | pl.struct("epoch", "__id").is_first_distinct()
    read = letters.filter(once).with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("__letter"))
    return read, read.select("epoch", "__id", "__letter")


def _split_letters(driver: EpochDriver, letters: pl.DataFrame, payload: Payload) -> _SplitLetters:
    """Read the dead letters again, as an epoch would, and split them by whether their rows are usable now.

    Equal letters have the same outcome.
    """
    read, numbers = _number_letters(letters)
    rows = driver.stage.engine.validate_dead_letters(payload(read), driver.hooks.clock_us())
    verdict = rows.group_by("__letter").agg(pl.col("__bad").drop_nulls().first(), pl.len().alias("__rows"))
    no_row = pl.when(pl.col("__rows").is_null()).then(pl.lit(NO_ROW))
    why = no_row.when(pl.col("__bad").is_not_null()).then(pl.format("bad again: {}", "__bad")).alias("__why")
    judged = numbers.join(verdict, on="__letter", how="left").select("epoch", "__id", why)
    judged = judged.group_by("epoch", "__id").agg(pl.col("__why").drop_nulls().first())
    with_reason = letters.join(judged, on=["epoch", "__id"], how="left", maintain_order="left")
    is_good = pl.col("__why").is_null()
    return _SplitLetters(with_reason.filter(is_good).drop("__why"), with_reason.filter(~is_good))


def _separate_late(driver: EpochDriver, judged: _SplitLetters, payload: Payload) -> _SplitLetters:
    """Move letters from `good` to `bad` if `late_data = "drop"` would drop their rows.

    If any row would be dropped, all letters before the watermark are moved, although some of these rows might still
    join an open session.
    """
    if not sum(r.late for r in driver.dry_run(_batch(judged.good, payload)).reports):
        return judged
    before = driver.stage.operator.late_threshold(driver.state.watermark_us)
    read, numbers = _number_letters(judged.good)
    rows = driver.stage.engine.replay_rows(payload(read), driver.hooks.clock_us(), driver.stage.capacity)
    late = numbers.join(rows.filter(pl.col("__ts") < before).select("__letter").unique(), on="__letter", how="semi")
    late, identity = late.select("epoch", "__id").unique(), ["epoch", "__id"]
    dropped = judged.good.join(late, on=identity, how="semi", maintain_order="left")
    good = judged.good.join(late, on=identity, how="anti", maintain_order="left")
    return _SplitLetters(good, pl.concat([judged.bad, dropped.with_columns(pl.lit(DROPPED).alias("__why"))]))


# -- late rows -------------------------------------------------------------------------------------------------------


def _check_late(driver: EpochDriver) -> None:
    """Raise StartError if the config or the targets do not support the replay of late rows."""
    _all_late_together(driver.stage.operator)
    if not driver.pipeline.keeps_late_rows:
        raise StartError(
            f"{driver.pipeline.name}: dead letters of late rows cannot be replayed, because late_data = "
            f'"{driver.pipeline.transform.step.late_data}" does not track the origin of a row; set late_data back to '
            '"dlq" or "reopen", or select other dead letters with --reason',
            Topic.DEAD_LETTERS,
        )
    targets, window = driver.targets.values(), driver.pipeline.transform.window
    marked = window is not None and window.emit_metadata  # rows show their revision, even in append-only targets
    adds = [] if marked and len(targets) > 1 else [t for t in targets if not t.upserts]
    if adds or not any(_is_readable(t) for t in targets):
        first = next(iter(adds or targets))
        raise StartError(
            f"{driver.pipeline.name}: late rows cannot be replayed, because they correct windows in the target, but "
            f"{first.description} {'cannot be read back' if first.upserts else 'is append-only'}; expected a Postgres "
            'table, or a Delta or Iceberg table with mode = "merge"; nothing was replayed',
            Topic.DEAD_LETTERS,
        )


def _is_readable(target: TargetWriter) -> bool:
    """Return whether windows that have left the state can be read back from the target."""
    return target.upserts and isinstance(target, ReadableTarget)


def _replay_late_rows(driver: EpochDriver, letters: pl.DataFrame, payload: Payload, dry: bool) -> ReplayResult:
    """Replay late rows as corrections of windows. Call `_check_late` first."""
    result = ReplayResult()
    if letters.is_empty():
        return result
    target = next(t for t in driver.targets.values() if _is_readable(t))
    assert isinstance(target, ReadableTarget)
    every = letters
    rows, letters = _match_rows(driver, letters, payload, result.remaining)
    while True:  # until no row is refused, because a dead letter is applied completely or not at all
        work = compute_corrections(driver.stage.operator, driver, target, rows)
        if work.refused.is_empty():
            break
        whole = letters.filter(pl.col("__group").is_in(work.refused["__group"].implode()))
        why = work.refused.unique("__group", keep="first")
        result.remaining.update(dict(whole.join(why, on="__group")["refused"].value_counts().iter_rows()))
        rows = rows.filter(~pl.col("__group").is_in(whole["__group"].implode()))
        letters = letters.filter(~pl.col("__group").is_in(whole["__group"].implode()))
    result.applied = letters.height
    result.reasons = work.reasons
    if letters.height and not dry:
        remaining = every.join(letters.select("epoch", "__id").unique(), on=["epoch", "__id"], how="anti")
        driver.commit_corrections(work.stage_reports, _write_attempts(driver, letters, remaining, late=True))
    elif not dry:
        driver.record_attempts(_write_attempts(driver, letters, every))
    return result


def _match_rows(
    driver: EpochDriver, letters: pl.DataFrame, payload: Payload, remaining: Counter[str]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows of dead letters, and the letters that have rows, both with `__group`.

    A group has one origin and one event time. The SQL may turn a source row into several late rows, each with a
    separate letter. Therefore, each origin passes through the SQL once, and its rows are matched with the letters by
    event time. `remaining` receives the number of letters without rows, by reason.
    """
    origin_columns = ["epoch", *_ORIGIN]
    letters = letters.with_columns(
        _number_distinct(letters, origin_columns),
        pl.col("event_time").dt.timestamp("us").alias("__ts"),
    )
    groups = letters.group_by("__letter", "__ts", maintain_order=True).agg(
        pl.len().alias("__letters"),
        pl.col("offset").first().is_not_null().alias("__once"),
        pl.col("windows_missed").first().fill_null(1).cast(pl.Int64).alias("__missed"),
    )
    groups = groups.with_row_index("__group").with_columns(pl.col("__group").cast(pl.Int64))
    once = payload(letters.unique("__letter", keep="first"))
    again = driver.stage.engine.replay_rows(once, driver.hooks.clock_us(), driver.stage.capacity)
    rows = again.join(groups, on=["__letter", "__ts"])
    seen = rows.group_by("__group").agg(pl.len().alias("__rows"), pl.col("__kh").n_unique().alias("__keys"))
    groups = groups.join(seen, on="__group", how="left").with_columns(pl.col("__rows", "__keys").fill_null(0))
    groups = groups.with_columns(_count_copies(_all_late_together(driver.stage.operator)).alias("__copies"))
    letters = letters.join(groups.select("__letter", "__ts", "__group", "__rows", "__copies"), on=["__letter", "__ts"])
    for why, is_left in ((GONE, pl.col("__rows") == 0), (UNCLEAR, (pl.col("__rows") > 0) & (pl.col("__copies") == 0))):
        count = letters.filter(is_left).height
        remaining.update({why: count} if count else {})
    rows = rows.join(groups.select("__group", "__copies"), on="__group").filter(pl.col("__copies") > 0)
    repeated = rows[np.repeat(np.arange(rows.height), rows["__copies"].to_numpy())].drop("__copies")
    return repeated, letters.filter(pl.col("__copies") > 0)


def _number_distinct(frame: pl.DataFrame, columns: Sequence[str]) -> pl.Series:
    """Number the rows from 0. Rows that are equal in these columns have the same number."""
    rows = frame.select(columns)
    numbers = rows.unique(maintain_order=True).with_row_index("__letter")
    numbered = rows.join(numbers, on=list(columns), how="left", nulls_equal=True, maintain_order="left")
    return numbered["__letter"].cast(pl.Int64)


@singledispatch
def _all_late_together(operator: Operator) -> pl.Expr:
    """Return an expression for whether the rows of a group must have been either all late or all on time.

    Raises StartError if late rows can never be applied.
    """
    raise_unregistered(operator, "slackwater.dead_letters.replay._all_late_together")


@_all_late_together.register
def _(operator: PaneWindowOperator) -> pl.Expr:
    return pl.lit(True)  # the rows of a group have the same event time


@_all_late_together.register
def _(operator: SessionWindowOperator) -> pl.Expr:
    return pl.col("__keys") == 1


@_all_late_together.register(IntervalJoinOperator)
@_all_late_together.register(KeyedOperator)
def _(operator: Operator) -> pl.Expr:
    raise StartError(
        f"{operator.pipeline}: late rows of a {operator.fingerprint['kind']} stage cannot be replayed, because the rows "
        "they must be processed with are no longer in the state; send the late rows again, or select other dead "
        "letters with --reason",
        Topic.DEAD_LETTERS,
    )


@_all_late_together.register
def _(operator: StatelessOperator) -> pl.Expr:
    raise StartError(
        f"{operator.pipeline}: dead letters of late rows cannot be replayed: a pipeline without windows or joins has "
        "no late rows, so these dead letters belong to another pipeline; select other dead letters with --reason",
        Topic.NO_WINDOWS,
    )


def _count_copies(all_late: pl.Expr) -> pl.Expr:
    """Return an expression for the number of times each row of a group was late; 0 if unknown.

    Equal rows of a file have equal dead letters. A record of a topic is read once, no matter how many letters it has.
    `all_late`: see `_all_late_together`.
    """
    letters, rows, once = pl.col("__letters"), pl.col("__rows"), pl.col("__once")
    even = (rows > 0) & (letters % rows.clip(1) == 0)
    return (
        pl.when((rows == 1) | (all_late & even))
        .then(pl.when(once).then(1).otherwise(letters // rows.clip(1)))
        .when(once & (letters == rows))
        .then(1)
        .otherwise(0)
        .cast(pl.Int64)
    )


def replay_filtered_dead_letters(
    driver: EpochDriver, letters: pl.DataFrame, payload: Payload, dry: bool = False, limit: int | None = None
) -> ReplayResult:
    """Apply pending dead letters, those with the fewest attempts first.

    Args:
        driver: The driver of the pipeline.
        letters: The dead letters, of which some may have been applied already.
        payload: A function that converts dead letters with `__letter` to rows by source.
        dry: Whether to change nothing and only return what would happen.
        limit: The largest number of dead letters to apply; None for no limit.

    Raises StartError if the letters include late rows that cannot be applied.
    """
    todo, before = _pending_letters(letters, _ledger(driver))
    todo = _take_oldest(todo, limit)
    is_late, fixed_reason = pl.col("reason") == LATE, pl.col("reason").replace_strict(_NOT_REPLAYABLE, default=None)
    if not todo.filter(is_late).is_empty():
        _check_late(driver)
    bad = _replay_bad_rows(driver, todo.filter(~is_late & fixed_reason.is_null()), payload, dry)
    late = _replay_late_rows(driver, todo.filter(is_late), payload, dry)
    unclear = todo.filter(fixed_reason.is_not_null())
    skipped = Counter(unclear.select(fixed_reason.alias("why"))["why"].to_list())
    if unclear.height and not dry:
        driver.record_attempts(_write_attempts(driver, unclear.clear(), unclear))
    applied, remaining = bad.applied + late.applied, bad.remaining + late.remaining + skipped
    return replace(late, applied=applied, remaining=remaining, before=before, renewed=bad.renewed, refused=bad.refused)
