"""Find the Java installations on this machine, and choose the one that runs Spark.

The first available Java is used:

JAVA_HOME                                                     the user's choice
an installed Java 25, if `slackwater prepare` has used it     starts faster, because it stores profiles of methods
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

_DIRECTORIES = ("/usr/lib/jvm", "/Library/Java/JavaVirtualMachines", "~/.sdkman/candidates/java", "~/.jdks")
_FIRST_FAST, _AFTER_FAST = (25, 0, 3), (26,)  # Spark's documentation deprecates Java 25 before 25.0.3
_FIRST_SPARK = (4, 2)  # the first version of Spark that supports Java 25


@dataclass(frozen=True)
class Java:
    """A Java installation. `version`: for example (25, 0, 3), or () if the installation does not state it."""

    home: Path
    version: tuple[int, ...]

    @classmethod
    def from_home(cls, home: Path) -> Java:
        """Return the Java in a directory, with the version from its file `release`."""
        release = home / "release"
        text = release.read_text(errors="replace") if release.is_file() else ""
        match = re.search(r'^JAVA_VERSION="?(\d+(?:\.\d+)*)', text, re.MULTILINE)
        return cls(home, tuple(map(int, match[1].split("."))) if match else ())

    @property
    def has_profiles(self) -> bool:
        """True if this Java can store profiles of methods for later starts, in an AOT cache."""
        return self.version >= (25,)

    def __str__(self) -> str:
        return f"Java {'.'.join(map(str, self.version))} in {self.home}" if self.version else f"Java in {self.home}"


def find_default_java() -> Java | None:
    """Return the Java in JAVA_HOME, or else the `java` on the path. None if it does not exist."""
    named = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{named}/bin") if named else shutil.which("java")
    return Java.from_home(Path(java).resolve().parents[1]) if java is not None else None


def find_fast_java() -> Java | None:
    """Return the newest installed Java 25 that this Spark supports, because it starts Spark fastest.

    Return None if there is none, or if JAVA_HOME is set.
    """
    if os.environ.get("JAVA_HOME") or _version_numbers(metadata.version("pyspark")) < _FIRST_SPARK:
        return None
    javas = (Java.from_home(home) for home in _find_homes())
    return max((java for java in javas if _FIRST_FAST <= java.version < _AFTER_FAST), key=_rank, default=None)


def _rank(java: Java) -> tuple[tuple[int, ...], str]:
    return java.version, str(java.home)


def _find_homes() -> Iterator[Path]:
    """Yield the home directory of each Java in the directories in which installers put them, without symbolic links."""
    for directory in _DIRECTORIES:
        for entry in Path(directory).expanduser().glob("*"):
            for home in (entry, entry / "Contents" / "Home"):
                if (home / "bin" / "java").is_file():
                    yield home.resolve()


def _version_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
