"""One stream whose emission mode changes between epochs, and the rows that each mode emits."""

from __future__ import annotations

from typing import Any

from tests.laws.generators.window_revision_runs import GAP, MS, SCHEMA
from tests.support.local_pipeline_script import LocalResult, MicroBatch, run_local_script

from slackwater.config.window import Aggregation, Window


def session_window(**settings: Any) -> Window:
    return Window(
        kind="session",
        gap_ms=GAP,
        max_session_duration_ms=100,
        group_by=["u"],
        aggregations=[Aggregation(agg="count", as_="n")],
        emit_metadata=True,
        **settings,
    )


def run_window_over_epochs(window: Window, *epochs: list[int], **more: Any) -> LocalResult:
    """Run a window over epochs of event times (in ms) of one user."""
    script = [MicroBatch({"a": [{"ts": t * MS, "u": "a", "id": 1, "f": 0.0} for t in times]}) for times in epochs]
    return run_local_script(window, script, SCHEMA, flush=False, upserts=False, **more)


def tumbling_window(**settings: Any) -> Window:
    return Window(
        kind="tumbling",
        duration_ms=10,
        max_groups_per_window=10,
        group_by=["u"],
        aggregations=[Aggregation(agg="count", as_="n")],
        emit_metadata=True,
        **settings,
    )


EMISSION_MODES = {
    kind: [[], [("close", 0, 2)], [("late", 0, 3)], [("late", 0, 4), ("update", 30, 2)], last]
    for kind, last in (("tumbling", [("close", 30, 2)]), ("session", []))
}


def run_every_emission_mode(kind: str, **store: Any) -> list[list[tuple[Any, ...]]]:
    """Return the emitted rows of each config. All configs run on one state, one after the other."""
    make = tumbling_window if kind == "tumbling" else session_window
    reopen = {"lateness_ms": 2, "late_data": "reopen", "allowed_lateness_ms": 100}
    ways: list[tuple[dict[str, Any], list[int]]] = [
        ({"lateness_ms": 2}, [0, 1]),
        (reopen, [30]),
        (reopen, [2]),
        ({**reopen, "emit": "updates"}, [3, 31]),
        ({"lateness_ms": 2}, [60]),
    ]
    emissions = []
    for settings, times in ways:
        result = run_window_over_epochs(make(**settings), times, **store)
        emissions.append([(r["_emit_reason"], r["window_start"] // MS, r["n"]) for r in result.rows])
    return emissions
