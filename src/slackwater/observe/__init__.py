"""Observers that tell other systems of a run: OpenTelemetry metrics, OpenLineage events. Each needs the extra of its name.

    sw.run(pipeline, observers=[open_telemetry(), open_lineage()])

They work on threads of their own: a system that is away is told of once, and never stops or slows a run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from typing import Any

from slackwater.engine.observer import Observer
from slackwater.errors import StartError

Notice = Callable[[str, str], None]


def _log(level: str, line: str) -> None:
    logging.getLogger("slackwater").log(logging.getLevelName(level.upper()), line)


def open_telemetry(notice: Notice = _log) -> Observer:
    """Metrics by OTLP over HTTP, to where the variables of the OpenTelemetry SDK say. Raises StartError."""
    observer: Observer = _module("otel", "--otel", "OpenTelemetry's SDK").OpenTelemetry(notice)
    return observer


def open_lineage(notice: Notice = _log) -> Observer:
    """Run events of OpenLineage, by the transport that its client's own configuration names. Raises StartError."""
    observer: Observer = _module("openlineage", "--openlineage", "OpenLineage's client").OpenLineage(notice)
    return observer


def _module(extra: str, option: str, library: str) -> Any:
    try:
        return import_module(f"slackwater.observe.{extra}")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("slackwater"):
            raise
        raise StartError(
            f"{option} needs {library}, and there is no module {error.name}; install it: pip install 'slackwater[{extra}]'"
        ) from None
