"""Check schemas, event time and SQL with Spark's analyzer when a run starts, before any data is read.

The SQL of a stage must be row-wise: its output for a row may depend only on that row and on lookups.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from slackwater.config.error_text import format_value
from slackwater.config.pipeline import Pipeline
from slackwater.config.sql import lexer
from slackwater.config.sql.select_scope import ROW_BY_ROW, GroupableColumns
from slackwater.config.stage import InputPath
from slackwater.connectors import spark_connect_support
from slackwater.connectors.source import spark_error_reason
from slackwater.connectors.timestamp_parsing import UTC
from slackwater.core.column_names import CORRUPT, quote_identifier
from slackwater.core.schema import Field
from slackwater.errors import StartError, Topic
from slackwater.operators.dead_letters import ORIGIN, ORIGIN_TYPE
from slackwater.spark.analysis import row_origin_propagation, row_wise_plan_check
from slackwater.spark.epoch_sql import event_time_sql, gap_end_sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CLOCK = "PROCESSING"  # stands for the epoch's clock reading in place of an event-time expression
TIMES = ("timestamp", "timestamp_ntz", "date", "string")


def _fields_of(frame: DataFrame) -> dict[str, Field]:
    """Return the columns of a DataFrame with their types."""
    return {f.name: Field(f.name, f.dataType.simpleString()) for f in frame.schema.fields if f.name != CORRUPT}


def empty_frame(session: SparkSession, frame: DataFrame) -> DataFrame:
    """Return a batch DataFrame with the columns of `frame` and no rows."""
    return session.createDataFrame([], frame.schema)


def event_time_expression(
    pipeline: Pipeline, session: SparkSession, source: str, frame: DataFrame, has_clock: bool = False
) -> str:
    """Return the event-time expression of a source, as Spark SQL that yields a TIMESTAMP.

    Args:
        pipeline: The pipeline.
        session: The session that analyzes the expression.
        source: The name of the source.
        frame: A DataFrame with the columns of the source.
        has_clock: Whether to use the epoch's clock reading (`CLOCK`) if no event time is configured.

    Raises:
        StartError: The expression is not valid, is not row-wise or does not return a time.
    """
    step = pipeline.transform.step
    where = f'{pipeline.name}: source "{source}"'
    columns = list(_fields_of(frame))
    if step.time_mode == "processing":
        return CLOCK
    text = step.event_time_column
    if text == "_event_ts" and text not in columns and (has_clock or pipeline.transform.is_stateless):
        return CLOCK
    expression = quote_identifier(text) if text in columns else text
    try:
        field = empty_frame(session, frame).selectExpr(f"{expression} AS t").schema.fields[0]
    except Exception as error:
        raise StartError(
            f'{where}: event_time_column "{text}" is neither a column nor a valid expression ({_error_reason(error)}); '
            f"available: {', '.join(columns)}",
            Topic.EVENT_TIME,
        ) from None
    if text not in columns:
        _check_row_wise(session, empty_frame(session, frame), text, f'{where}: event_time_column "{text}"')
    type_ = Field("t", field.dataType.simpleString())
    if pipeline.transform.is_stateless and type_.type not in TIMES:
        raise StartError(
            f'{where}: column "_event_ts" is {type_.type}, which is not a time type; cast it in the SQL, or rename the column',
            Topic.EVENT_TIME,
        )
    zone = step.event_time_zone or UTC
    return event_time_sql(expression, type_, step.event_time_unit, f'{where}: event_time_column "{text}"', zone)


def _error_reason(error: Exception) -> str:
    """Return the reason for a Spark error without Spark's suggestions, because our message lists all names anyway."""
    return re.sub(r"\s*Did you mean one of the following\?.*$", "", spark_error_reason(error))


def run_sql(
    session: SparkSession,
    pipeline: Pipeline,
    input_path: InputPath,
    rows: DataFrame,
    texts: Sequence[str] | None = None,
) -> DataFrame:
    """Apply the SQL of an input path to rows. If there is no SQL, return the rows unchanged.

    Args:
        session: The session with the lookups.
        pipeline: The pipeline.
        input_path: The input path.
        rows: The rows of the source, with `_event_ts`.
        texts: Queries that also carry `_origin`, to run instead of the SQL in the config.
    """
    for sql in [sql for _, sql in pipeline.sql_chain(input_path)] if texts is None else texts:
        rows = _run_query(session, rows, sql)
    return rows


def _run_query(session: SparkSession, rows: DataFrame, sql: str) -> DataFrame:
    if spark_connect_support.is_connect(session):
        return spark_connect_support.query_frames(session, sql, {"source": rows})
    rows.createOrReplaceTempView("source")
    return session.sql(sql)


def _statement(session: SparkSession, rows: DataFrame, sql: str) -> str | None:
    """Return the first word of the SQL if the SQL is a statement. None if it is a query. The SQL is not run."""
    if not spark_connect_support.is_connect(session):
        rows.createOrReplaceTempView("source")
    return row_wise_plan_check.find_statement(session, sql)


def check_sql(session: SparkSession, pipeline: Pipeline, input_path: InputPath, frame: DataFrame) -> dict[str, Field]:
    """Analyze the SQL of an input path, and return its output columns by name.

    Args:
        session: The session with the lookups.
        pipeline: The pipeline.
        input_path: The input path.
        frame: A DataFrame with the columns of the source.

    Raises:
        StartError: The SQL is not valid or not row-wise.
    """
    view = rows = _source_view(session, pipeline, input_path, frame)
    for location, sql, groupable in pipeline.sql_chain_with_groupable(input_path):
        where = f'{pipeline.name}: source "{input_path.origin}": {location}'
        try:
            statement = _statement(session, rows, sql)
            if statement is not None:
                raise StartError(
                    f"{where}: {statement} is a statement; expected a query: SELECT … FROM source", Topic.VALUE
                )
            out = _run_query(session, rows, sql)
            assert out.schema  # Connect analyzes a plan only when its schema is requested
        except StartError:
            raise
        except Exception as error:
            raise StartError(
                f"{where}: the query is not valid ({_error_reason(error)}); available columns: "
                f"{', '.join(rows.columns)}",
                Topic.SQL,
            ) from None
        from_text = (
            row_wise_plan_check.find_forbidden_parts_in_text(out, sql, rows, groupable)
            if spark_connect_support.is_connect(session)
            else None
        )
        forbidden = row_wise_plan_check.find_forbidden_parts(out, view, groupable) if from_text is None else from_text
        forbidden |= set(lexer.find_current_time_literals(sql))
        if forbidden:
            raise StartError(
                f"{where} must be row-wise, but it uses {', '.join(sorted(forbidden))}; use only filters, projections "
                "and lookup joins"
                + ("" if pipeline.transform.join is not None else ", and describe aggregation in [transform.window]")
                + groupable.advice_for(forbidden),
                Topic.SQL,
            )
        _check_columns(pipeline, input_path, out, where)
        rows = out
    hidden_origin = _selected_origin(pipeline, input_path)
    return {name: field for name, field in _fields_of(rows).items() if name != hidden_origin}


def _check_row_wise(
    session: SparkSession,
    rows: DataFrame,
    expression: str,
    where: str,
    view: DataFrame | None = None,
    groupable: GroupableColumns = ROW_BY_ROW,
) -> None:
    """Raise StartError if the value of an expression over `rows` depends on more than the row itself.

    `where`: the prefix of the message. `view`, `groupable`: see `row_wise_plan_check.find_forbidden_parts`.
    """
    text = f"SELECT ({expression}) AS e FROM source"
    out = _run_query(session, rows, text)
    if spark_connect_support.is_connect(session):
        forbidden = row_wise_plan_check.find_forbidden_parts_in_text(out, text, rows)
    else:
        forbidden = row_wise_plan_check.find_forbidden_parts(out, view, groupable)
    forbidden |= set(lexer.find_current_time_literals(text))
    if forbidden:
        names = ", ".join(sorted(forbidden))
        raise StartError(
            f"{where} must be row-wise, but it uses {names}; use an expression that depends only on the row", Topic.SQL
        )


def _check_columns(pipeline: Pipeline, input_path: InputPath, out: DataFrame, where: str) -> None:
    """Raise StartError if the columns of a query's output do not suit the stage.

    The output of a stateless stage must not have duplicate columns. For any other stage, it needs a TIMESTAMP column
    `_event_ts`. `out`: the output. `where`: the prefix of the message.
    """
    if pipeline.transform.is_stateless:  # its columns are the output
        duplicates = [name for name, times in Counter(map(str.casefold, out.columns)).items() if times > 1]
        if duplicates:
            raise StartError(
                f"{where} selects {', '.join(map(format_value, duplicates))} more than once; give each column "
                "a different name",
                Topic.SQL,
            )
        return
    fields = _fields_of(out)
    if "_event_ts" not in fields:
        listed = ", ".join(name for name in fields if name != _selected_origin(pipeline, input_path))
        raise StartError(
            f'{where} does not select "_event_ts", the event time, but only {listed}; add "_event_ts" to the SELECT '
            "list",
            Topic.EVENT_TIME,
        )
    if fields["_event_ts"].type != "timestamp":
        raise StartError(
            f'{where} selects "_event_ts" as {fields["_event_ts"].type}, expected timestamp; select it unchanged',
            Topic.EVENT_TIME,
        )


def gap_end_expression(pipeline: Pipeline, session: SparkSession, input_path: InputPath, frame: DataFrame) -> str:
    """Return SQL for the time (µs) at which a row's gap ends, for windows in which each row has its own gap.

    The SQL runs over the output of an input path, and yields NULL for an invalid gap.

    Args:
        pipeline: The pipeline.
        session: The session with the lookups.
        input_path: The input path.
        frame: A DataFrame with the columns of the source.

    Raises:
        StartError: `gap` in the config is not an expression for a duration.
    """
    window = pipeline.transform.window
    assert window is not None
    view = _source_view(session, pipeline, input_path, frame)
    out = run_sql(session, pipeline, input_path, view)
    where = f'{pipeline.name}: source "{input_path.origin}": gap "{window.gap_ms}"'
    try:
        type_ = out.selectExpr(f"({window.gap_ms}) AS g").schema.fields[0].dataType.simpleString()
    except Exception as error:
        raise StartError(
            f"{where} is neither a duration nor a valid expression over the row ({_error_reason(error)}); available: {', '.join(out.columns)}",
            Topic.SQL,
        ) from None
    groupable = [columns for _, _, columns in pipeline.sql_chain_with_groupable(input_path)]
    _check_row_wise(session, out, str(window.gap_ms), where, view, groupable[-1] if groupable else ROW_BY_ROW)
    return gap_end_sql(f"({window.gap_ms})", Field("g", type_), window.max_session_duration_ms or 0, where)


def add_origin_to_sql(
    session: SparkSession, pipeline: Pipeline, input_path: InputPath, frame: DataFrame
) -> tuple[str, ...] | None:
    """Rewrite the queries of an input path so that their output also has `_origin`. None if there is no SQL.

    `late_data = "dlq"` requires this. Call it after `check_sql`.

    Args:
        session: The session with the lookups.
        pipeline: The pipeline.
        input_path: The input path.
        frame: A DataFrame with the columns of the source.

    Raises:
        StartError: `_origin` cannot be added.
    """
    where = f'{pipeline.name}: source "{input_path.origin}"'
    if ORIGIN in map(str.lower, frame.columns):
        raise StartError(
            f'{where} has a column "{ORIGIN}", but late_data = "dlq" stores the origin of a row under this name; '
            "rename the column",
            Topic.SQL,
        )
    rows, plain = (
        _empty_view(session, pipeline, frame, with_origin=True),
        _source_view(session, pipeline, input_path, frame),
    )
    carrying = []
    for location, sql in pipeline.sql_chain(input_path):
        plain = _run_query(session, plain, sql)
        carrying.append(_sql_with_origin(session, rows, sql, plain, f"{where}: {location}"))
        rows = _run_query(session, rows, carrying[-1])
    return tuple(carrying) or None


def _sql_with_origin(session: SparkSession, rows: DataFrame, user_sql: str, plain: DataFrame, where: str) -> str:
    """Return SQL that selects `_origin` in addition to the columns of `user_sql`.

    Args:
        session: The session with the lookups.
        rows: The input of the SQL, with `_origin`.
        user_sql: The SQL in the config.
        plain: The output of `user_sql`.
        where: The prefix of error messages.

    Raises:
        StartError: `_origin` cannot be added.
    """
    expected = [column for column in plain.dtypes if column[0].lower() != ORIGIN]

    def carries(sql: str) -> bool:
        columns = _run_query(session, rows, sql).dtypes
        return (ORIGIN, ORIGIN_TYPE) in columns and [c for c in columns if c[0] != ORIGIN] == expected

    try:
        if _carries_origin(carries, user_sql):
            return user_sql
        if row_origin_propagation.mentions_origin(user_sql):
            raise row_origin_propagation.OriginError("the SQL does not select it exactly once and unchanged")
        rewritten = row_origin_propagation.add_origin_column(user_sql)
        if carries(rewritten):
            return rewritten
        reason = "the SQL changes it"
    except row_origin_propagation.OriginError as error:
        reason = str(error)
    except Exception as error:
        reason = spark_error_reason(error)
    raise StartError(
        f'{where}: late_data = "dlq" requires the hidden column "{ORIGIN}" in the result of the query, but the column '
        f'cannot be added ({reason}); add "{ORIGIN}" to every SELECT, from the one that reads "source" to the '
        "outermost one",
        Topic.SQL,
    )


def _carries_origin(carries: Callable[[str], bool], sql: str) -> bool:
    try:
        return carries(sql)
    except Exception:
        return False  # for example, a UNION in which only one branch has SELECT * and therefore one more column


def _selects_origin(pipeline: Pipeline, input_path: InputPath) -> bool:
    return pipeline.tracks_origin and any(
        row_origin_propagation.mentions_origin(sql) for _, sql in pipeline.sql_chain(input_path)
    )


def _selected_origin(pipeline: Pipeline, input_path: InputPath) -> str | None:
    """Return the name of the origin column if the SQL in the config contains this name. Otherwise return None."""
    return ORIGIN if _selects_origin(pipeline, input_path) else None


def _source_view(session: SparkSession, pipeline: Pipeline, input_path: InputPath, frame: DataFrame) -> DataFrame:
    """Return an empty DataFrame to use as `source`, with the columns that the SQL of an input path expects.

    It has `_origin` if the SQL names this column. `frame`: a DataFrame with the columns of the source.
    """
    return _empty_view(session, pipeline, frame, with_origin=_selects_origin(pipeline, input_path))


def _empty_view(session: SparkSession, pipeline: Pipeline, frame: DataFrame, with_origin: bool) -> DataFrame:
    """Return an empty DataFrame to use as `source`, with the columns of `frame` and `_event_ts`.

    For a stateless stage, it has `_event_ts` only if `frame` has this column.
    """
    timed = "_event_ts" in frame.columns or not pipeline.transform.is_stateless
    more = ["CAST(NULL AS TIMESTAMP) AS _event_ts"] if timed else []
    more += [f"CAST(NULL AS {ORIGIN_TYPE}) AS {ORIGIN}"] if with_origin else []
    rows = empty_frame(session, frame).drop(CORRUPT, "_event_ts")
    return rows.selectExpr("*", *more)


def check_same_columns(pipeline: Pipeline, outputs: Mapping[str, Mapping[str, Field]], needed: list[str]) -> None:
    """Raise StartError if the outputs of several sources differ in a column or its type.

    Args:
        pipeline: The pipeline.
        outputs: The columns of the SQL's output, by source.
        needed: The columns to check. For a stateless stage, all columns are checked.
    """
    (first, expected), *others = outputs.items()
    for name, columns in others:
        for column in (*needed, *(set(columns) - set(expected) if pipeline.transform.is_stateless else ())):
            a, b = expected.get(column), columns.get(column)
            if a and b and a.type == b.type:
                continue
            raise StartError(
                f'{pipeline.name}: column "{column}" is {a.type if a else "missing"} in source "{first}" and '
                f'{b.type if b else "missing"} in source "{name}"; expected the same columns from every source; '
                "cast or rename the column in the SQL",
                Topic.SQL,
            )
