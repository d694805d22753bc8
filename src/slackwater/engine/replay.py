"""Dead letters once more through the pipeline.

    letters ─ not replayed yet ─┬─ bad rows ──▶ event time ─▶ SQL ─▶ an ordinary epoch; they may come back as letters
                                └─ late rows ─▶ event time ─▶ SQL ─▶ windows.replay ─▶ an epoch of corrections
                                                     target: stored windows ─┘

Either epoch is a commit like any other, with its staged output, and names the letters that are in it: after a crash it is
rolled forward, and nothing is applied twice. No letter moves a watermark. What cannot be applied stays a letter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl

from slackwater.core.hashing import key_hash
from slackwater.engine import fitting
from slackwater.engine.corrections import Corrections
from slackwater.engine.driver import Driver
from slackwater.engine.letters import BAD_GAP, LATE, ORIGIN_FIELDS, UNPUBLISHED
from slackwater.errors import StartError
from slackwater.sources.base import Batch
from slackwater.targets.base import LETTER, Readable
from slackwater.windows.logic import Logic

Payload = Callable[[pl.DataFrame], Mapping[str, Any]]  # letters with `__letter` -> rows per source, for the engine

_ID = [
    f
    for f in LETTER
    if f.name in ("reason", "source", "topic", "partition", "offset", "key", "value", "event_time", "file")
]
_ORIGIN = [f.name for f in ORIGIN_FIELDS]

GONE = "no row with its event time comes out of the SQL any more"
NO_GAP = "rows without a usable gap are known behind the SQL only, which may have made several of one; send them again"
UNFIT = "rows that the target or the state cannot hold are known behind the SQL only; correct them and send them again"
RESULT = "results that their target did not take, set aside by outbox set-aside; they are no rows of a source"
_LEFT = {BAD_GAP: NO_GAP, **dict.fromkeys(fitting.REASONS, UNFIT), UNPUBLISHED: RESULT}
UNCLEAR = "the SQL makes several rows of it, and which of them were late is not known"


@dataclass
class Outcome:
    """What a replay did, in letters: applied, and left with the reason; windows written and taken back."""

    applied: int = 0
    left: Counter[str] = field(default_factory=Counter)
    before: int = 0  # replayed earlier
    reasons: Counter[str] = field(default_factory=Counter)  # of what was emitted: late, supersede, …


# -- which letters ---------------------------------------------------------------------------------------------------


def pending(driver: Driver, letters: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """The letters (columns of LETTER) that no commit names yet, oldest first, with `__id`; and how many one does."""
    done: Counter[tuple[int, int]] = Counter()
    for name in driver.state.replayed:
        for line in driver.store.read_list(name):
            epoch, number, count = map(int, line.split())
            done[epoch, number] += count
    letters = letters.with_columns(key_hash(letters, _ID).alias("__id"))
    letters = letters.sort("epoch", "event_time", "__id", nulls_last=False, maintain_order=True)
    # equal letters of a file stand for as many equal rows; those of a topic's record were applied together
    nth = pl.when(pl.col("offset").is_null()).then(pl.int_range(pl.len()).over("epoch", "__id")).otherwise(0)
    places = letters.select(nth, "epoch", "__id").iter_rows()
    known = pl.Series([n < done[epoch, number] for n, epoch, number in places], dtype=pl.Boolean)
    return letters.filter(~known), int(known.sum())


def _first(letters: pl.DataFrame, limit: int | None) -> pl.DataFrame:
    """About so many of the pending letters, the oldest; equal ones stay together."""
    if limit is None:
        return letters
    same = ["epoch", "__id"]
    return letters.join(letters.head(limit).select(same).unique(), on=same, how="semi", maintain_order="left")


def _record(driver: Driver, letters: pl.DataFrame) -> str:
    """Put aside which letters an epoch applies; the commit names the list."""
    counts = letters.group_by("epoch", "__id", maintain_order=True).len()
    lines = [" ".join(map(str, row)) for row in counts.iter_rows()]
    return driver.store.stage_list(driver.state.epoch + 1, lines)


# -- bad rows --------------------------------------------------------------------------------------------------------


def bad_rows(driver: Driver, letters: pl.DataFrame, payload: Payload, dry: bool) -> Outcome:
    """Rows that could not be used, as an ordinary epoch: what is still bad or too late becomes a letter again."""
    found = Outcome(applied=letters.height)
    if letters.height and not dry:
        # a record of a topic is there once, however often its letter is
        once = pl.col("offset").is_null() | pl.struct("epoch", "__id").is_first_distinct()
        numbered = letters.filter(once).with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("__letter"))
        rows = payload(numbered)
        before = Counter(driver.state.counters.get("letters", {}))
        rows = {name: frame.drop("__letter") for name, frame in rows.items()}
        driver.run_batch(Batch(None, {}, rows, replayed=(_record(driver, letters), letters.height)), 0)
        again = Counter(driver.state.counters.get("letters", {})) - before
        found.left.update({f"{why} again, as a new letter": n for why, n in again.items()})
        found.applied = max(found.applied - sum(again.values()), 0)  # one row may have become several letters
    return found


# -- late rows -------------------------------------------------------------------------------------------------------


def late_rows(driver: Driver, letters: pl.DataFrame, payload: Payload, dry: bool) -> Outcome:
    """Late rows, as corrections of windows. Raises StartError if the target cannot be read or only ever adds rows."""
    target, found = driver.target, Outcome()
    if letters.is_empty():
        return found
    if not isinstance(driver.logic, Logic):
        raise StartError(
            f"{driver.pipeline.name}: late rows of a join cannot be replayed: the rows that they missed have left the state; "
            "send them again, or choose others by --reason"
        )
    if not driver.pipeline.keeps_late:
        raise StartError(
            f'{driver.pipeline.name}: there are letters of late rows, and late_data = "{driver.windows.window.late_data}" does not '
            'carry where a row came from through the SQL; set it back to "dlq" or "reopen", or choose others by --reason'
        )
    if not (target.upserts and isinstance(target, Readable)):
        raise StartError(
            f"{driver.pipeline.name}: late rows correct windows that the target holds, and {target.description} "
            f"{'cannot be read here' if target.upserts else 'only ever adds rows'}; expected a Postgres table, or a Delta "
            'table with mode = "merge"; nothing was replayed'
        )
    rows, letters = _rows(driver, letters, payload, found.left)
    while True:  # once more for each time that something is left: a letter is applied as a whole
        work = Corrections(driver, target, rows)
        if work.refused.is_empty():
            break
        whole = letters.filter(pl.col("__group").is_in(work.refused["__group"].implode()))
        why = work.refused.unique("__group", keep="first")
        found.left.update(dict(whole.join(why, on="__group")["refused"].value_counts().iter_rows()))
        rows = rows.filter(~pl.col("__group").is_in(whole["__group"].implode()))
        letters = letters.filter(~pl.col("__group").is_in(whole["__group"].implode()))
    found.applied = letters.height
    found.reasons = work.reasons
    if letters.height and not dry:
        driver.correct(work.staged, _record(driver, letters), letters.height)
    return found


def _rows(
    driver: Driver, letters: pl.DataFrame, payload: Payload, left: Counter[str]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The rows that letters stand for, and the letters that have any; `__group`: same origin and event time.

    One row of a source may be several late rows (the SQL may make several of it), and each has a letter: an origin goes
    through the SQL once, and the rows that come out are matched with the letters by event time.
    """
    place = ["epoch", *_ORIGIN]
    letters = letters.with_columns(
        _dense(letters, place),
        pl.col("event_time").dt.timestamp("us").alias("__ts"),
    )
    groups = letters.group_by("__letter", "__ts", maintain_order=True).agg(
        pl.len().alias("__letters"),
        pl.col("offset").first().is_not_null().alias("__once"),
        pl.col("windows_missed").first().fill_null(1).cast(pl.Int64).alias("__missed"),
    )
    groups = groups.with_row_index("__group").with_columns(pl.col("__group").cast(pl.Int64))
    once = payload(letters.unique("__letter", keep="first"))
    again = driver.engine.again(once, driver.hooks.clock_us(), driver.stage.capacity)
    rows = again.join(groups, on=["__letter", "__ts"])
    seen = rows.group_by("__group").agg(pl.len().alias("__rows"), pl.col("__kh").n_unique().alias("__keys"))
    groups = groups.join(seen, on="__group", how="left").with_columns(pl.col("__rows", "__keys").fill_null(0))
    groups = groups.with_columns(_copies(driver.windows).alias("__copies"))
    letters = letters.join(groups.select("__letter", "__ts", "__group", "__rows", "__copies"), on=["__letter", "__ts"])
    for why, is_left in ((GONE, pl.col("__rows") == 0), (UNCLEAR, (pl.col("__rows") > 0) & (pl.col("__copies") == 0))):
        count = letters.filter(is_left).height
        left.update({why: count} if count else {})
    rows = rows.join(groups.select("__group", "__copies"), on="__group").filter(pl.col("__copies") > 0)
    return _repeated(rows), letters.filter(pl.col("__copies") > 0)


def _dense(frame: pl.DataFrame, columns: Sequence[str]) -> pl.Series:
    """Number the distinct rows 0, 1, …"""
    numbers = frame.select(columns).unique(maintain_order=True).with_row_index("__letter")
    found = frame.select(columns).join(numbers, on=list(columns), how="left", nulls_equal=True, maintain_order="left")
    return found["__letter"].cast(pl.Int64)


def _copies(logic: Logic) -> pl.Expr:
    """How often each row of a group was late, 0 where that is not known.

    Equal rows of a file have equal letters. A record of a topic is there once, however often its letter is.
    """
    letters, rows, once = pl.col("__letters"), pl.col("__rows"), pl.col("__once")
    alike = (
        pl.lit(True) if not logic.is_session else pl.col("__keys") == 1
    )  # then all rows of the group were late, or none
    even = (rows > 0) & (letters % rows.clip(1) == 0)
    return (
        pl.when((rows == 1) | (alike & even))
        .then(pl.when(once).then(1).otherwise(letters // rows.clip(1)))
        .when(once & (letters == rows))
        .then(1)
        .otherwise(0)
        .cast(pl.Int64)
    )


def _repeated(rows: pl.DataFrame) -> pl.DataFrame:
    times = rows["__copies"].to_numpy()
    return rows[np.repeat(np.arange(rows.height), times)].drop("__copies")


def replay(
    driver: Driver, letters: pl.DataFrame, payload: Payload, dry: bool = False, limit: int | None = None
) -> Outcome:
    """Apply letters that were not applied before, the oldest first, at most `limit`; `dry`: only find out."""
    todo, before = pending(driver, letters)
    todo = _first(todo, limit)
    is_late, kept = pl.col("reason") == LATE, pl.col("reason").replace_strict(_LEFT, default=None)
    bad = bad_rows(driver, todo.filter(~is_late & kept.is_null()), payload, dry)
    late = late_rows(driver, todo.filter(is_late), payload, dry)
    skipped = Counter(todo.select(kept.alias("why"))["why"].drop_nulls().to_list())
    return replace(late, applied=bad.applied + late.applied, left=bad.left + late.left + skipped, before=before)
