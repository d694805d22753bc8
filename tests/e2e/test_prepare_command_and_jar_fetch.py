"""`slackwater prepare` as a command, and concurrent first fetches of the connector jars."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.case_selection import exhaustive

from slackwater.spark.sessions import jvm_launch
from slackwater.spark.sessions.jvm_launch import find_default_java, find_fast_java


@exhaustive(beside="test_jvm_class_archive.py::test_start_uses_the_archive_and_restores_the_environment")
def test_prepare_builds_the_class_archive_once_and_the_jvm_loads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACKWATER_CACHE", str(tmp_path / "cache"))
    java = find_fast_java() or find_default_java()
    assert java is not None
    archive = jvm_launch.class_archive_path(java)
    command = [sys.executable, "-m", "slackwater.cli.main", "prepare"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert archive.stat().st_size > 50 << 20
    before = archive.stat().st_mtime_ns
    assert subprocess.run(command, capture_output=True).returncode == 0
    assert archive.stat().st_mtime_ns == before
    loaded = tmp_path / "loaded"
    starts = "from slackwater.spark.sessions import spark_session; spark_session.start_session({'spark.master': 'local[1]'}).stop()"
    options = {"SPARK_SUBMIT_OPTS": f"-Xlog:class+load:file={loaded}"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", starts], env={**os.environ, **options}, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    spark = [line for line in loaded.read_text().splitlines() if " org.apache.spark." in line]
    assert sum(" shared objects file" in line for line in spark) > len(spark) / 2 > 1000


def test_concurrent_first_starts_share_the_fetched_jars(tmp_path: Path) -> None:
    env = {**os.environ, "SLACKWATER_CACHE": str(tmp_path)}
    fetches = """
import sys
from slackwater.spark.sessions import spark_jars
fetch = spark_jars._fetch_whole
spark_jars._fetch_whole = lambda home, run: (fetch(home, run), print("fetched", home, file=sys.stderr))
print(*spark_jars.connector_jars("kafka"))
"""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", fetches], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    outputs = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], outputs
    assert len({out for out, _ in outputs}) == 1
    assert all(Path(jar).stat().st_size for jar in outputs[0][0].split())
    assert not list((tmp_path / "jars").glob(".fetch-*"))
    fetched = [line for _, errors in outputs for line in errors.splitlines() if line.startswith("fetched ")]
    assert len(fetched) == len(set(fetched)) > 0, outputs
