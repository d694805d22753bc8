"""Hypothesis strategies for rows in event-time order and their micro-batches, and windows for these rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import strategies as st
from tests.support.local_pipeline_script import MicroBatch

MS = 1000
GAP, CAP, DURATION, HOP = 5, 20, 12, 5  # milliseconds
NAN = float("nan")
SHAPES: dict[str, dict[str, Any]] = {
    "session": {"kind": "session", "gap_ms": GAP, "max_session_duration_ms": CAP},
    "tumbling": {"kind": "tumbling", "duration_ms": DURATION, "max_groups_per_window": 1000},
    "hopping": {
        "kind": "hopping",
        "duration_ms": DURATION,
        "hop_ms": HOP,
        "offset_ms": -2,
        "max_groups_per_window": 1000,
    },
}
KINDS = pytest.mark.parametrize("kind", SHAPES)
# Times cluster at the limits of the rules: exactly a gap apart, one more, at the cap, at window edges, before 1970.
steps = st.sampled_from([0, 1, 2, GAP - 1, GAP, GAP + 1, DURATION, CAP - GAP, CAP - 1, CAP, 40])


@st.composite
def ordered_rows(draw: st.DrawFn, most: int = 30) -> list[dict[str, Any]]:
    """Draw rows in event-time order. `id` is a power of two, so that a sum of ids identifies its rows."""
    time_ms = draw(st.integers(-60, 20))
    rows = []
    for n in range(draw(st.integers(1, most))):
        time_ms += draw(steps)
        rows.append(
            {
                "ts": time_ms * MS,
                "k": draw(st.sampled_from([None, 0.0, -0.0, NAN, 1.5])),
                "u": draw(st.sampled_from(["a", None])),
                "id": 1 << n,
                "x": draw(st.sampled_from([None, 3, -(1 << 62), 1 << 61])),
                "f": draw(st.sampled_from([None, NAN, -0.0, 0.0, 2.5, -1.0])),
            }
        )
    return rows


@st.composite
def micro_batches(draw: st.DrawFn, rows: Sequence[Any]) -> list[list[Any]]:
    """Split the rows into micro-batches, some of them empty."""
    edges = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=6)))
    return [list(rows[a:b]) for a, b in zip([0, *edges], [*edges, len(rows)], strict=True)]


def nonempty_epoch_inputs(epochs: Sequence[Sequence[Any]]) -> list[MicroBatch]:
    return [MicroBatch({"a": e}) for e in epochs if e]
