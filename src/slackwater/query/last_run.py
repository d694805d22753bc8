"""Describes how the last run of a pipeline failed."""

from __future__ import annotations

from slackwater.core.humanize import format_iso
from slackwater.errors import SlackwaterError
from slackwater.state.protocol import StateStore
from slackwater.state.run_history import KILLED


def describe_last_failure(store: StateStore, pipeline: str) -> str | None:
    """Describe the failure of the last run on one line.

    None if it ended normally, if a runner is active, or if no run is recorded.
    """
    try:
        runs = store.runs()
        if not runs or store.runner() is not None:
            return None
    except (SlackwaterError, OSError):  # an unreadable history must not hide the results
        return None
    run = runs[-1]
    if run.outcome is None:
        return f"the last run, which began at {format_iso(run.started_us)}, {KILLED}; the next start reads again what was not committed"
    if run.outcome != "failed" or run.ended_us is None:
        return None
    return f"the last run failed at {format_iso(run.ended_us)}: {(run.error or 'no error was recorded').removeprefix(f'{pipeline}: ')}"
