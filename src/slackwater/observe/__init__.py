"""Observers that report a run to other systems: OpenTelemetry metrics and OpenLineage events.

    sw.run(pipeline, observers=[open_telemetry(), open_lineage()])

The observers need the extras `otel` and `openlineage`, respectively. They send from separate threads. An unreachable
system causes one warning, and never stops or slows down a run.

May import: config, core, engine, errors, logging, metrics, openlineage, opentelemetry, secret_masking.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from typing import Any

from slackwater.engine.observer import Observer
from slackwater.errors import StartError, Topic

Notice = Callable[[str, str], None]


def _log(level: str, line: str) -> None:
    logging.getLogger("slackwater").log(logging.getLevelName(level.upper()), line)


def open_telemetry(notice: Notice = _log) -> Observer:
    """Return an observer that sends metrics by OTLP over HTTP, configured by the SDK's environment variables.

    Raises StartError if the library is not installed or its configuration is invalid.
    """
    observer: Observer = _module("opentelemetry_metrics", "otel", "OpenTelemetry's SDK").OpenTelemetry(notice)
    return observer


def open_lineage(notice: Notice = _log) -> Observer:
    """Return an observer that sends OpenLineage events. The configuration of OpenLineage's client selects the transport.

    Raises StartError if the library is not installed or its configuration is invalid.
    """
    observer: Observer = _module("openlineage", "openlineage", "OpenLineage's client").OpenLineage(notice)
    return observer


def _module(name: str, extra: str, library: str) -> Any:
    """Import a module of this package. Raises StartError if its optional library is not installed.

    `extra`: the name of the extra and of the command-line option. `library`: the name of the library for the message.
    """
    try:
        return import_module(f"slackwater.observe.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("slackwater"):
            raise
        raise StartError(
            f"--{extra} needs {library}, but the module {error.name} is not installed; install it: pip install 'slackwater[{extra}]'",
            Topic.NOT_INSTALLED,
        ) from None
