"""A run in a background thread: `sw.run(pipeline, background=True)` returns a `Handle` immediately.

            run ─────────────── thread ───────────────▶ ended: the last status, or the error
handle.status ─ why ─ stop ─ wait                        the error is logged once; status, stop and wait raise it
"""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from slackwater.config.pipeline import Pipeline
from slackwater.core.notebook_repr import NotebookRepr
from slackwater.engine.observer import Observer, Status
from slackwater.errors import SlackwaterError

if TYPE_CHECKING:
    import polars as pl

    from slackwater.query.why_report import WhyReport

log = logging.getLogger("slackwater")
_LEAVE_S = 30.0  # how long the program's exit waits for the epoch in progress


class Handle(NotebookRepr):
    """A run in the background, which `sw.run(…, background=True)` starts and returns.

    As a context manager (`with sw.run(…, background=True) as run:`), it stops the run at the end of the block.

    If the run fails, its error is logged immediately. `status`, `wait` and `stop` raise it every time they are used.

    Attributes:
        status: The status after the latest commit, or None before the first. Raises the error of a failed run.
        latest: Like `status`, but never raises an error.
        error: The error that ended the run. None if the run is active, or ended without an error.
        is_running: Whether the run is active.
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
        """Finish the epoch in progress when the program exits, for example after a signal."""
        self._stop.set()
        self._thread.join(_LEAVE_S)

    # -- the state of the run ------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    @property
    def error(self) -> BaseException | None:
        """The error that ended the run. None if the run is active or ended without an error. Never raises."""
        return self._error

    @property
    def status(self) -> Status | None:
        """The status after the latest commit; None before the first. Raises the error that ended the run."""
        self._check()
        return self._seen.latest

    @property
    def latest(self) -> Status | None:
        """The status after the latest commit; None before the first. Never raises."""
        return self._seen.latest

    def why(self, key: Mapping[str, Any] | str | None = None, stage: str | None = None) -> WhyReport:
        """Report what holds back the watermark and which windows close next, like `sw.why`, with the same arguments.

        The state must be in files or Postgres.
        """
        from slackwater.query.why_report_builder import why

        return why(self.pipeline, key, stage)

    def results(self, target: str | None = None) -> pl.DataFrame:
        """Read the rows that are currently in a target. `target`: its name, required if there are several targets.

        Raises StartError for a target that cannot be read, such as the console.
        """
        from slackwater.query.results import read_all_results

        return read_all_results(self.pipeline, target)

    # -- the end of the run --------------------------------------------------------------------------------------

    def wait(self, timeout_s: float | None = None) -> Status | None:
        """Wait until the run ends by itself, at the end of its input or with an error. Return the last status.

        Raises the error that ended the run. Raises TimeoutError if the run is still active after `timeout_s` seconds; the
        run then continues.
        """
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"{self.pipeline.name}: still running after {timeout_s:g} s")
        self._check()
        return self._seen.latest

    def stop(self, timeout_s: float | None = None) -> Status | None:
        """End the run after the epoch in progress. Return the last status, or raise the error of a failed run."""
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
            self._leave()  # the error of the block is raised; an error of the run is only logged

    def __repr__(self) -> str:
        if self._error is not None:
            return f"<run of {self.pipeline.name}: ended: {self._error}>"
        latest = self._seen.latest
        return f"<run of {self.pipeline.name}: {'running' if self.is_running else 'ended'}, " + (
            "nothing committed>" if latest is None else f"epoch {latest.epoch}>"
        )


class _LatestStatus(Observer):
    """Remembers the status after the latest commit."""

    def __init__(self) -> None:
        self.latest: Status | None = None

    def on_commit(self, status: Status) -> None:
        self.latest = status


def log_background_notice(level: str, text: str) -> None:
    """Log a line of a background run: a warning as a warning, and any other line at debug level."""
    log.log(logging.WARNING if level == "warning" else logging.DEBUG, "%s", text)
