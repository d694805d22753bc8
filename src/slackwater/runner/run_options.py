"""The options of a run: everything that `slackwater.run` accepts apart from the pipeline."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slackwater.config.pipeline import check_run_flags
from slackwater.core.humanize import mismatch
from slackwater.engine.observer import Observer
from slackwater.engine.status import Status
from slackwater.errors import ConfigError
from slackwater.runner import previous_output

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class RunOptions:
    """The options of a run, as documented at `slackwater.run`.

    Args:
        available_now: End when all input that exists now has been processed.
        flush: Close all open windows at the end.
        spark: The Spark session to use; None starts one.
        on_status: Called with the status after each commit.
        on_notice: Called with the level and the text of each line about the run; None logs the lines.
        stop: An event that ends the run after the epoch in progress.
        rebuild: Start over with a new state. Maps sources to the positions where they begin; None continues the state.
        former_output: What to do with rows of an earlier state in an append-only target.
        observers: Objects that are notified during the run.
    """

    available_now: bool = False
    flush: bool = False
    spark: SparkSession | None = None
    on_status: Callable[[Status], None] | None = None
    on_notice: Callable[[str, str], None] | None = None
    stop: threading.Event | None = None
    rebuild: Mapping[str, Any] | None = None
    former_output: str | None = None
    observers: Sequence[Observer] = ()

    @property
    def starts_over(self) -> bool:
        return self.rebuild is not None

    def check(self) -> None:
        """Raise ConfigError for options that cannot be combined, or that do not exist."""
        check_run_flags(self.available_now, self.flush)
        if self.former_output not in (None, *previous_output.CHOICES):
            raise ConfigError(["former_output: " + mismatch(f'"{self.former_output}"', '"aside" or "keep"')])

    def check_background(self) -> None:
        """Raise ConfigError for options that a run in the background does not support."""
        check_run_flags(self.available_now, self.flush)
        if self.stop is not None:
            raise ConfigError(
                ["stop: applies only to a run in the foreground; stop a run in the background with its handle"]
            )
