"""Selections from a frame of results: rows by a condition, columns by name, or both by a SQL query over `result`."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from slackwater.config.message_format import format_value, suggest_word_or_list, value_mismatch
from slackwater.errors import StartError
from slackwater.query.condition import parse_condition


def filter_rows(frame: pl.DataFrame, where: str | None) -> pl.DataFrame:
    """Return the rows that satisfy a SQL condition; all rows for None. Raises StartError."""
    if where is None:
        return frame
    try:
        return frame.filter(parse_condition(where, frame.columns))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise StartError(f"where: {_one_line(error)}") from None


def select_columns(frame: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """Return these columns in this order, or all columns if none is named.

    `names`: column names; one string may contain several names, separated by commas. Raises StartError.
    """
    split_names = [n for text in names for n in ([text] if text in frame.columns else text.split(","))]
    selected = list(dict.fromkeys(n if n in frame.columns else n.strip() for n in split_names))
    for name in selected:
        if name not in frame.columns:
            raise StartError(
                f"columns: {format_value(name)} is not a column of the result{suggest_word_or_list(name, frame.columns)}; available: "
                f"{', '.join(frame.columns)}"
            )
    return frame.select(selected) if selected else frame


def select_with_sql(frame: pl.DataFrame, sql: str) -> pl.DataFrame:
    """Run a SQL query over the frame, whose name in the query is `result`. Raises StartError."""
    try:
        return pl.SQLContext(result=frame, eager=True).execute(sql)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise StartError(
            f"sql: {_one_line(error)}; " + value_mismatch(sql, f"SELECT … FROM result over: {', '.join(frame.columns)}")
        ) from None


def _one_line(error: BaseException) -> str:
    """Return the message of an error as one line."""
    return " ".join(str(error).split("\n\nResolved plan")[0].split())[:300] or type(error).__name__
