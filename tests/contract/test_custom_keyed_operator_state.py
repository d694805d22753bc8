"""A custom keyed operator in both stores and in every command that reads a state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.laws.generators import keyed_operator_runs
from tests.support import every_nth_row_operator
from tests.support.every_nth_row_operator import EveryNthRowOperator, EveryNthRowStep, EveryNthRowTransform
from tests.support.local_pipeline_script import MicroBatch, PipelineRestart, build_pipeline, run_local_script

from slackwater.cli.why import format_report
from slackwater.config.state_comparison import COMPATIBLE, REBUILD
from slackwater.core.schema import Field
from slackwater.errors import StartError, StateError
from slackwater.evolution import pipeline_from_state
from slackwater.evolution.config_state_comparison import compare_config
from slackwater.evolution.pipeline_from_state import restore_operator, restore_window
from slackwater.maintenance import verify_state
from slackwater.maintenance.compact import compact_state
from slackwater.maintenance.state_sizes import find_hot_keys
from slackwater.operators.keyed_operator_base import StoredKeyedOperator
from slackwater.query.why_report_builder import build_why_report
from slackwater.state.files.store import FilesStore
from slackwater.state.postgres.store import PostgresStore

NAME = "law"
SCHEMA = {"user": "string", "page": "string"}
BY_USER = EveryNthRowStep(every=2, keys=["user"])
Make = Callable[[], Any]


@pytest.fixture(autouse=True)
def register_nth_row_operator() -> Iterator[None]:
    with every_nth_row_operator.register_operator():
        yield


@pytest.fixture(params=["files", "postgres"])
def store_factory(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    if request.param == "files":
        return lambda: FilesStore(tmp_path / "state", NAME)
    url = request.getfixturevalue("postgres").database(f"keyed_{abs(hash(request.node.name)):x}")

    def database() -> PostgresStore:
        store = PostgresStore(url, "public", NAME)
        request.addfinalizer(store.close)
        return store

    return database


def event_row(user: str | None, ts: int = 0) -> dict[str, Any]:
    return {"user": user, "page": f"of {user}", "ts": ts}


def read_counts_by_user(make: Make) -> dict[Any, int]:
    """Return the stored count of each user."""
    with make().peek() as snapshot:
        step = restore_operator(snapshot.commit)
        assert isinstance(step, StoredKeyedOperator)
        scans = [snapshot.reader(shard, step).scan() for shard in range(snapshot.commit.shards)]
        return {user: n for f in scans for user, n in f.select("user", "__seen").iter_rows()}


def run_keyed_operator(make: Make, *items: Any, step: EveryNthRowStep = BY_USER) -> Any:
    return run_local_script(step, items, SCHEMA, store=make, transform_type=EveryNthRowTransform)


SOME = MicroBatch({"a": [event_row("x"), event_row("y", 5), event_row("x", 9), event_row(None), event_row("x", 7)]})


@pytest.mark.parametrize("seed", range(6))
def test_keyed_operator_counts_match_a_plain_loop(seed: int, store_factory: Make) -> None:
    keyed_operator_runs.check_keyed_operator_seed(seed, store_factory)


def test_custom_state_survives_resharding_verification_and_compaction(store_factory: Make) -> None:
    run_keyed_operator(
        store_factory,
        SOME,
        MicroBatch({"a": [event_row("x", 3)]}),
        PipelineRestart(shards=3),
        MicroBatch({"a": [event_row("z")]}),
    )
    assert read_counts_by_user(store_factory) == {"x": 4, "y": 1, "z": 1, None: 1}
    report = verify_state(store_factory())
    assert (report.problems, report.rows >= 4) == ([], True)
    store = store_factory()
    with store.peek() as snapshot:
        hottest = find_hot_keys(store, snapshot, 9)
        assert sorted(str(k.key["user"]) for k in hottest) == ["None", "x", "y", "z"]
        with pytest.raises(StateError, match="belongs to a nth; only windows can be inspected"):
            restore_window(snapshot.commit)
    compact_state(store_factory())
    assert read_counts_by_user(store_factory) == {"x": 4, "y": 1, "z": 1, None: 1}
    assert verify_state(store_factory()).problems == []


def test_verify_reports_rows_that_differ_from_the_counts_of_the_commit(
    store_factory: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_keyed_operator(store_factory, SOME)
    whole = EveryNthRowOperator.counts_after_ingest
    monkeypatch.setattr(
        EveryNthRowOperator,
        "counts_after_ingest",
        lambda self, before, reports: whole(self, whole(self, before, reports), reports),
    )
    run_keyed_operator(store_factory, MicroBatch({"a": [event_row("new")]}))
    assert [p for p in verify_state(store_factory()).problems if "the commit says" in str(p)], (
        "a key more is counted than is there"
    )


def test_config_changes_of_a_keyed_operator_are_classified(store_factory: Make) -> None:
    run_keyed_operator(store_factory, SOME)
    with store_factory().peek() as snapshot:

        def changed(step: EveryNthRowStep, **more: Any) -> list[tuple[str, str]]:
            pipeline = build_pipeline(step, ["a"], transform_type=EveryNthRowTransform, name=NAME)
            return [(c.key, c.verdict) for c in compare_config(pipeline, snapshot.commit, **more).changes]

        assert changed(BY_USER) == []
        assert changed(EveryNthRowStep(every=3, keys=["user"])) == [("every", COMPATIBLE)]
        assert changed(EveryNthRowStep(every=2, keys=["page"])) == [("keys", REBUILD)]
        other = EveryNthRowOperator(NAME, (Field("user", "bigint"),), (Field("user", "bigint"),), 2)
        assert changed(BY_USER, steps=[other]) == [("keys", REBUILD)], "its type is another"
    with pytest.raises(StateError, match=r"written for another nth \(keys: state has user, config has page"):
        run_keyed_operator(
            store_factory, MicroBatch({"a": [event_row("x")]}), step=EveryNthRowStep(every=2, keys=["page"])
        )


def test_why_report_has_no_waiting_rows_for_a_keyed_operator(
    store_factory: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_keyed_operator(store_factory, SOME)
    pipeline = build_pipeline(BY_USER, ["a"], transform_type=EveryNthRowTransform, name=NAME)
    report = build_why_report(pipeline, store_factory(), 1)
    assert (report.kind, report.open_keys, report.open_windows) == ("nth", 3, 0)
    assert "3 keys kept: no row is waiting, because each row is emitted in the epoch that reads it" in list(
        format_report(report, "x.toml")
    )
    monkeypatch.setattr(pipeline_from_state, "Transform", EveryNthRowTransform)
    with store_factory().peek() as snapshot:
        assert pipeline_from_state.rebuild_pipeline(snapshot.commit).transform.step == BY_USER, (
            "the state alone tells it"
        )
    report = build_why_report(pipeline, store_factory(), 1, ["user=x"])
    assert "key user=x: no timer is set" in list(format_report(report, "x.toml"))
    with pytest.raises(StartError, match='--key: "nobody" is not a key of this window; expected one of user'):
        build_why_report(pipeline, store_factory(), 1, ["nobody=x"])
