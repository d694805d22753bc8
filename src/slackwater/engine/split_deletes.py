"""Staged output on its way to a target: the rows to write and the rows to delete."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from slackwater.operators.base import Operator

SUPERSEDED = "supersede"  # `__reason` of an emitted row that no longer exists; it has its identity, else NULLs


def split_deletes(
    operator: Operator, staged: Sequence[pl.DataFrame], upserts: bool
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Split an epoch's staged output into rows to write (output columns) and identities to delete, both sorted.

        __reason    user  window_start  session_id  n
        supersede   u     09:05         77          NULL   ─▶ gone (user, window_start, session_id)
        late        u     09:00         12          8      ─▶ rows (all columns)

    An append-only target gets all rows unchanged.
    """
    output = operator.sorted_output(pl.concat(_add_missing_columns(operator, frame) for frame in staged))
    columns = [f.name for f in operator.output]
    is_gone = (output["__reason"] == SUPERSEDED).to_numpy() & upserts
    if not is_gone.any():
        return output[columns], output[list(operator.retraction)].clear()
    return output[np.flatnonzero(~is_gone)][columns], output[np.flatnonzero(is_gone)][list(operator.retraction)]


def _add_missing_columns(operator: Operator, frame: pl.DataFrame) -> pl.DataFrame:
    """Add missing columns with NULL, for an epoch that was committed before these columns were added."""
    new = [f for f in operator.output if f.name not in frame.columns]
    return frame.with_columns(pl.lit(None, f.polars).alias(f.name) for f in new) if new else frame
