"""Options for the JVM that is started for Spark, which save CPU time at the start, and memory on small machines.

A start runs thousands of methods of parsers, planners and code generators a few thousand times each. By default, the JVM
compiles them with its optimizing compiler, which takes more CPU time than they ever need. With five times its thresholds,
that compiler leaves them alone, and still compiles all code that runs per row.

For up to two tasks at a time, the serial collector is enough. It keeps the heap at about half of the memory that the
default collector (G1) takes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from slackwater.tunings import is_enabled

_OPTIMIZE_LATER = {  # five times the defaults
    "Tier4InvocationThreshold": 25_000,
    "Tier4MinInvocationThreshold": 3_000,
    "Tier4CompileThreshold": 75_000,
    "Tier4BackEdgeThreshold": 200_000,
}
_SERIAL_UP_TO = 2  # tasks at a time
_VARIABLES = ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
_LOCAL = re.compile(r"local(?:\[(\d+|\*)(?:,\d+)?\])?")


def jvm_options(settings: Mapping[str, str]) -> str:
    """Return the options, for Spark's settings. They are followed by the user's own options, which win."""
    if not is_enabled("jvm_options"):
        return ""
    options = [f"-XX:{name}={value}" for name, value in _OPTIMIZE_LATER.items()]
    tasks = _task_slots(settings.get("spark.master") or os.environ.get("SPARK_MASTER", "local[*]"))
    if tasks is not None and tasks <= _SERIAL_UP_TO and "GC" not in _user_options(settings):
        options.append("-XX:+UseSerialGC")  # the JVM does not start if two collectors are chosen
    return " ".join(options)


def _task_slots(master: str) -> int | None:
    """Return how many tasks a local Spark runs at a time. None for a cluster."""
    match = _LOCAL.fullmatch(master)
    if match is None:
        return None
    slots = match[1] or "1"
    return os.cpu_count() if slots == "*" else int(slots)


def _user_options(settings: Mapping[str, str]) -> str:
    """Return all text that can contain a user's options for the JVM."""
    spark = find_spec("pyspark")
    home = os.environ.get("SPARK_HOME") or str(Path(str(spark and spark.origin)).parent)
    defaults = Path(os.environ.get("SPARK_CONF_DIR") or f"{home}/conf") / "spark-defaults.conf"
    texts = [value for name, value in settings.items() if name.endswith("JavaOptions")]
    texts += [os.environ.get(name, "") for name in (*_VARIABLES, "PYSPARK_SUBMIT_ARGS")]
    if defaults.is_file():
        texts.append(defaults.read_text(errors="replace"))
    return " ".join(texts)
