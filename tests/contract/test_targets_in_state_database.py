"""Several targets with a Postgres state: tables in its database are written in the commit, other targets after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pytest
from tests.laws.generators import seeds
from tests.laws.generators.several_targets import SeveralTargetsRun
from tests.support.case_selection import select_cases
from tests.support.real_target_pipeline import RealTargetPipeline

import slackwater as sw
from slackwater.engine.kill_points import KILL_POINTS
from slackwater.errors import PublishError
from slackwater.state.commit import LETTERS
from slackwater.state.postgres.store import PostgresStore

SCHEMA = {"k": "string"}
S = 1_000_000


@pytest.fixture
def urls(postgres: Any, request: pytest.FixtureRequest) -> Iterator[list[str]]:
    name = f"{abs(hash(request.node.name)):x}"
    yield [postgres.database(f"here_{name}"), postgres.database(f"there_{name}")]


def described(urls: list[str], home: Path) -> sw.Pipeline:
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


def store(url: str) -> Callable[[], PostgresStore]:
    return lambda: PostgresStore(url, "public", "within")


def table(url: str, name: str) -> list[Any]:
    with psycopg.connect(url) as db:
        return sorted(db.execute(f"SELECT * FROM {name}").fetchall(), key=repr)


def files(home: Path) -> list[Any]:
    return sorted(pl.read_parquet(home / "out" / "*.parquet").rows(), key=repr)


def rows(second: int, keys: str) -> list[dict[str, Any]]:
    return [{"k": k, "ts": (second + n) * S} for n, k in enumerate(keys)]


@pytest.mark.parametrize("step", select_cases(KILL_POINTS))
def test_kills_neither_lose_nor_duplicate_rows_of_several_targets(step: str, urls: list[str], tmp_path: Path) -> None:
    seeds.hide_warnings()
    with RealTargetPipeline(described(urls, tmp_path), SCHEMA, store=store(urls[0]), capture_losses=False) as test:
        for n, second in enumerate((0, 10, 40, 60, 90)):
            if n in (2, 3, 4):  # kill at the first, second and third target that reaches the step
                test.crash(step, nth=n - 1, shards=n - 1)
            test.pipe(rows(second, "abca"))
        test._faults.step = None
        test.flush()
    visits = [(k, n) for k in "abc" for n in ([2, 2, 2, 2, 2] if k == "a" else [1] * 5)]
    assert sorted((k, n) for k, _, _, _, n in files(tmp_path)) == sorted(visits)
    assert [(k, n) for k, _, _, _, n in table(urls[0], "visits")] == [(k, n) for k, _, _, _, n in files(tmp_path)]
    assert table(urls[0], "hours") == table(urls[1], "hours") != []
    assert sum(n for *_, n in table(urls[0], "hours")) == 20


def test_rejecting_target_neither_blocks_nor_duplicates_other_targets(urls: list[str], tmp_path: Path) -> None:
    """The rejection causes a commit without targets. Every other target gets its rows, and one target is pending."""
    seeds.hide_warnings()
    with RealTargetPipeline(described(urls, tmp_path), SCHEMA, store=store(urls[0]), capture_losses=False) as test:
        test.pipe(rows(0, "ab"))
        with psycopg.connect(urls[0]) as db:
            db.execute("ALTER TABLE hours ADD CHECK (n < 3)")
        with pytest.raises(
            PublishError, match=r'^target "hours": table hours in Postgres at .*slackwater outbox show$'
        ):
            test.pipe(rows(10, "abc"))
            test.pipe(rows(60, "a"))
        store_ = test._driver.store
        assert test._driver.state.missing(store_.delivered_targets()) == ["hours"]
        written = files(tmp_path)
        with pytest.raises(PublishError, match='target "hours"'):  # the target stops the pipeline
            test.pipe(rows(90, "a"))
        assert files(tmp_path) == written
        assert len(table(urls[0], "visits")) == len(written)
        with pytest.raises(PublishError, match='target "hours"'):  # a new process fails in the same way
            test.restart()
        with store(urls[0])().peek() as snapshot:
            assert snapshot is not None and snapshot.missing == ["hours"]
            assert LETTERS not in snapshot.commit.recipients
        with psycopg.connect(urls[0]) as db:
            db.execute("ALTER TABLE hours DROP CONSTRAINT hours_n_check")
        test.restart()
        test.pipe(rows(90, "a"))
        test.flush()
    assert set(written) < set(files(tmp_path)) and len(set(files(tmp_path))) == len(files(tmp_path))
    assert len(table(urls[0], "visits")) == len(files(tmp_path))
    assert table(urls[0], "hours") == table(urls[1], "hours")


@pytest.mark.parametrize("seed", select_cases(range(6)))
def test_several_targets_with_a_postgres_state_match_the_batch_answer(seed: int, urls: list[str]) -> None:
    seeds.hide_warnings()
    SeveralTargetsRun(seed, lambda: PostgresStore(urls[0], "public", "law")).run()
