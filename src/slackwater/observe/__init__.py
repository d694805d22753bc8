"""Observers that report a run to other systems: OpenTelemetry metrics and OpenLineage events.

    sw.run(pipeline, observers=[open_telemetry(), open_lineage()])

Each observer needs the extra of the same name. Observers send from separate threads. An unreachable system causes one
warning, and never stops or slows down a run.

May import: config, core, engine, errors, logging, metrics, openlineage, opentelemetry, secrets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from typing import Any

from slackwater.engine.observer import Observer
from slackwater.errors import StartError
from slackwater.secrets import mask_secrets

Notice = Callable[[str, str], None]


def _log(level: str, line: str) -> None:
    logging.getLogger("slackwater").log(logging.getLevelName(level.upper()), line)


def open_telemetry(notice: Notice = _log) -> Observer:
    """Return an observer that sends metrics by OTLP over HTTP, configured by the OpenTelemetry SDK's variables.

    Raises StartError.
    """
    observer: Observer = _module("opentelemetry_metrics", "otel", "OpenTelemetry's SDK").OpenTelemetry(notice)
    return observer


def open_lineage(notice: Notice = _log) -> Observer:
    """Return an observer that sends OpenLineage events by the transport that the client's configuration selects.

    Raises StartError.
    """
    observer: Observer = _module("openlineage", "openlineage", "OpenLineage's client").OpenLineage(notice)
    return observer


def _module(name: str, extra: str, library: str) -> Any:
    """Import a module that needs an optional library. The extra of the package and the option have the same name."""
    try:
        return import_module(f"slackwater.observe.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("slackwater"):
            raise
        raise StartError(
            f"--{extra} needs {library}, but the module {error.name} is not installed; install it: pip install 'slackwater[{extra}]'"
        ) from None


class OutageReporter:
    """Reports an outage: one warning at the first failure, and one notice when the system works again.

    Args:
        notice: Receives the level and the text.
        activity: What failed, for the text.
        consequence: What the failure means, for the text.
    """

    def __init__(self, notice: Callable[[str, str], None], activity: str, consequence: str) -> None:
        self._notice, self._activity, self._consequence = notice, activity, consequence
        self.is_failing, self._warnings = False, 0

    def record_failure(self, error: object) -> None:
        self.is_failing = True
        if self._warnings == 0:
            self._warnings = 1
            self._notice(
                "warning",
                mask_secrets(
                    f"{self._activity} failed: {error_reason(error)}; {self._consequence}; this is reported only once"
                ),
            )

    def record_success(self) -> None:
        if self.is_failing and self._warnings == 1:
            self._warnings = 2
            self._notice("info", mask_secrets(f"{self._activity} works again"))
        self.is_failing = False


def error_reason(error: object, depth: int = 8) -> str:
    """Return the first line of the innermost error: HTTP libraries wrap a system's errors several times."""
    innermost = error
    for _ in range(depth):
        if isinstance(innermost, OSError) and innermost.strerror:
            return innermost.strerror
        inner = [getattr(innermost, "reason", None), *(getattr(innermost, "args", None) or ())]
        inner += [getattr(innermost, "__cause__", None), getattr(innermost, "__context__", None)]
        below = next((e for e in inner if isinstance(e, BaseException)), None)
        if below is None:
            break
        innermost = below
    lines = str(innermost).strip().splitlines()
    return lines[0] if lines else type(innermost).__name__
