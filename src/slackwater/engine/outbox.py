"""Staged output on its way to the target: what is to be written, and what is to be taken back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from slackwater.operators.base import Operator

SUPERSEDED = "supersede"  # `__reason` of a row that was emitted before and no longer exists: its identity, else NULL


def split_output(
    operator: Operator, staged: Sequence[pl.DataFrame], upserts: bool
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The rows of an epoch (the output columns) and the identities that are gone, each in the order of section 7.

        __reason    user  window_start  session_id  n
        supersede   u     09:05         77          NULL   ─▶ gone (user, window_start, session_id)
        late        u     09:00         12          8      ─▶ rows (all columns)

    A target that only adds rows takes all of them as they are.
    """
    output = operator.sorted_output(pl.concat(_completed(operator, frame) for frame in staged))
    columns = [f.name for f in operator.output]
    is_gone = (output["__reason"] == SUPERSEDED).to_numpy() & upserts
    if not is_gone.any():
        return output[columns], output[list(operator.retraction)].clear()
    return output[np.flatnonzero(~is_gone)][columns], output[np.flatnonzero(is_gone)][list(operator.retraction)]


def _completed(operator: Operator, frame: pl.DataFrame) -> pl.DataFrame:
    """Rows of an epoch that was committed before a column came have NULL there."""
    new = [f for f in operator.output if f.name not in frame.columns]
    return frame.with_columns(pl.lit(None, f.polars).alias(f.name) for f in new) if new else frame
