"""Sums of floating-point numbers are exact and bit-identical for any batches, order and shards of the rows.

The oracle adds exact fractions. Values cancel, are subnormal, and have partial sums beyond the largest double.
"""

from __future__ import annotations

import math
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.laws.generators.row_strategies import KINDS, MS, SHAPES
from tests.support.exact_float_statistics import compute_exact_sum_average_variance, encode_float_bits
from tests.support.local_pipeline_script import KILL_POINTS, DriverCrash, MicroBatch, run_local_script

import slackwater as sw
from slackwater.core.schema import Field
from slackwater.evolution.pipeline_from_state import restore_window
from slackwater.state.files.store import FilesStore
from slackwater.windows import aggregations
from slackwater.windows.aggregations import AggregateFunction, bind_aggregation, floats

EXAMPLES = int(os.environ.get("SLACKWATER_LAWS_EXAMPLES", "300"))
LARGEST = 1.7976931348623157e308
AGGS = ("sum", "avg", "var", "stddev")
SPECS = [sw.Aggregation(agg=a, column="v", as_=a) for a in AGGS]


def draw_float(chance: random.Random) -> float:
    draw = chance.randrange(8)
    if draw == 0:
        return chance.uniform(-1, 1) * 2.0 ** chance.randint(-1074, 1020)
    if draw == 1:
        return chance.choice([LARGEST, -LARGEST, 1.2e308, 5e-324, -5e-324, 0.0, -0.0, 3e-170, 1e200])
    if draw == 2:
        return chance.choice([1e16, -1e16, 1.0, 1e100, -1e100])
    if draw == 3:
        return float(chance.randint(-1000, 1000))
    return round(chance.uniform(-100, 100), chance.randint(0, 12))


def draw_floats(chance: random.Random, most: int = 14) -> list[float]:
    some = [draw_float(chance) for _ in range(chance.randint(1, most))]
    if chance.random() < 0.3:  # all values cancel
        some += [-v for v in some]
    if chance.random() < 0.2:
        some = [some[0]] * len(some)
    if chance.random() < 0.05:
        some.append(chance.choice([math.nan, math.inf, -math.inf]))
    chance.shuffle(some)
    return some


def distance_in_ulps(a: float, b: float) -> float:
    """Return the distance in units of the last place, 0 for equal values."""
    if encode_float_bits(a) == encode_float_bits(b) or a == b:
        return 0
    return abs(a - b) / math.ulp(b)


def merge_accumulators(agg: AggregateFunction, parts: list[pl.DataFrame]) -> pl.DataFrame:
    """Merge the accumulators of several groups into one group."""
    return pl.DataFrame(agg.merge_adjacent(pl.concat(parts), np.array([0])))


def accumulate_in_random_order(agg: AggregateFunction, numbers: list[float], chance: random.Random) -> pl.DataFrame:
    """Return the accumulators of the numbers, merged in a random order and grouping."""
    numbers = chance.sample(numbers, len(numbers))
    rows = pl.DataFrame({"ts": range(len(numbers)), "v": numbers}, schema={"ts": pl.Int64, "v": pl.Float64})
    lifted = rows.select(agg.lift(rows, "ts")).cast(agg.accumulators)  # type: ignore[arg-type]
    parts = [lifted[i : i + 1] for i in range(len(numbers))]
    while len(parts) > 1:
        size = chance.randint(2, 5)
        parts = [*parts[size:], merge_accumulators(agg, parts[:size])]
    return parts[0]


@pytest.mark.parametrize("which", AGGS)
def test_accumulator_and_result_are_independent_of_order_and_grouping(which: str) -> None:
    agg = bind_aggregation(sw.Aggregation(agg=which, column="v", as_="x"), Field("v", "double"))
    needed_limbs = 0
    for seed in range(EXAMPLES):
        chance = random.Random(seed)
        numbers = draw_floats(chance)
        first, second = (
            accumulate_in_random_order(agg, numbers, chance),
            accumulate_in_random_order(agg, numbers, chance),
        )
        needed_limbs += first["x.limbs"].null_count() == 0
        assert [*map(repr, first.row(0))] == [*map(repr, second.row(0))], (seed, numbers)
        result = agg.finish(first)[0]
        total, average, variance = compute_exact_sum_average_variance(numbers)
        if which in ("sum", "avg"):
            assert encode_float_bits(result) == encode_float_bits(total if which == "sum" else average), (seed, numbers)
        elif len(numbers) < 2:
            assert result is None
        elif which == "var":
            assert distance_in_ulps(result, variance) <= 2, (seed, numbers, result, variance)
        elif 0 < variance < math.inf:
            assert distance_in_ulps(result, math.sqrt(variance)) <= 4 or variance < 1e-300, (seed, numbers)
        elif variance == math.inf:
            assert result > 1e150, (seed, numbers)
    assert needed_limbs > EXAMPLES / 10


def test_stddev_is_finite_when_squares_exceed_the_largest_double() -> None:
    agg = bind_aggregation(sw.Aggregation(agg="stddev", column="v", as_="x"), Field("v", "double"))
    chance = random.Random(1)
    assert (
        agg.finish(accumulate_in_random_order(agg, [1.2e308, 1.2e308, 1.0, -1.2e308, -1.2e308], chance))[0] == 1.2e308
    )
    assert agg.finish(accumulate_in_random_order(agg, [3e-200, 1e-200], chance))[0] == pytest.approx(
        math.sqrt(2) * 1e-200, rel=1e-15
    )
    assert agg.finish(accumulate_in_random_order(agg, [1e9 + 0.1] * 7, chance))[0] == 0.0


@pytest.mark.semantics("aggregations")
@KINDS
def test_float_results_are_bit_identical_across_epochs_shards_and_crashes(kind: str) -> None:
    """Sums, averages and moments of floats are identical to the bit, regardless of batches, shards, row order and
    crashes.
    """
    window = sw.Window(group_by=["k"], aggregations=SPECS, lateness_ms="1h", **SHAPES[kind])
    for seed in range(max(EXAMPLES // 30, 2)):
        chance = random.Random(seed)
        rows = [{"ts": n % 7 * MS, "k": chance.choice("ab"), "v": v} for n, v in enumerate(draw_floats(chance, 20))]

        def answer(window: Any = window, rows: Any = rows, chance: Any = chance) -> list[Any]:
            cut = chance.randint(1, len(rows))
            mixed = chance.sample(rows, len(rows))
            script: list[Any] = [MicroBatch({"a": mixed[i : i + cut]}) for i in range(0, len(mixed), cut)]
            script.insert(chance.randrange(len(script)), DriverCrash(chance.choice(KILL_POINTS)))
            schema = {"k": "string", "v": "double"}
            output_rows = run_local_script(window, script, schema, shards=chance.choice([1, 3])).rows
            return sorted((r["window_start"], r["k"], *(encode_float_bits(r[a]) for a in AGGS)) for r in output_rows)

        assert answer() == answer(), seed


def test_state_with_legacy_float_sums_is_carried_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read and continue a state of an earlier version.

    Such a state has a sum that was rounded at every row, and moments.
    """
    window = sw.Window(group_by=["k"], aggregations=SPECS, lateness_ms="1h", **SHAPES["session"])
    schema, numbers = {"k": "string", "v": "double"}, [0.1, 0.2, 0.3, 1e9, 1e9 + 1]
    rows = [{"ts": n, "k": "a", "v": v} for n, v in enumerate(numbers)]

    def former(spec: Any, columns: Any, keys: Any) -> Any:
        kind = floats.LegacyFloatTotal if spec.agg in ("sum", "avg") else floats.LegacyMoments
        return kind(spec, columns, keys)

    with monkeypatch.context() as earlier:
        earlier.setattr(aggregations, "KINDS", {**aggregations.KINDS, **dict.fromkeys(AGGS, former)})
        run_local_script(
            window,
            [MicroBatch({"a": rows[:3]}), MicroBatch({"a": rows[3:4]})],
            schema,
            state_dir=str(tmp_path),
            flush=False,
        )
    with FilesStore(tmp_path, "law").peek() as snapshot:
        assert snapshot is not None
        logic = restore_window(snapshot.commit)
        held = pl.concat([snapshot.reader(s, logic).scan() for s in range(2)])
        assert {"var.mean", "sum.sum"} <= set(held.columns)
        assert "sum.rest" not in held.columns
    result = run_local_script(window, [MicroBatch({"a": rows[4:]})], schema, state_dir=str(tmp_path))
    (row,) = result.rows
    _, _, variance = compute_exact_sum_average_variance(numbers)
    assert row["sum"] == pytest.approx(sum(numbers), rel=1e-15)
    assert row["avg"] == row["sum"] / 5
    assert row["var"] == pytest.approx(variance, rel=1e-12)
    assert row["stddev"] == math.sqrt(row["var"])
