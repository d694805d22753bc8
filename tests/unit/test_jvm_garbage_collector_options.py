"""Test the JVM options for Spark: the garbage collector by number of tasks, and the precedence of user options."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from slackwater.spark.sessions import jvm_launch as module
from slackwater.spark.sessions.jvm_launch import jvm_options

SERIAL = "-XX:+UseSerialGC"
VARIABLES = (*module._VARIABLES, "PYSPARK_SUBMIT_ARGS", "SPARK_HOME", "SPARK_CONF_DIR", "SPARK_MASTER")


@pytest.fixture(autouse=True)
def _clear_user_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("master", ["local", "local[1]", "local[2]", "local[2,4]"])
def test_spark_with_up_to_two_tasks_uses_the_serial_garbage_collector(master: str) -> None:
    assert SERIAL in jvm_options({"spark.master": master})


@pytest.mark.parametrize("master", ["local[3]", "local[12]", "spark://host:7077", "yarn", "k8s://https://host"])
def test_spark_with_more_tasks_or_a_cluster_uses_the_default_garbage_collector(master: str) -> None:
    options = jvm_options({"spark.master": master})
    assert SERIAL not in options
    assert "-XX:Tier4InvocationThreshold=100000" in options


def test_number_of_spark_tasks_defaults_to_the_number_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, expected in ((2, True), (3, False)):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        assert (SERIAL in jvm_options({"spark.master": "local[*]"})) is expected
        assert (SERIAL in jvm_options({})) is expected


@pytest.mark.parametrize("name", [*module._VARIABLES, "PYSPARK_SUBMIT_ARGS"])
def test_garbage_collector_in_the_environment_takes_precedence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "-XX:+UseZGC")
    assert SERIAL not in jvm_options({"spark.master": "local[2]"})


@pytest.mark.parametrize("name", ["spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions"])
def test_garbage_collector_in_the_spark_settings_takes_precedence(name: str) -> None:
    assert SERIAL not in jvm_options({"spark.master": "local[2]", name: "-XX:+UseParallelGC"})


@pytest.mark.parametrize("variable", ["SPARK_CONF_DIR", "SPARK_HOME"])
def test_garbage_collector_in_the_spark_defaults_file_takes_precedence(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "conf" if variable == "SPARK_HOME" else tmp_path
    directory.mkdir(exist_ok=True)
    (directory / "spark-defaults.conf").write_text("spark.driver.extraJavaOptions -XX:+UseG1GC\n")
    monkeypatch.setenv(variable, str(tmp_path))
    assert SERIAL not in jvm_options({"spark.master": "local[2]"})


@pytest.mark.parametrize("master", ["local[2]", "local[8]"])
def test_java_accepts_the_jvm_options_without_warnings(master: str) -> None:
    java = shutil.which("java")
    assert java is not None
    command = [java, *jvm_options({"spark.master": master}).split(), "-XX:+UseG1GC" if "8" in master else "-Xmx1g"]
    done = subprocess.run([*command, "-version"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr.lower()
