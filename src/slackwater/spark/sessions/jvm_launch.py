"""Choose the Java that runs Spark, and start its JVM with options and a class archive that save time and memory.

The first available Java is used:

    JAVA_HOME                                                   the user's choice
    an installed Java 25, if `slackwater prepare` has used it   starts faster, because it stores method profiles
    `java` on the path                                          otherwise

**Class archive.** It contains loaded and verified Spark classes. `slackwater prepare` creates it:

    ~/.cache/slackwater/classes/<hash of this Java and this PySpark>.aot     about 180 MB, since Java 25
    ~/.cache/slackwater/classes/<hash of this Java and this PySpark>.jsa     about 160 MB, before Java 25

Since Java 25, it is an AOT cache, which also contains method profiles, so that the JVM immediately compiles the methods
that matter. Before Java 25, it uses dynamic class-data sharing (CDS). If there is no archive, or if it was created by
another Java or for other jars, the JVM silently reads the jars instead.

**Options.** During startup, Spark's parsers, planners and code generators call thousands of methods a few thousand times
each. By default, the JVM compiles these methods with its optimizing compiler, which costs more CPU time than it saves.
With 20 times the default thresholds, the compiler skips them, but still compiles all code that runs per row.

For up to two parallel tasks, the serial garbage collector suffices. Its heap takes about half of the memory that the
default collector (G1) needs.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from slackwater.errors import StartError, Topic
from slackwater.spark.sessions import spark_jars
from slackwater.spark.sessions.spark_jars import version_numbers
from slackwater.tuning_switches import is_enabled

_DIRECTORIES = ("/usr/lib/jvm", "/Library/Java/JavaVirtualMachines", "~/.sdkman/candidates/java", "~/.jdks")
_FIRST_FAST, _AFTER_FAST = (25, 0, 3), (26,)  # Spark's documentation deprecates Java 25 before 25.0.3
_FIRST_SPARK = (4, 2)  # the first version of Spark that supports Java 25


@dataclass(frozen=True)
class Java:
    """A Java installation. `version`: for example (25, 0, 3), or () if the installation does not state it."""

    executable: Path  # `java`, which may be a script that starts the real one
    version: tuple[int, ...]

    @classmethod
    def from_executable(cls, executable: Path) -> Java:
        """Return the Java with this executable, with the version from the file `release` in its home directory."""
        release = executable.resolve().parents[1] / "release"
        text = release.read_text(errors="replace") if release.is_file() else ""
        match = re.search(r'^JAVA_VERSION="?(\d+(?:\.\d+)*)', text, re.MULTILINE)
        return cls(executable, tuple(map(int, match[1].split("."))) if match else ())

    @property
    def home(self) -> Path:
        """The home directory, without symbolic links."""
        return self.executable.resolve().parents[1]

    @property
    def has_profiles(self) -> bool:
        """True if this Java can store method profiles in an AOT cache, for later starts."""
        return self.version >= (25,)

    def __str__(self) -> str:
        return f"Java {'.'.join(map(str, self.version))} in {self.home}" if self.version else f"Java in {self.home}"


def find_default_java() -> Java | None:
    """Return the Java in JAVA_HOME, or else the `java` on the path. None if it does not exist."""
    named = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{named}/bin") if named else shutil.which("java")
    return Java.from_executable(Path(java)) if java is not None else None


def find_fast_java() -> Java | None:
    """Return the newest installed Java 25 that this Spark supports, which starts Spark fastest.

    Return None if there is none, or if `may_use_fast_java` is False.
    """
    if not may_use_fast_java():
        return None
    javas = [java for java in _find_javas() if _FIRST_FAST <= java.version < _AFTER_FAST]
    return max(javas, key=lambda java: (java.version, java.executable), default=None)


def may_use_fast_java() -> bool:
    """Return whether a local Spark may use a Java other than the one on the path."""
    return not os.environ.get("JAVA_HOME") and version_numbers(metadata.version("pyspark")) >= _FIRST_SPARK


def _find_javas() -> Iterator[Java]:
    """Yield each Java in the directories in which installers put them."""
    for directory in _DIRECTORIES:
        for entry in Path(directory).expanduser().glob("*"):
            for executable in (entry / "bin" / "java", entry / "Contents" / "Home" / "bin" / "java"):
                if executable.is_file():
                    yield Java.from_executable(executable)


# -- class archive -------------------------------------------------------------------------------------------------------


_OPTIONS = "SPARK_SUBMIT_OPTS"
_LAUNCHER = "SPARK_LAUNCHER_OPTS"
_HOME = "JAVA_HOME"
_SHORT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # the launcher is a separate JVM that runs for half a second
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
_QUIET_AOT = "-Xlog:aot=off -Xlog:cds=off -Xlog:class+path=off"


def class_archive_path(java: Java) -> Path:
    """Return the path of the archive for a Java and the installed PySpark."""
    modules = java.home / "lib" / "modules"  # the classes of Java itself
    status = modules.stat() if modules.is_file() else java.executable.stat()
    spark = find_spec("pyspark")
    origin = Path(str(spark and spark.origin)).resolve()
    identity = [modules, status.st_size, status.st_mtime_ns, origin, metadata.version("pyspark")]
    name = hashlib.sha256("\n".join(map(str, identity)).encode()).hexdigest()[:16]
    return spark_jars.cache_directory() / "classes" / f"{name}.{'aot' if java.has_profiles else 'jsa'}"


def class_archive_options(java: Java) -> str:
    """Return the options with which a Java loads classes from its archive. Empty if there is no archive."""
    archive = class_archive_path(java)
    if not archive.is_file():
        return ""
    if java.has_profiles:
        return f"-XX:AOTCache={archive} {_QUIET_AOT}"
    return f"-XX:SharedArchiveFile={archive} -Xshare:auto {_QUIET}"


@contextmanager
def use_class_archive(options: str = "", is_local: bool = True) -> Iterator[None]:
    """Make JVMs that start within this context load their classes from the archive, if it exists.

    Args:
        options: Additional options for these JVMs. Options in environment variables take precedence.
        is_local: Whether Spark runs only on this machine, so that it can use a Java other than the one on the path.
    """
    saved = {name: os.environ.get(name) for name in (_OPTIONS, _LAUNCHER, _HOME)}
    options = f"{options} {saved[_OPTIONS] or ''}".strip()
    if is_enabled("class_archive") and "Archive" not in options and "AOT" not in options:
        fast = find_fast_java() if is_local else None
        if fast is not None and class_archive_path(fast).is_file():
            java: Java | None = fast
            os.environ[_HOME] = str(fast.home)
        else:
            java = find_default_java()
        options = f"{options} {class_archive_options(java) if java is not None else ''}".strip()
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


def make_class_archive(java: Java, module: str) -> Path:
    """Create the archive from the classes that `python -m MODULE` loads, and return its path.

    The module must run a pipeline and finally call `stop_spark`. An existing archive is not replaced. Raises StartError
    if the module fails or does not write an archive.
    """
    archive = class_archive_path(java)
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
                f"could not create the class archive for Spark ({problem}); Spark will start without it",
                Topic.CLASS_ARCHIVE,
            )
        file.replace(archive)
    return archive


def stop_spark() -> None:
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


# -- options -------------------------------------------------------------------------------------------------------------


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
    tasks = count_task_slots(settings)
    if tasks is not None and tasks <= _SERIAL_UP_TO and "GC" not in _user_options(settings):
        options.append("-XX:+UseSerialGC")  # the JVM does not start if two collectors are chosen
    return " ".join(options)


def count_task_slots(settings: Mapping[str, str]) -> int | None:
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
