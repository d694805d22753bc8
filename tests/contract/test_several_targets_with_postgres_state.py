"""Several targets with a Postgres state: tables in its database are written in the commit, other targets after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pytest
from tests.laws.generators import seed_runner
from tests.laws.generators.several_target_runs import SeveralTargetsRun
from tests.support.case_selection import select_cases
from tests.support.local_pipeline_with_targets import LocalPipelineWithTargets

import slackwater as sw
from slackwater.engine.kill_points import KILL_POINTS
from slackwater.errors import PublishError
from slackwater.state.commit import LETTERS
from slackwater.state.postgres.store import PostgresStore

SCHEMA = {"k": "string"}
S = 1_000_000


@pytest.fixture
def database_urls(postgres: Any, request: pytest.FixtureRequest) -> Iterator[list[str]]:
    name = f"{abs(hash(request.node.name)):x}"
    yield [postgres.database(f"here_{name}"), postgres.database(f"there_{name}")]


def four_target_pipeline(urls: list[str], home: Path) -> sw.Pipeline:
    window = {"emit": "updates", "late_data": "reopen", "allowed_lateness_ms": 60_000}
    session = sw.Window(
        kind="session",
        gap_ms="5s",
        max_session_duration_ms="1m",
        group_by=["k"],
        aggregations=[sw.Aggregation(agg="count", as_="n")],
    )
    hours = sw.Window(
        kind="tumbling",
        duration_ms="20s",
        max_groups_per_window=100,
        aggregations=[sw.Aggregation(agg="sum", column="n", as_="n")],
        **window,
    )
    return sw.pipeline(
        name="within",
        sources=[sw.Source(name="rows", dataframe=object())],
        connections={
            "here": sw.PostgresConnection(url=urls[0]),
            "there": sw.PostgresConnection(url=urls[1]),
            "lake": sw.FilesConnection(),
        },
        stages=[sw.Stage(name="visits", window=session), sw.Stage(name="hours", window=hours)],
        targets=[
            sw.Target(name="files", connection="lake", from_="visits", path=str(home / "out")),
            sw.Target(name="here", connection="here", from_="visits", table="visits"),
            sw.Target(name="hours", connection="here", table="hours"),
            sw.Target(name="there", connection="there", table="hours"),
        ],
        state_store=sw.StateStore(kind="postgres", url=urls[0]),
    )


def store_factory(url: str) -> Callable[[], PostgresStore]:
    return lambda: PostgresStore(url, "public", "within")


def read_table_rows(url: str, name: str) -> list[Any]:
    with psycopg.connect(url) as db:
        return sorted(db.execute(f"SELECT * FROM {name}").fetchall(), key=repr)


def read_file_rows(home: Path) -> list[Any]:
    return sorted(pl.read_parquet(home / "out" / "*.parquet").rows(), key=repr)


def rows_of_keys(second: int, keys: str) -> list[dict[str, Any]]:
    return [{"k": k, "ts": (second + n) * S} for n, k in enumerate(keys)]


@pytest.mark.parametrize("step", select_cases(KILL_POINTS))
def test_kills_neither_lose_nor_duplicate_rows_of_several_targets(
    step: str, database_urls: list[str], tmp_path: Path
) -> None:
    seed_runner.hide_warnings()
    with LocalPipelineWithTargets(
        four_target_pipeline(database_urls, tmp_path),
        SCHEMA,
        store=store_factory(database_urls[0]),
        capture_losses=False,
    ) as test:
        for n, second in enumerate((0, 10, 40, 60, 90)):
            if n in (2, 3, 4):  # kill at the first, second and third target that reaches the step
                test.crash(step, nth=n - 1, shards=n - 1)
            test.pipe(rows_of_keys(second, "abca"))
        test._faults.step = None
        test.flush()
    visits = [(k, n) for k in "abc" for n in ([2, 2, 2, 2, 2] if k == "a" else [1] * 5)]
    assert sorted((k, n) for k, _, _, _, n in read_file_rows(tmp_path)) == sorted(visits)
    assert [(k, n) for k, _, _, _, n in read_table_rows(database_urls[0], "visits")] == [
        (k, n) for k, _, _, _, n in read_file_rows(tmp_path)
    ]
    assert read_table_rows(database_urls[0], "hours") == read_table_rows(database_urls[1], "hours") != []
    assert sum(n for *_, n in read_table_rows(database_urls[0], "hours")) == 20


def test_rejecting_target_neither_blocks_nor_duplicates_other_targets(database_urls: list[str], tmp_path: Path) -> None:
    """The rejection causes a commit without targets. Every other target gets its rows, and one target is pending."""
    seed_runner.hide_warnings()
    with LocalPipelineWithTargets(
        four_target_pipeline(database_urls, tmp_path),
        SCHEMA,
        store=store_factory(database_urls[0]),
        capture_losses=False,
    ) as test:
        test.pipe(rows_of_keys(0, "ab"))
        with psycopg.connect(database_urls[0]) as db:
            db.execute("ALTER TABLE hours ADD CHECK (n < 3)")
        with pytest.raises(
            PublishError, match=r'^target "hours": table hours in Postgres at .*slackwater outbox show$'
        ):
            test.pipe(rows_of_keys(10, "abc"))
            test.pipe(rows_of_keys(60, "a"))
        store_ = test._driver.store
        assert test._driver.state.missing(store_.delivered_targets()) == ["hours"]
        written = read_file_rows(tmp_path)
        with pytest.raises(PublishError, match='target "hours"'):  # the target stops the pipeline
            test.pipe(rows_of_keys(90, "a"))
        assert read_file_rows(tmp_path) == written
        assert len(read_table_rows(database_urls[0], "visits")) == len(written)
        with pytest.raises(PublishError, match='target "hours"'):  # a new process fails in the same way
            test.restart()
        with store_factory(database_urls[0])().peek() as snapshot:
            assert snapshot is not None and snapshot.missing == ["hours"]
            assert LETTERS not in snapshot.commit.recipients
        with psycopg.connect(database_urls[0]) as db:
            db.execute("ALTER TABLE hours DROP CONSTRAINT hours_n_check")
        test.restart()
        test.pipe(rows_of_keys(90, "a"))
        test.flush()
    assert set(written) < set(read_file_rows(tmp_path)) and len(set(read_file_rows(tmp_path))) == len(
        read_file_rows(tmp_path)
    )
    assert len(read_table_rows(database_urls[0], "visits")) == len(read_file_rows(tmp_path))
    assert read_table_rows(database_urls[0], "hours") == read_table_rows(database_urls[1], "hours")


@pytest.mark.parametrize("seed", select_cases(range(6)))
def test_several_targets_with_a_postgres_state_match_the_batch_result(seed: int, database_urls: list[str]) -> None:
    seed_runner.hide_warnings()
    SeveralTargetsRun(seed, lambda: PostgresStore(database_urls[0], "public", "law")).run()
