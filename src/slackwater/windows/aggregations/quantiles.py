"""approx_quantile: exact for small groups, and a KLL sketch for larger ones.

See Karnin, Lang, Liberty, "Optimal quantile approximation in streams", 2016, and Apache DataSketches.

    values ──▶ buffer of up to k values ──▶ when it overflows: into the sketch

The rank of the returned value differs from the requested rank by at most the sketch's error, regardless of batching.
The error is 1.33 % of the values for k = 200, at 99 % confidence. Groups of up to k values are exact. A sketch uses
random numbers, so results for larger groups may differ between runs, within that error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from slackwater.config.aggregation import QUANTILE_K
from slackwater.windows.aggregations.kind import AggregationKind, as_lists, concatenate_lists

_NAN = float("nan")


class Quantile(AggregationKind):
    """The aggregation approx_quantile, with three accumulators.

    `nans` counts NaNs, which rank above all other values. `values` is the buffer. `sketch` is a list of at most one
    serialized sketch.
    """

    NUMERIC = True

    @property
    def _k(self) -> int:
        return self.spec.k or QUANTILE_K

    OUTPUT = "double"

    @property
    def parts(self) -> Mapping[str, pl.DataType]:
        return {"nans": pl.Int64(), "values": pl.List(pl.Float64()), "sketch": pl.List(pl.Binary())}

    def lift(self, rows: pl.DataFrame, event_us: str) -> Sequence[pl.Expr | pl.Series]:
        value = rows[self.column.name].cast(pl.Float64)
        return [
            value.is_nan().fill_null(False).cast(pl.Int64).alias(self.part("nans")),
            as_lists(value.fill_nan(None).alias(self.part("values"))),
            pl.lit([], pl.List(pl.Binary())).alias(self.part("sketch")),
        ]

    def merge(self) -> Sequence[pl.Expr]:
        return [
            pl.col(self.part("nans")).sum(),
            concatenate_lists(self.part("values")),
            concatenate_lists(self.part("sketch")),
        ]

    def to_stored_form(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Replace an overflowing buffer, or several sketches, with one sketch.

        The loop runs over large groups, not over rows.
        """
        values, sketch = self.part("values"), self.part("sketch")
        full = frame.select(((pl.col(values).list.len() > self._k) | (pl.col(sketch).list.len() > 1)).arg_true())
        rows = full.to_series()
        if rows.is_empty():
            return frame
        serialized = [[self._sketch(frame, row).serialize()] for row in rows.to_list()]
        lists = frame.select(values, sketch)
        keep = pl.Series(np.isin(np.arange(frame.height), rows.to_numpy(), invert=True))
        fresh = pl.DataFrame({"__row": rows, "__new": pl.Series(serialized, dtype=pl.List(pl.Binary()))})
        lists = lists.with_row_index("__row").join(fresh, on="__row", how="left", maintain_order="left")
        return frame.with_columns(
            lists.select(
                pl.when(keep).then(pl.col(values)).otherwise(pl.lit([], pl.List(pl.Float64()))).alias(values),
                pl.when(keep).then(pl.col(sketch)).otherwise(pl.col("__new")).alias(sketch),
            )
        )

    def _sketch(self, frame: pl.DataFrame, row: int) -> Any:
        import datasketches

        whole = datasketches.kll_doubles_sketch(self._k)
        for part in frame[self.part("sketch")][row]:
            whole.merge(datasketches.kll_doubles_sketch.deserialize(part))
        whole.update(
            np.array(frame[self.part("values")][row], dtype=np.float64)
        )  # a copy, because `update` does not accept a view
        return whole

    def finish(self, frame: pl.DataFrame) -> pl.Series:
        """Return the smallest value whose rank reaches the quantile, like Spark's `percentile_disc`.

        A group without values gets NULL.
        """
        q = self.spec.quantile or 0.0
        nans, values = frame[self.part("nans")], frame[self.part("values")]
        sketched = (frame[self.part("sketch")].list.len() > 0).arg_true().to_list()
        sketches = {row: self._sketch(frame, row) for row in sketched}
        numbers = values.list.len().cast(pl.Int64).to_numpy().copy()
        for row, sketch in sketches.items():
            numbers[row] = sketch.n
        total = numbers + nans.to_numpy()
        rank = np.maximum(np.ceil(np.round(q * total, 6)), 1).astype(np.int64)  # 0.55 * 100 is slightly more than 55
        position = pl.Series("place", np.minimum(rank, np.maximum(numbers, 1)) - 1)
        quantiles = pl.select(values.list.sort().list.get(position, null_on_oob=True)).to_series()
        quantiles = quantiles.set(pl.Series(rank > numbers), _NAN).set(pl.Series(total == 0), None)
        if not sketches:
            return quantiles
        exact = [row for row, s in sketches.items() if rank[row] <= s.n]
        answers = [sketches[row].get_quantile(float(rank[row] / sketches[row].n), True) for row in exact]
        return quantiles.scatter(exact, answers)

    def details(self) -> list[str]:
        return [str(self._k)]
