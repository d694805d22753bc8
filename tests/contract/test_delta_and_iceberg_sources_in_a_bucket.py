"""Tables in an object store as sources: file addresses that Spark can read, and errors that name a missing package."""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.command import run_command_for_exit_code
from tests.support.delta_and_iceberg_source_tables import (
    COLUMNS,
    DeltaSourceTable,
    IcebergSourceTable,
    build_numbered_row,
    to_arrow_table,
)
from tests.support.servers.object_store import S3Server

import slackwater as sw
from slackwater.connectors.connector import connector_for
from slackwater.connectors.lake_tables.source import LakeTablePlanner
from slackwater.core.offsets import LakeTableOffsets
from slackwater.state.commit import SourceRecord

CONFIG = """name = "p"
[connections.lake]
KIND
[connections.out]
kind = "files"
[[sources]]
name = "events"
connection = "lake"
query = "QUERY"
[transform.window]
kind = "tumbling"
duration_ms = "4s"
event_time_column = "at"
group_by = ["user"]
max_groups_per_window = 100
aggregations = [{ agg = "count", as = "n" }]
[target]
connection = "out"
path = "out"
[state_store]
kind = "files"
path = "state"
"""


class BucketTable:
    """Delta or Iceberg table whose files are all in a bucket."""

    def __init__(self, kind: str, home: Path, s3: S3Server) -> None:
        self.bucket, s3_options = (
            s3.create_bucket(f"t{uuid.uuid4().hex}").removesuffix("/state"),
            s3.connection_options(),
        )
        if kind == "delta":
            self.options = {f"aws_{name}": value for name, value in s3_options.items()} | {"aws_allow_http": "true"}
            self.table: Any = _BucketDeltaTable(home, self.bucket, self.options)
            self.query = f"{self.bucket}/a table"
            return
        names = {
            "endpoint": "endpoint",
            "access_key_id": "access-key-id",
            "secret_access_key": "secret-access-key",
            "region": "region",
        }
        self.options = {f"s3.{names[name]}": value for name, value in s3_options.items()}
        self.options |= {"uri": f"sqlite:///{home}/catalog.db", "warehouse": f"{self.bucket}/warehouse"}
        self.table = IcebergSourceTable(home)
        self.table.lake.options = self.options
        self.query = "shop.events"

    @property
    def connection(self) -> Any:
        if self.query == "shop.events":
            return sw.IcebergConnection(catalog="sql", options=self.options)
        return sw.DeltaConnection(options=self.options)

    def create_source(self, connection: Any = None, **more: Any) -> Any:
        connection = connection or self.connection
        spec = sw.Source(name="events", connection=connection, query=self.query, **more)
        return connector_for(connection).source(None, None, spec, None)  # type: ignore[arg-type]  # Spark reads the data only

    @property
    def config_text(self) -> str:
        kind = 'kind = "delta"' if self.query != "shop.events" else 'kind = "iceberg"\ncatalog = "sql"'
        options = ", ".join(f'"{name}" = "{value}"' for name, value in self.options.items())
        return CONFIG.replace("KIND", f"{kind}\noptions = {{ {options} }}").replace("QUERY", self.query)


class _BucketDeltaTable(DeltaSourceTable):
    def __init__(self, home: Path, bucket: str, options: dict[str, str]) -> None:
        super().__init__(home)
        self.bucket, self.options = bucket, options

    def append_rows(self, rows: Any, columns: pa.Schema = COLUMNS) -> None:
        from deltalake import write_deltalake

        where = f"{self.bucket}/a table"
        write_deltalake(
            where, to_arrow_table(rows, columns), mode="append", partition_by=["day"], storage_options=self.options
        )


@pytest.fixture(params=["delta", "iceberg"])
def bucket_table(request: pytest.FixtureRequest, tmp_path: Path, s3: S3Server) -> BucketTable:
    return BucketTable(request.param, tmp_path, s3)


def plan_source_files(
    source: Any, offsets: LakeTableOffsets | None = None
) -> tuple[list[str], LakeTableOffsets | None]:
    """Return the files of the next epochs and the offsets after them."""
    planner, paths = LakeTablePlanner(source, SourceRecord(offsets=offsets)), list[str]()
    while (part := planner.next()) is not None:
        paths += [f.path for f in part.files]
        offsets = part.offsets_after
    return paths, offsets


def test_planned_files_in_a_bucket_have_addresses_that_spark_can_read(bucket_table: BucketTable) -> None:
    days = ["a b", "ä/c%+", None]
    bucket_table.table.append_rows([build_numbered_row(n, days[n % 3]) for n in range(6)])
    files, offsets = plan_source_files(bucket_table.create_source(max_files_per_trigger=2))
    place = re.escape(bucket_table.bucket.replace("s3://", "s3a://"))
    assert len(files) == 3
    assert all(re.fullmatch(rf"{place}/(a table|warehouse/.*)/.*\.parquet", f) for f in files)
    bucket_table.table.append_rows([build_numbered_row(n, days[n % 3]) for n in range(6, 9)])
    more, behind = plan_source_files(bucket_table.create_source(), offsets)
    assert len(more) == 3
    assert not {*files} & {*more}
    assert plan_source_files(bucket_table.create_source(), behind) == ([], behind)


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_run_without_the_s3a_connector_names_the_missing_package(
    bucket_table: BucketTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    bucket_table.table.append_rows([build_numbered_row(0)])
    Path("p.toml").write_text(bucket_table.config_text)
    assert run_command_for_exit_code(monkeypatch, "check", "p.toml", "--connect") == 0, (
        "versions are told without Spark"
    )
    said = capsys.readouterr()
    assert 'note: source "events": Spark needs a connector to read s3a://, and none is configured' in said.out
    assert run_command_for_exit_code(monkeypatch, "run", "p.toml", "--available-now") == 1
    said = capsys.readouterr()
    line = said.err.strip().splitlines()[-1]
    assert re.search(
        r'table .*: Spark has no connector for s3a:// addresses; name org.apache.hadoop:hadoop-aws in "spark.jars.packages"',
        line,
    )
    assert "not-so-secret" not in said.out + said.err
    assert "Traceback" not in said.err
