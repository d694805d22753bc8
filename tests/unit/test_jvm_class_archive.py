"""The archive of Spark's classes: its path, its use at a start of Spark, and its failures."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from slackwater.errors import StartError
from slackwater.spark.sessions import jvm_launch
from slackwater.spark.sessions.jvm_launch import Java, find_default_java, find_fast_java

JAVAS = [java for java in (find_default_java(), find_fast_java()) if java is not None]


@pytest.fixture(autouse=True)
def use_temp_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACKWATER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    monkeypatch.delenv("SPARK_LAUNCHER_OPTS", raising=False)


@pytest.fixture(params=JAVAS, ids=lambda java: str(java.version[0]))
def configured_java(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Java:
    """Set JAVA_HOME to the Java on the path, and in a second case to the preferred Java if it is installed."""
    monkeypatch.setenv("JAVA_HOME", str(request.param.home))
    assert isinstance(request.param, Java)
    return request.param


def write_class_archive(java: Java, content: bytes = b"") -> Path:
    path = jvm_launch.class_archive_path(java)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_archive_path_depends_on_the_java_and_pyspark_version(
    configured_java: Java, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = jvm_launch.class_archive_path(configured_java)
    assert first == jvm_launch.class_archive_path(configured_java)
    monkeypatch.setattr(jvm_launch.metadata, "version", lambda name: "4.0.0")
    assert jvm_launch.class_archive_path(configured_java) != first
    monkeypatch.undo()
    assert jvm_launch.class_archive_path(create_fake_java(tmp_path / "other", None)) != first


def test_java_shim_script_has_an_archive_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Version managers put a script on the path, without a directory `bin` and a file `release`."""
    script = tmp_path / "shims" / "java"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    shim = find_default_java()
    assert shim == Java(script, ())
    assert jvm_launch.class_archive_path(shim).suffix == ".jsa"
    with jvm_launch.use_class_archive():
        assert "JAVA_HOME" not in os.environ


def test_start_uses_the_archive_and_restores_the_environment(
    configured_java: Java, monkeypatch: pytest.MonkeyPatch
) -> None:
    with jvm_launch.use_class_archive():
        assert "SPARK_SUBMIT_OPTS" not in os.environ
    option = "-XX:AOTCache" if configured_java.version >= (25,) else "-XX:SharedArchiveFile"
    archive = write_class_archive(configured_java)
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Xss2m")
    with jvm_launch.use_class_archive():
        assert os.environ["SPARK_SUBMIT_OPTS"].startswith(f"-Xss2m {option}={archive} -X")
        assert "SPARK_LAUNCHER_OPTS" in os.environ
    assert os.environ["SPARK_SUBMIT_OPTS"] == "-Xss2m"
    assert "SPARK_LAUNCHER_OPTS" not in os.environ
    for users in ("-XX:SharedArchiveFile=mine.jsa", "-XX:AOTCache=mine.aot"):
        monkeypatch.setenv("SPARK_SUBMIT_OPTS", users)
        with jvm_launch.use_class_archive():
            assert os.environ["SPARK_SUBMIT_OPTS"] == users


@pytest.mark.parametrize("content", [b"", b"no archive", bytes(100_000)])
def test_jvm_ignores_an_invalid_archive_silently(configured_java: Java, content: bytes) -> None:
    directory = write_class_archive(configured_java, content).parent
    (directory / "Hello.java").write_text(
        "class Hello { public static void main(String[] a) { System.out.print(1); } }"
    )
    with jvm_launch.use_class_archive():
        options = os.environ["SPARK_SUBMIT_OPTS"].split()
        done = subprocess.run(
            [configured_java.home / "bin" / "java", *options, "Hello.java"],
            capture_output=True,
            text=True,
            cwd=directory,
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1", "")


def create_fake_java(home: Path, version: str | None) -> Java:
    """Create a directory that looks like an installed Java."""
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\n")
    (home / "bin" / "java").chmod(0o755)
    if version is not None:
        (home / "release").write_text(f'IMPLEMENTOR="Someone"\nJAVA_VERSION="{version}"\nJAVA_VERSION_DATE="2026"\n')
    return Java.from_executable(home / "bin" / "java")


def test_local_spark_uses_a_prepared_java_25_unless_java_home_is_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("slackwater.spark.sessions.jvm_launch._DIRECTORIES", (str(tmp_path / "jvm"),))
    monkeypatch.setattr("slackwater.spark.sessions.jvm_launch.metadata.version", lambda name: "4.2.0")
    on_path = create_fake_java(tmp_path / "path", "17.0.2")
    monkeypatch.setenv("PATH", f"{on_path.home / 'bin'}:{os.environ['PATH']}")
    assert (find_default_java(), find_fast_java()) == (on_path, None)
    for version in ("21.0.4", "25", "25.0.2", "25.0.3", "26.0.1", "17"):
        create_fake_java(tmp_path / "jvm" / version, version)
    newest = create_fake_java(tmp_path / "jvm" / "mac" / "Contents" / "Home", "25.0.10")
    assert find_fast_java() == newest
    assert str(newest) == f"Java 25.0.10 in {newest.home}"

    write_class_archive(on_path)
    with jvm_launch.use_class_archive():  # the preferred Java has no archive
        assert "JAVA_HOME" not in os.environ
        assert "-XX:SharedArchiveFile=" in os.environ["SPARK_SUBMIT_OPTS"]
    write_class_archive(newest)
    with jvm_launch.use_class_archive():
        assert os.environ["JAVA_HOME"] == str(newest.home)
        assert "-XX:AOTCache=" in os.environ["SPARK_SUBMIT_OPTS"]
    assert "JAVA_HOME" not in os.environ
    with jvm_launch.use_class_archive(is_local=False):  # the executors of a cluster have their own Java
        assert "JAVA_HOME" not in os.environ
        assert "-XX:SharedArchiveFile=" in os.environ["SPARK_SUBMIT_OPTS"]

    monkeypatch.setenv("JAVA_HOME", str(on_path.home))
    assert find_fast_java() is None
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "missing"))
    assert (find_default_java(), find_fast_java()) == (None, None)
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setattr("slackwater.spark.sessions.jvm_launch.metadata.version", lambda name: "4.1.2")
    assert find_fast_java() is None


def test_failed_archive_creation_is_reported_and_leaves_no_file(
    configured_java: Java, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fails.py").write_text("import sys\nprint('line')\nsys.exit('it went wrong')\n")
    (tmp_path / "nothing.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(
        StartError,
        match=r"^could not create the class archive for Spark \(it went wrong\); Spark will start without it$",
    ):
        jvm_launch.make_class_archive(configured_java, "fails")
    with pytest.raises(StartError, match="the JVM wrote no file"):
        jvm_launch.make_class_archive(configured_java, "nothing")
    assert [p.name for p in jvm_launch.class_archive_path(configured_java).parent.iterdir()] == []
