"""What of a frame of results is asked for: rows by a condition, columns by name, or a query over `result`."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from slackwater.config.message_format import format_value, suggestion_or_list
from slackwater.errors import StartError
from slackwater.query.condition import parse_condition


def filter_rows(frame: pl.DataFrame, where: str | None) -> pl.DataFrame:
    """Return the rows for which a condition holds. Raises StartError."""
    if where is None:
        return frame
    try:
        return frame.filter(parse_condition(where, frame.columns))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise StartError(f"where: {_line(error)}") from None


def select_columns(frame: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """Return these columns, in this order; all for none. Each text is a name, or several with commas. Raises StartError."""
    listed = [n for text in names for n in ([text] if text in frame.columns else text.split(","))]
    selected = list(dict.fromkeys(n if n in frame.columns else n.strip() for n in listed))
    for name in selected:
        if name not in frame.columns:
            raise StartError(
                f"columns: {format_value(name)} is not a column of the result{suggestion_or_list(name, frame.columns)}; there are: "
                f"{', '.join(frame.columns)}"
            )
    return frame.select(selected) if selected else frame


def select_with_sql(frame: pl.DataFrame, sql: str) -> pl.DataFrame:
    """Return what SQL selects from the frame, which is called `result`. Raises StartError."""
    try:
        return pl.SQLContext(result=frame, eager=True).execute(sql)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise StartError(
            f"sql: {_line(error)}; found {format_value(sql)}, expected SELECT … FROM result over: {', '.join(frame.columns)}"
        ) from None


def _line(error: BaseException) -> str:
    """What an error says, in one line."""
    return " ".join(str(error).split("\n\nResolved plan")[0].split())[:300] or type(error).__name__
