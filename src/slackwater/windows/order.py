"""Rows in the order of their keys, whatever their hashes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from slackwater.core.arrays import Int64s


def sorted_by_key(frame: pl.DataFrame, keys: Sequence[str], *then: str) -> tuple[pl.DataFrame, Int64s]:
    """Sort by (`__kh`, key, then…) and number the keys 0, 1, … in that order.

    Hashes of different keys may collide; they are told apart by the keys themselves. That sort is slower, so it is only
    done when two neighbours with one hash differ in their keys.
    """
    frame = frame.sort(["__kh", *then], maintain_order=True)
    hashes = frame["__kh"].to_numpy()
    changed = np.ones(frame.height, dtype=bool)
    changed[1:] = hashes[1:] != hashes[:-1]
    if keys and not bool(changed.all()):
        differs = frame.select(pl.any_horizontal(pl.col(k).ne_missing(pl.col(k).shift(1)) for k in keys)).to_series()
        if bool((differs.to_numpy() & ~changed).any()):
            frame = frame.sort(["__kh", *keys, *then], maintain_order=True)
            hashes = frame["__kh"].to_numpy()
            changed[1:] = hashes[1:] != hashes[:-1]
            differs = frame.select(
                pl.any_horizontal(pl.col(k).ne_missing(pl.col(k).shift(1)) for k in keys)
            ).to_series()
            changed |= differs.to_numpy()
            changed[0] = True
    return frame, np.cumsum(changed) - 1
