"""Switches for tunings, which are optimizations that do not change any result.

    SLACKWATER_TUNINGS_OFF=expression_cache,preaggregation slackwater run clicks.toml

The variable turns tunings off, for benchmarks (`benchmarks.spark_tunings`) and troubleshooting. Users do not need it.

May import: core, errors.
"""

from __future__ import annotations

import os

from slackwater.core.humanize import mismatch
from slackwater.errors import StartError, Topic

VARIABLE = "SLACKWATER_TUNINGS_OFF"
TUNINGS = (  # described in benchmarks/README.md
    "arrow_batch_size",
    "class_archive",
    "expression_cache",
    "file_workers",
    "installed_pyspark",
    "json_workers",
    "jvm_options",
    "kafka_workers",
    "one_task",
    "preaggregation",
    "query_reuse",
    "quick_ack",
    "statistics",
    "worker_memory",
)


def is_enabled(tuning: str) -> bool:
    """Return whether a tuning is enabled. Raises StartError if the environment variable names an unknown tuning."""
    disabled = [name for text in os.environ.get(VARIABLE, "").split(",") if (name := text.strip())]
    for name in disabled:
        if name not in TUNINGS:
            raise StartError(f"{VARIABLE}: " + mismatch(f'"{name}"', f"one of {', '.join(TUNINGS)}"), Topic.VALUE)
    return tuning not in disabled
