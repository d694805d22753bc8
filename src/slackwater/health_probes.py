"""Health probes of a run for its supervisor: `/healthz` and `/readyz` on the metrics port.

    begun      Spark, lock, sources, targets            polls its sources         SIGTERM      ended
    ├───────── starting, publishing ────────────────────┼──────── reading ────────┼─ stopping ─┤ ended
    /healthz   200                                       200                       200          503
    /readyz    503                                       200                       503          503

A long epoch does not make a run unhealthy, since a restart would only repeat the epoch. Set alerts on epoch durations
instead.

May import: config, core, engine.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from slackwater.config.pipeline import Pipeline
from slackwater.core.humanize import format_iso
from slackwater.engine.observer import Observer, PendingPublish, Status

LIVE, READY = "/healthz", "/readyz"
_DOING = {
    "starting": "Spark, the lock of the state, sources and targets are being opened",
    "publishing": "the last epoch of the previous run is being published first",
    "reading": "the run polls its sources and commits epochs",
    "stopping": "the epoch in progress is finished first",
    "ended": "the run is over",
}


class HealthProbes(Observer):
    """Observes one run. `stop` is set when the run is asked to end. `clock` returns the time in µs UTC."""

    def __init__(self, stop: threading.Event, clock: Callable[[], int] = lambda: time.time_ns() // 1000) -> None:
        self._stop, self._clock = stop, clock
        self._pipeline: str | None = None
        self._phase, self._since = "starting", clock()
        self._epoch: int | None = None

    def on_start(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline.name
        self._enter("starting")

    def on_pending(self, epoch: PendingPublish | None) -> None:
        if self._phase in ("starting", "publishing"):
            self._enter("starting" if epoch is None else "publishing")

    def on_running(self) -> None:
        self._enter("reading")

    def on_commit(self, status: Status) -> None:
        self._epoch = status.epoch

    def on_end(self, error: BaseException | None) -> None:
        self._enter("ended")

    def _enter(self, phase: str) -> None:
        if phase != self._phase:
            self._phase, self._since = phase, self._clock()

    @property
    def phase(self) -> str:
        return "stopping" if self._phase != "ended" and self._stop.is_set() else self._phase

    def answer(self, path: str) -> tuple[int, bytes] | None:
        """Return the HTTP status and the JSON body for a path; None if the path is not a health probe."""
        phase = self.phase
        if path == LIVE:
            good = phase != "ended"
        elif path == READY:
            good = phase == "reading"
        else:
            return None
        body: dict[str, Any] = {"pipeline": self._pipeline, "phase": phase, "doing": _DOING[phase]}
        body |= {"since": format_iso(self._since), "epoch": self._epoch}
        return 200 if good else 503, json.dumps(body, ensure_ascii=False).encode(errors="replace") + b"\n"
