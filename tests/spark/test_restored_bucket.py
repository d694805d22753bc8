"""State and results in a bucket: a lost or older state is rejected, and every remedy gives each row once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.case_selection import exhaustive
from tests.support.restartable_pipeline import RestartablePipeline
from tests.support.servers.object_store import S3

import slackwater as sw
from slackwater.errors import StartError, StateError
from slackwater.storage.object_client import ObjectClient


class BucketContinued(RestartablePipeline):
    """A pipeline whose state and target are below one URL."""

    def place(self, url: str, options: dict[str, str]) -> BucketContinued:
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
def one(tmp_path: Path, spark: Any, bucket: str, s3: S3) -> BucketContinued:
    pipeline = BucketContinued(tmp_path, spark, "files").place(bucket, s3.options())
    pipeline.copy_state("none")
    pipeline.add(1, 2)
    pipeline.start()
    pipeline.copy_state("older")
    pipeline.add(3, 4, 5)
    pipeline.start()
    pipeline.copy_state("newer")
    return pipeline


def refused(one: BucketContinued, *words: str) -> None:
    """Check that a start fails with one line and changes neither the state nor the target."""
    rows, files = one.rows(), [f for f in one.state_files() if not f.endswith(("/lock", "/runs"))]
    with pytest.raises((StateError, StartError)) as error:
        one.start()
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)
    assert one.rows() == rows and [f for f in one.state_files() if not f.endswith(("/lock", "/runs"))] == files


def test_older_state_copy_is_rejected_and_the_newer_state_continues(one: BucketContinued) -> None:
    one.restore_state("older")
    one.add(6, 7)
    refused(one, "older copy", "restore the newer state", "--put-aside-output")
    one.restore_state("newer")
    one.start(flush=True)
    assert one.rows() == one.expected


@exhaustive(beside="test_restored_bucket.py::test_older_state_copy_is_rejected_and_the_newer_state_continues")
def test_start_from_an_older_copy_moves_newer_output_files_away(one: BucketContinued) -> None:
    one.restore_state("older")
    one.add(6, 7)
    refused(one, "--put-aside-output")
    one.start(former_output="aside")
    one.add(8)
    one.start(flush=True)
    assert one.rows() == one.expected


@exhaustive(beside="test_restored_bucket.py::test_older_state_copy_is_rejected_and_the_newer_state_continues")
def test_missing_state_next_to_existing_output_is_rejected(one: BucketContinued) -> None:
    one.restore_state("none")
    one.add(6)
    refused(one, "of another state", "--put-aside-output")
    one.restore_state("newer")
    one.start(flush=True)
    assert one.rows() == one.expected
