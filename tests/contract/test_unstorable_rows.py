"""Rows that a target or a state cannot store become bad rows before the commit. All targets and stores are real."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pytest
from tests.support.iceberg_tables import sql_catalog_table
from tests.support.local_pipeline_script import build_pipeline
from tests.support.single_stage_components import build_single_stage_driver

from slackwater.config.join import Join
from slackwater.config.window import Aggregation, Window
from slackwater.connectors.delta.target import DeltaTarget
from slackwater.connectors.files.target import FilesTarget
from slackwater.connectors.postgres.target import PostgresTarget
from slackwater.connectors.source import Batch
from slackwater.connectors.target import TargetTable
from slackwater.core.dead_letter_columns import LETTER
from slackwater.core.schema import YEARS, Field, ValueLimits
from slackwater.engine.observer import DriverCallbacks
from slackwater.errors import BadRowError
from slackwater.operators import registry as compiling
from slackwater.operators import unstorable_rows
from slackwater.operators.dead_letters import OUTSIDE
from slackwater.state.files.store import FilesStore
from slackwater.state.postgres.store import PostgresStore
from slackwater.testing.local_engine import LocalEngine
from slackwater.testing.rows_without_spark import PolarsRowPreparer

SCHEMA = {"k": "string", "s": "string", "at": "timestamp", "n": "bigint"}
WINDOW = Window(
    kind="tumbling", duration_ms=1000, group_by=["k"], max_groups_per_window=100, lateness_ms=0,
    aggregations=[
        Aggregation(agg="count", as_="n"), Aggregation(agg="max", column="s", as_="m"), Aggregation(agg="max", column="at", as_="last"),
        Aggregation(agg="top_k", column="s", k=2, max_distinct_values_per_group=9, as_="top"),
    ],
)  # fmt: skip
SESSION = WINDOW.model_copy(
    update={
        "kind": "session",
        "duration_ms": None,
        "gap_ms": 10,
        "max_session_duration_ms": 1000,
        "max_groups_per_window": None,
    }
)
JOIN = Join(kind="full", left_source="a", right_source="a2", left_keys=["k"], right_keys=["k"], time_window_ms=10)
OK = {"ts": 10**12, "k": "ok", "s": "v", "at": 0, "n": 1}
POISON = {
    "U+0000 in the key": ({"k": "a\0b"}, unstorable_rows.ZERO),
    "U+0000 in a value": ({"s": "x\0y"}, unstorable_rows.ZERO),
    "year -3000": ({"ts": -157_000_000_000_000_000}, OUTSIDE),
    "year -290000": ({"ts": -(2**63) + 10}, OUTSIDE),
    "a window that ends after year 9999": ({"ts": YEARS[1] - 5}, OUTSIDE),
    "a time in a value": ({"at": -157_000_000_000_000_000}, unstorable_rows.RANGE),
    "a large key": ({"k": "".join(uuid.uuid4().hex for _ in range(100))}, unstorable_rows.KEY),
    "a key of one letter, large": ({"k": "x" * 1_000_000}, unstorable_rows.KEY),
}
FINE = [
    {"k": "\ufffe\uffff\U0010ffff", "s": "\x1b[2J\r\n\t\\.\n"}, {"k": "\\.", "s": "\\N"}, {"k": "\\N", "s": '"'}, {"k": "", "s": ""},
    {"k": None, "s": None}, {"k": "k" * 2600, "s": "y" * 100_000}, {"k": "\\u0000"}, {"at": None},
]  # fmt: skip
PLACES = ("files, postgres", "postgres, postgres", "postgres, csv")


@pytest.fixture
def database_url(postgres: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    yield postgres.database(f"unfit_{abs(hash(request.node.name)):x}")


def build_event_frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    types = {"ts": pl.Int64(), "k": pl.String(), "s": pl.String(), "at": pl.Int64(), "n": pl.Int64()}
    table = pl.DataFrame([{**OK, **r} for r in rows], schema=types)
    return table.with_columns(pl.from_epoch("at", time_unit="us").dt.replace_time_zone("UTC"))


class RealStorePipelineRun:
    """A pipeline with a real store and target. `run_epoch` runs one epoch, and `start` restarts on the same state."""

    def __init__(self, url: str, home: Path, place: str, step: Window | Join = WINDOW, on_error: str = "dlq") -> None:
        self.url, self.home, self.place, self.step = url, home, place, step
        home.mkdir()
        self.schema = f"t{uuid.uuid4().hex[:8]}"
        sources = ("a", "a2") if isinstance(step, Join) else ("a",)
        self.pipeline = build_pipeline(step, sources, on_error=on_error, upserts="csv" not in place)
        fields = {n: Field(n, t) for n, t in SCHEMA.items()}
        self.logic: Any = (
            compiling.compile_join(self.pipeline, (fields, fields))
            if isinstance(step, Join)
            else compiling.compile_window(self.pipeline, fields)
        )
        self.sources = sources
        self.letters = FilesTarget(home / "letters", "parquet", TargetTable("law-letters", LETTER, None, "s"))
        self.start()

    def start(self) -> None:
        into = TargetTable(
            "law", tuple(self.logic.output), None if isinstance(self.step, Join) else self.logic.identity, "s"
        )
        self.target: Any = (
            FilesTarget(self.home / "out", "csv", into)
            if "csv" in self.place
            else PostgresTarget(self.url, f"{self.schema}.out", into)
        )
        self.target.open()
        in_files = self.place.startswith("files")
        store: Any = (
            FilesStore(self.home / "state", "law")
            if in_files
            else PostgresStore(self.url, self.schema, "law", tempfile.mkdtemp(dir=self.home))
        )
        engine = LocalEngine(PolarsRowPreparer(self.logic, self.sources, 3 * 10**14))
        self.driver = build_single_stage_driver(
            self.pipeline, self.logic, store, self.target, engine, DriverCallbacks(lambda: 4 * 10**15), self.letters
        )
        self.driver.start(store.open(), 1, {}, "s")

    def stop(self) -> None:
        self.driver.store.close()
        self.target.close()

    def run_epoch(self, *rows: dict[str, Any]) -> None:
        self.driver.run_batch(Batch(None, {}, dict.fromkeys(self.sources, build_event_frame(list(rows)))), 0)

    @property
    def counters(self) -> dict[str, Any]:
        return dict(self.driver.state.stages[0].counters)

    def read_dead_letters(self) -> pl.DataFrame:
        paths = sorted((self.home / "letters").glob("*.parquet"))
        return pl.concat([pl.read_parquet(f) for f in paths]) if paths else pl.DataFrame(schema={"reason": pl.String})


@pytest.fixture
def pipeline_run_factory(database_url: str, tmp_path: Path) -> Iterator[Callable[..., RealStorePipelineRun]]:
    runners: list[RealStorePipelineRun] = []

    def make(place: str, **more: Any) -> RealStorePipelineRun:
        runners.append(RealStorePipelineRun(database_url, tmp_path / str(len(runners)), place, **more))
        return runners[-1]

    yield make
    for one in runners:
        one.stop()


@pytest.mark.semantics("bad-rows")
@pytest.mark.parametrize("place", PLACES)
def test_unstorable_row_becomes_a_bad_row_and_other_rows_are_used(
    pipeline_run_factory: Callable[..., RealStorePipelineRun], place: str
) -> None:
    """A row that the target or the state cannot store is bad, and the other rows of its epoch are used."""
    for step in (WINDOW, SESSION):
        for name, (poison, reason) in POISON.items():
            if reason == unstorable_rows.KEY and place == "postgres, csv":
                continue  # neither table has an index on the key
            run = pipeline_run_factory(place, step=step)
            run.run_epoch({}, poison, poison)
            assert run.counters["rows_bad"] == 2, name
            assert run.counters["rows_used"] == 1, name
            assert run.counters["letters"] == {reason: 2}, name
            run.stop()
            run.start()  # committed rows were published and can be read
            run.run_epoch({"ts": 10**12 + 10_000_000})
            run.driver.flush()
            assert run.counters["rows_bad"] == 2, name
            letters = run.read_dead_letters()
            assert letters["reason"].to_list() == [reason, reason], name
            assert "value" not in letters.columns or letters["value"].null_count() == 0


@pytest.mark.parametrize("place", PLACES)
def test_rows_with_unusual_but_storable_values_are_used(
    pipeline_run_factory: Callable[..., RealStorePipelineRun], place: str
) -> None:
    run = pipeline_run_factory(place, step=SESSION)
    run.run_epoch(*FINE)
    run.run_epoch({"ts": 10**12 + 10_000_000})
    run.driver.flush()
    assert run.counters.get("rows_bad", 0) == 0
    assert run.counters["rows_used"] == len(FINE) + 1


@pytest.mark.parametrize("place", PLACES)
def test_unstorable_row_of_a_join_becomes_a_bad_row_on_both_sides(
    pipeline_run_factory: Callable[..., RealStorePipelineRun], place: str
) -> None:
    for name, (poison, reason) in POISON.items():
        if reason == unstorable_rows.KEY:
            continue  # joined rows have no key
        run = pipeline_run_factory(place, step=JOIN)
        run.run_epoch({}, poison)
        assert run.counters["rows_bad"] == 2, name  # one per side
        run.driver.flush()
        run.stop()
        run.start()


def test_on_error_fails_the_epoch_or_drops_unstorable_rows(
    pipeline_run_factory: Callable[..., RealStorePipelineRun],
) -> None:
    run = pipeline_run_factory("files, postgres", on_error="fail")
    with pytest.raises(
        BadRowError,
        match=r'source "a": 1 bad row \(1: a string contains U\+0000 .*\): U\+0000: .*; correct the input or the SQL, or set on_error',
    ):
        run.run_epoch({}, {"k": "a\0"})
    assert run.driver.state.epoch == -1
    dropping = pipeline_run_factory("files, postgres", on_error="drop")
    dropping.run_epoch({}, {"k": "a\0"})
    assert dropping.counters["rows_bad"] == 1
    assert dropping.read_dead_letters().is_empty()


def test_unstorable_text_is_accepted_when_it_is_only_counted(
    pipeline_run_factory: Callable[..., RealStorePipelineRun],
) -> None:
    """Counts of a text are numbers, which every target and state can store."""
    counted = [Aggregation(agg="count", column="s", as_="n"), Aggregation(agg="count_distinct", column="s", as_="d")]
    run = pipeline_run_factory("postgres, postgres", step=WINDOW.model_copy(update={"aggregations": tuple(counted)}))
    run.run_epoch({"s": "x\0y"})
    run.driver.flush()
    assert run.counters.get("rows_bad", 0) == 0
    with psycopg.connect(run.url) as db:
        assert db.execute(f"SELECT n, d FROM {run.schema}.out").fetchall() == [(1, 1)]


def test_files_delta_and_iceberg_targets_store_extreme_values(tmp_path: Path) -> None:
    fields = (Field("k", "string"), Field("at", "timestamp"))
    into = TargetTable("law", fields, ("k",), "s")
    assert FilesTarget(tmp_path / "p", "parquet", into).capacity == ValueLimits()
    assert FilesTarget(tmp_path / "c", "csv", into).capacity == ValueLimits(time_range=YEARS)
    assert DeltaTarget(str(tmp_path / "d"), "merge", into).capacity.allows_nul
    # the limits of storable values, written and read back
    edges = pl.DataFrame({"k": ["a\0b", "c"], "at": YEARS}, schema_overrides={"at": pl.Datetime("us", "UTC")})
    delta = DeltaTarget(str(tmp_path / "d"), "merge", into)
    delta.open()
    delta.publish(0, edges)
    delta.publish(1, edges)
    from deltalake import DeltaTable

    back = pl.from_arrow(DeltaTable(str(tmp_path / "d")).to_pyarrow_table())
    assert isinstance(back, pl.DataFrame)
    assert sorted(back["k"].to_list()) == ["a\0b", "c"]
    lake = sql_catalog_table(tmp_path)
    iceberg = lake.open_target(into, day_of="at")
    assert iceberg.capacity == delta.capacity
    iceberg.publish(0, edges)
    iceberg.publish(1, edges)
    assert lake.read_rows().sort("k").equals(edges)
    for form in ("parquet", "csv", "json"):
        files = FilesTarget(tmp_path / form, form, into)
        files.publish(0, edges)


def test_dead_letter_with_an_unstorable_time_is_stored_with_null(database_url: str) -> None:
    from slackwater.operators.dead_letters import to_storable_dead_letters

    letters = PostgresTarget(database_url, "public.letters", TargetTable("law-letters", LETTER, None, "s"))
    letters.open()
    row = dict.fromkeys(f.name for f in LETTER) | {"reason": "late", "pipeline": "law", "epoch": 3, "value": b"{}"}
    frame = pl.DataFrame(
        [row], schema={f.name: f.polars for f in LETTER if f.name not in ("event_time", "watermark")} | {}
    )
    far = pl.Series("event_time", [-157_000_000_000_000_000], dtype=pl.Datetime("us", "UTC"))
    frame = frame.with_columns(far, far.alias("watermark")).select(f.name for f in LETTER)
    letters.publish(3, to_storable_dead_letters(frame, letters.capacity.time_range))
    with psycopg.connect(database_url) as db:
        assert db.execute("SELECT reason, event_time FROM letters").fetchall() == [("late", None)]
    letters.close()
