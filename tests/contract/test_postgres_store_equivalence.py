"""The Postgres store on a real server, with the standard driver, gives the results of the files store."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.laws.generators import (
    dead_letter_replay_runs,
    final_emission_runs,
    join_runs,
    join_then_window_runs,
    random_stage_graph_runs,
    window_chain_runs,
    window_revision_runs,
    window_update_runs,
)
from tests.laws.generators.emission_mode_changes import EMISSION_MODES, run_every_emission_mode
from tests.support.case_selection import exhaustive, select_cases
from tests.support.local_pipeline_script import KILL_POINTS, DriverCrash, MicroBatch, QuietInterval, run_local_script

from slackwater.config.window import Aggregation, Window
from slackwater.state.commit import FORMAT
from slackwater.state.files.store import FilesStore
from slackwater.state.postgres.store import PostgresStore

REVISED_SEEDS = int(os.environ.get("SLACKWATER_SEEDS", "12"))
SCHEMA = {"user": "string", "amount": "bigint", "price": "decimal(10,2)", "page": "string"}
AGGREGATIONS = (
    Aggregation(agg="count", as_="n"),
    Aggregation(agg="sum", column="amount", as_="total"),
    Aggregation(agg="avg", column="price", as_="mean"),
    Aggregation(agg="last", column="page", as_="last_page"),
    Aggregation(agg="count_distinct", column="page", as_="pages"),
    Aggregation(agg="count_distinct", column="page", as_="exact", mode="exact", max_distinct_values_per_group=100),
)
WINDOWS = {
    "session": Window(
        kind="session", gap_ms=30, max_session_duration_ms=200, lateness_ms=40, group_by=["user"], aggregations=AGGREGATIONS
    ),
    "hopping": Window(
        kind="hopping", duration_ms=60, hop_ms=20, lateness_ms=40, group_by=["user"], max_groups_per_window=1000,
        aggregations=AGGREGATIONS,
    ),
    "tumbling": Window(
        kind="tumbling", duration_ms=60, lateness_ms=40, group_by=["user"], max_groups_per_window=1000,
        aggregations=AGGREGATIONS,
    ),
}  # fmt: skip


@pytest.fixture
def database_url(postgres: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    yield postgres.database(f"laws_{abs(hash(request.node.name)):x}")


def random_event_script(seed: int, crashes: bool) -> list[Any]:
    """Return a stream with disorder, ties, NULL keys and idle times, and optionally with a crash at each kill point."""
    from decimal import Decimal

    chance, now, items = random.Random(seed), 0, []
    steps = list(KILL_POINTS)
    for _ in range(14):
        rows = []
        for _ in range(chance.randrange(1, 25)):
            now += chance.randrange(0, 12) * 1000
            rows.append(
                {
                    "ts": max(now - chance.choice([0, 0, 0, 30_000, 90_000]), 0),
                    "user": chance.choice(["a", "b", "c", "d", None]),
                    "amount": chance.choice([1, 2, 2**54, None]),
                    "price": chance.choice([Decimal("1.25"), None]),
                    "page": chance.choice(["/", "", "/ü", None]),
                }
            )
        if crashes and steps:
            items.append(DriverCrash(steps.pop(0)))
        items.append(MicroBatch({"a": rows}))
        if chance.random() < 0.3:
            items.append(QuietInterval(200))
    return items


@pytest.mark.parametrize("crashes", select_cases([True, False]))
@pytest.mark.parametrize("kind", select_cases(WINDOWS, keep=2))
def test_windows_match_the_files_store_with_and_without_crashes(kind: str, crashes: bool, database_url: str) -> None:
    seed = list(WINDOWS).index(kind)
    expected = run_local_script(WINDOWS[kind], random_event_script(seed, False), SCHEMA)
    got = run_local_script(
        WINDOWS[kind],
        random_event_script(seed, crashes),
        SCHEMA,
        store=lambda: PostgresStore(database_url, "public", "law"),
        shards=2,
        reshard_after=9,
    )
    assert [{k: v for k, v in r.items() if k != "_epoch"} for r in got.rows] == [
        {k: v for k, v in r.items() if k != "_epoch"} for r in expected.rows
    ]
    assert got.counters == expected.counters
    assert got.rows


@pytest.mark.parametrize("first", select_cases(range(0, REVISED_SEEDS, 6)))
def test_revised_windows_match_their_definition_in_postgres(first: int, database_url: str) -> None:
    """Run the seeds of `tests.laws.generators.window_revision_runs`, with crashes and restarts, on the state tables."""
    for seed in range(first, first + 6):
        for cap_binds in (False, True)[: 2 if seed % 4 == 0 else 1]:
            window_revision_runs.check_revision_run(
                seed, cap_binds, lambda name=f"law {seed} {cap_binds}": PostgresStore(database_url, "public", name)
            )


@pytest.mark.parametrize("first", range(0, REVISED_SEEDS, 6))
@exhaustive(beside="test_postgres_store_equivalence.py::test_revised_windows_match_their_definition_in_postgres")
def test_target_matches_its_definition_after_each_epoch(first: int, database_url: str) -> None:
    """Run the seeds of `window_update_runs` and `final_emission_runs`, with crashes and reshards, on the state tables.

    Both generators are in `tests.laws.generators`.
    """
    for seed in range(first, first + 6):
        for name, run in (
            ("updates", window_update_runs.plan_update_run(seed)),
            ("final", final_emission_runs.plan_final_emission_run(seed)),
        ):
            window_update_runs.check_update_run(
                run, lambda name=f"{name} {seed}": PostgresStore(database_url, "public", name)
            )  # type: ignore[misc]


def test_open_sessions_can_be_read_with_sql(database_url: str) -> None:
    first, second = [{"ts": 0, "user": "a"}], [{"ts": 10_000, "user": "a"}, {"ts": 5000, "user": None}]
    run_local_script(
        WINDOWS["session"],
        [MicroBatch({"a": first}), MicroBatch({"a": second})],
        SCHEMA,
        store=lambda: PostgresStore(database_url, "state", "shop-1"),
        flush=False,
    )
    with psycopg.connect(database_url) as db:
        rows = db.execute(
            'SELECT pipeline_name, "user", window_start::text, last_event::text, "n.n" FROM state."slackwater_windows_shop-1"'
            " ORDER BY 2"
        ).fetchall()
        assert [(r[0], r[1], r[4]) for r in rows] == [("shop-1", "a", 2), ("shop-1", None, 1)]
        assert db.execute("SELECT epoch, state_version, open_windows FROM state.slackwater_pipelines").fetchall() == [
            (1, FORMAT, 2)
        ]


def test_closed_sessions_are_deleted_from_the_state_table(database_url: str) -> None:
    far = [MicroBatch({"a": [{"ts": 1_000_000 * n, "user": f"u{n}"}]}) for n in range(30)]
    run_local_script(
        WINDOWS["session"], far, SCHEMA, store=lambda: PostgresStore(database_url, "public", "p"), flush=False
    )
    with psycopg.connect(database_url) as db:
        assert db.execute("SELECT count(*) FROM slackwater_state_p").fetchone() == (1,)
        assert db.execute("SELECT count(*) FROM slackwater_staged_p").fetchone() == (0,)


@pytest.mark.parametrize("emit", select_cases(["updates", "on_close"]))
@pytest.mark.parametrize("kind", select_cases(WINDOWS, keep=2))
def test_expired_revisable_windows_are_deleted_from_the_state_table(kind: str, emit: str, database_url: str) -> None:
    """Give each second its own key, a row every 20 ms past the cap, then a row late for an emitted session."""
    window = WINDOWS[kind].model_copy(update={"late_data": "reopen", "allowed_lateness_ms": 150, "emit": emit})
    epochs = []
    for second in range(12):
        run = [{"ts": 1_000_000 * second + 20_000 * n, "user": f"u{second}"} for n in range(14)]
        epochs += [
            MicroBatch({"a": run}),
            MicroBatch({"a": [{**run[-1], "ts": run[-1]["ts"] + 110_000}]}),
            MicroBatch({"a": run[12:13]}),
        ]
    done = run_local_script(
        window, epochs, SCHEMA, store=lambda: PostgresStore(database_url, "public", "p"), flush=False
    )
    assert any(count for reason, count in done.counters.emitted.items() if reason in ("late", "update"))
    with psycopg.connect(database_url) as db:
        table = "slackwater_state_p"
        assert db.execute(f'SELECT DISTINCT "user" FROM {table}').fetchall() == [("u11",)]
        assert db.execute("SELECT count(*) FROM slackwater_staged_p").fetchone() == (0,)


def test_local_run_without_a_store_matches_the_files_store(tmp_path: Any) -> None:
    assert (
        run_local_script(WINDOWS["session"], random_event_script(1, False), SCHEMA).rows
        == run_local_script(
            WINDOWS["session"], random_event_script(1, False), SCHEMA, store=lambda: FilesStore(tmp_path, "x")
        ).rows
    )


@pytest.mark.parametrize("kind", ["tumbling", "session"])
def test_state_tables_are_reused_after_the_emission_mode_changes(kind: str, database_url: str) -> None:
    assert (
        run_every_emission_mode(kind, store=lambda: PostgresStore(database_url, "public", "law"))
        == EMISSION_MODES[kind]
    )


@exhaustive(beside="test_replay_of_dead_letters.py::test_target_has_the_batch_result_after_a_replay")
def test_replayed_dead_letters_are_applied_to_postgres_state(database_url: str) -> None:
    """Run the seeds with crashes. Sessions are restored from the target and deleted from the state tables again."""
    for seed in range(REVISED_SEEDS):
        dead_letter_replay_runs.check_dead_letter_replay(
            seed, lambda name=f"replay {seed}": PostgresStore(database_url, "public", name)
        )  # type: ignore[misc]


@pytest.mark.parametrize("first", select_cases(range(0, REVISED_SEEDS, 6)))
def test_joins_match_their_definition_in_postgres(first: int, database_url: str) -> None:
    """Run the seeds of `tests.laws.generators.join_runs`, with crashes and restarts."""
    for seed in range(first, first + 6):
        join_runs.check_run(seed, lambda name=f"join {seed}": PostgresStore(database_url, "public", name))  # type: ignore[misc]


@pytest.mark.parametrize("first", range(0, REVISED_SEEDS, 6))
@exhaustive(beside="test_postgres_store_equivalence.py::test_three_chained_windows_have_separate_state_tables")
def test_window_after_a_join_matches_its_definition_in_postgres(first: int, database_url: str) -> None:
    """Run the seeds of `tests.laws.generators.join_then_window_runs`: a window over a join, in one transaction."""
    for seed in range(first, first + 6):
        join_then_window_runs.check_join_then_window_run(
            seed, lambda name=f"chain {seed}": PostgresStore(database_url, "public", name)
        )  # type: ignore[misc]


@pytest.mark.parametrize("seed", select_cases([25, 79, 3, 4], 2))
def test_random_pipeline_graphs_hold_back_stage_results_in_postgres(seed: int, database_url: str) -> None:
    """Run seeds of `tests.laws.generators.random_stage_graph_runs`.

    The first two seeds have sessions that are cut behind the watermark and a join that is flushed.
    """
    random_stage_graph_runs.check_random_graph_run(seed, store=lambda: PostgresStore(database_url, "public", "law"))


@pytest.mark.parametrize("seed", select_cases(range(4), 2))
def test_three_chained_windows_have_separate_state_tables(seed: int, database_url: str) -> None:
    """Each stage has its own tables. The seed draws the crashes and reshards."""
    window_chain_runs.check_window_chain_run(seed, store=lambda: PostgresStore(database_url, "public", "law"))
    with psycopg.connect(database_url) as db:
        rows = db.execute(
            "SELECT tablename FROM pg_tables WHERE tablename LIKE 'slackwater_state%' ORDER BY 1"
        ).fetchall()
    assert [name for (name,) in rows] == [f"slackwater_state_law{stage}" for stage in ("", "#2", "#3")]
