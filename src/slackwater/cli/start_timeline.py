"""The timeline of a start, which `slackwater run --timings` prints: what had happened how many seconds after the command began.

start of clicks, in seconds since the command began:
   0.8  the config is checked
   6.7  Spark runs
   8.2  the SQL is bound to the sources
  10.1  sources and targets are open
  14.0  epoch 0 is committed: 500,000 rows; plan 0.3, ingest 3.1, commit 0.1, write 0.4
"""

from __future__ import annotations

import time
from collections.abc import Callable

from slackwater.config.pipeline import Pipeline
from slackwater.core.humanize import plural
from slackwater.engine.observer import Observer, RunSchema
from slackwater.engine.status import Status

_SHORTEST_S = 0.05  # a phase of an epoch that took less time is not listed


class StartTimeline(Observer):
    """Prints the timeline when the first epoch is committed, or when the run ends before that.

    Args:
        notice: Receives the level and the text of the timeline.
        began: When the command began, as returned by `time.monotonic`.
    """

    def __init__(self, notice: Callable[[str, str], None], began: float) -> None:
        self._notice, self._began = notice, began
        self._pipeline = ""
        self._lines: list[str] = []
        self._is_running = self._is_printed = False

    def on_start(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline.name
        self._add("the config is checked")

    def on_spark(self) -> None:
        self._add("Spark runs")

    def on_schema(self, columns: RunSchema) -> None:
        self._add("the SQL is bound to the sources")

    def on_running(self) -> None:
        self._is_running = True
        self._add("sources and targets are open")

    def on_commit(self, status: Status) -> None:
        if not self._is_running or self._is_printed:  # a commit of an earlier run is reported before
            return
        phases = [f"{name} {seconds:.1f}" for name, seconds in status.phases.items() if seconds >= _SHORTEST_S]
        self._add("; ".join([f"epoch {status.epoch} is committed: {plural(status.rows, 'row')}", ", ".join(phases)]))
        self._print()

    def on_end(self, error: BaseException | None) -> None:
        if not self._is_printed:
            self._add("the run ends" if error is None else "the run fails")
            self._print()

    def _add(self, text: str) -> None:
        self._lines.append(f"{time.monotonic() - self._began:>7.1f}  {text}")

    def _print(self) -> None:
        self._is_printed = True
        self._notice(
            "info", "\n".join([f"start of {self._pipeline}, in seconds since the command began:", *self._lines])
        )
