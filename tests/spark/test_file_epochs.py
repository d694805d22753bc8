"""If workers read the files of an epoch, the results, late rows and counters equal those of Spark.

files ──▶ each worker reads all files, and keeps the rows of its shards ─┐
    ╰───▶ Spark reads them ─▶ shuffle ─▶ a task per shard ───────────────┴─▶ equal
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.case_selection import select_cases
from tests.support.longest_text_aggregator import LongestTextAggregator
from tests.support.parquet_rows import to_sorted_rows
from tests.support.spark_pipeline_runner import SparkPipelineRunner

import slackwater as sw
from slackwater.core.numba_hashing import hash_keys_compiled
from slackwater.core.schema import Field, ValueLimits
from slackwater.errors import EpochError, NeedsSparkError
from slackwater.operators.base import ShardTask
from slackwater.operators.registry import bind_window
from slackwater.spark import engine, file_epoch, first_rows_check
from slackwater.spark.engine import SparkEngine
from slackwater.spark.file_epoch import FileEpochPolicy, FileInput
from slackwater.spark.first_rows_check import FirstRowsCheck
from slackwater.tuning_switches import VARIABLE

pytestmark = pytest.mark.spark

BEGIN_US = 1_772_323_200_000_000  # 2026-03-01
EPOCHS, FILES_PER_EPOCH = 4, 2
SCHEMA = "user STRING, n INT, amount BIGINT, price DOUBLE, cost DECIMAL(9,2), ok BOOLEAN, small SMALLINT, ts TIMESTAMP"
TYPES = pa.schema(
    [
        ("user", pa.string()), ("n", pa.int32()), ("amount", pa.int64()), ("price", pa.float64()),
        ("cost", pa.decimal128(9, 2)), ("ok", pa.bool_()), ("small", pa.int16()), ("ts", pa.timestamp("us", tz="UTC")),
    ]
)  # fmt: skip
USERS = (None, "", "a", "b", "Ünï", "𝄞", "a\u2028b", "x" * 40)
PRICES = (None, 0.0, -0.0, 1.5, -7.25, float("nan"), float("inf"))
AGGREGATIONS = [
    sw.Aggregation(agg="count", as_="rows"),
    sw.Aggregation(agg="sum", column="price", as_="price"),
    sw.Aggregation(agg="sum", column="cost", as_="cost"),
    sw.Aggregation(agg="min", column="amount", as_="least"),
    sw.Aggregation(agg="max", column="small", as_="most"),
    sw.Aggregation(agg="count_distinct", column="user", as_="users"),
    sw.Aggregation(agg="count_distinct", column="amount", as_="amounts"),
    sw.Aggregation(agg="max", column="ts", as_="newest"),
]


def build_window(**settings: Any) -> sw.Window:
    defaults = {
        "event_time_column": "ts", "lateness_ms": "5s", "group_by": ["user", "ok"], "aggregations": AGGREGATIONS,
    }  # fmt: skip
    return sw.Window(**(defaults | settings))


SESSION: dict[str, Any] = {"kind": "session", "gap_ms": "8s", "max_session_duration_ms": "40s"}
TUMBLING: dict[str, Any] = {"kind": "tumbling", "duration_ms": "20s", "max_groups_per_window": 1000}
HOPPING: dict[str, Any] = TUMBLING | {"kind": "hopping", "duration_ms": "30s", "hop_ms": "10s"}
STEPS: dict[str, Callable[[], dict[str, Any]]] = {
    "session": lambda: {"window": build_window(**SESSION)},
    "tumbling": lambda: {"window": build_window(**TUMBLING)},
    "hopping": lambda: {"window": build_window(**HOPPING)},
    "late rows reopen windows": lambda: {
        "window": build_window(**HOPPING, allowed_lateness_ms="30s", late_data="reopen", emit_metadata=True)
    },
    "integer keys": lambda: {"window": build_window(**SESSION, group_by=["n", "amount", "small"])},
    "no keys": lambda: {"window": build_window(**TUMBLING, group_by=[])},
    "user code": lambda: {
        "stages": [
            sw.Stage(
                name="reminders",
                keyed=sw.Keyed(
                    class_="tests.support.keyed_functions:Reminders",
                    keys=["user"],
                    event_time_column="ts",
                    lateness_ms="5s",
                ),
            ),
            sw.Stage(
                name="counts",
                window=build_window(
                    **TUMBLING, event_time_column="_event_ts", group_by=["user"], aggregations=AGGREGATIONS[:1]
                ),
            ),
        ]
    },
    "user-defined aggregation": lambda: {
        "window": build_window(
            **TUMBLING, aggregations=[sw.Aggregation(agg=LongestTextAggregator, columns={"text": "user"}, as_="best")]
        )
    },
    "stages": lambda: {
        "stages": [
            sw.Stage(name="distinct", dedup=sw.Dedup(keys=["user", "n"], within_ms="10s", event_time_column="ts")),
            sw.Stage(name="counts", window=build_window(**TUMBLING, event_time_column="_event_ts", group_by=["user"])),
        ]
    },
}


def draw_rows(rng: random.Random, epoch: int, count: int) -> list[dict[str, Any]]:
    """Return rows of twenty seconds. Some are late."""
    rows = []
    for number in range(count):
        second = 20 * epoch + rng.uniform(-60 if rng.random() < 0.1 else -4, 20)
        rows.append(
            {
                "user": rng.choice(USERS),
                "n": rng.choice([None, -1, 0, 7, 2**31 - 1]),
                "amount": rng.choice([None, -(2**63), 0, 5, 2**63 - 1]),
                "price": rng.choice(PRICES),
                "cost": None if rng.random() < 0.1 else Decimal(rng.randrange(-999, 999)).scaleb(-2),
                "ok": rng.choice([None, True, False]),
                "small": rng.choice([None, -300, 0, 300]),
                "ts": BEGIN_US + round(second * 1000) * 1000 + 1000 * number,
            }
        )
    return rows


def write_rows(path: Path, rows: list[dict[str, Any]], schema: pa.Schema = TYPES, **how: Any) -> None:
    """Write a file. Files are read in the order in which they were written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = []
    for column in schema:
        values = pa.array([row.get(column.name) for row in rows], pa.int64() if column.name == "ts" else None)
        times = values.cast(pa.timestamp("us", tz="UTC")) if column.name == "ts" else values
        columns.append(times if column.type == pa.int64() and column.name == "ts" else times.cast(column.type))
    pq.write_table(pa.Table.from_arrays(columns, schema=schema), path, **how)
    number = len(list(path.parent.iterdir()))
    os.utime(path, (1_600_000_000 + number, 1_600_000_000 + number))


# writers of Parquet files whose rows workers read as Spark does
WRITERS: tuple[dict[str, Any], ...] = (
    {"row_group_size": 7},
    {"compression": "zstd", "use_dictionary": False},
    {"compression": "gzip", "data_page_version": "2.0"},
    {"compression": "none", "store_schema": False},
)


def write_epochs(folder: Path, rng: random.Random, count: int = 40) -> None:
    for number in range(EPOCHS * FILES_PER_EPOCH):
        rows = draw_rows(rng, number // FILES_PER_EPOCH, 0 if number == 3 else count)
        path = folder / f"{number}.parquet"
        if number == 2:  # Polars writes strings with 64-bit offsets
            frame = pl.DataFrame(pa.Table.from_pylist(rows, TYPES.set(7, pa.field("ts", pa.int64()))))
            frame.with_columns(pl.col("ts").cast(pl.Datetime("us", "UTC"))).write_parquet(path)
            os.utime(path, (1_600_000_003, 1_600_000_003))
        else:
            write_rows(path, rows, **WRITERS[number % len(WRITERS)])


def parquet_source(folder: Path, **settings: Any) -> sw.Source:
    defaults: dict[str, Any] = {
        "name": "events", "connection": sw.FilesConnection(), "query": str(folder / "*.parquet"), "format": "parquet",
        "schema": SCHEMA, "max_files_per_trigger": FILES_PER_EPOCH,
    }  # fmt: skip
    return sw.Source(**(defaults | settings))


@dataclass
class FileEpochRecorder:
    """Runs pipelines, and records for each epoch of a source whether workers read its files without Spark."""

    runner: SparkPipelineRunner
    patch: pytest.MonkeyPatch
    logs: pytest.LogCaptureFixture
    epochs: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        run_file_epoch = SparkEngine._run_file_epoch

        def record(*arguments: Any) -> Any:
            outcome = run_file_epoch(*arguments)
            self.epochs.append(outcome is not None)
            return outcome

        self.patch.setattr(SparkEngine, "_run_file_epoch", record)
        self.patch.setattr(first_rows_check, "ROWS", 1)  # footers of Polars do not count the NULLs of booleans

    def run(self, folder: str, settings: Mapping[str, Any]) -> tuple[Any, ...]:
        """Run a pipeline with three shards. Return its rows, dead letters, warnings, and the counters after each epoch."""
        self.runner.statuses.clear()
        self.runner.notices.clear()
        self.logs.clear()
        home, shards = self.runner.home / folder, 3
        letters_target = sw.Target(connection=sw.FilesConnection(), path=str(home / "letters"))
        self.runner.run_pipeline(
            **{
                "target_path": str(home / "out"),
                "state_store": sw.StateStore(kind="files", path=str(home / "state"), shards=shards),
                **({"dead_letter": letters_target} if settings.get("on_error") == "dlq" else {}),
                **settings,
            }
        )
        letters = self.runner.read_output(f"{folder}/letters")
        notices = [line for _, line in self.runner.notices]
        warnings = [
            r.getMessage() for r in self.logs.records if r.levelno >= logging.WARNING and r.name == "slackwater"
        ]
        return (
            repr(to_sorted_rows(self.runner.read_output(f"{folder}/out"))),
            sorted(map(repr, letters.select("reason", "value").rows())) if letters.height else [],
            [vars(status.counters) | {"spent_us": 0} for status in self.runner.statuses],
            [[s.max_event_us for s in status.sources] for status in self.runner.statuses],
            # the rows of a shard, and therefore its samples of late rows, have no order
            [
                sorted(line.replace(f"/{folder}/", "/").replace("Z): ", "Z); ").split("; "))
                for line in (*notices, *warnings)
            ],
        )

    def run_both_ways(self, settings: Mapping[str, Any]) -> tuple[list[bool], tuple[Any, ...], tuple[Any, ...]]:
        """Run a pipeline with and without workers that read files. Return which epochs they read, and both results."""
        self.epochs.clear()
        in_workers = self.run("workers", settings)
        epochs = list(self.epochs)
        self.epochs.clear()
        self.patch.setenv(VARIABLE, "file_workers")
        with_spark = self.run("spark", settings)
        assert not any(self.epochs)
        self.patch.delenv(VARIABLE)
        return epochs, in_workers, with_spark


@pytest.fixture
def recorder(
    runner: SparkPipelineRunner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> FileEpochRecorder:
    return FileEpochRecorder(runner, monkeypatch, caplog)


@pytest.mark.parametrize("kind", list(STEPS))
def test_workers_that_read_files_give_the_results_of_spark(recorder: FileEpochRecorder, kind: str) -> None:
    write_epochs(recorder.runner.home / "in", random.Random(kind))
    settings = {"source": parquet_source(recorder.runner.home / "in"), **STEPS[kind]()}
    epochs, in_workers, with_spark = recorder.run_both_ways(settings)
    assert in_workers == with_spark
    assert epochs.count(True) == EPOCHS
    assert recorder.runner.statuses[-1].counters.rows_late or "reopen" in kind


def test_joins_of_files_give_the_results_of_spark(recorder: FileEpochRecorder) -> None:
    """The keys have different types, so both are hashed as BIGINT. In one epoch, only one source has rows."""
    home, rng = recorder.runner.home, random.Random(5)
    for name in ("orders", "payments"):
        for epoch in range(EPOCHS - (name == "payments")):
            write_rows(home / name / f"{epoch}.parquet", draw_rows(rng, epoch, 60))
    join = sw.Join(
        kind="full", left_source="orders", right_source="payments", left_keys=["n"], right_keys=["amount"],
        lower_ms="-5s", upper_ms="5s", event_time_column="ts", lateness_ms="5s",
    )  # fmt: skip
    sources = [
        parquet_source(home / name, name=name, max_files_per_trigger=1, schema=schema)
        for name, schema in (
            ("orders", "n INT, user STRING, ts TIMESTAMP"),
            ("payments", "amount BIGINT, ts TIMESTAMP"),
        )
    ]
    epochs, in_workers, with_spark = recorder.run_both_ways({"sources": sources, "join": join})
    assert in_workers == with_spark
    assert epochs.count(True) == EPOCHS
    assert in_workers[2][-1]["emitted"]["match"] > 20


def test_windows_of_two_sources_with_times_in_milliseconds_and_microseconds(recorder: FileEpochRecorder) -> None:
    home, rng = recorder.runner.home, random.Random(9)
    for name, unit in (("one", "ms"), ("two", "us")):
        for epoch in range(2):
            schema = pa.schema([("user", pa.string()), ("ts", pa.timestamp(unit, tz="UTC"))])
            write_rows(home / name / f"{epoch}.parquet", draw_rows(rng, epoch, 20), schema)
    sources = [
        parquet_source(home / name, name=name, schema="user STRING, ts TIMESTAMP", max_files_per_trigger=1)
        for name in ("one", "two")
    ]
    window = build_window(**TUMBLING, group_by=["user"], aggregations=[AGGREGATIONS[0], AGGREGATIONS[7]])
    epochs, in_workers, with_spark = recorder.run_both_ways({"sources": sources, "window": window})
    assert in_workers == with_spark
    assert epochs == [True, True]


def test_time_unit_is_hinted_if_most_times_are_in_another_unit(recorder: FileEpochRecorder) -> None:
    """The oldest time fits no unit, the newest one the declared unit, and those between them another unit."""
    home, hints = recorder.runner.home, list[str | None]()
    numbers = [0, *(BEGIN_US // 1_000_000 + i for i in range(9)), BEGIN_US // 1000]
    write_rows(home / "in" / "0.parquet", [{"at": number} for number in numbers], pa.schema([("at", pa.int64())]))
    recorder.patch.setattr(first_rows_check, "ROWS", 1000)
    add_time_unit_hints = FirstRowsCheck.add_time_unit_hints

    def record(*arguments: Any) -> Any:
        outcome = add_time_unit_hints(*arguments)
        hints.extend(stats.unit_hint for stats in outcome.sources.values())
        return outcome

    recorder.patch.setattr(FirstRowsCheck, "add_time_unit_hints", record)
    window = build_window(
        **TUMBLING, event_time_column="at", event_time_unit="ms", group_by=[], aggregations=AGGREGATIONS[:1]
    )
    recorder.run("workers", {"source": parquet_source(home / "in", schema="at BIGINT"), "window": window})
    assert hints == ['did you mean event_time_unit = "s"?']
    assert recorder.epochs == [False]


@pytest.mark.parametrize(("declared", "unit"), select_cases([("BIGINT", "us"), ("INT", "s")]))
def test_event_times_may_be_integers(recorder: FileEpochRecorder, declared: str, unit: str) -> None:
    home, rng, type_ = recorder.runner.home, random.Random(unit), pa.int64() if declared == "BIGINT" else pa.int32()
    for epoch in range(EPOCHS):
        rows = [row | {"at": row["ts"] // (1 if unit == "us" else 1_000_000)} for row in draw_rows(rng, epoch, 50)]
        write_rows(home / "in" / f"{epoch}.parquet", rows, pa.schema([("user", pa.string()), ("at", type_)]))
    window = build_window(
        **TUMBLING, event_time_column="at", event_time_unit=unit, group_by=["user"],
        aggregations=[sw.Aggregation(agg="count", as_="rows")],
    )  # fmt: skip
    source = parquet_source(home / "in", schema=f"user STRING, at {declared}", max_files_per_trigger=1)
    epochs, in_workers, with_spark = recorder.run_both_ways({"source": source, "window": window})
    assert in_workers == with_spark
    assert epochs == [True] * EPOCHS


def replace_type(name: str, type_: pa.DataType) -> pa.Schema:
    number = TYPES.get_field_index(name)
    return TYPES.set(number, pa.field(name, type_))


# files of the third epoch that Spark must read, and settings of the pipeline with which it must read every epoch
SPARK_READS_FILE: dict[str, dict[str, Any]] = {
    "a missing column": {"schema": TYPES.remove(3)},
    "a narrower integer": {"schema": replace_type("amount", pa.int32())},
    "a narrower decimal": {"schema": replace_type("cost", pa.decimal128(7, 2))},
    "INT96 times": {"use_deprecated_int96_timestamps": True},
    "no statistics": {"write_statistics": False},
    "a name in upper case": {"schema": TYPES.set(0, pa.field("USER", pa.string()))},
    "two names that differ in case": {"schema": TYPES.append(pa.field("Other", pa.int32())).append(pa.field("other", pa.int32()))},
}  # fmt: skip
SPARK_READS_ALL: dict[str, Callable[[], dict[str, Any]]] = {
    "SQL": lambda: {"transform_sql": "SELECT *, _event_ts FROM source WHERE n > 0", "window": build_window(**TUMBLING)},
    "a gap per row": lambda: {"window": build_window(**(SESSION | {"gap_ms": "amount % 7 * 1000"})), "on_error": "drop"},
    "a key of type DOUBLE": lambda: {
        "window": build_window(**TUMBLING, group_by=["price"], aggregations=AGGREGATIONS[:1])
    },
}  # fmt: skip


@pytest.mark.parametrize("variant", select_cases(list(SPARK_READS_FILE)))
def test_spark_reads_files_that_workers_may_read_differently(recorder: FileEpochRecorder, variant: str) -> None:
    home, rng = recorder.runner.home, random.Random(variant)
    for epoch in range(EPOCHS):
        rows = [row | {"USER": row["user"]} for row in draw_rows(rng, epoch, 30)]
        rows = [row | {"amount": 3} for row in rows] if "integer" in variant else rows
        write_rows(home / "in" / f"{epoch}.parquet", rows, **(SPARK_READS_FILE[variant] if epoch == 2 else {}))
    settings = {"source": parquet_source(home / "in", max_files_per_trigger=1), **STEPS["session"]()}
    epochs, in_workers, with_spark = recorder.run_both_ways(settings)
    assert in_workers == with_spark
    assert epochs == [True, True, False, True]


@pytest.mark.parametrize("reason", select_cases(list(SPARK_READS_ALL)))
def test_spark_computes_what_workers_cannot(recorder: FileEpochRecorder, reason: str) -> None:
    write_epochs(recorder.runner.home / "in", random.Random(reason), 10)
    settings = {"source": parquet_source(recorder.runner.home / "in"), **SPARK_READS_ALL[reason]()}
    epochs, in_workers, with_spark = recorder.run_both_ways(settings)
    assert in_workers == with_spark
    assert epochs == [False] * EPOCHS


def test_spark_reads_epochs_with_bad_rows_or_late_dead_letters(recorder: FileEpochRecorder) -> None:
    """
    epoch 0   usable rows                      workers
    epoch 1   a row without an event time      Spark
    epoch 2   a row in the far future          Spark
    epoch 3   a late row                       Spark, because it becomes a dead letter
    epoch 4   usable rows                      workers
    """
    home, rng, far = recorder.runner.home, random.Random(3), BEGIN_US + 10**15
    for epoch in range(5):
        rows = [row | {"ts": BEGIN_US + 60_000_000 * epoch + 1000 * i} for i, row in enumerate(draw_rows(rng, 0, 20))]
        changed = {1: None, 2: far, 3: BEGIN_US}
        rows[-1] |= {"ts": changed.get(epoch, rows[-1]["ts"])}
        write_rows(home / "in" / f"{epoch}.parquet", rows)
    settings = {
        "source": parquet_source(home / "in", max_files_per_trigger=1),
        "window": build_window(**TUMBLING, late_data="dlq"),
        "on_error": "dlq",
    }
    epochs, in_workers, with_spark = recorder.run_both_ways(settings)
    assert in_workers == with_spark
    assert epochs == [True, False, False, False, True]
    assert len(in_workers[1]) == 3


def test_invalid_strings_are_left_to_spark(recorder: FileEpochRecorder) -> None:
    """A binary column is written, and the file claims that it is a string."""
    home, rng = recorder.runner.home, random.Random(8)
    for epoch in range(2):
        write_rows(home / "in" / f"{epoch}.parquet", draw_rows(rng, epoch, 20))
    rows = draw_rows(rng, 2, 20)
    users = pa.array([b"\xff\xfe" if row["user"] is None else row["user"].encode() for row in rows], pa.binary())
    invalid = pa.StringArray.from_buffers(len(users), users.buffers()[1], users.buffers()[2])
    path = home / "in" / "2.parquet"
    write_rows(path, rows)
    pq.write_table(pq.read_table(path).set_column(0, "user", invalid), path)
    os.utime(path, (1_600_000_009, 1_600_000_009))
    window = build_window(**TUMBLING, group_by=["n"], aggregations=[AGGREGATIONS[0], AGGREGATIONS[5]])
    settings = {"source": parquet_source(home / "in", max_files_per_trigger=1), "window": window}
    epochs, in_workers, with_spark = recorder.run_both_ways(settings)
    assert in_workers == with_spark
    assert epochs == [True, True, False]


def test_too_many_rows_bytes_or_tasks_are_left_to_spark(recorder: FileEpochRecorder) -> None:
    write_epochs(recorder.runner.home / "in", random.Random(4), 10)
    settings = {"source": parquet_source(recorder.runner.home / "in"), **STEPS["session"]()}
    for limit, value in (("MOST_ROWS", 9), ("MOST_BYTES", 9), ("MOST_TASKS", 1)):
        recorder.epochs.clear()
        with recorder.patch.context() as patch:
            patch.setattr(file_epoch, limit, value)
            recorder.run(limit, settings)
        assert recorder.epochs == [False] * EPOCHS, limit


def test_epochs_in_workers_pause_after_failures() -> None:
    """F: an epoch fails and Spark runs it again, S: Spark runs it, W: workers run it."""
    policy, text = FileEpochPolicy(), ""
    for has_failed in (True, True, False, True):
        while not policy.start_epoch():
            text += "S"
        policy.observe(has_failed)
        text += "F" if has_failed else "W"
    assert text == "FSSFSSSSWF"
    for _ in range(20):
        policy.observe(True)
    paused = 0
    while not policy.start_epoch():
        paused += 1
    assert paused == file_epoch.MOST_PAUSED


@pytest.mark.parametrize("change", ["deleted", "torn", "replaced"])
def test_files_that_change_before_workers_read_them_are_left_to_spark(recorder: FileEpochRecorder, change: str) -> None:
    """Spark reports files that it cannot read either. The next start reads the epoch again."""
    home, rng = recorder.runner.home, random.Random(6)
    for epoch in range(2):
        write_rows(home / "in" / f"{epoch}.parquet", draw_rows(rng, epoch, 20))
    settings = {"source": parquet_source(home / "in", max_files_per_trigger=1), **STEPS["session"]()}
    expected = recorder.run("expected", settings)
    path = home / "in" / "1.parquet"
    content, find_file_inputs = path.read_bytes(), file_epoch.find_file_inputs

    def find_then_change(*arguments: Any) -> Any:
        inputs = find_file_inputs(*arguments)
        if any(str(path) == file.path for file_input in inputs for file in file_input.files):
            if change == "deleted":
                path.unlink()
            elif change == "torn":
                path.write_bytes(content[: len(content) // 2])
            else:
                write_rows(path, draw_rows(rng, 1, 20))
        return inputs

    recorder.epochs.clear()
    with recorder.patch.context() as patch:
        patch.setattr(engine, "find_file_inputs", find_then_change)
        if change == "replaced":
            changed = recorder.run("changed", settings)
        else:
            with pytest.raises(EpochError, match=r"1\.parquet") as error:
                recorder.run("changed", settings)
            assert "was not committed" in str(error.value)
    assert recorder.epochs == [True, False]
    if change == "replaced":
        recorder.patch.setenv(VARIABLE, "file_workers")
        assert changed[0] == recorder.run("spark", settings)[0]
    else:
        path.write_bytes(content)
        os.utime(path, (1_600_000_002, 1_600_000_002))
        assert recorder.run("changed", settings)[0] == expected[0]


@pytest.mark.parametrize("limits", [ValueLimits(allows_nul=False), ValueLimits(time_range=(0, 10**15))], ids=str)
def test_rows_that_cannot_be_stored_are_left_to_spark(limits: ValueLimits) -> None:
    """The column `ts` is a string, and the event time is another column."""
    window = build_window(**TUMBLING, event_time_column="at", group_by=["ts"], aggregations=AGGREGATIONS[:1])
    operator = bind_window("p", window, {"ts": Field("ts", "string"), "at": Field("at", "timestamp")})
    file_input = FileInput("events", (), 2, (Field("ts", "string"),), Field("at", "timestamp"), 0, 0, 10**16, None)
    rows, times = pl.DataFrame({"ts": ["a", "b\0"]}), pl.Series([10**9, 10**16])
    state: Any = None
    task = ShardTask(operator, state, 0, 0, 0)
    file_epoch._check_rows(file_input, task, rows, times)
    file_epoch._check_rows(file_input, replace(task, capacity=limits), rows[:1], times[:1])
    with pytest.raises(NeedsSparkError):
        file_epoch._check_rows(file_input, replace(task, capacity=limits), rows, times)


@pytest.mark.parametrize("times", [[BEGIN_US - 1], [BEGIN_US + 2], [None]], ids=str)
def test_event_times_outside_the_footers_are_left_to_spark(times: list[int | None]) -> None:
    operator = bind_window("p", build_window(**TUMBLING, group_by=[], aggregations=AGGREGATIONS[:1]), {})
    file_input = FileInput("events", (), 1, (), Field("ts", "timestamp"), 0, BEGIN_US, BEGIN_US + 1, None)
    state: Any = None
    with pytest.raises(NeedsSparkError, match="have changed"):
        file_epoch._check_rows(
            file_input,
            ShardTask(operator, state, 0, 0, 0),
            pl.DataFrame({"ts": times}),
            pl.Series(times, dtype=pl.Int64),
        )


def test_compiled_hashes_equal_the_hashes_of_spark(spark: Any, tmp_path: Path) -> None:
    rng = random.Random(7)
    rows = [row | {"user": None if rng.random() < 0.1 else "é" * rng.randrange(60)} for row in draw_rows(rng, 0, 500)]
    write_rows(tmp_path / "a.parquet", rows)
    table = pq.read_table(tmp_path / "a.parquet")
    for names in (["user"], ["n"], ["amount"], ["ok"], ["small"], ["ok", "user", "small", "amount", "n"]):
        expected = spark.read.parquet(str(tmp_path)).selectExpr(f"xxhash64({', '.join(names)}) AS h").toArrow()["h"]
        fields = {f.name: f for f in (Field(*text.split(" ")) for text in SCHEMA.lower().split(", "))}
        columns = [table.column(name).combine_chunks() for name in names]
        assert hash_keys_compiled(columns, [fields[name] for name in names]).tolist() == expected.to_pylist(), names
