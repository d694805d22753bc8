"""Block "One key": the windows of a key in the state with their values, and the watermark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import polars as pl

from slackwater.core.singledispatch_fallback import raise_unregistered
from slackwater.errors import StartError
from slackwater.evolution.compare_stage import kind_name
from slackwater.evolution.operator_from_state import restore_window
from slackwater.operators.base import Operator
from slackwater.operators.panes import PaneOperator
from slackwater.operators.sessions import SessionOperator
from slackwater.query import state_inspection
from slackwater.query.why_report import KeyHistory
from slackwater.query.windows import compute_current_windows
from slackwater.state.protocol import Snapshot
from slackwater.watermark import NO_WATERMARK
from slackwater.windows.state_rows import FLOOR


@dataclass(frozen=True)
class KeyWindow:
    """A window or session of the key.

    Args:
        last_us: The last event of a session, followed by its gap up to `end_us` (µs); None for a window.
        cap_us: The latest time at which a session is cut (µs).
        closes_us: The watermark that closes the window (µs).
        cut: Whether the cap closes the session.
        revision: How many times the window was emitted; None if windows are only emitted once.
    """

    start_us: int
    last_us: int | None
    end_us: int
    cap_us: int | None
    closes_us: int
    status: str
    cut: bool
    revision: int | None
    values: Mapping[str, Any]


@dataclass(frozen=True)
class KeyView:
    """The block "One key".

    Args:
        of_sessions: Whether the windows are sessions.
        told: The lines of `why --key` about the key.
        history: The late rows and the latest results of the key; None without a config.
    """

    key: Mapping[str, Any]
    of_sessions: bool
    watermark_us: int | None
    epoch: int
    bars: tuple[KeyWindow, ...]
    told: tuple[str, ...]
    history: KeyHistory | None = None


def build_key(
    snapshot: Snapshot,
    key_texts: state_inspection.Texts,
    why_lines: Sequence[str] = (),
    history: KeyHistory | None = None,
) -> KeyView:
    """Build the block "One key" from a snapshot of one stage.

    Raises StartError for a wrong key, or a stage without windows.
    """
    last = snapshot.commit.stages[-1]
    if (kind := kind_name(last.fingerprint.get("kind"))) != "window":
        raise StartError(f"{snapshot.commit.pipeline}: a {kind} has no windows, so there is no page for a key")
    logic = restore_window(snapshot.commit, -1)
    key = state_inspection.parse_key(logic, key_texts)
    rows = state_inspection.read_key_rows(snapshot, logic, key, -1)
    windows = compute_current_windows(logic, rows, last.watermark_us, snapshot.commit.epoch)
    window = logic.window
    start, end = window.window_start_column, window.window_end_column
    hidden = {*logic.key_names, start, end, "_status", "_closes_at", "_last_event", "_epoch"}
    times = [c for c in (start, end, "_closes_at", "_last_event") if c in windows.columns]
    windows = windows.with_columns(pl.col(c).dt.timestamp("us") for c in times).sort(start)
    values = [c for c in windows.columns if c not in hidden]
    bars, longest = [], _session_cap_us(logic)
    for r in windows.iter_rows(named=True):
        cap = None if longest is None else r[start] + longest
        bars.append(
            KeyWindow(
                start_us=r[start],
                last_us=r.get("_last_event"),
                end_us=r[end],
                cap_us=cap,
                closes_us=r["_closes_at"],
                status=r["_status"],
                cut=cap is not None and r["_closes_at"] == cap,
                revision=_revision(rows, r[start], r[end]) if logic.revises else None,
                values=state_inspection.to_plain_key(r, values),
            )
        )
    return KeyView(
        state_inspection.to_plain_key(key.row(0, named=True), logic.key_names),
        longest is not None,
        None if last.watermark_us <= NO_WATERMARK else last.watermark_us,
        snapshot.commit.epoch,
        tuple(bars),
        tuple(why_lines),
        history,
    )


@singledispatch
def _session_cap_us(operator: Operator) -> int | None:
    """Return the cap of sessions in µs; None if the windows are not sessions."""
    raise_unregistered(operator, "slackwater.ui.blocks.key")


@_session_cap_us.register
def _(operator: PaneOperator) -> None:
    return


@_session_cap_us.register
def _(operator: SessionOperator) -> int:
    return operator.cap_us


def _revision(rows: pl.DataFrame, start: int, end: int) -> int:
    window_rows = rows.filter((pl.col("__kind") != FLOOR) & pl.col("__start").is_between(start, end, closed="left"))
    revision = window_rows["__rev"].max()
    return revision if isinstance(revision, int) else 0
