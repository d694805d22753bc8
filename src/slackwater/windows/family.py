"""The module that knows a window's intervals: `sessions`, or `panes` for tumbling and hopping windows."""

from __future__ import annotations

from types import ModuleType

from slackwater.windows import panes, sessions
from slackwater.windows.logic import Logic


def family(logic: Logic) -> ModuleType:
    """Its functions: ingest, emit, stats, visit, forgotten, forget."""
    return sessions if logic.is_session else panes
