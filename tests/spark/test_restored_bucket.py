"""State and results in a bucket: a lost or older state is rejected, and every remedy gives each row once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.case_selection import exhaustive
from tests.support.restartable_pipeline import RestartablePipeline
from tests.support.servers.object_store import S3Server

import slackwater as sw
from slackwater.errors import StartError, StateError
from slackwater.storage.object_client import ObjectClient


class BucketPipeline(RestartablePipeline):
    """A pipeline whose state and target are below one URL."""

    def set_location(self, url: str, options: dict[str, str]) -> BucketPipeline:
        self.changes = {
            "connections": {"lake": sw.FilesConnection(), "out": sw.FilesConnection(options=options)},
            "target": sw.Target(connection="out", path=f"{url}/out"),
            "state_store": sw.StateStore(kind="files", path=f"{url}/state", shards=1, options=options),
        }
        self.client, self.copies = ObjectClient(url, options), dict[str, dict[str, bytes]]()
        return self

    def state_files(self) -> list[str]:
        return [f"state/{name}" for name in self.client.sizes("state")]

    def copy_state(self, name: str) -> None:
        self.copies[name] = {file: bytes(self.client.get(file).content) for file in self.state_files()}

    def restore_state(self, name: str) -> None:
        self.client.delete(self.state_files())
        for file, content in self.copies[name].items():
            self.client.put(file, content)


@pytest.fixture
def bucket_pipeline(tmp_path: Path, spark: Any, bucket: str, s3: S3Server) -> BucketPipeline:
    pipeline = BucketPipeline(tmp_path, spark, "files").set_location(bucket, s3.connection_options())
    pipeline.copy_state("none")
    pipeline.write_input_files(1, 2)
    pipeline.run_available_input()
    pipeline.copy_state("older")
    pipeline.write_input_files(3, 4, 5)
    pipeline.run_available_input()
    pipeline.copy_state("newer")
    return pipeline


def expect_refused_start(one: BucketPipeline, *words: str) -> None:
    """Check that a start fails with one line and changes neither the state nor the target."""
    rows, files = one.read_counts_per_minute(), [f for f in one.state_files() if not f.endswith(("/lock", "/runs"))]
    with pytest.raises((StateError, StartError)) as error:
        one.run_available_input()
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)
    assert (
        one.read_counts_per_minute() == rows
        and [f for f in one.state_files() if not f.endswith(("/lock", "/runs"))] == files
    )


def test_older_state_copy_is_rejected_and_the_newer_state_continues(bucket_pipeline: BucketPipeline) -> None:
    bucket_pipeline.restore_state("older")
    bucket_pipeline.write_input_files(6, 7)
    expect_refused_start(bucket_pipeline, "older copy", "restore the newer state", "--put-aside-output")
    bucket_pipeline.restore_state("newer")
    bucket_pipeline.run_available_input(flush=True)
    assert bucket_pipeline.read_counts_per_minute() == bucket_pipeline.expected


@exhaustive(beside="test_restored_bucket.py::test_older_state_copy_is_rejected_and_the_newer_state_continues")
def test_start_from_an_older_copy_moves_newer_output_files_away(bucket_pipeline: BucketPipeline) -> None:
    bucket_pipeline.restore_state("older")
    bucket_pipeline.write_input_files(6, 7)
    expect_refused_start(bucket_pipeline, "--put-aside-output")
    bucket_pipeline.run_available_input(former_output="aside")
    bucket_pipeline.write_input_files(8)
    bucket_pipeline.run_available_input(flush=True)
    assert bucket_pipeline.read_counts_per_minute() == bucket_pipeline.expected


@exhaustive(beside="test_restored_bucket.py::test_older_state_copy_is_rejected_and_the_newer_state_continues")
def test_missing_state_next_to_existing_output_is_rejected(bucket_pipeline: BucketPipeline) -> None:
    bucket_pipeline.restore_state("none")
    bucket_pipeline.write_input_files(6)
    expect_refused_start(bucket_pipeline, "of another state", "--put-aside-output")
    bucket_pipeline.restore_state("newer")
    bucket_pipeline.run_available_input(flush=True)
    assert bucket_pipeline.read_counts_per_minute() == bucket_pipeline.expected
