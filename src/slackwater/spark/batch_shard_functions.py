"""Functions that `sw.batch` runs in workers. Each processes all rows of a shard as one epoch without late rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import singledispatch
from typing import TYPE_CHECKING

from slackwater.core.hashing import mix_bits
from slackwater.core.humanize import plural
from slackwater.engine.next_commit import format_late_sample
from slackwater.errors import BadRowError, raise_unregistered
from slackwater.joins import interval_join as joining
from slackwater.joins.compiled_join import ShuffleColumns
from slackwater.joins.join_buffers import NoBuffers
from slackwater.operators.base import Operator
from slackwater.operators.interval_join import IntervalJoinOperator
from slackwater.operators.window_base import WindowOperator
from slackwater.operators.window_operators import PaneOperator, SessionOperator
from slackwater.spark.operator_rows import to_ingest_rows
from slackwater.watermark import NO_WATERMARK
from slackwater.windows import pane_emission, pane_windows, session_emission
from slackwater.windows.compiled_window import EmitResult
from slackwater.windows.state_rows import FAR

if TYPE_CHECKING:
    import polars as pl

ShardFunction = Callable[["pl.DataFrame"], "pl.DataFrame"]
END_WATERMARK = "__upto"  # hidden column with the final watermark, which is the same in every row


def make_window_shard_function(operator: Operator) -> ShardFunction:
    """Return a function that computes the closed windows of a shard from all its rows."""

    def process(rows: pl.DataFrame) -> pl.DataFrame:
        end_watermark = rows[END_WATERMARK][0] if END_WATERMARK in rows.columns else FAR
        return _compute_windows(operator, rows.drop(END_WATERMARK, strict=False), end_watermark)

    return process


@singledispatch
def _compute_windows(operator: Operator, rows: pl.DataFrame, end_watermark: int) -> pl.DataFrame:
    """Return the windows of a shard that have closed at the watermark `end_watermark`."""
    raise_unregistered(operator, "slackwater.spark.batch_shard_functions.make_window_shard_function")


@_compute_windows.register(PaneOperator)
def _(operator: PaneOperator, rows: pl.DataFrame, end_watermark: int) -> pl.DataFrame:
    import polars as pl

    rows = to_ingest_rows(operator, rows)
    rows = rows.with_columns(pl.Series("__h", mix_bits(rows["__kh"].to_numpy(), rows["__start"].to_numpy())))
    done = pane_windows.ingest_panes(operator, rows, operator.empty_state(), NO_WATERMARK)
    return _output(operator, pane_emission.emit_windows(operator, done.state, NO_WATERMARK, end_watermark))


@_compute_windows.register(SessionOperator)
def _(operator: SessionOperator, rows: pl.DataFrame, end_watermark: int) -> pl.DataFrame:
    if operator.dynamic and rows["__end"].null_count():
        _raise_bad_gaps(operator, rows.filter(rows["__end"].is_null()))
    from slackwater.windows import session_ingest  # imported only here, because it compiles loops

    rows = to_ingest_rows(operator, rows)
    done = session_ingest.ingest_session_rows(operator, rows, operator.empty_state(), NO_WATERMARK)
    return _output(operator, session_emission.emit_sessions(operator, done.state, NO_WATERMARK, end_watermark))


def _output(operator: WindowOperator, emitted: EmitResult) -> pl.DataFrame:
    return operator.sorted_output(operator.output_frame(emitted))


def _raise_bad_gaps(operator: SessionOperator, bad: pl.DataFrame) -> None:
    sample = "; ".join(map(format_late_sample, operator.sample(bad, "__ts")))
    raise BadRowError(
        f"{operator.pipeline}: a shard has {plural(bad.height, 'bad row')} without a gap ({operator.window.gap_ms}) that is positive and "
        f'less than max_session_duration: {sample}; correct the expression, or pass on_error="drop" to leave out such rows'
    )


@singledispatch
def make_join_shard_function(operator: Operator) -> ShardFunction:
    """Return a function that computes the join of a shard from the rows of both sides."""
    raise_unregistered(operator, "slackwater.spark.batch_shard_functions.make_join_shard_function")


@make_join_shard_function.register(IntervalJoinOperator)
def _(operator: IntervalJoinOperator) -> ShardFunction:
    logic = replace(operator, max_rows_per_key=None)

    def process(rows: pl.DataFrame) -> pl.DataFrame:
        import polars as pl

        slots, output = ShuffleColumns.from_logic(logic), list[pl.DataFrame]()
        new = {side.which: slots.select_side(rows, side.which, ["__kh", "__ts"]) for side in logic.sides}
        done = joining.ingest_rows(logic, new, NoBuffers(), NO_WATERMARK, 0, output.append)
        for side in logic.sides:
            lonely = done.changes[side.which].rows.filter(~pl.col("__matched"))
            if side.outer and lonely.height:
                output.append(logic.unmatched_rows(side.which, lonely))
        schema = {f.name: f.polars for f in logic.output}
        return (
            logic.sorted_output(pl.concat([f.select(list(schema)) for f in output]))
            if output
            else pl.DataFrame(schema=schema)
        )

    return process
