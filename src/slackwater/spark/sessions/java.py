"""Find the Java installations on this machine, and choose the one that runs Spark.

The first available Java is used:

JAVA_HOME                                                     the user's choice
an installed Java 25, if `slackwater prepare` has used it     starts faster, because it stores method profiles
`java` on the path                                            otherwise
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from slackwater.spark.sessions.spark_jars import version_numbers

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
