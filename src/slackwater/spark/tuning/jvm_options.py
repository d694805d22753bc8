"""Options for the JVM that Slackwater starts for Spark. They save CPU time at startup, and memory on small machines.

During startup, Spark's parsers, planners and code generators call thousands of methods a few thousand times each. By
default, the JVM compiles these methods with its optimizing compiler, which costs more CPU time than it saves. With 20
times the default thresholds, the compiler skips them, but still compiles all code that runs per row.

For up to two parallel tasks, the serial garbage collector suffices. Its heap takes about half of the memory that the
default collector (G1) needs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from slackwater.tunings import is_enabled

_OPTIMIZE_LATER = {  # 20 times the defaults
    "Tier4InvocationThreshold": 100_000,
    "Tier4MinInvocationThreshold": 12_000,
    "Tier4CompileThreshold": 300_000,
    "Tier4BackEdgeThreshold": 800_000,
}
_SERIAL_UP_TO = 2  # the number of parallel tasks for which the serial collector suffices
_VARIABLES = ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
_LOCAL = re.compile(r"local(?:\[(\d+|\*)(?:,\d+)?\])?")


def jvm_options(settings: Mapping[str, str]) -> str:
    """Return the JVM options for these Spark settings. The caller appends the user's options, which take precedence."""
    if not is_enabled("jvm_options"):
        return ""
    options = [f"-XX:{name}={value}" for name, value in _OPTIMIZE_LATER.items()]
    tasks = task_slots(settings)
    if tasks is not None and tasks <= _SERIAL_UP_TO and "GC" not in _user_options(settings):
        options.append("-XX:+UseSerialGC")  # the JVM does not start if two collectors are chosen
    return " ".join(options)


def task_slots(settings: Mapping[str, str]) -> int | None:
    """Return the number of tasks that a local Spark runs in parallel, with Spark's `settings`. None for a cluster."""
    master = settings.get("spark.master")
    if master is None and "--master" in os.environ.get("PYSPARK_SUBMIT_ARGS", ""):
        return None  # it may name a cluster
    match = _LOCAL.fullmatch(master or os.environ.get("SPARK_MASTER", "local[*]"))
    if match is None:
        return None
    slots = match[1] or "1"
    return os.cpu_count() if slots == "*" else int(slots)


def _user_options(settings: Mapping[str, str]) -> str:
    """Return the text of all settings, variables and files that can contain a user's JVM options."""
    spark = find_spec("pyspark")
    home = os.environ.get("SPARK_HOME") or str(Path(str(spark and spark.origin)).parent)
    defaults = Path(os.environ.get("SPARK_CONF_DIR") or f"{home}/conf") / "spark-defaults.conf"
    texts = [value for name, value in settings.items() if name.endswith("JavaOptions")]
    texts += [os.environ.get(name, "") for name in (*_VARIABLES, "PYSPARK_SUBMIT_ARGS")]
    if defaults.is_file():
        texts.append(defaults.read_text(errors="replace"))
    return " ".join(texts)
