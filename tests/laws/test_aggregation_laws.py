"""Every aggregation in every window kind equals the naive oracle, for any batches, order and shards of rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.laws.generators.row_strategies import KINDS, NAN, SHAPES, micro_batches, nonempty_epoch_inputs, ordered_rows
from tests.laws.oracles import window_oracle
from tests.support.case_selection import select_cases
from tests.support.local_pipeline_script import KILL_POINTS, DriverCrash, MicroBatch, run_local_script

from slackwater.config.custom_aggregator import Aggregator
from slackwater.config.window import Aggregation, Window
from slackwater.errors import LimitExceededError

SCHEMA = {"k": "double", "u": "string", "id": "bigint", "x": "bigint", "f": "double", "w": "int", "m": "decimal(8,2)"}
SCHEMA |= {"s": "string", "t": "timestamp"}
BOUNDED = {"max_values_per_group": 1000}
COUNTED = {"k": 2, "max_distinct_values_per_group": 1000}


class ProductSpread(Aggregator):
    """Difference between the largest and the smallest product of two columns, and the number of products."""

    inputs: Mapping[str, str] = {"left": "double", "right": "bigint"}
    accumulators: Mapping[str, str] = {"low": "double", "high": "double", "seen": "array<double>"}
    output = "struct<width:double,n:bigint>"

    def lift(self, left: Any, right: Any) -> Any:
        import polars as pl

        product = left.fill_nan(None) * right
        seen = pl.concat_list(product).list.drop_nulls()
        return {"low": product, "high": product, "seen": seen}

    def merge(self, low: Any, high: Any, seen: Any) -> Any:
        return {"low": low.min(), "high": high.max(), "seen": seen.explode().drop_nulls()}

    def finish(self, low: Any, high: Any, seen: Any) -> Any:
        import polars as pl

        return pl.struct((high - low).alias("width"), seen.list.len().cast(pl.Int64).alias("n"))


def expected_spread(rows: list[Any]) -> dict[str, Any]:
    products = [r["f"] * r["w"] for r in rows if r["f"] is not None and r["f"] == r["f"] and r["w"] is not None]
    return {"width": max(products) - min(products) if products else None, "n": len(products)}


def build_aggregation(kind: str, column: str | None = None, **more: Any) -> Aggregation:
    return Aggregation(agg=kind, column=column, as_=f"{kind}_{column}_{more.get('by') or more.get('quantile')}", **more)


# tests/spark and tests/contract cover all types; the types here have a special order or arithmetic
ALL = [
    build_aggregation("count"),
    *(build_aggregation(kind, column) for kind, column in (("var", "f"), ("var", "w"), ("stddev", "m"))),
    *(build_aggregation("approx_quantile", column, quantile=q) for column, q in (("f", 0.3), ("f", 1), ("w", 0.5), ("m", 0))),
    *(build_aggregation("top_k", column, **COUNTED) for column in ("f", "s")),
    *(build_aggregation(kind, column, **BOUNDED) for kind in ("collect_set", "collect_list") for column in ("f", "t")),
    *(build_aggregation(kind, v, by=by) for kind in ("min_by", "max_by") for v, by in (("f", "w"), ("w", "f"), ("t", "s"))),
    Aggregation(agg=ProductSpread, columns={"left": "f", "right": "w"}, as_="spread"),
]  # fmt: skip


def window_with_aggregations(kind: str, aggregations: list[Aggregation] = ALL, **given_: Any) -> Window:
    return Window(**{"group_by": ["k", "u"], "aggregations": aggregations, **SHAPES[kind], **given_})


@st.composite
def aggregation_rows(draw: st.DrawFn, most: int = 20) -> list[dict[str, Any]]:
    """Draw rows in event-time order with few distinct values, so that ties occur."""
    drawn_rows = draw(ordered_rows(most))
    for row in drawn_rows:
        row["w"] = draw(st.sampled_from([None, -1, 2, 5]))
        row["m"] = draw(
            st.sampled_from([None, window_oracle.decimal.Decimal("1.25"), window_oracle.decimal.Decimal("-7.50")])
        )
        row["s"] = draw(st.sampled_from([None, "", "ü", "b"]))
        row["t"] = draw(st.sampled_from([None, -1, 10**15]))
    return drawn_rows


def oracle_rows(kind: str, given_: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compute built-in aggregations by the oracle, and the user-defined one by a loop in this module."""
    shape = window_with_aggregations(kind, ALL[:-1])
    expected_rows = []
    for row in window_oracle.compute_windows_over_all_rows(
        window_with_aggregations(kind, [Aggregation(agg="collect_list", column="id", as_="ids", **BOUNDED)]), given_
    ):
        members = [r for r in given_ if r["id"] in row["ids"] and has_same_key(r, row)]
        plain = {k: v for k, v in row.items() if k != "ids"}
        expected_rows.append(
            {**plain, **window_oracle.aggregate(shape.aggregations, members), "spread": expected_spread(members)}
        )
    return expected_rows


def has_same_key(a: Any, b: Any) -> bool:
    return all(window_oracle.canonical_value(a[k]) == window_oracle.canonical_value(b[k]) for k in ("k", "u"))


def normalize_value(value: Any) -> Any:
    """Normalize a value for comparison: NaN as a word, times in µs, floats with ten digits."""
    if isinstance(value, dict):
        return {k: normalize_value(v) for k, v in value.items() if k not in ("session_id", "_epoch")}
    if isinstance(value, list):
        return [normalize_value(v) for v in value]
    if hasattr(value, "timestamp"):
        return round(value.timestamp() * 1_000_000)
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.10g}") + 0.0
    return window_oracle.canonical_value(value)


def comparable_rows(output_rows: list[Any]) -> list[Any]:
    return sorted((sorted(normalize_value(r).items()) for r in output_rows), key=repr)


@pytest.mark.semantics("aggregations")
@KINDS
@given(data=st.data())
def test_ordered_input_gives_the_batch_result(kind: str, data: st.DataObject) -> None:
    """Variance, quantiles, lists, rankings and a user-defined aggregation match the oracle in each window kind."""
    given_ = data.draw(aggregation_rows())
    result = run_local_script(
        window_with_aggregations(kind),
        nonempty_epoch_inputs(data.draw(micro_batches(given_))),
        SCHEMA,
        shards=data.draw(st.sampled_from([1, 3])),
    )
    assert comparable_rows(result.rows) == comparable_rows(oracle_rows(kind, given_))


@KINDS
@given(data=st.data())
def test_disorder_and_crashes_do_not_change_results(kind: str, data: st.DataObject) -> None:
    given_ = data.draw(aggregation_rows(most=12))
    shuffled = data.draw(st.permutations(given_))
    dying: list[Any] = []
    for epoch in nonempty_epoch_inputs(data.draw(micro_batches(shuffled))):
        dying += [*data.draw(st.lists(st.sampled_from([DriverCrash(s) for s in KILL_POINTS]), max_size=1)), epoch]
    result = run_local_script(
        window_with_aggregations(kind, lateness_ms="1h"),
        dying,
        SCHEMA,
        reshard_after=data.draw(st.sampled_from([None, 0])),
    )
    assert result.counters.rows_late == 0
    assert comparable_rows(result.rows) == comparable_rows(oracle_rows(kind, given_))


@given(data=st.data())
def test_group_limit_admits_the_same_groups_when_lift_runs_in_sql_or_in_shards(data: st.DataObject) -> None:
    given_ = data.draw(st.permutations(data.draw(aggregation_rows())))
    epochs = nonempty_epoch_inputs(data.draw(micro_batches(given_)))
    few = {"max_groups_per_window": 3, "on_state_cap": "drop_new_groups"}
    for kind in ("tumbling", "hopping"):
        both = [
            run_local_script(window_with_aggregations(kind, a, **few), epochs, SCHEMA, shards=2)
            for a in (ALL[:1], [ALL[0], ALL[-1]])
        ]
        assert both[0].counters == both[1].counters
        assert comparable_rows(
            [{k: v for k, v in r.items() if k != "spread"} for r in both[1].rows]
        ) == comparable_rows(both[0].rows)


@KINDS
@pytest.mark.parametrize("column", ["a", "b", "c"])
def test_variance_error_is_bounded_for_mean_far_from_zero(kind: str, column: str) -> None:
    """For 1e9 ± 1, a double has enough digits for the distances from the mean, but not for the squares."""
    values = {"a": [1e9 + n % 3 - 1 for n in range(300)], "b": [1e-9 * n for n in range(300)], "c": [0.1] * 300}[column]
    given_ = [{"ts": n // 40 * 1000, "k": 0.0, "u": "a", "f": v} for n, v in enumerate(values)]
    shape = window_with_aggregations(kind, [build_aggregation("var", "f"), build_aggregation("count", "f")])
    result = run_local_script(shape, [MicroBatch({"a": given_[n : n + 7]}) for n in range(0, 300, 7)], SCHEMA)
    expected = {(r["window_start"]): r for r in window_oracle.compute_windows_over_all_rows(shape, given_)}
    assert len(result.rows) == len(expected) > 0
    for row in result.rows:
        n, exact = row["count_f_None"], expected[row["window_start"]]["var_f_None"]
        loss = n * 2.0**-52
        squares = exact + max(values) ** 2
        assert abs(row["var_f_None"] - exact) <= loss * math.sqrt(exact * squares) + loss**2 * squares


@pytest.mark.semantics("aggregations")
@KINDS
@pytest.mark.parametrize("size", select_cases([5000, 190, 3]))
def test_quantile_rank_error_is_bounded_for_any_batch_size(kind: str, size: int) -> None:
    """`approx_quantile` stays within its rank error, however rows are batched.

    The values span 20 ms, and a tenth of them are NaN. The error of 99 % of the ranks is within 1.33 %.
    The test allows 3 %.
    """
    quantiles = [0, 0.01, 0.25, 0.5, 0.75, 0.89, 0.95, 1]
    given_ = [
        {"ts": n % 20 * 1000, "k": 0.0, "u": "a", "f": NAN if n % 10 == 3 else float((n * 7919) % 20_011)}
        for n in range(20_000 if size > 3 else 450)
    ]
    aggregations = [build_aggregation("approx_quantile", "f", quantile=q) for q in quantiles]
    shape = window_with_aggregations(
        kind, [*aggregations, build_aggregation("collect_list", "f", max_values_per_group=30_000)], lateness_ms="1s"
    )
    result = run_local_script(
        shape, [MicroBatch({"a": given_[n : n + size]}) for n in range(0, len(given_), size)], SCHEMA
    )
    assert result.rows
    for row in result.rows:
        values = sorted(row["collect_list_f_None"], key=window_oracle.sort_key)
        for q, a in zip(quantiles, aggregations, strict=True):
            estimate = window_oracle.sort_key(row[a.as_])
            below, upto = (
                sum(window_oracle.sort_key(v) < estimate for v in values),
                sum(window_oracle.sort_key(v) <= estimate for v in values),
            )
            assert below - 0.03 * len(values) <= q * len(values) <= upto + 0.03 * len(values)


@pytest.mark.semantics("aggregations")
@KINDS
@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize(
    ("given_", "message"),
    [
        (build_aggregation("collect_set", "x", max_values_per_group=2), 'has 3 distinct values of "x" in one group, but max_values_per_group is 2; raise it, or use'),
        (build_aggregation("collect_list", "x", max_values_per_group=2), 'has 3 values of "x" in one group, but max_values_per_group is 2; raise it, or use collect_set'),
        (build_aggregation("top_k", "x", k=1, max_distinct_values_per_group=2), 'has 3 distinct values of "x" in one group, but max_distinct_values_per_group is 2'),
    ],
)  # fmt: skip
def test_group_over_value_limit_fails_the_run(kind: str, epochs: int, given_: Aggregation, message: str) -> None:
    """The run fails if a group exceeds a limit on its values, and the error names the limit."""
    input_rows = [{"ts": n * 1000, "k": 0.0, "u": "a", "x": n} for n in range(3)]
    cut = [input_rows] if epochs == 1 else [[r] for r in input_rows]
    enough = given_.model_copy(update={"max_values_per_group": 3, "max_distinct_values_per_group": 3})
    run_local_script(window_with_aggregations(kind, [enough]), nonempty_epoch_inputs(cut), SCHEMA)
    with pytest.raises(LimitExceededError, match=message):
        run_local_script(window_with_aggregations(kind, [given_]), nonempty_epoch_inputs(cut), SCHEMA)
