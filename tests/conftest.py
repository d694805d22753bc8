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
    "tests.support.runner",
    "tests.support.topics",
    "tests.support.why_states",
]

# Tests of Spark Connect load gRPC. Its fork handlers abort about one fork in 400, and with it the start of a process.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# The JVMs of a test run live for seconds or minutes: the second compiler and many collectors cost more than they give back.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
TESTS = Path(__file__).resolve().parent
SHARED = TESTS.parents[1] / "shared" / "data"


ROOMS = ("e2e", "spark", "contract", "laws", "unit")  # from few long files to many short ones
RAM = Path("/dev/shm")
ROOM = 4 << 30


def pytest_configure(config: pytest.Config) -> None:
    """Directories of tests lie in memory where there is room: a store syncs every file, which a disk takes its time for."""
    if not os.access(RAM, os.W_OK | os.X_OK) or os.statvfs(RAM).f_flag & os.ST_NOEXEC:
        return
    if min(shutil.disk_usage(RAM).free, psutil.virtual_memory().available) > ROOM:
        tempfile.tempdir = str(RAM)


@contextmanager
def on_disk() -> Iterator[None]:
    """For what is large, and need not be synced."""
    before, tempfile.tempdir = tempfile.tempdir, None
    try:
        yield
    finally:
        tempfile.tempdir = before


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, so that two workers end together; what pytest-randomly shuffled stays so within a room."""
    items.sort(key=lambda item: ROOMS.index(item.path.relative_to(TESTS).parts[0]))


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """What a test does to the level of the log ends with it: seeded runs are quiet."""
    log = logging.getLogger("slackwater")
    level = log.level
    yield
    log.setLevel(level)


@pytest.fixture(autouse=True)
def secrets_of_this_test() -> Iterator[None]:
    """What one test gave as a secret is an ordinary word in the next."""
    from slackwater import secret_masking

    yield
    secret_masking.forget_secrets()


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The one Spark session: two cores, quiet, UTC."""
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
    else:  # tests of it fail for themselves; behind the last one it is a line of the summary
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.warn(f"Spark's process had ended before the tests did, with {code}", stacklevel=1)


@pytest.fixture(scope="session")
def kafka() -> Iterator[Any]:
    """The one Kafka broker of a test run; every test takes topics of its own."""
    from slackwater.testing.services import Kafka

    with Kafka.started() as broker:
        yield broker


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """The one Postgres server of a test run; every test takes a database of its own (`postgres.database(name)`)."""
    from slackwater.testing.services import Postgres

    with ExitStack() as stack:
        with on_disk():
            server = stack.enter_context(Postgres.started())
        yield server


@pytest.fixture(scope="session")
def s3() -> Iterator[Any]:
    """The one S3 server of a test run; every test takes a bucket of its own."""
    from tests.support.servers.object_store import S3

    with S3.started() as server:
        yield server


@pytest.fixture
def bucket(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A place in an empty bucket, its URL; the environment says how it is reached, and the cache is empty."""
    for name, value in s3.options().items():
        monkeypatch.setenv(f"AWS_{name.upper()}", value)
    monkeypatch.setenv("SLACKWATER_CACHE_DIR", str(tmp_path / "cache"))
    url: str = s3.bucket(f"b{uuid.uuid4().hex}")
    return url


@pytest.fixture(scope="session")
def schema_registry() -> Iterator[Any]:
    """The one schema registry of a test run; every test takes subjects of its own."""
    from tests.support.servers.schema_registry import SchemaRegistry

    with SchemaRegistry.started() as server:
        yield server


@pytest.fixture(scope="session")
def rest_catalog() -> Iterator[Any]:
    """The one Iceberg REST catalog of a test run; every test takes a namespace of its own."""
    from tests.support.servers.iceberg_rest import RestCatalog

    with RestCatalog.started() as server:
        yield server


@pytest.fixture
def shared_data() -> Path:
    """The folder of real event files; only tests that read it may skip, and only where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("no folder of real event files next to the project")
    return SHARED
