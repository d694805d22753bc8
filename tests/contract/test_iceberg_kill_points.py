"""Crashes at every step of an epoch that writes Iceberg tables with a faulty catalog: each row is stored once."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.laws.generators import seed_runner
from tests.support.iceberg_tables import IcebergCatalogTable
from tests.support.local_pipeline_with_targets import LocalPipelineWithTargets
from tests.support.servers.iceberg_rest_catalog import IcebergRestCatalog
from tests.support.servers.object_store import Fault, FaultyProxy

import slackwater as sw
from slackwater.engine.kill_points import KILL_POINTS
from slackwater.state.files.store import FilesStore

S = 1_000_000
HOURS = 6 * 3_600 * S


def two_iceberg_table_pipeline(lake: IcebergCatalogTable, other: IcebergCatalogTable, port: int) -> sw.Pipeline:
    sessions = sw.Window(
        kind="session",
        gap_ms="5s",
        max_session_duration_ms="1m",
        group_by=["k"],
        aggregations=[sw.Aggregation(agg="count", as_="n")],
    )
    days = sw.Window(
        kind="tumbling",
        duration_ms="1d",
        max_groups_per_window=100,
        aggregations=[sw.Aggregation(agg="sum", column="n", as_="n")],
        emit="updates",
        late_data="reopen",
        allowed_lateness_ms=60_000,
    )
    return sw.pipeline(
        name="lakes",
        sources=[sw.Source(name="rows", dataframe=object())],
        connections={"tables": sw.IcebergConnection(catalog="rest", options={"uri": f"http://127.0.0.1:{port}"})},
        stages=[sw.Stage(name="visits", window=sessions), sw.Stage(name="days", window=days)],
        targets=[
            sw.Target(name="visits", connection="tables", from_="visits", table=lake.name, mode="append"),
            sw.Target(name="days", connection="tables", table=other.name),
        ],
        state_store=sw.StateStore(kind="in_memory"),
    )


def random_commit_faults(rng: random.Random) -> Callable[[str, str], Fault]:
    """Return a judge that disturbs 40% of the commits and no request that opens a table."""

    def judge(method: str, path: str) -> Fault:
        is_commit = method == "POST" and re.search(r"/tables/[^/]+$", path)
        return rng.choice(("lost", "twice", "503", "dropped")) if is_commit and rng.random() < 0.4 else ""

    return judge


def event_rows(epoch: int) -> list[dict[str, Any]]:
    return [{"k": k, "ts": epoch * HOURS + n * S} for n, k in enumerate("abca")]


def test_crashes_and_catalog_faults_neither_lose_nor_duplicate_rows(
    rest_catalog: IcebergRestCatalog, tmp_path: Path
) -> None:
    """Crash the run once at each step, before the first or the second table, while snapshots expire."""
    seed_runner.hide_warnings()
    seed = random.randrange(10**6)
    rng, lake, other = (
        random.Random(seed),
        *(IcebergCatalogTable("rest", rest_catalog.connection_options()) for _ in range(2)),
    )
    count = len(KILL_POINTS) + 2
    with FaultyProxy.start_proxy(rest_catalog.port) as door:
        door.judge = random_commit_faults(rng)
        pipeline = two_iceberg_table_pipeline(lake, other, door.port)
        store = lambda: FilesStore(str(tmp_path / "state"), "lakes")  # noqa: E731
        with LocalPipelineWithTargets(pipeline, {"k": "string"}, store=store, capture_losses=False) as test:
            for epoch, step in enumerate([*rng.sample(KILL_POINTS, len(KILL_POINTS)), None, None]):
                if step is not None:
                    test.crash(step, nth=rng.choice([1, 2]) if step.startswith(("write", "note")) else 1)
                test.pipe(event_rows(epoch))
                if epoch % 4 == 3:
                    lake.expire_old_snapshots(), other.expire_old_snapshots()
            test._faults.step = None
            test.flush()
        assert {fault for _, _, fault in door.faults} == {"lost", "twice", "503", "dropped"}, seed
    visits = sorted((k, n) for _ in range(count) for k, n in (("a", 2), ("b", 1), ("c", 1)))
    assert sorted(lake.read_rows().select("k", "n").rows()) == visits, seed
    expected = [sum(4 for epoch in range(count) if epoch // 4 == day) for day in range(-(-count // 4))]
    assert other.read_rows().sort("window_start")["n"].to_list() == expected, seed
    assert sorted(row[0] for row in lake.read_rows_with_duckdb("k")) == [k for k, _ in visits], seed
