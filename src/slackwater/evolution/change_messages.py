"""Messages about what a changed setting means for a state: one sentence for each key of a window or join."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from slackwater.config.message_format import show_duration
from slackwater.config.pipeline import Pipeline
from slackwater.config.window import METADATA, Window
from slackwater.core.time import format_iso
from slackwater.state.commit import StageState

Text = Callable[[Any, Any, StageState], str]


def gap_text(before: int, after: int, open_: int) -> str:
    """Return the sentence for a changed gap, in milliseconds."""
    if after > before:
        return (
            f"{open_:,} open and retained sessions reach to their last event + {show_duration(after)}; those that now touch "
            "are joined at once, and what closed stays closed"
        )
    return (
        f"{open_:,} open and retained sessions stay what they are and reach to their last event + {show_duration(after)}; "
        "those that the watermark has passed by that close in the next epoch"
    )


def emission_text(rows: int) -> str:
    return f"{rows:,} state rows are rewritten; windows that are gone stay gone"


def _lateness(before: Any, after: Any, state: StageState) -> str:
    watermark = format_iso(state.watermark_us)
    if after > before:
        return f"the watermark stays at {watermark} until events are {show_duration(after)} ahead of it"
    return f"the watermark goes on from {watermark} with the next rows"


def _allowed(before: Any, after: Any, state: StageState) -> str:
    return "windows that are gone stay gone; those that are open or retained are kept as long as it says now"


def _same(text: str) -> Text:
    return lambda before, after, state: text


_NEXT = "it holds from the next start on"
_COLUMNS = "results have other columns from the next start on; a table must have them"
BY_KEY: Mapping[str, Text] = {
    "event_time_column": _same("rows from the next start on bring their time so; windows there are stay"),
    "event_time_unit": _same("rows from the next start on bring their time so; windows there are stay"),
    "event_time_zone": _same("rows from the next start on bring their time so; windows there are stay"),
    "max_jump_ms": _same(
        "what the sources bring from the next start on is followed by it; the watermark stays where it is"
    ),
    "time_mode": _same("rows from the next start on bring their time so; windows there are stay"),
    "lateness_ms": _lateness,
    "source_idleness_ms": _same("quiet times that were counted go on by it"),
    "idle_close_ms": _same("quiet times that were counted go on by it"),
    "max_future_ms": _same("rows from the next start on are judged by it"),
    "late_data": _same("rows that come late from the next start on; windows that are gone stay gone"),
    "allowed_lateness_ms": _allowed,
    "on_state_cap": _same(_NEXT),
    "crash_recovery": _same(_NEXT),
    "emit": _same(
        "open windows come out by it; to and from updates, tumbling and hopping windows in the state come out again"
    ),
    "emit_interval_ms": _same(_NEXT),
    "emit_metadata": _same(_COLUMNS),
    "max_groups_per_window": _same("it bounds what is open from the next epoch on; nothing that is there is dropped"),
    "window_start_column": _same(_COLUMNS),
    "window_end_column": _same(_COLUMNS),
    "left_source": _same(_NEXT),
    "right_source": _same(_NEXT),
    "left_prefix": _same(_COLUMNS),
    "right_prefix": _same(_COLUMNS),
    "event_time": _same("pairs that come out from the next start on have it"),
    "max_rows_per_key": _same("it bounds what waits from the next epoch on"),
}


def columns_text(pipeline: Pipeline) -> list[str]:
    """Return the names of the output columns of a window."""
    w = pipeline.target_stage.transform.step
    if not isinstance(w, Window):
        return []
    bounds, values = [w.window_start_column, w.window_end_column], [a.as_ for a in w.aggregations]
    values += METADATA if w.emit_metadata else []
    return [*w.group_by, *bounds, "session_id", *values] if w.kind == "session" else [*bounds, *w.group_by, *values]
