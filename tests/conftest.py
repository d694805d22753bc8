"""Fixtures for all tests: one Spark session per run, and pipelines over small files."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.register_assert_rewrite("tests.support", "tests.laws")
pytest_plugins = [
    "tests.support.browser",
    "tests.support.command",
    "tests.support.spark_pipeline_runner",
    "tests.support.kafka_topics",
    "tests.support.why_command_fixtures",
]

# Tests of Spark Connect load gRPC. Its fork handlers abort about one fork in 400, so that a process does not start.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# JVMs of a test run live for seconds or minutes: the second compiler and parallel collectors cost more than they save.
# With the default sizes of generations, collecting garbage takes 5 % of the CPU time of a session of tests.
os.environ.setdefault(
    "SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=256m -Xms600m -Xmn400m"
)
TESTS = Path(__file__).resolve().parent
SHARED = TESTS.parents[1] / "shared" / "data"


ROOMS = ("e2e", "spark", "contract", "laws", "unit")  # from few long files to many short ones
RAM = Path("/dev/shm")
ROOM = 4 << 30


class FailureReporter:
    """Print each failure as soon as it is known, so that the log of a run that is stopped early contains it."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal:
            terminal.ensure_newline()
            terminal.write_line(f"FAILED {report.nodeid} ({report.when})\n{report.longreprtext}")


def pytest_configure(config: pytest.Config) -> None:
    """Create test directories in memory if it has room, because a store syncs every file, which is slow on a disk."""
    if not hasattr(config, "workerinput"):  # the workers of pytest-xdist send their reports to this process
        config.pluginmanager.register(FailureReporter(config))
    if not os.access(RAM, os.W_OK | os.X_OK) or os.statvfs(RAM).f_flag & os.ST_NOEXEC:
        return
    if min(shutil.disk_usage(RAM).free, psutil.virtual_memory().available) > ROOM:
        tempfile.tempdir = str(RAM)


@contextmanager
def use_disk_for_temporary_files() -> Iterator[None]:
    """Create temporary directories on disk, for large data that need not be synced."""
    before, tempfile.tempdir = tempfile.tempdir, None
    try:
        yield
    finally:
        tempfile.tempdir = before


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run long files first, so that two workers end together. Keep the random order within each directory."""
    items.sort(key=lambda item: ROOMS.index(item.path.relative_to(TESTS).parts[0]))


@pytest.fixture(autouse=True)
def restore_log_level() -> Iterator[None]:
    """Restore the log level after each test, because seeded runs silence the log."""
    log = logging.getLogger("slackwater")
    level = log.level
    yield
    log.setLevel(level)


@pytest.fixture(autouse=True)
def forget_secrets_after_test() -> Iterator[None]:
    """Forget the secrets of each test, so that they are ordinary words in the next one."""
    from slackwater import secret_masking

    yield
    secret_masking.forget_secrets()


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Start the one Spark session of a test run: two cores, quiet, UTC."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark's own imports warn; ours must not
        import pyspark

        from slackwater.spark.sessions import spark_jars, spark_session

        jars = [
            *spark_jars.kafka_connector(pyspark.__version__)[0],
            *spark_jars.avro_connector(pyspark.__version__),
        ]
        settings = {"spark.jars": ",".join(map(str, jars)), "spark.sql.shuffle.partitions": "2"}
        active = spark_session.start_session({"spark.master": "local[2]", **settings})
    yield active
    code = active.sparkContext._gateway.proc.poll()
    if code is None:
        active.stop()
    else:  # tests that use Spark fail by themselves; the summary reports a crash after the last of them
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.warn(f"Spark's process had ended before the tests did, with {code}", stacklevel=1)


@pytest.fixture(scope="session")
def kafka() -> Iterator[Any]:
    """Start the one Kafka broker of a test run. Every test uses its own topics."""
    from slackwater.testing.services import Kafka

    with Kafka.started() as broker:
        yield broker
        broker.kill()  # a clean shutdown of hundreds of topics takes seconds


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """Start the one Postgres server of a test run. Every test uses its own database (`postgres.database(name)`)."""
    from slackwater.testing.services import Postgres

    with ExitStack() as stack:
        with use_disk_for_temporary_files():
            server = stack.enter_context(Postgres.started())
        yield server
        server.crash()  # nobody reads its data again


@pytest.fixture(scope="session")
def s3() -> Iterator[Any]:
    """Start the one S3 server of a test run. Every test uses its own bucket."""
    from tests.support.servers.object_store import S3Server

    with S3Server.started() as server:
        yield server


@pytest.fixture
def bucket(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of an empty bucket. Set the environment variables that connect to it, and use an empty cache."""
    for name, value in s3.connection_options().items():
        monkeypatch.setenv(f"AWS_{name.upper()}", value)
    monkeypatch.setenv("SLACKWATER_CACHE_DIR", str(tmp_path / "cache"))
    url: str = s3.create_bucket(f"b{uuid.uuid4().hex}")
    return url


@pytest.fixture(scope="session")
def schema_registry() -> Iterator[Any]:
    """Start the one schema registry of a test run. Every test uses its own subjects."""
    from tests.support.servers.schema_registry import SchemaRegistry

    with SchemaRegistry.started() as server:
        yield server


@pytest.fixture(scope="session")
def rest_catalog() -> Iterator[Any]:
    """Start the one Iceberg REST catalog of a test run. Every test uses its own namespace."""
    from tests.support.servers.iceberg_rest_catalog import IcebergRestCatalog

    with IcebergRestCatalog.started() as server:
        yield server


@pytest.fixture
def real_events_folder() -> Path:
    """Return the folder of real event files. Skip the test if the folder does not exist."""
    if not SHARED.is_dir():
        pytest.skip("no folder of real event files next to the project")
    return SHARED
