"""`prepare`: does the slow work of the first startup in advance, once per machine or container image.

compile the session loop ─▶ download the jars that configs need ─▶ run a small pipeline and archive Spark's classes
"""

from __future__ import annotations

import contextlib
import io
import tempfile
import time
from pathlib import Path

from slackwater.cli.output import program_command
from slackwater.config import toml
from slackwater.core.humanize import plural
from slackwater.errors import StartError, Topic


def prepare_machine(files: list[Path], names: list[str]) -> None:
    """Compile code, download jars and archive Spark's classes. Print a line for each step.

    `files`: configs whose jars are downloaded. `names`: connectors whose jars are downloaded. Raises StartError if Java
    is not installed.
    """
    from slackwater.runner.component_factory import spark_settings
    from slackwater.spark.sessions import jvm_launch, spark_jars
    from slackwater.spark.worker_imports import prepare_modules
    from slackwater.spark.worker_warm_up import mark_loops_as_compiled

    began = time.monotonic()
    pipelines = [toml.load(file) for file in files]
    prepare_modules(has_sessions=True, reads_files=True)
    mark_loops_as_compiled(has_sessions=True, reads_files=True)
    print("compiled: the loops that merge rows into sessions and hash keys")
    for file, pipeline in zip(files, pipelines, strict=True):
        jars = [j for j in spark_settings(pipeline, lambda level, line: None).get("spark.jars", "").split(",") if j]
        print(f"fetched: {plural(len(jars), 'jar')} for {file}")
    for name in names:
        print(f"fetched: {plural(len(spark_jars.connector_jars(name)), 'jar')} for {name}")
    selected = jvm_launch.find_fast_java() or jvm_launch.find_default_java()
    if selected is None:
        raise StartError(
            "Spark needs Java, which was not found; install Java 17 or later, or set JAVA_HOME", Topic.NOT_INSTALLED
        )
    archive = jvm_launch.make_class_archive(selected, "slackwater.cli.prepare")
    print(f"archived: the classes of Spark for {selected}, {archive.stat().st_size >> 20} MB in {archive}")
    if jvm_launch.may_use_fast_java() and not selected.has_profiles:
        print(f"hint: Spark starts a third faster with Java 25; install it and run {program_command()} prepare again")
    print(f"prepared in {time.monotonic() - began:.0f} s: Spark starts faster on this machine from now on")


def load_spark_classes() -> None:
    """Run the demo's pipelines, so that the JVM loads the classes that it archives on exit."""
    from slackwater.cli.demo import run_demo
    from slackwater.spark.sessions import jvm_launch

    with tempfile.TemporaryDirectory(prefix="slackwater-prepare-") as home, contextlib.redirect_stdout(io.StringIO()):
        run_demo(Path(home), 2_000)
        jvm_launch.stop_spark()


if __name__ == "__main__":
    load_spark_classes()
