"""What a run in a test left behind, and its scripted death."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from slackwater.core.notebook_repr import TerminalRepr
from slackwater.engine.status import Counters, Status
from slackwater.replay.replay import ReplayResult
from slackwater.watermark import NO_WATERMARK

START_US = 4_000_000_000_000_000  # the virtual clock's first reading: after every event time a test may use


class SimulatedCrash(BaseException):
    """The scripted death of a driver; not an Exception, so that nothing handles it by accident."""


@dataclass
class LocalResult(TerminalRepr):
    """What a run published and counted. `table`: what a reader of the target finds (of the first of several; `tables`: of each, by name); `rows`: all that was ever published, times in
    µs, with the `_epoch`; `gone`: identities of superseded rows; `letters`: the dead ones; `statuses`: one per commit, over all
    restarts; `epochs`: the epoch that each item of the script left behind it; `former`: rows and gone of the other targets there
    were, by name (the first is "")."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    gone: list[dict[str, Any]] = field(default_factory=list)
    letters: list[dict[str, Any]] = field(default_factory=list)
    former: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = field(default_factory=dict)
    counters: Counters = field(default_factory=Counters)
    watermark_us: int = NO_WATERMARK
    open_sessions: int = 0  # at the end, and the keys they have
    open_keys: int = 0
    replays: list[ReplayResult] = field(default_factory=list)
    statuses: list[Status] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    table: pl.DataFrame = field(default_factory=pl.DataFrame)
    tables: dict[str, pl.DataFrame] = field(default_factory=dict)
    stages: dict[str, pl.DataFrame] = field(
        default_factory=dict
    )  # what those emitted that have a target, or are watched


class LocalFaults:
    """Dies at one armed step, once: when it comes for the nth time."""

    def __init__(self) -> None:
        self.step: str | None = None
        self.nth = 1

    def hit(self, step: str, epoch: int) -> None:
        if step != self.step:
            return
        self.nth -= 1
        if self.nth < 1:
            self.step, self.nth = None, 1
            raise SimulatedCrash(step)

    def in_worker(self, epoch: int) -> Callable[[str], None]:
        return lambda step: self.hit(step, epoch)
