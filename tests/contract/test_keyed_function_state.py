"""User-defined keyed functions in both stores: restarts, changed state schemas, and reads without user code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.laws.generators import keyed_timer_runs
from tests.support.keyed_functions import Reminders
from tests.support.local_pipeline_script import (
    DriverCrash,
    MicroBatch,
    PipelineRestart,
    build_pipeline,
    run_local_script,
)

import slackwater as sw
from slackwater.cli.why import format_report
from slackwater.config.keyed_step import KeyedFunctionError, load_keyed_function
from slackwater.config.state_comparison import COMPATIBLE, MIGRATED, REBUILD
from slackwater.core.schema import Field
from slackwater.errors import EpochError, StateError
from slackwater.evolution import pipeline_from_state
from slackwater.evolution.config_state_comparison import compare_config
from slackwater.evolution.pipeline_from_state import restore_operator
from slackwater.maintenance import verify_state
from slackwater.maintenance.compact import compact_state
from slackwater.operators.keyed_operator_base import StoredKeyedOperator
from slackwater.operators.registry import compile_step
from slackwater.query.why_report_builder import build_why_report
from slackwater.state.files.store import FilesStore
from slackwater.state.postgres.store import PostgresStore

NAME = "law"
SCHEMA = {"user": "string"}
S = 1_000_000
STEP = sw.Keyed(class_=Reminders, keys=["user"], options={"every": 10_000})
Make = Callable[[], Any]
SHOP = '''
import polars as pl
import slackwater as sw


class Totals(sw.KeyedFunction):
    """Emits the number of rows of a key so far."""

    state = STATE

    def advance(self, rows, state, watermark):
        before = rows.join(state.select(self.KEY, "n"), on=self.KEY, how="left", maintain_order="left")
        n = before.group_by(self.KEY, maintain_order=True).agg(
            pl.col("n").first().fill_null(0) + pl.len(), pl.lit(None, pl.Int64).alias(self.TIMER)
        )
        extra = [pl.lit(None).alias(name) for name in self.state if name != "n"]
        return sw.KeyedResult(rows, n.with_columns(extra))
'''


@pytest.fixture(params=["files", "postgres"])
def store_factory(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    if request.param == "files":
        return lambda: FilesStore(tmp_path / "state", NAME)
    url = request.getfixturevalue("postgres").database(f"function_{abs(hash(request.node.name)):x}")

    def database() -> PostgresStore:
        store = PostgresStore(url, "public", NAME)
        request.addfinalizer(store.close)
        return store

    return database


@pytest.fixture
def write_shop_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Mapping[str, str]], sw.Keyed]]:
    """Yield a function that writes a user package with the given state columns and returns the step of its class."""
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    (tmp_path / "packages" / "shop_totals").mkdir(parents=True)

    def write(state: Mapping[str, str]) -> sw.Keyed:
        unload_shop_package()
        text = SHOP.replace("STATE", repr(dict(state)))
        (tmp_path / "packages" / "shop_totals" / "__init__.py").write_text(text + f"# {len(list(state))}\n" * 9)
        sys.dont_write_bytecode = True
        return sw.Keyed(class_="shop_totals:Totals", keys=["user"])

    yield write
    unload_shop_package()


def unload_shop_package() -> None:
    load_keyed_function.cache_clear()
    sys.modules.pop("shop_totals", None)


def event_row(user: str | None, seconds: int) -> dict[str, Any]:
    return {"user": user, "ts": seconds * S}


def run_keyed_function(make: Make, *items: Any, step: sw.Keyed = STEP, **more: Any) -> Any:
    return run_local_script(step, items, SCHEMA, store=make, flush=False, **more)


@pytest.mark.parametrize("seed", range(6))
def test_keyed_function_matches_reference_loop_in_both_stores(seed: int, store_factory: Make) -> None:
    keyed_timer_runs.check_keyed_timer_seed(seed, store_factory)


def test_timers_survive_a_kill_and_a_changed_shard_count(store_factory: Make) -> None:
    """Rows of x at 0 s and of y at 11 s and 31 s give reminders of x at 10 s and 20 s, and of y at 21 s and 31 s."""
    run_keyed_function(store_factory, MicroBatch({"a": [event_row("x", 0)]}))
    first = run_keyed_function(
        store_factory, DriverCrash("emit.after"), MicroBatch({"a": [event_row("y", 11)]}), PipelineRestart(shards=3)
    )
    assert [(r["_event_ts"] // S, r["user"], r["number"]) for r in first.rows] == [(10, "x", 1)]
    second = run_keyed_function(store_factory, MicroBatch({"a": [event_row("y", 31)]}))
    reminded = sorted((r["_event_ts"] // S, r["user"], r["number"]) for r in second.rows)
    assert reminded == [(20, "x", 2), (21, "y", 1), (31, "y", 2)]
    assert verify_state(store_factory()).problems == []
    compact_state(store_factory())
    assert verify_state(store_factory()).problems == []


def test_state_readers_never_import_the_user_class(store_factory: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    run_keyed_function(store_factory, MicroBatch({"a": [event_row("x", 0)]}))
    load_keyed_function.cache_clear()
    monkeypatch.setitem(sys.modules, "tests.support.keyed_functions", None)  # a second import would fail
    with store_factory().peek() as snapshot:
        operator = restore_operator(snapshot.commit)
        assert isinstance(operator, StoredKeyedOperator)
        assert [f.name for f in operator.state_fields] == ["rows", "reminders"]
        rebuilt = pipeline_from_state.rebuild_pipeline(snapshot.commit)
        step = rebuilt.transform.step
        assert isinstance(step, sw.Keyed)
        with pytest.raises(
            KeyedFunctionError, match="Slackwater never imports code when it reads a state; pass the config instead"
        ):
            step.load_function()
        lines = list(format_report(build_why_report(rebuilt, store_factory(), 1, ["user=x"]), "x.toml"))
    assert "key user=x: 1 timer" in lines
    assert verify_state(store_factory()).problems == []


def test_class_path_stored_in_state_is_never_imported(
    store_factory: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state that names another class is compared with the config, without importing that class."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "evil_rules.py").write_text("raise SystemExit('imported')\n")
    run_keyed_function(store_factory, MicroBatch({"a": [event_row("x", 0)]}))
    with store_factory().peek() as snapshot:
        (stage,) = snapshot.commit.stages
        step = {**stage.described["step"], "class": "evil_rules:Evil"}
        wrong = stage.model_copy(update={"described": {**stage.described, "step": step}})
        commit = snapshot.commit.model_copy(update={"stages": (wrong,)})
    changes = compare_config(build_pipeline(STEP, ["a"], name=NAME), commit).changes
    assert [(c.key, c.before, c.after) for c in changes] == [("class", "evil_rules:Evil", STEP.class_)]
    assert pipeline_from_state.rebuild_pipeline(commit).transform.keyed is not None
    assert restore_operator(commit).fingerprint["kind"] == "keyed"
    assert "evil_rules" not in sys.modules


def test_changed_config_or_class_gets_compatibility_verdict(store_factory: Make, write_shop_package: Any) -> None:
    step = write_shop_package({"n": "bigint"})
    run_keyed_function(store_factory, MicroBatch({"a": [event_row("x", 0)]}), step=step)

    def changed(step: sw.Keyed) -> list[tuple[str, str]]:
        pipeline = build_pipeline(step, ["a"], name=NAME)
        operators = [compile_step(pipeline, {"a": {n: Field(n, t) for n, t in SCHEMA.items()}})]
        with store_factory().peek() as snapshot:
            return [(c.key, c.verdict) for c in compare_config(pipeline, snapshot.commit, steps=operators).changes]

    assert changed(step) == []
    assert changed(step.model_copy(update={"lateness_ms": 5})) == [("lateness_ms", COMPATIBLE)]
    assert changed(STEP) == [("class", COMPATIBLE), ("options", COMPATIBLE), ("state", REBUILD)]
    assert changed(write_shop_package({"n": "bigint", "note": "string"})) == [("state", MIGRATED)]
    assert changed(write_shop_package({"n": "double"})) == [("state", REBUILD)]
    with pytest.raises(
        StateError,
        match=r"written for another keyed stage \(state: state has \['n bigint'\], config has \['n double'\]",
    ):
        run_keyed_function(
            store_factory, MicroBatch({"a": [event_row("x", 1)]}), step=write_shop_package({"n": "double"})
        )


def test_added_state_column_is_null_in_stored_rows(store_factory: Make, write_shop_package: Any) -> None:
    run_keyed_function(
        store_factory,
        MicroBatch({"a": [event_row("x", 0), event_row("x", 1)]}),
        step=write_shop_package({"n": "bigint"}),
    )
    run_keyed_function(
        store_factory,
        MicroBatch({"a": [event_row("x", 2)]}),
        step=write_shop_package({"n": "bigint", "note": "string"}),
    )
    with store_factory().peek() as snapshot:
        operator = restore_operator(snapshot.commit)
        assert isinstance(operator, StoredKeyedOperator)
        rows = [snapshot.reader(shard, operator).scan() for shard in range(snapshot.commit.shards)]
        assert [r for frame in rows for r in frame.select("user", "n", "note").rows()] == [("x", 3, None)]
    assert verify_state(store_factory()).problems == []


def test_timer_that_never_advances_fails_the_epoch() -> None:
    step = sw.Keyed(class_="tests.support.keyed_functions:StuckTimerFunction", keys=["user"])
    with pytest.raises(
        EpochError,
        match="expire of keyed returned a row with the timer 0 µs for a key whose timer at 0 µs is due; return a later ",
    ):
        run_local_script(step, [MicroBatch({"a": [event_row("x", 0)]}), MicroBatch({"a": [event_row("y", 9)]})], SCHEMA)
