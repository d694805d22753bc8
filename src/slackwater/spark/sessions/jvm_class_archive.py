"""An archive of Spark's classes in loaded and verified form, which makes later JVM starts faster.

    ~/.cache/slackwater/classes/<hash of this Java and this PySpark>.jsa     about 160 MB

`slackwater prepare` creates it with Java's dynamic class-data sharing (CDS). If there is no archive, or if it was made
by another Java or for other jars, the JVM silently reads the jars instead.
"""

from __future__ import annotations

import hashlib
import os
import shutil
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
from slackwater.tunings import is_enabled

_OPTIONS = "SPARK_SUBMIT_OPTS"
_LAUNCHER = "SPARK_LAUNCHER_OPTS"
_SHORT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # the launcher is a separate JVM that runs for half a second
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"


def archive_path() -> Path | None:
    """Return the path of the archive for the installed Java and PySpark. None if either is missing."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    spark = find_spec("pyspark")
    if java is None or spark is None or spark.origin is None:
        return None
    modules = Path(java).resolve().parents[1] / "lib" / "modules"  # the classes of Java itself
    status = modules.stat() if modules.is_file() else Path(java).resolve().stat()
    identity = [modules, status.st_size, status.st_mtime_ns, Path(spark.origin).resolve(), metadata.version("pyspark")]
    name = hashlib.sha256("\n".join(map(str, identity)).encode()).hexdigest()[:16]
    return spark_jars.cache_directory() / "classes" / f"{name}.jsa"


@contextmanager
def use_archive(options: str = "") -> Iterator[None]:
    """Let JVMs that start within this context load their classes from the archive, if it exists.

    `options`: more options for these JVMs. Options of the environment follow them and win.
    """
    saved = {name: os.environ.get(name) for name in (_OPTIONS, _LAUNCHER)}
    archive = archive_path() if is_enabled("class_archive") else None
    options = f"{options} {saved[_OPTIONS] or ''}".strip()
    if archive is not None and archive.is_file() and "Archive" not in options:
        options = f"{options} -XX:SharedArchiveFile={archive} -Xshare:auto {_QUIET}".strip()
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


def make_archive(module: str) -> Path | None:
    """Create the archive from the classes that `python -m MODULE` loads, and return its path.

    The module must run a pipeline and call `end_spark` last. An existing archive is not replaced. None if Java or
    PySpark is missing. Raises StartError if the module fails or no archive is written.
    """
    archive = archive_path()
    if archive is None or archive.is_file():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".making-") as directory:
        file = Path(directory) / archive.name
        options = f"{_SHORT} -XX:ArchiveClassesAtExit={file} {_QUIET} {os.environ.get(_OPTIONS, '')}"
        done = subprocess.run(
            [sys.executable, "-m", module],
            env={**os.environ, _OPTIONS: options.strip()},
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
    """Stop Spark and wait until its process has ended. The JVM writes the archive when it exits."""
    from pyspark import SparkContext

    active, gateway = SparkContext._active_spark_context, SparkContext._gateway
    if active is not None:
        active.stop()
    process = getattr(gateway, "proc", None)
    if gateway is not None and process is not None:
        gateway.shutdown()
        process.stdin.close()
        process.wait()
