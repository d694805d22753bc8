"""Contract tests of a target: it publishes each epoch once and completely, and never an older epoch."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import polars as pl
import pytest
from tests.support.servers.object_store import Fault, FaultyProxy, S3Server

from slackwater.connectors.console.connector import ConsoleTarget
from slackwater.connectors.files.output_directory import BucketDirectory, open_directory
from slackwater.connectors.files.target import FilesTarget
from slackwater.connectors.target import TargetTable
from slackwater.core.schema import Field
from slackwater.errors import PublishError

FIELDS = [Field("window_start", "timestamp"), Field("key", "string"), Field("raw", "binary"), Field("n", "bigint")]

TABLE = TargetTable("p", tuple(FIELDS), ("window_start", "key"))


def one_row_frame(n: int) -> pl.DataFrame:
    event_time = dt.datetime(2024, 3, 1, 9, 0, 0, 250_000, dt.UTC)
    return pl.DataFrame(
        {"window_start": [event_time], "key": [None], "raw": [b"\x01\xff"], "n": [n]},
        schema={f.name: f.polars for f in FIELDS},
    )


def list_published_files(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir() if p.is_file())


@pytest.mark.semantics("delivery")
@pytest.mark.parametrize("form", ["parquet", "json", "csv"])
def test_an_epoch_is_published_once_and_an_older_one_ignored(tmp_path: Path, form: str) -> None:
    """A files target publishes each epoch once and ignores older ones. Targets in databases and topics have the same
    test.
    """
    target = FilesTarget(tmp_path, form, TABLE)
    target.publish(3, one_row_frame(1))
    first = list_published_files(tmp_path)
    target.publish(3, one_row_frame(2))
    target.publish(2, one_row_frame(2))
    assert list_published_files(tmp_path) == first
    FilesTarget(tmp_path, form, TABLE).publish(4, one_row_frame(2))
    assert target.last_epoch() == 4
    assert len(list_published_files(tmp_path)) == 2
    FilesTarget(tmp_path, form, TargetTable("other", tuple(FIELDS), ("window_start", "key"))).publish(
        0, one_row_frame(9)
    )
    assert len(list_published_files(tmp_path)) == 3


def test_parquet_has_the_declared_types(tmp_path: Path) -> None:
    FilesTarget(tmp_path, "parquet", TABLE).publish(0, one_row_frame(1))
    assert pl.read_parquet(tmp_path / "p-000000000.parquet").equals(one_row_frame(1))


def test_text_formats_write_times_as_iso_and_bytes_as_hexadecimal(tmp_path: Path) -> None:
    FilesTarget(tmp_path, "json", TABLE).publish(0, one_row_frame(1))
    (line,) = (tmp_path / "p-000000000.jsonl").read_text().splitlines()
    expected = {"window_start": "2024-03-01T09:00:00.250000Z", "key": None, "raw": "01ff", "n": 1}
    assert json.loads(line) == expected
    FilesTarget(tmp_path / "c", "csv", TABLE).publish(0, one_row_frame(1))
    assert (tmp_path / "c" / "p-000000000.csv").read_text() == (
        "window_start,key,raw,n\n2024-03-01T09:00:00.250000Z,,01ff,1\n"
    )


def test_error_for_unwritable_directory_names_the_epoch(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PublishError, match=r"did not accept epoch 0 .* and will be published at the next start"):
        FilesTarget(tmp_path / "file", "csv", TABLE).publish(0, one_row_frame(1))


def test_console_shows_rows_and_guarantees_at_least_once(capsys: pytest.CaptureFixture[str]) -> None:
    ConsoleTarget().publish(7, one_row_frame(5))
    assert "epoch 7: 1 row\n" in capsys.readouterr().out
    assert ConsoleTarget.guarantee == "at least once"


# -- in an object store ------------------------------------------------------------------------------------------------


def bucket_target(url: str, form: str = "parquet", table: TargetTable = TABLE) -> FilesTarget:
    return FilesTarget(url, form, table)


@pytest.mark.parametrize("form", ["parquet", "json", "csv"])
def test_bucket_target_publishes_once_and_writes_the_same_files_as_a_directory(
    bucket: str, tmp_path: Path, form: str
) -> None:
    for epoch in (3, 3, 2, 4):
        bucket_target(bucket, form).publish(epoch, one_row_frame(epoch))
        FilesTarget(tmp_path / "d", form, TABLE).publish(epoch, one_row_frame(epoch))
    assert bucket_target(bucket, form).last_epoch() == 4
    bucket_copy, directory = open_directory(bucket).local_copy(), tmp_path / "d"
    assert list_published_files(bucket_copy) == list_published_files(directory) != []
    for name in list_published_files(directory):
        assert (bucket_copy / name).read_bytes() == (directory / name).read_bytes()
    again = open_directory(bucket)
    assert isinstance(again, BucketDirectory)
    again.local_copy()
    assert not again.client.requests["get"], "what was fetched is kept"


def test_fenced_runner_cannot_publish_to_a_bucket(bucket: str) -> None:
    stale = bucket_target(bucket)
    stale.publish(0, one_row_frame(0))
    for epoch in (1, 2):
        bucket_target(bucket).publish(epoch, one_row_frame(epoch))
    with pytest.raises(
        PublishError, match=r"another runner has written s3://.*/_slackwater/p.json; this runner is stopping"
    ):
        stale.publish(1, one_row_frame(1))
    assert bucket_target(bucket).last_epoch() == 2


def test_bucket_output_of_a_previous_state_is_reported_and_moved(bucket: str) -> None:
    bucket_target(bucket, table=TargetTable("p", tuple(FIELDS), None, "aaaaaaaaaa")).publish(5, one_row_frame(1))
    new = bucket_target(bucket, table=TargetTable("p", tuple(FIELDS), None, "bbbbbbbbbb"))
    assert new.describe_previous_output() == f'1 file of another state of "p" in "{bucket}", up to epoch 5'
    aside = new.put_aside()
    assert aside is not None and aside.startswith(f'"{bucket}/_slackwater/before-')
    assert new.describe_previous_output() is None and new.last_epoch() == -1
    new.publish(0, one_row_frame(2))
    assert new.last_epoch() == 0


@pytest.mark.parametrize("fault", ["503", "dropped", "lost", "slow"])
def test_failed_requests_do_not_change_published_epochs(bucket: str, s3: S3Server, fault: Fault) -> None:
    with FaultyProxy.start_proxy(s3.port) as door:
        count = [0]

        def judge(method: str, path: str) -> Fault:
            count[0] += 1
            return fault if count[0] % 3 == 0 else ""

        door.judge = judge
        target = FilesTarget(bucket, "parquet", TABLE, s3.connection_options(door.port))
        for epoch in range(6):
            target.publish(epoch, one_row_frame(epoch))
        assert door.faults
    frame = pl.concat(pl.read_parquet(p) for p in sorted(open_directory(bucket).local_copy().glob("*.parquet")))
    assert frame["n"].to_list() == list(range(6))


def test_missing_bucket_is_reported_and_the_epoch_stays_pending(bucket: str, s3: S3Server) -> None:
    message = r'target s3://no-such-bucket/out: there is no bucket "no-such-bucket".*; epoch 0 is committed and will be published at the next start'
    with pytest.raises(PublishError, match=message):
        bucket_target("s3://no-such-bucket/out").publish(0, one_row_frame(0))


def test_epoch_in_a_bucket_needs_two_put_requests(bucket: str) -> None:
    target = bucket_target(bucket)
    target.publish(0, one_row_frame(0))
    folder = target._folder
    assert isinstance(folder, BucketDirectory)
    folder.client.requests.clear()
    for epoch in range(1, 5):
        target.publish(epoch, one_row_frame(epoch))
    assert dict(folder.client.requests) == {"put": 8}
