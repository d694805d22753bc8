"""Session kernels: their sort order, their compilation, and imports that do not load Numba."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import polars as pl
import pytest
from numba.core.registry import CPUDispatcher
from tests.laws.generators import session_window_step_comparison
from tests.support import session_window_reference

from slackwater.config.window import Aggregation, Window
from slackwater.core import numba_loops, sorted_arrays
from slackwater.core.schema import Field
from slackwater.operators.registry import bind_window
from slackwater.windows.compiled_session_window import find_session_heads
from slackwater.windows.session_loops import compile_loops, rows_behind_watermark, session_rules

LOOPS = [
    loop
    for module in (session_rules, numba_loops, rows_behind_watermark)
    for loop in vars(module).values()
    if isinstance(loop, CPUDispatcher) and loop.targetoptions.get("cache", True)
]


SPREADS: dict[str, Any] = {
    "as hashes are": lambda rng: rng.integers(np.iinfo(np.int64).min, np.iinfo(np.int64).max, size=500),
    "in one bucket": lambda rng: np.arange(500),
    "at both ends": lambda rng: np.where(
        rng.random(500) < 0.5, *(getattr(np.iinfo(np.int64), e) for e in ("min", "max"))
    ),
}


@pytest.mark.parametrize("spread", SPREADS.values(), ids=SPREADS)
@pytest.mark.parametrize("rows", [0, 1, 32, 33, 64, 65, 1000, 4097])
@pytest.mark.parametrize("keys", [1, 3, 500])
def test_session_interval_sort_equals_a_stable_sort(rows: int, keys: int, spread: Any) -> None:
    """Sort one key with thousands of rows and many keys with a few, with ties in all sort columns."""
    rng = np.random.default_rng(rows)
    hashes = spread(rng)[rng.integers(keys, size=rows)]
    start, wide = rng.integers(max(rows // 4, 1), size=rows), rng.integers(3, size=rows)
    order, ordered = numba_loops.sort_intervals(hashes, start, start + wide)
    assert (order == np.lexsort((start + wide, start, hashes))).all()
    assert (ordered == hashes[order]).all()
    assert (numba_loops.distinct_hashes(hashes) == np.unique(hashes)).all()


@pytest.mark.parametrize("spread", SPREADS.values(), ids=SPREADS)
@pytest.mark.parametrize("rows", [0, 1, 2, 33, 1000, 4097])
@pytest.mark.parametrize("keys", [0, 1, 40, 500])
@pytest.mark.parametrize("largest", [0, 10**9], ids=["compiled", "numpy"])
def test_ranges_of_values_in_an_ordered_array(
    largest: int, keys: int, rows: int, spread: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The values are ascending with repetitions, or in any order. Some do not occur, or lie outside the array."""
    monkeypatch.setattr(sorted_arrays, "LARGE", largest)
    rng = np.random.default_rng(rows + keys)
    ordered = np.sort(spread(rng)[rng.integers(500, size=rows)])
    ordered.setflags(write=False)
    shuffled = spread(rng)[rng.integers(500, size=keys)] + rng.integers(-1, 2, size=keys)
    for values in (np.sort(shuffled), np.unique(shuffled), shuffled):
        begin, end = sorted_arrays.find_ranges(ordered, values)
        assert (begin == np.searchsorted(ordered, values, "left")).all()
        assert (end == np.searchsorted(ordered, values, "right")).all()


@pytest.mark.parametrize("seed", range(30))
def test_session_heads_match_the_whole_array_implementation(seed: int) -> None:
    """The intervals are sorted, do not overlap, and have different gaps."""
    rng = np.random.default_rng(seed)
    edges = np.cumsum(rng.integers(1, 6, size=2 * 60))
    start, last = edges[::2], np.where(rng.random(60) < 0.5, edges[::2], edges[1::2])
    end = last + rng.integers(1, 12, size=60)
    run = np.cumsum(np.append(True, start[1:] > np.maximum.accumulate(end)[:-1])) - 1
    for cap in (1, 6, 20, 1000):
        expected = session_window_reference.find_session_heads(start, last, end, run, cap)
        assert (find_session_heads(start, last, end, run, cap) == expected).all()


def test_warm_up_compiles_every_kernel_that_an_epoch_runs() -> None:
    compile_loops()
    before = {loop.__name__: loop.signatures for loop in LOOPS}
    assert {"sort_intervals", "distinct_hashes", "build_runs", "summarize_keys", "build_fragments"} <= set(before)
    for seed in range(40):
        session_window_step_comparison.check_session_step_seed(seed)
    assert {loop.__name__: loop.signatures for loop in LOOPS} == before
    assert all(len(signatures) <= 1 for name, signatures in before.items() if not name.startswith("_"))


def test_kernels_compile_without_a_cache_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    real = numba_loops.njit

    def without_a_place(*arguments: Any, **options: Any) -> Any:
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return real(*arguments, **options)

    monkeypatch.setattr(numba_loops, "njit", without_a_place)

    def double(n: int) -> int:
        return 2 * n

    assert numba_loops.compiled(double)(21) == 42


def test_importing_slackwater_and_binding_a_window_do_not_load_numba() -> None:
    code = (
        "import sys, slackwater, slackwater.operators.registry, slackwater.runner.run, slackwater.testing.local_engine\n"
        "print('numba' in sys.modules, 'llvmlite' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "values",
    [[1.0, NAN, -2.5, INF, -INF, 0.0], [NAN, NAN, NAN, NAN, NAN, 1.0], [1.0, None, None, 2.0, None, None]],
    ids=["numbers", "nan", "null"],
)
@pytest.mark.parametrize("heads", [[0, 1, 2, 3, 4, 5], [0], [0, 2, 3], [0, 5]])
def test_merging_runs_matches_merging_scattered_groups(values: list[float | None], heads: list[int]) -> None:
    """Merge many kinds of accumulators, some of them with one array operation, over numbers, NULL and NaN."""
    names = ["count", "sum", "avg", "min", "max", "var", "first", "collect_list"]
    columns = {"v": "double", "i": "bigint", "s": "string"}
    specs = [Aggregation(agg="count", as_="n")]
    for column in columns:
        for agg in names if column != "s" else ["count", "min", "max", "last"]:
            more = {"max_values_per_group": 100} if agg == "collect_list" else {}
            specs.append(Aggregation(agg=agg, column=column, as_=f"{agg}_{column}", **more))
    window = Window(kind="session", gap_ms=1, max_session_duration_ms=9, group_by=["k"], aggregations=specs)
    logic = bind_window("unit", window, {n: Field(n, t) for n, t in {**columns, "k": "string"}.items()})
    whole = [None if v is None else n << 40 for n, v in enumerate(values)]
    texts = [None if v is None else str(v) for v in values]
    rows = pl.DataFrame(
        {"__kh": [1] * 6, "__ts": list(range(6)), "k": ["a"] * 6, "v": values, "i": whole, "s": texts}, strict=False
    ).cast({"v": pl.Float64, "i": pl.Int64, "s": pl.String})
    parts = logic.lift_rows(rows).select(*logic.accumulators)
    run_starts = np.array(heads)
    group = np.repeat(np.arange(len(run_starts)), np.diff(run_starts, append=6))
    keys = pl.Series("k", ["a"] * 6)
    expected = session_window_reference.merge_groups(logic, parts.with_columns(keys), group, [])
    merged = logic.merge_runs(parts, run_starts, [keys.gather(run_starts.tolist())])
    assert merged.select(expected.columns).equals(expected)
