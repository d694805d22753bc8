"""Session windows: intervals per key, joined by the gap and cut at the cap.

    gap 3, cap 10         0    5    10   15   20
    rows of one key       ●●●●●●●●●●●●●●    ●●
    run (joined by gap)   [────────────]    [] a second run: more than the gap apart
    sessions              [────────][──]    []
                          start     start + cap: the cut

The session of a row is certain only once the watermark has passed the row. Until then, an earlier row may move the
start of a run, and with it every cut. Therefore, a unit (one key) contains

* WHOLE rows: one complete session each, which closes at `last + gap` without being written again;
* FRAGMENT rows: parts of a run that may still be cut. Rows at or above `min(first open start, watermark) + cap` stay
  separate fragments; everything below can end up in only one session and is merged;
* EMITTED and EMITTED_FRAGMENT rows: the same, but the target contains them unchanged (only if windows can be revised);
* at most one FLOOR row: the latest end of the key's sessions that have left the state. Rows at or below it are late.

Once the watermark has passed the close of a WHOLE row, the row counts as emitted. Once the row has expired, it *is* the
key's floor. Neither transition writes to the state. This module adds rows; `session_emission` emits sessions.
"""

from __future__ import annotations

import polars as pl

from slackwater.watermark import NO_WATERMARK
from slackwater.windows.epoch_results import IngestResult
from slackwater.windows.session_intervals import CompiledSessionWindow, IntervalBatch, first_per_key
from slackwater.windows.state_rows import EMITTED, EMITTED_FRAGMENT, FLOOR, FRAGMENT, WHOLE, Int64s


def build_session_state(
    logic: CompiledSessionWindow, unit: IntervalBatch, floors: Int64s, watermark: int
) -> pl.DataFrame:
    """Build the new state rows of all keys in `unit` (its open and retained intervals), including their floors."""
    from slackwater.windows import session_ingest  # its loops are compiled

    return pl.concat(
        [
            session_ingest.build_session_state_rows(logic, unit, watermark),
            build_floor_rows(logic, unit.frame, unit.key, floors),
        ]
    )


def build_floor_rows(logic: CompiledSessionWindow, frame: pl.DataFrame, key: Int64s, floors: Int64s) -> pl.DataFrame:
    """Build one FLOOR row for each key with a floor; `floors` is indexed by key."""
    heads = first_per_key(key)
    values = floors[key[heads]]
    has_floor = values != NO_WATERMARK
    if not has_floor.any():
        return logic.empty_state()
    rows = frame.select("__h", "__kh", *logic.key_names)[heads[has_floor]]
    rows = rows.with_columns(
        pl.lit(FLOOR, pl.Int8).alias("__kind"),
        pl.Series("__start", values[has_floor] - logic.gap_us),
        pl.Series("__last", values[has_floor] - logic.gap_us),
        pl.Series("__due", values[has_floor] + logic.reach_us + 1),
        *([pl.Series("__end", values[has_floor])] if logic.dynamic else []),
        *(pl.lit(None, dtype).alias(name) for name, dtype in logic.accumulators.items()),
    )
    return logic.add_revision_columns(rows).select(logic.state_schema.keys())


def ingest_sessions(
    logic: CompiledSessionWindow, rows: pl.DataFrame, state: pl.DataFrame, watermark: int, room: int | None = None
) -> IngestResult:
    """Merge lifted rows into the touched units: see `session_ingest.ingest_intervals`."""
    from slackwater.windows import session_ingest  # its loops are compiled

    return session_ingest.ingest_intervals(logic, rows, state, watermark, room)


def count_open_sessions(logic: CompiledSessionWindow, state: pl.DataFrame, watermark: int) -> tuple[int, int]:
    """Return the number of keys with open or retained sessions, and the number of their intervals, for a whole shard."""
    whole = pl.col("__kind").is_in([WHOLE, EMITTED]) & (pl.col("__due") > logic.horizon(watermark))
    still = state.filter(whole | pl.col("__kind").is_in([FRAGMENT, EMITTED_FRAGMENT]))
    return still.select("__kh", *logic.key_names).unique().height, still.height
