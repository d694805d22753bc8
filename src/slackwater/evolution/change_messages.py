"""Messages about what a changed setting means for a state: one sentence for each key of a window or join."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from slackwater.config.message_format import format_config_duration
from slackwater.config.pipeline import Pipeline
from slackwater.config.window import METADATA, Window
from slackwater.core.humanize import format_iso
from slackwater.state.commit import StageState

Text = Callable[[Any, Any, StageState], str]


def describe_gap_change(before: int, after: int, open_: int) -> str:
    """Return the sentence about a changed gap (`before`, `after`: ms). `open_`: the number of open sessions."""
    if after > before:
        return (
            f"{open_:,} open and retained sessions now reach to their last event + {format_config_duration(after)}; those that now touch "
            "are merged at once, and closed sessions stay closed"
        )
    return (
        f"{open_:,} open and retained sessions keep their rows and now reach to their last event + {format_config_duration(after)}; "
        "those that the watermark has then passed close in the next epoch"
    )


def describe_emission_change(rows: int) -> str:
    return f"{rows:,} state rows are rewritten; windows that left the state are not restored"


def _lateness(before: Any, after: Any, state: StageState) -> str:
    watermark = format_iso(state.watermark_us)
    if after > before:
        return f"the watermark stays at {watermark} until events are {format_config_duration(after)} ahead of it"
    return f"the watermark continues from {watermark} with the next rows"


def _allowed(before: Any, after: Any, state: StageState) -> str:
    return "windows that left the state are not restored; open and retained windows are kept for the new time"


def _same(text: str) -> Text:
    return lambda before, after, state: text


_NEXT = "it applies from the next start on"
_COLUMNS = "results have other columns from the next start on; a table must have them"
BY_KEY: Mapping[str, Text] = {
    "event_time_column": _same("it applies to rows read after the next start; existing windows do not change"),
    "event_time_unit": _same("it applies to rows read after the next start; existing windows do not change"),
    "event_time_zone": _same("it applies to rows read after the next start; existing windows do not change"),
    "max_jump_ms": _same("it applies to rows read after the next start; the watermark does not move"),
    "time_mode": _same("it applies to rows read after the next start; existing windows do not change"),
    "lateness_ms": _lateness,
    "source_idleness_ms": _same("it applies to silences that have already begun"),
    "idle_close_ms": _same("it applies to silences that have already begun"),
    "max_future_ms": _same("it applies to rows read after the next start"),
    "late_data": _same(
        "it applies to rows that are late after the next start; windows that left the state are not restored"
    ),
    "allowed_lateness_ms": _allowed,
    "on_state_cap": _same(_NEXT),
    "crash_recovery": _same(_NEXT),
    "emit": _same(
        "it applies to open windows; a change to or from updates emits tumbling and hopping windows in the state again"
    ),
    "emit_interval_ms": _same(_NEXT),
    "emit_metadata": _same(_COLUMNS),
    "max_groups_per_window": _same("it limits groups from the next epoch on; existing groups are not dropped"),
    "window_start_column": _same(_COLUMNS),
    "window_end_column": _same(_COLUMNS),
    "left_source": _same(_NEXT),
    "right_source": _same(_NEXT),
    "left_prefix": _same(_COLUMNS),
    "right_prefix": _same(_COLUMNS),
    "event_time": _same("it applies to pairs that are emitted after the next start"),
    "max_rows_per_key": _same("it limits waiting rows from the next epoch on"),
}


def list_output_columns(pipeline: Pipeline) -> list[str]:
    """Return the names of the output columns of a window."""
    w = pipeline.target_stage.transform.step
    if not isinstance(w, Window):
        return []
    bounds, values = [w.window_start_column, w.window_end_column], [a.as_ for a in w.aggregations]
    values += METADATA if w.emit_metadata else []
    return [*w.group_by, *bounds, "session_id", *values] if w.kind == "session" else [*bounds, *w.group_by, *values]
