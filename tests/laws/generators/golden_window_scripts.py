"""One short script per window kind with known results and late rows. Times are in milliseconds."""

from __future__ import annotations

from typing import Any

from tests.support.local_pipeline_script import MicroBatch

MS = 1000
SCHEMA = {"u": "string", "x": "bigint"}


def build_epoch_inputs(*batches: list[tuple[int, str | None, int | None]]) -> list[MicroBatch]:
    return [MicroBatch({"a": [{"ts": t * MS, "u": u, "x": x} for t, u, x in batch]}) for batch in batches]


SHAPES: dict[str, dict[str, Any]] = {
    "tumbling": {"kind": "tumbling", "duration_ms": 10, "max_groups_per_window": 9, "lateness_ms": 2},
    "hopping": {
        "kind": "hopping",
        "duration_ms": 10,
        "hop_ms": 4,
        "max_groups_per_window": 9,
        "lateness_ms": 2,
    },
    "session": {"kind": "session", "gap_ms": 5, "max_session_duration_ms": 12, "lateness_ms": 2},
}
SCRIPTS = {
    "tumbling": build_epoch_inputs(
        [(-1, "a", 1), (0, "a", 2), (9, None, 4)],
        [(12, "a", 8), (-3, "b", 16)],
        [(9, "a", 32), (10, "b", None), (25, "b", 64)],
    ),
    "hopping": build_epoch_inputs([(0, "a", 1), (9, "a", 2)], [(13, "a", 4), (3, "a", 8)], [(24, None, 16)]),
    "session": build_epoch_inputs(
        [(0, "a", 1), (5, "a", 2), (3, None, 4)],
        [(10, "a", 8), (8, "a", 16), (15, "a", 32)],
        [(9, None, 64), (30, "a", 128)],
        [(21, "a", 256)],
    ),
}
