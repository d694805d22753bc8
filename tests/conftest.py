"""Fixtures for all tests: one Spark session per run, and pipelines over small files."""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pytest

# The JVMs of a test run live for seconds or minutes: there the second compiler costs more than it gives back.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


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
    from slackwater import secrets

    yield
    secrets.forget()


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The one Spark session: two cores, quiet, UTC."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark's own imports warn; ours must not
        import pyspark

        from slackwater.spark import packages, session

        jars = [*packages.kafka_connector(pyspark.__version__)[0], *packages.avro(pyspark.__version__)]
        settings = {"spark.jars": ",".join(map(str, jars)), "spark.sql.shuffle.partitions": "2"}
        active = session.start({"spark.master": "local[2]", **settings})
    yield active
    active.stop()


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

    with Postgres.started() as server:
        yield server


@dataclass
class Runner:
    """Runs pipelines on Spark over JSON-lines files in a directory of its own."""

    spark: Any
    home: Path
    statuses: list[Any] = field(default_factory=list)
    notices: list[tuple[str, str]] = field(default_factory=list)

    def write(self, name: str, rows: Sequence[Mapping[str, Any]], folder: str = "in") -> Path:
        """One input file; modification times ascend with the order of writing, which is the order of reading."""
        directory = self.home / folder
        directory.mkdir(exist_ok=True)
        path = directory / name
        path.write_text("".join(json.dumps(r) + "\n" for r in rows))
        when = 1_600_000_000 + 10 * len(list(directory.iterdir()))
        os.utime(path, (when, when))
        return path

    def run(self, **settings: Any) -> pl.DataFrame:
        """Run with --available-now --flush unless told otherwise, and return the whole target, sorted."""
        import slackwater as sw

        lake = sw.FilesConnection()
        given: dict[str, Any] = {
            "name": "test",
            "target": lake,
            "target_path": str(self.home / "out"),
            "state_store": sw.StateStore(kind="files", path=str(self.home / "state")),
            "available_now": True,
            "flush": True,
            "spark": self.spark,
            "on_status": self.statuses.append,
            "on_notice": lambda level, line: self.notices.append((level, line)),
        } | settings
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PySpark's
            sw.run_streaming_pipeline(**given)
        return self.output()

    def output(self, folder: str = "out") -> pl.DataFrame:
        """What was published, as one frame sorted by its first columns."""
        found = sorted((self.home / folder).glob("*.parquet"))
        if not found:
            return pl.DataFrame()
        frame = pl.concat([pl.read_parquet(p) for p in found])
        return frame.sort(frame.columns[:4])

    def source(self, schema: str, name: str = "events", folder: str = "in", **settings: Any) -> Any:
        import slackwater as sw

        return sw.Source(
            name=name,
            connection=sw.FilesConnection(),
            query=str(self.home / folder / "*.jsonl"),
            format="json",
            schema=schema,
            **settings,
        )


@pytest.fixture
def runner(spark: Any, tmp_path: Path) -> Runner:
    return Runner(spark, tmp_path)


@pytest.fixture
def shared_data() -> Path:
    """The folder of real event files; only tests that read it may skip, and only where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("no folder of real event files beside the project")
    return SHARED


MakeRunner = Callable[[], Runner]
