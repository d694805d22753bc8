"""The functions that know a window's intervals: of sessions, or of panes for tumbling and hopping windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from slackwater.windows import panes, session_emission, sessions
from slackwater.windows.logic import Emitted, Forgotten, Logic, Stats, Visit


@dataclass(frozen=True)
class Family:
    """What shards and stores ask of a window's intervals, beside folding rows in."""

    emit: Callable[[Logic, pl.DataFrame, int, int, bool], Emitted]
    stats: Callable[[Logic, pl.DataFrame], Stats]
    visit: Callable[[Logic, int, int, bool], Visit]
    forgotten: Callable[[Logic, int], Forgotten]
    forget: Callable[[Logic, pl.DataFrame, int], pl.DataFrame]
    renewed: Callable[[Logic, pl.DataFrame, bool], pl.DataFrame]


SESSIONS = Family(
    session_emission.emit,
    sessions.stats,
    sessions.visit,
    sessions.forgotten,
    sessions.forget,
    sessions.renewed,
)
PANES = Family(panes.emit, panes.stats, panes.visit, panes.forgotten, panes.forget, panes.renewed)


def family(logic: Logic) -> Family:
    return SESSIONS if logic.is_session else PANES
