"""From a window's spec and the columns that are there to its logic; misfits are told by name, with the columns there are."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from slackwater.config.pipeline import Pipeline
from slackwater.core.schema import Field
from slackwater.errors import StartError
from slackwater.windows.aggregations import Agg
from slackwater.windows.logic import Logic


def compile_window(pipeline: Pipeline, columns: Mapping[str, Field]) -> Logic:
    """Bind keys and aggregations to the columns that come out of the SQL. Raises StartError, one line per misfit."""
    window = pipeline.transform.window
    assert window is not None
    problems: list[str] = []

    def find(name: str, where: str) -> Field | None:
        field = columns.get(name)
        if field is None:
            near = difflib.get_close_matches(name, columns, n=1)
            hint = f'; did you mean "{near[0]}"?' if near else ""
            problems.append(
                f'{pipeline.name}: {where}: column "{name}" does not come out of the SQL{hint}; there are: {", ".join(columns)}'
            )
        elif not field.supported:
            problems.append(
                f'{pipeline.name}: {where}: column "{name}" has type {field.type}; expected a scalar type, cast it in the SQL'
            )
        else:
            return field
        return None

    keys = [find(k, "transform.window.group_by") for k in window.group_by]
    aggs: list[Agg] = []
    for spec in window.aggregations:
        where = f'aggregation "{spec.as_}"'
        column = find(spec.column, where) if spec.column else None
        more = [find(name, where) for name in spec.further_columns()]
        found = tuple(m for m in more if m is not None)
        if (column is None and spec.column is not None) or len(found) < len(more):
            continue
        try:
            aggs.append(Agg(spec, column, found, window.group_by))
        except StartError as error:
            problems.append(f"{pipeline.name}: {error}")
    if problems:
        raise StartError("\n".join(problems))
    return Logic(pipeline.name, window, tuple(k for k in keys if k is not None), tuple(aggs))
