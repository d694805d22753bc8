"""A run beside the program that started it: `sw.run(pipeline, background=True)` gives a `Handle` at once.

            run ─────────────── thread ───────────────▶ ended: the last status, or the error
handle.status ─ why ─ stop ─ wait                        raised by each of these from then on, and logged once
"""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from slackwater.config.pipeline import Pipeline
from slackwater.core.notebook_repr import NotebookRepr
from slackwater.engine.observer import Observer
from slackwater.engine.status import Status
from slackwater.errors import SlackwaterError

if TYPE_CHECKING:
    import polars as pl

    from slackwater.query.why_report import WhyReport

log = logging.getLogger("slackwater")
_LEAVE_S = 30.0  # for the epoch in progress, when the program ends


class Handle(NotebookRepr):
    """A run in the background. As a context manager it stops the run at the end of the block.

    An error of the run is raised by `status`, `wait` and `stop`, each time, and logged when it happens.
    """

    def __init__(self, pipeline: Pipeline, run: Callable[[threading.Event, Observer], Status | None]) -> None:
        self.pipeline = pipeline
        self._stop, self._seen = threading.Event(), _LatestStatus()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(run,), name=f"run {pipeline.name}", daemon=True)
        self._thread.start()
        leave_ref = weakref.WeakMethod(self._leave)
        atexit.register(lambda: (callback := leave_ref()) and callback())

    def _run(self, run: Callable[[threading.Event, Observer], Status | None]) -> None:
        try:
            self._seen.latest = run(self._stop, self._seen) or self._seen.latest
        except BaseException as error:
            self._error = error
            is_expected = isinstance(error, SlackwaterError)
            log.error("%s: the run in the background ended: %s", self.pipeline.name, error, exc_info=not is_expected)

    def _leave(self) -> None:
        """The program ends: finish the epoch in progress, as a signal would."""
        self._stop.set()
        self._thread.join(_LEAVE_S)

    # -- what it says --------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    @property
    def error(self) -> BaseException | None:
        """What ended the run, without raising it; None while it runs, and after a good end."""
        return self._error

    @property
    def status(self) -> Status | None:
        """After the latest commit; None before the first. Raises what ended the run."""
        self._check()
        return self._seen.latest

    @property
    def latest(self) -> Status | None:
        """The same, without raising anything."""
        return self._seen.latest

    def why(self, key: Mapping[str, Any] | str | None = None, stage: str | None = None) -> WhyReport:
        """Who holds the watermark and what closes next: see `sw.why`. The state must be durable."""
        report: WhyReport = import_module("slackwater.query.why_api").why(self.pipeline, key, stage)
        return report

    def results(self, target: str | None = None) -> pl.DataFrame:
        """What the target holds now, read when this is called; of several targets the one that is named.

        Raises StartError for a target that gives nothing back, as the console.
        """
        rows: pl.DataFrame = import_module("slackwater.query.result_readers").read_all(self.pipeline, target)
        return rows

    # -- its end -------------------------------------------------------------------------------------------------

    def wait(self, timeout_s: float | None = None) -> Status | None:
        """Until the run ends by itself: `available_now`, or an error, which is raised. Returns the last status.

        Raises TimeoutError if it still runs after `timeout_s` seconds, and lets it run.
        """
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"{self.pipeline.name}: still running after {timeout_s:g} s")
        self._check()
        return self._seen.latest

    def stop(self, timeout_s: float | None = None) -> Status | None:
        """Finish the epoch in progress and end. Returns the last status; raises what ended the run before."""
        self._stop.set()
        return self.wait(timeout_s)

    def _check(self) -> None:
        if self._error is not None:
            is_expected = isinstance(self._error, SlackwaterError)
            raise self._error.with_traceback(None) if is_expected else self._error

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.stop()
        else:
            self._leave()  # what the block raised goes on; an error of the run is in the log

    def __repr__(self) -> str:
        if self._error is not None:
            return f"<run of {self.pipeline.name}: ended: {self._error}>"
        latest = self._seen.latest
        return f"<run of {self.pipeline.name}: {'running' if self.is_running else 'ended'}, " + (
            "nothing committed>" if latest is None else f"epoch {latest.epoch}>"
        )


class _LatestStatus(Observer):
    """Remembers the latest status."""

    def __init__(self) -> None:
        self.latest: Status | None = None

    def status(self, status: Status) -> None:
        self.latest = status


def print_warning(level: str, text: str) -> None:
    """Lines of a run in the background: warnings alone, since others would come between what the program prints."""
    log.log(logging.WARNING if level == "warning" else logging.DEBUG, "%s", text)
