"""One fault at a request of a run with state and target in a bucket.

The run continues, or it fails with a one-line error and the next start continues.
"""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.laws.generators import seed_runner
from tests.support.case_selection import exhaustive
from tests.support.servers.object_store import Fault, FaultyProxy, S3Server

from slackwater.config.window import Aggregation, Window
from slackwater.connectors.files.output_directory import open_directory
from slackwater.connectors.files.target import FilesTarget
from slackwater.connectors.target import TargetTable
from slackwater.errors import SlackwaterError
from slackwater.maintenance import verify_state
from slackwater.state.files.store import FilesStore
from slackwater.storage import object_client, object_store, object_store_lease
from slackwater.testing.local_pipeline import LocalPipeline

FAULTS: tuple[Fault, ...] = (
    "412", "done-412", "done-403", "half", "403", "500", "done-500", "400", "404", "done-404", "409", "429", "501", "cut",
)  # fmt: skip
WINDOW = Window(
    kind="tumbling",
    duration_ms=10,
    max_groups_per_window=1000,
    group_by=["u"],
    aggregations=[Aggregation(agg="count", as_="n"), Aggregation(agg="sum", column="id", as_="ids")],
)
EPOCHS = [
    [{"ts": 1000 * (epoch * 9 + n * 7 % 14), "u": "abc"[n % 3], "id": 1 << n} for n in range(epoch * 5, epoch * 5 + 5)]
    for epoch in range(6)
]
Answer = list[tuple[Any, ...]]


class RestartedPipeline(LocalPipeline):
    """A pipeline in a bucket that restarts after each error and repeats the failed step. `errors` lists the errors."""

    def __init__(self, url: str, options: dict[str, str]) -> None:
        self.url, self.options, self.errors = url, options, list[SlackwaterError]()
        super().__init__(WINDOW, {"u": "string", "id": "bigint"}, store=lambda: FilesStore(url, "law", options))

    def _set_targets(self, target_name: str) -> None:
        super()._set_targets(target_name)
        for name, target_pipeline in self.pipeline.per_target.items():
            columns = tuple(self._steps[str(target_pipeline.target.from_)].output)
            table = TargetTable("law", columns, None, self._state_id)
            self._targets[name] = FilesTarget(f"{self.url}/out", "parquet", table, self.options)  # type: ignore[assignment]

    def _start(self) -> None:
        for _ in range(4):
            try:
                self._set_targets("")
                self._start_driver()
                return
            except SlackwaterError as error:
                self.errors.append(error)
        raise AssertionError(self.errors)

    def _run_with_restart(self, work: Callable[[], object], again: bool = True, checkpoints: bool = False) -> None:
        for _ in range(4):
            try:
                work()
                return
            except SlackwaterError as error:
                self.errors.append(error)
                self._stop()
                self._start()
                if not again:
                    return
        raise AssertionError(self.errors)


def run_with_faults(
    s3: S3Server, proxy: FaultyProxy, judge: Callable[[str, str], Fault]
) -> tuple[Answer, list[SlackwaterError], int]:
    """Run, and return the rows in the target, the errors, and the number of requests of the run."""
    url = s3.create_bucket(f"b{uuid.uuid4().hex}")
    object_store._clients.clear()
    proxy.seen.clear()
    proxy.judge = judge
    test = RestartedPipeline(url, {**s3.connection_options(proxy.port), "timeout": "5s", "connect_timeout": "5s"})
    try:
        for rows in EPOCHS:
            test.pipe(rows)
        test.restart()
        test.quiet(10_000)
        test.flush()
    finally:
        proxy.judge = lambda method, path: ""
        requests = len(proxy.seen)
        test.close()
    files = sorted(open_directory(f"{url}/out", s3.connection_options()).local_copy().glob("*.parquet"))
    assert verify_state(FilesStore(url, "law", s3.connection_options())).problems == []
    return (
        sorted(pl.concat(map(pl.read_parquet, files)).select("u", "window_start", "n", "ids").rows()),
        test.errors,
        requests,
    )


@pytest.fixture
def s3_proxy(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    seed_runner.hide_warnings()
    monkeypatch.setenv("SLACKWATER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(object_client, "PATIENCE_S", 1.0)
    monkeypatch.setattr(object_store_lease, "RENEW_S", 1000.0)  # the order of requests is the same in every run
    with FaultyProxy.start_proxy(s3.port) as faulty_proxy:
        yield faulty_proxy


def inject_fault_once(number: int, fault: Fault) -> Callable[[str, str], Fault]:
    count = itertools.count()
    return lambda method, path: fault if next(count) == number else ""


def check_fault_points(s3: S3Server, proxy: FaultyProxy, fault: Fault, points: Callable[[int], list[int]]) -> None:
    expected, errors, requests = run_with_faults(s3, proxy, lambda method, path: "")
    assert expected and not errors
    for point in points(requests):
        proxy.faults.clear()
        actual, errors, _ = run_with_faults(s3, proxy, inject_fault_once(point, fault))
        where = (fault, point, proxy.faults, errors)
        assert actual == expected and len(proxy.faults) <= 1, where  # a run may send one request less than the first
        assert len(errors) < 2 and not any("\n" in str(error) for error in errors), where


def test_a_fault_at_a_few_requests_of_a_run_changes_no_row(s3: S3Server, s3_proxy: FaultyProxy) -> None:
    rng = random.Random(1)
    check_fault_points(s3, s3_proxy, FAULTS[0], lambda requests: rng.sample(range(requests), 4))


@exhaustive(beside="test_bucket_fault_points.py::test_a_fault_at_a_few_requests_of_a_run_changes_no_row")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_every_request_of_a_run_changes_no_row(fault: Fault, s3: S3Server, s3_proxy: FaultyProxy) -> None:
    """Every request has one of the faults, in a run of its own."""
    check_fault_points(s3, s3_proxy, fault, lambda requests: list(range(FAULTS.index(fault), requests, len(FAULTS))))
