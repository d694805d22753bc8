"""The JVM class archive of Spark: which Java it belongs to, and that a JVM which cannot use it prints nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from slackwater.errors import StartError
from slackwater.spark.sessions import jvm_class_archive

JAVA = shutil.which("java") or "java"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACKWATER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    monkeypatch.delenv("SPARK_LAUNCHER_OPTS", raising=False)


def current_archive() -> Path:
    path = jvm_class_archive.archive_path()
    assert path is not None
    return path


def test_an_archive_belongs_to_one_java_and_one_pyspark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = current_archive()
    assert first == current_archive()
    monkeypatch.setattr(jvm_class_archive.metadata, "version", lambda name: "4.0.0")
    assert current_archive() != first
    monkeypatch.undo()
    other = tmp_path / "other"
    (other / "bin").mkdir(parents=True)
    (other / "bin" / "java").write_text("#!/bin/sh\n")
    (other / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(other))
    assert current_archive() != first
    (other / "bin" / "java").unlink()
    assert jvm_class_archive.archive_path() is None


def test_a_start_uses_the_archive_and_restores_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with jvm_class_archive.use_archive():
        assert "SPARK_SUBMIT_OPTS" not in os.environ
    current_archive().parent.mkdir(parents=True)
    current_archive().touch()
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Xss2m")
    with jvm_class_archive.use_archive():
        assert os.environ["SPARK_SUBMIT_OPTS"].startswith(
            f"-Xss2m -XX:SharedArchiveFile={current_archive()} -Xshare:auto "
        )
        assert "SPARK_LAUNCHER_OPTS" in os.environ
    assert os.environ["SPARK_SUBMIT_OPTS"] == "-Xss2m"
    assert "SPARK_LAUNCHER_OPTS" not in os.environ
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-XX:SharedArchiveFile=mine.jsa")
    with jvm_class_archive.use_archive():
        assert os.environ["SPARK_SUBMIT_OPTS"] == "-XX:SharedArchiveFile=mine.jsa"


@pytest.mark.parametrize("held", [b"", b"no archive", bytes(100_000)])
def test_a_jvm_that_cannot_use_the_archive_prints_nothing(held: bytes) -> None:
    current_archive().parent.mkdir(parents=True)
    current_archive().write_bytes(held)
    (current_archive().parent / "Hello.java").write_text(
        "class Hello { public static void main(String[] a) { System.out.print(1); } }"
    )
    with jvm_class_archive.use_archive():
        options = os.environ["SPARK_SUBMIT_OPTS"].split()
        done = subprocess.run(
            [JAVA, *options, "Hello.java"], capture_output=True, text=True, cwd=current_archive().parent
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1", "")


def test_a_failed_archive_is_reported_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fails.py").write_text("import sys\nprint('line')\nsys.exit('it went wrong')\n")
    (tmp_path / "nothing.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(
        StartError, match=r"^the archive of Spark's classes was not created \(it went wrong\); Spark starts without it$"
    ):
        jvm_class_archive.make_archive("fails")
    with pytest.raises(StartError, match="the JVM wrote no file"):
        jvm_class_archive.make_archive("nothing")
    assert [p.name for p in current_archive().parent.iterdir()] == []
