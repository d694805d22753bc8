"""Spark sums doubles as integers before the shuffle. The bits of each sum equal those of the sum of a shard."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.exact_float_statistics import compute_exact_sum_average_variance, encode_float_bits
from tests.support.spark_pipeline_runner import SparkPipelineRunner

import slackwater as sw
from slackwater.spark import operator_input
from slackwater.spark.tuning.shuffle_tuning import PreaggregationPolicy

pytestmark = pytest.mark.spark

NUMBERS = {
    "cents": [0.01 * n for n in range(50)],
    "cancel": [1e16, 1.0, -1e16, 0.1, -0.1, 1e-9],
    "grid": [2.0**47, math.nextafter(2.0**47, 0), -math.nextafter(2.0**47, 0), 2.0**-79, -(2.0**-79), 3 * 2.0**-80],
    "huge": [1.7976931348623157e308] * 3 + [-1.7976931348623157e308] * 2,
    "beyond": [1.2e308] * 5,
    "small": [5e-324] * 7 + [1e-300, -1e-310],
    "zero": [-0.0, -0.0],
    "nan": [1.0, math.nan],
    "infinite": [1.0, -math.inf, -math.inf],
    "both": [math.inf, -math.inf],
    "none": [],
}


def float_rows() -> list[dict[str, Any]]:
    data_rows = [{"k": k, "v": v, "f": v if abs(v) < 1e30 else 1.0} for k, numbers in NUMBERS.items() for v in numbers]
    data_rows += [{"k": k, "v": None, "f": None} for k in NUMBERS]
    return [{**row, "ts": n} for n, row in enumerate(data_rows)]


@pytest.mark.parametrize("order", [1, -1])
def test_float_sums_are_bit_identical_with_and_without_preaggregation(
    runner: SparkPipelineRunner, monkeypatch: pytest.MonkeyPatch, order: int
) -> None:
    folder = runner.home / "in"
    folder.mkdir()
    table = pa.Table.from_pylist(
        float_rows()[::order],
        pa.schema([("k", pa.string()), ("v", pa.float64()), ("f", pa.float32()), ("ts", pa.timestamp("us", tz="UTC"))]),
    )
    schema = "k STRING, v DOUBLE, f FLOAT, ts TIMESTAMP"
    source = sw.Source(
        name="events", connection=sw.FilesConnection(), query=str(folder / "*.parquet"), format="parquet", schema=schema
    )
    aggs = [sw.Aggregation(agg=a, column=c, as_=f"{a}_{c}") for a in ("sum", "avg") for c in ("v", "f")]

    def answer(kind: str, is_behind: bool) -> dict[str, Any]:
        shape: dict[str, Any] = (
            {"gap_ms": "1h", "max_session_duration_ms": "9h"}
            if kind == "session"
            else {"duration_ms": "1h", "max_groups_per_window": 99}
        )
        window = sw.Window(kind=kind, event_time_column="ts", group_by=["k"], aggregations=aggs, **shape)
        name = f"{kind}{is_behind}"
        pq.write_table(table, folder / "0.parquet")
        with monkeypatch.context() as patched:
            if is_behind:
                patched.setattr(
                    PreaggregationPolicy,
                    "operator_for_epoch",
                    lambda folding, operator, one_task=False: operator_input.disable_preaggregation(operator),
                )
            runner.run_pipeline(
                source=source,
                window=window,
                name=name,
                target_path=str(runner.home / name),
            )
        return {r["k"]: tuple(encode_float_bits(r[a.as_]) for a in aggs) for r in runner.read_output(name).to_dicts()}

    before = answer("tumbling", False)
    assert before == answer("tumbling", True) == answer("session", False)
    for k, numbers in NUMBERS.items():
        if numbers:
            total, average, _ = compute_exact_sum_average_variance(numbers)
            assert (before[k][0], before[k][2]) == (encode_float_bits(total), encode_float_bits(average)), k
        else:
            assert set(before[k]) == {None}
