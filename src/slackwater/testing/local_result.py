"""The result of a run in a test, and the injection of crashes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from slackwater.core.notebook_repr import TerminalRepr
from slackwater.dead_letters.replay import ReplayResult
from slackwater.engine.status import Counters, Status
from slackwater.watermark import NO_WATERMARK

START_US = 4_000_000_000_000_000  # the start of the virtual clock (µs), after all event times that tests use


class SimulatedCrash(BaseException):
    """A simulated crash of the driver. It is not a subclass of Exception, so that no handler catches it by accident."""


@dataclass
class LocalResult(TerminalRepr):
    """The published rows and the counters of a run.

    Args:
        rows: All rows ever published to the first target, with `_epoch`. Times are in microseconds.
        gone: The identities of superseded results, with `_epoch`.
        letters: The dead letters.
        former: `rows` and `gone` of targets that are no longer in use, by name; "" for the original, unnamed target.
        counters: The counters of all stages together.
        watermark_us: The watermark at the end (µs).
        open_sessions: The number of sessions of the last stage that are open at the end.
        open_keys: The number of keys with such sessions.
        replays: The result of each replay of dead letters.
        statuses: The status of each commit, including those before a crash or a restart.
        epochs: The latest epoch after each action, if a script ran the test; otherwise empty.
        table: The rows that a reader of the first target sees.
        tables: The rows that a reader of each target sees, by target name.
        stages: The results of each stage that has a target or is one of `extra_stages`, by stage name.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    gone: list[dict[str, Any]] = field(default_factory=list)
    letters: list[dict[str, Any]] = field(default_factory=list)
    former: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = field(default_factory=dict)
    counters: Counters = field(default_factory=Counters)
    watermark_us: int = NO_WATERMARK
    open_sessions: int = 0
    open_keys: int = 0
    replays: list[ReplayResult] = field(default_factory=list)
    statuses: list[Status] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    table: pl.DataFrame = field(default_factory=pl.DataFrame)
    tables: dict[str, pl.DataFrame] = field(default_factory=dict)
    stages: dict[str, pl.DataFrame] = field(default_factory=dict)


class LocalFaults:
    """Injects one crash, when the kill point `step` is reached for the `nth` time. `step`: None if no crash is due."""

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
