"""Corrected windows on Spark with real targets: the table after each epoch, and the rows that a correction deletes."""

from __future__ import annotations

import datetime as dt
import json
import random
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.laws.oracles import naive_oracle
from tests.support.case_selection import exhaustive, select_cases
from tests.support.kafka_topics import read_messages
from tests.support.sample_events_and_windows import format_iso_time
from tests.support.spark_pipeline_runner import SparkPipelineRunner

import slackwater as sw

pytestmark = pytest.mark.spark

SCHEMA = "user STRING, n BIGINT, ts TIMESTAMP"
ZERO_US = int(dt.datetime(2024, 3, 1, tzinfo=dt.UTC).timestamp()) * 1_000_000
S = 1_000_000
LATENESS_S, ALLOWED_S = 5, 60
AGGREGATIONS = (("n", "count", None), ("ids", "sum", "n"))
SHAPES: dict[str, tuple[dict[str, Any], naive_oracle.WindowSpec]] = {
    "session": (
        {"kind": "session", "gap_ms": "20s", "max_session_duration_ms": "1d"},
        naive_oracle.WindowSpec("session", ["user"], AGGREGATIONS, gap_us=20 * S, cap_us=86_400 * S),
    ),
    "hopping": (
        {"kind": "hopping", "duration_ms": "1m", "hop_ms": "25s", "max_groups_per_window": 100},
        naive_oracle.WindowSpec("hopping", ["user"], AGGREGATIONS, duration_us=60 * S, hop_us=25 * S),
    ),
}


def revisable_window(kind: str, **more: Any) -> Any:
    shape, _ = SHAPES[kind]
    counted = [sw.Aggregation(agg=agg, column=column, as_=name) for name, agg, column in AGGREGATIONS]
    defaults = {
        "lateness_ms": f"{LATENESS_S}s", "late_data": "reopen", "allowed_lateness_ms": f"{ALLOWED_S}s",
        "group_by": ["user"], "event_time_column": "ts", "aggregations": counted,
    }  # fmt: skip
    return sw.Window(**shape, **defaults | more)


def random_epochs(seed: int, count: int = 6) -> list[list[dict[str, Any]]]:
    """Return rows by epoch, with times in seconds. Time advances, and some rows are up to 150 seconds older.

    `n` is a power of two, so that a sum identifies the added rows.
    """
    chance, now, batches, number = random.Random(seed), 0, [], 0
    for _ in range(count):
        rows = []
        for _ in range(8):
            now += chance.randrange(12)
            back = chance.choice([0, 0, 0, 15, 40, 90, 150])
            rows.append({"user": chance.choice(["a", "b", None]), "n": 1 << number, "at": now - back})
            number += 1
        batches.append(rows)
    return batches


def write_epoch_files(
    runner: SparkPipelineRunner, batches: Sequence[Sequence[Mapping[str, Any]]], first: int = 0
) -> None:
    """Write one file per list of rows. Each file becomes one epoch."""
    for number, rows in enumerate(batches, first):
        runner.write_input_file(
            f"{number}.jsonl", [{"user": r["user"], "n": r["n"], "ts": format_iso_time(r["at"])} for r in rows]
        )


def window_tuples(rows: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """Return rows as (user, start, end, n, ids), with times in seconds."""
    tuples = [
        (r["user"], *(_to_seconds(r[c]) for c in ("window_start", "window_end")), r["n"], int(r["ids"])) for r in rows
    ]
    return sorted(tuples, key=str)


def _to_seconds(value: Any) -> int:
    moment = dt.datetime.fromisoformat(value) if isinstance(value, str) else value
    return int(moment.timestamp() * S if isinstance(moment, dt.datetime) else moment) // S - ZERO_US // S


class CorrectionOracle:
    """Expected rows after each epoch, computed by the naive oracle."""

    def __init__(self, kind: str) -> None:
        _, spec = SHAPES[kind]
        self.panes = kind != "session"
        self.model: Any = (
            naive_oracle.PaneEpochOracle(spec, {"a": LATENESS_S * S}, allowed_us=ALLOWED_S * S)
            if self.panes
            else naive_oracle.SessionEpochOracle(spec, LATENESS_S * S, allowed_us=ALLOWED_S * S)
        )

    def rows_after_epoch(self, rows: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
        timed_rows = [{**r, "ts": ZERO_US + r["at"] * S} for r in rows]
        self.model.add_epoch({"a": timed_rows} if self.panes else timed_rows)
        return window_tuples(self.model.window_rows())


class PostgresTable:
    """A table in a separate Postgres database, which also contains the state and the dead letters."""

    def __init__(self, url: str) -> None:
        connection = sw.PostgresConnection(url=url)
        self.url = url
        self.settings = {
            "target": connection,
            "target_path": None,
            "target_table": "out",
            "state_store": sw.StateStore(kind="postgres", url=url),
            "dead_letter": sw.Target(connection=connection, table="letters"),
        }

    def read_rows(self) -> list[dict[str, Any]]:
        with psycopg.connect(self.url, row_factory=psycopg.rows.dict_row) as db:
            return db.execute("SELECT * FROM out").fetchall()

    def read_late_row_numbers(self) -> list[int]:
        """Return the numbers of the rows that are too late for a correction."""
        with psycopg.connect(self.url) as db:
            letter_values = db.execute("SELECT value FROM letters WHERE reason = 'late'").fetchall()
        return [json.loads(value)["n"] for (value,) in letter_values]


@pytest.fixture
def postgres_table(postgres: Any) -> PostgresTable:
    return PostgresTable(postgres.database(f"corrections_{uuid.uuid4().hex[:8]}"))


BRIDGED = [[0, 10, 60, 70], [200], [30, 45]]


def epochs_with_bridged_sessions() -> list[list[dict[str, Any]]]:
    """
    gap 20 s   0  10                60 70                  200
    epoch 0    ●──●                  ●──●                        both emitted in epoch 1
    epoch 1                                                 ●
    epoch 2             30 ● ── ● 45     joins them: one session from 0 to 70
    """
    number, batches = 0, []
    for times in BRIDGED:
        rows = []
        for second in times:
            rows.append({"user": "a", "n": 1 << number, "at": second})
            number += 1
        batches.append(rows)
    batches[0].append({"user": None, "n": 1 << number, "at": 60})
    return batches


IN_THE_END = [("a", 0, 90, 6, 0b110_1111), ("a", 200, 220, 1, 0b1_0000), (None, 60, 80, 1, 0b1000_0000)]


@pytest.mark.semantics("topics")
@pytest.mark.parametrize("kind", select_cases(["postgres", "delta", "kafka"]))
def test_late_row_merges_two_emitted_sessions_into_one_row(
    runner: SparkPipelineRunner, request: pytest.FixtureRequest, kind: str
) -> None:
    """A late row that joins two emitted sessions leaves one row in Postgres, Delta and a compacted topic."""
    write_epoch_files(runner, epochs_with_bridged_sessions())
    seen: list[list[tuple[Any, ...]]] = []
    if kind == "postgres":
        table = request.getfixturevalue("postgres_table")
        settings, rows = table.settings, table.read_rows
    else:
        lake = sw.FilesConnection()
        settings = {"dead_letter": sw.Target(connection=lake, path=str(runner.home / "letters"))}
        if kind == "delta":
            settings |= {"target": sw.DeltaConnection(), "target_path": str(runner.home / "delta")}
            rows = lambda: read_delta_rows(runner.home / "delta")  # noqa: E731
        else:
            kafka, topic = request.getfixturevalue("kafka"), f"c{uuid.uuid4().hex[:8]}"
            kafka.create(topic)
            connection = sw.KafkaConnection(bootstrap_servers=kafka.address)
            settings["target"] = sw.Target(connection=connection, topic=topic, delivery="exactly_once")
            settings["target_path"] = None
            rows = lambda: read_compacted_topic(kafka, topic)  # noqa: E731
    runner.run_pipeline(
        source=runner.files_source(SCHEMA, max_files_per_trigger=1),
        window=revisable_window("session", emit_metadata=True, allowed_lateness_ms="5m"),
        on_status=lambda status: seen.append(window_tuples(rows())),
        **settings,
    )
    assert seen[1] == sorted([("a", 0, 30, 2, 0b11), ("a", 60, 90, 2, 0b1100), IN_THE_END[2]], key=str)
    assert seen[2] == sorted([IN_THE_END[0], IN_THE_END[2]], key=str)
    assert window_tuples(rows()) == sorted(IN_THE_END, key=str)
    emissions = {_to_seconds(r["window_start"]): (r["_revision"], r["_emit_reason"]) for r in rows()}
    assert emissions == {0: (2, "late"), 60: (1, "close"), 200: (1, "flush")}
    if kind == "kafka":
        gone = [json.loads(m.key()) for m in read_messages(kafka.address, topic) if m.value() is None]
        assert [(k["user"], _to_seconds(k["window_start"])) for k in gone] == [("a", 60)]


def read_delta_rows(path: Path) -> list[dict[str, Any]]:
    frame = pl.from_arrow(pa.table(DeltaTable(path).to_pyarrow_table())) if path.exists() else pl.DataFrame()
    assert isinstance(frame, pl.DataFrame)
    return frame.to_dicts()


def read_compacted_topic(kafka: Any, topic: str) -> list[dict[str, Any]]:
    """Return the newest record of each key, as a `read_committed` consumer of a compacted topic sees it."""
    newest = {m.key(): m.value() for m in read_messages(kafka.address, topic)}
    return [json.loads(value) for value in newest.values() if value is not None]


@pytest.mark.parametrize("kind", ["session", "hopping"])
@exhaustive(
    beside="test_postgres_store_equivalence.py::test_expired_revisable_windows_are_deleted_from_the_state_table"
)
def test_updates_keep_table_equal_to_result_so_far(
    runner: SparkPipelineRunner, postgres_table: PostgresTable, kind: str
) -> None:
    """The table is correct after every epoch, also after a restart between two epochs."""
    batches, oracle = random_epochs(7), CorrectionOracle(kind)
    expected, seen = [oracle.rows_after_epoch(rows) for rows in batches], []
    window_spec = revisable_window(kind, emit="updates")
    for part in (batches[:3], batches[3:]):
        write_epoch_files(runner, part, len(seen))
        runner.run_pipeline(
            source=runner.files_source(SCHEMA, max_files_per_trigger=1),
            window=window_spec,
            flush=False,
            on_status=lambda status: seen.append(window_tuples(postgres_table.read_rows())) if status.rows else None,
            **postgres_table.settings,
        )
    assert seen == expected
    late = {r["n"] for r in oracle.model.late}
    assert late, "some rows are late for good"
    assert set(postgres_table.read_late_row_numbers()) >= late
    _, spec = SHAPES[kind]
    if kind == "session":
        on_time = [{**r, "ts": ZERO_US + r["at"] * S} for rows in batches for r in rows if r["n"] not in late]
        assert seen[-1] == window_tuples(naive_oracle.compute_windows_over_all_rows(spec, on_time))


@pytest.mark.parametrize("kind", ["hopping", "session"])
@exhaustive(beside="test_window_corrections.py::test_late_row_merges_two_emitted_sessions_into_one_row")
def test_corrections_are_published_in_epoch_of_late_row(
    runner: SparkPipelineRunner, postgres_table: PostgresTable, kind: str
) -> None:
    batches, oracle = random_epochs(11), CorrectionOracle(kind)
    write_epoch_files(runner, batches)
    seen: list[Any] = []
    statuses: list[Any] = []

    def look(status: Any) -> None:
        statuses.append(status)
        seen.append(window_tuples(postgres_table.read_rows()))

    runner.run_pipeline(
        source=runner.files_source(SCHEMA, max_files_per_trigger=1),
        window=revisable_window(kind),
        flush=False,
        on_status=look,
        **postgres_table.settings,
    )
    data = [(s.watermark_us, table_rows) for s, table_rows in zip(statuses, seen, strict=True) if s.rows]
    for rows, (watermark, table_rows) in zip(batches, data, strict=True):
        wm = watermark // S - ZERO_US // S
        closed = [r for r in oracle.rows_after_epoch(rows) if (r[2] < wm if kind == "session" else r[2] <= wm)]
        still = {r[:2] for r in closed}
        assert closed == [r for r in table_rows if r[:2] in still]
        if kind == "hopping":
            assert len(table_rows) == len(closed)
    assert statuses[-1].counters.emitted["late"] > 0
    assert set(postgres_table.read_late_row_numbers()) >= {r["n"] for r in oracle.model.late} != set()


@pytest.mark.parametrize("kind", ["session", "hopping"])
@exhaustive(
    beside="test_emitted_rows_per_epoch.py::test_seeded_runs_with_emit_final_or_on_close_match_the_oracle_after_each_epoch"
)
def test_final_results_are_emitted_once_and_not_early(
    runner: SparkPipelineRunner, postgres_table: PostgresTable, kind: str
) -> None:
    batches = random_epochs(3)
    write_epoch_files(runner, batches)
    seen: list[tuple[int, list[dict[str, Any]]]] = []
    runner.run_pipeline(
        source=runner.files_source(SCHEMA, max_files_per_trigger=1),
        window=revisable_window(kind, emit="final", emit_metadata=True, allowed_lateness_ms="20s"),
        flush=False,
        on_status=lambda status: seen.append(
            (status.sources[0].max_event_us - LATENESS_S * S, postgres_table.read_rows())
        ),
        **postgres_table.settings,
    )
    assert len(seen[-1][1]) > 3
    for (watermark, rows), (_, later) in zip(seen, [*seen[1:], seen[-1]], strict=True):
        assert all(r["_final_at"] - r["window_end"] == dt.timedelta(seconds=20) for r in rows)
        assert all(int(r["_final_at"].timestamp() * S) <= watermark for r in rows)
        assert all(r in later for r in rows), "what was said stays"
    assert {r["_revision"] for r in seen[-1][1]} == {1}
