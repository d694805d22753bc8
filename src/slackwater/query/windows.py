"""Windows as they stand in a state: open and retained ones, put together from their rows, with finished values.

        horizon          watermark
gone       │   retained      │     open
───────────┴─────────────────┴──────────────▶ closes at
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from slackwater.windows.family import family
from slackwater.windows.logic import FAR, LOOSE, LOOSE_TOLD, METADATA, OPEN, SETTLED, TOLD, Logic, sorted_by_key

TIMES = pl.Datetime("us", "UTC")


def standing(logic: Logic, rows: pl.DataFrame, watermark: int) -> pl.DataFrame:
    """The windows that whole units of state rows make, as they would come out if no row came any more.

    Columns: those of the output (without the metadata of emission), `_status`, `_closes_at`, `_last_event` (sessions).
    """
    horizon = logic.horizon(watermark)
    if logic.is_session:
        rows = rows.filter(
            pl.col("__kind").is_in([LOOSE, LOOSE_TOLD])
            | (pl.col("__kind").is_in([SETTLED, TOLD]) & (pl.col("__due") > horizon))
        )
        untold = {TOLD: SETTLED, LOOSE_TOLD: LOOSE}
    else:
        untold = {SETTLED: LOOSE} if logic.updates else {}
    rows = rows.with_columns(pl.col("__kind").replace(untold))
    found = family(logic).emit(logic, rows, horizon, FAR, True)
    closes = pl.col("__end")
    if logic.is_session:
        closes = pl.when(pl.col("__reason") == "cap").then(pl.col("__start") + logic.cap_us).otherwise(closes + 1)
    windows = found.rows.with_columns(closes.alias("__closes")).filter(pl.col("__closes") > horizon)
    status = pl.when(windows["__closes"] > watermark).then(pl.lit("open")).otherwise(pl.lit("retained"))
    more: list[pl.Expr | pl.Series] = [
        status.alias("_status"),
        windows["__closes"].cast(TIMES).alias("_closes_at"),
    ]
    if logic.is_session:
        more.append(_last_events(logic, windows, rows).cast(TIMES).alias("_last_event"))
    output = logic.output_frame(replace(found, rows=windows, superseded=found.superseded.clear()))
    hidden = {"__reason", *(f.name for f in METADATA if logic.window.emit_metadata)}
    return output.select(c for c in output.columns if c not in hidden).with_columns(*more)


def _last_events(logic: Logic, sessions: pl.DataFrame, rows: pl.DataFrame) -> pl.Series:
    """The time of each session's last event, in µs."""
    if not logic.dynamic and not (sessions["__reason"] == "cap").any():
        return sessions["__end"] - logic.gap_us
    # a session is followed, in order of key and start, by the intervals that it was put together from
    columns = ["__kh", *logic.key_names, "__start"]
    place = pl.Series("__session", np.arange(sessions.height), dtype=pl.Int64)
    heads = sessions.select(columns).with_columns(place, pl.lit(None, pl.Int64).alias("__last"))
    parts = rows.filter(pl.col("__kind").is_in(OPEN)).select(
        *columns, pl.lit(None, pl.Int64).alias("__session"), "__last"
    )
    both, key = sorted_by_key(pl.concat([heads, parts]), logic.key_names, "__start")
    last = (
        both.with_columns(pl.Series("__key", key))
        .with_columns(pl.col("__session").forward_fill().over("__key"))
        .group_by("__session")
        .agg(pl.col("__last").max())
    )
    return sessions.select(place).join(last, on="__session", how="left", maintain_order="left")["__last"]
