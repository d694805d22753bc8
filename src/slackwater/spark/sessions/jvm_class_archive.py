"""Create and use an archive of loaded and verified Spark classes, so that the JVM starts faster.

    ~/.cache/slackwater/classes/<hash of this Java and this PySpark>.aot     about 180 MB, since Java 25
    ~/.cache/slackwater/classes/<hash of this Java and this PySpark>.jsa     about 160 MB, before Java 25

`slackwater prepare` creates the archive. Since Java 25, it is an AOT cache, which also contains method profiles, so
that the JVM immediately compiles the methods that matter. Before Java 25, it uses dynamic class-data sharing (CDS). If
there is no archive, or if it was created by another Java or for other jars, the JVM silently reads the jars instead.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from slackwater.errors import StartError, Topic
from slackwater.spark.sessions import spark_jars
from slackwater.spark.sessions.java import Java, find_default_java, find_fast_java
from slackwater.tunings import is_enabled

_OPTIONS = "SPARK_SUBMIT_OPTS"
_LAUNCHER = "SPARK_LAUNCHER_OPTS"
_HOME = "JAVA_HOME"
_SHORT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # the launcher is a separate JVM that runs for half a second
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
_QUIET_AOT = "-Xlog:aot=off -Xlog:cds=off -Xlog:class+path=off"


def archive_path(java: Java) -> Path:
    """Return the path of the archive for a Java and the installed PySpark."""
    modules = java.home / "lib" / "modules"  # the classes of Java itself
    status = modules.stat() if modules.is_file() else java.executable.stat()
    spark = find_spec("pyspark")
    origin = Path(str(spark and spark.origin)).resolve()
    identity = [modules, status.st_size, status.st_mtime_ns, origin, metadata.version("pyspark")]
    name = hashlib.sha256("\n".join(map(str, identity)).encode()).hexdigest()[:16]
    return spark_jars.cache_directory() / "classes" / f"{name}.{'aot' if java.has_profiles else 'jsa'}"


def archive_options(java: Java) -> str:
    """Return the options with which a Java loads classes from its archive. Empty if there is no archive."""
    archive = archive_path(java)
    if not archive.is_file():
        return ""
    if java.has_profiles:
        return f"-XX:AOTCache={archive} {_QUIET_AOT}"
    return f"-XX:SharedArchiveFile={archive} -Xshare:auto {_QUIET}"


@contextmanager
def use_archive(options: str = "", is_local: bool = True) -> Iterator[None]:
    """Make JVMs that start within this context load their classes from the archive, if it exists.

    Args:
        options: Additional options for these JVMs. Options in environment variables take precedence.
        is_local: Whether Spark runs only on this machine, so that it can use a Java other than the one on the path.
    """
    saved = {name: os.environ.get(name) for name in (_OPTIONS, _LAUNCHER, _HOME)}
    options = f"{options} {saved[_OPTIONS] or ''}".strip()
    if is_enabled("class_archive") and "Archive" not in options and "AOT" not in options:
        fast = find_fast_java() if is_local else None
        if fast is not None and archive_path(fast).is_file():
            java: Java | None = fast
            os.environ[_HOME] = str(fast.home)
        else:
            java = find_default_java()
        options = f"{options} {archive_options(java) if java is not None else ''}".strip()
    if options:
        os.environ[_OPTIONS] = options
    os.environ.setdefault(_LAUNCHER, _SHORT)
    try:
        yield
    finally:
        for name, before in saved.items():
            if before is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = before


def make_archive(java: Java, module: str) -> Path:
    """Create the archive from the classes that `python -m MODULE` loads, and return its path.

    The module must run a pipeline and finally call `end_spark`. An existing archive is not replaced. Raises StartError
    if the module fails or does not write an archive.
    """
    archive = archive_path(java)
    if archive.is_file():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".making-") as directory:
        file = Path(directory) / archive.name
        if java.has_profiles:  # profiles need the optimizing compiler
            options = f"-XX:+UseSerialGC -XX:AOTCacheOutput={file} {_QUIET_AOT}"
        else:
            options = f"{_SHORT} -XX:ArchiveClassesAtExit={file} {_QUIET}"
        done = subprocess.run(
            [sys.executable, "-m", module],
            env={
                **os.environ,
                **({} if java == find_default_java() else {_HOME: str(java.home)}),
                _OPTIONS: f"{options} {os.environ.get(_OPTIONS, '')}".strip(),
            },
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode or not file.is_file():
            problem = (done.stderr.strip() or done.stdout.strip() or "the JVM wrote no file").splitlines()[-1]
            raise StartError(
                f"the archive of Spark's classes was not created ({problem}); Spark starts without it",
                Topic.CLASS_ARCHIVE,
            )
        file.replace(archive)
    return archive


def end_spark() -> None:
    """Stop Spark and wait until the JVM has exited. The JVM writes the class archive when it exits."""
    from pyspark import SparkContext

    active, gateway = SparkContext._active_spark_context, SparkContext._gateway
    if active is not None:
        active.stop()
    process = getattr(gateway, "proc", None)
    if gateway is not None and process is not None:
        gateway.shutdown()
        process.stdin.close()
        process.wait()
