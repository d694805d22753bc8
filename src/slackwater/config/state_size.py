"""Estimates of how large a state can grow within the limits of its config."""

from __future__ import annotations

import math

from slackwater.config.aggregation import QUANTILE_K, Aggregation
from slackwater.config.step_base import StepBase
from slackwater.config.window import Window

GIB = 1 << 30
DEFAULT_GIB = 16
ROW_BYTES = 48  # the hidden columns of a state row
KEY_BYTES = 24  # assumed per key column
SKETCH_BYTES = 1024  # an HLL sketch of about 250 distinct values; it can grow to 4 bytes * 2^hll_precision
EXACT_BYTES = 16  # assumed per value that a group keeps
CUSTOM_BYTES = 64  # assumed per group of a user-defined aggregation
VERSIONS = 2  # segments keep old versions until they are merged


def estimate_bytes(window: Window) -> int:
    """Return the estimated size (bytes) of a window's state when it has `max_groups_per_window` groups.

    The sizes of keys, sketches and sets are assumptions, which the constants of this module define.
    """
    accumulators = sum(map(_accumulator_bytes, window.aggregations))
    row = ROW_BYTES + KEY_BYTES * len(window.group_by) + accumulators
    panes = 1
    if window.kind != "session" and window.duration_ms:
        panes = window.duration_ms // math.gcd(window.duration_ms, window.hop_ms or window.duration_ms)
    groups = window.max_groups_per_window or 1_000_000
    return groups * panes * row * VERSIONS


def _accumulator_bytes(a: Aggregation) -> int:
    if not a.builtin:
        return CUSTOM_BYTES
    if a.agg == "count_distinct" and a.mode != "exact":
        return SKETCH_BYTES
    if a.agg == "approx_quantile":
        return 8 * (a.k or QUANTILE_K)  # size of the buffer; a sketch is about three times as large
    values = a.max_values_per_group or a.max_distinct_values_per_group
    if values is not None:
        return values * (EXACT_BYTES + (8 if a.agg in ("collect_list", "top_k") else 0))
    return {"count": 8, "min": 16, "max": 16, "sum": 32, "avg": 32, "var": 56, "stddev": 56}.get(a.agg, 24)


def size_warnings(step: StepBase) -> tuple[str, ...]:
    """Return a warning if the projected state of a window is above 1 GiB.

    If the config does not set max_groups_per_window, its default is only a safety limit, and the threshold is
    DEFAULT_GIB instead.
    """
    if not isinstance(step, Window) or (size := estimate_bytes(step)) <= GIB:
        return ()
    nobody_chose_it = step.max_groups_per_window == step.derived().get("max_groups_per_window")
    if nobody_chose_it and size <= DEFAULT_GIB * GIB:
        return ()
    return (
        f"the state may grow to {size / GIB:.1f} GiB at max_groups_per_window = {step.max_groups_per_window:,}; "
        "lower the limit, shorten the window, or provide that much space",
    )
