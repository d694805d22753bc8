"""Switches for the tunings, which are decisions that save time without changing any result.

    SLACKWATER_TUNINGS_OFF=expression_cache,preaggregation slackwater run clicks.toml

The variable turns tunings off, for measurements (`benchmarks.tunings`) and troubleshooting. Users need not set it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from slackwater.core.humanize import mismatch
from slackwater.errors import StartError

VARIABLE = "SLACKWATER_TUNINGS_OFF"
TUNINGS: Mapping[str, str] = {
    "arrow_batch_size": "Arrow batches are limited by rows if rows are narrow, so Spark does not count bytes",
    "class_archive": "the JVM loads Spark's classes from an archive",
    "expression_cache": "expressions and schemas that all epochs share are created once",
    "preaggregation": "rows are not pre-aggregated in SQL if panes have few rows",
    "statistics": "a separate job or Parquet footers provide the statistics of a source with many rows",
    "worker_memory": "workers keep freed memory, and do not collect garbage among imported modules",
}


def is_enabled(tuning: str) -> bool:
    """Return whether a tuning is enabled. Raises StartError if the environment variable names an unknown tuning."""
    disabled = [name for text in os.environ.get(VARIABLE, "").split(",") if (name := text.strip())]
    for name in disabled:
        if name not in TUNINGS:
            raise StartError(f"{VARIABLE}: " + mismatch(f'"{name}"', f"names among {', '.join(TUNINGS)}"))
    return tuning not in disabled
