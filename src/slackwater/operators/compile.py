"""Compile the spec of a step (window, join, or other) against the available columns into its operator.

Errors name the unsuitable columns and the available columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slackwater.config.connector_description import metadata_columns
from slackwater.config.join import EVENT_TIME, joined_column_names
from slackwater.config.keyed_step import KeyedStep
from slackwater.config.message_format import suggest_word_or_list
from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.config.step_base import effective_allowed_lateness_ms
from slackwater.config.window import Window
from slackwater.core.column_names import ROW_COLUMNS
from slackwater.core.schema import INTEGERS, Field
from slackwater.errors import StartError
from slackwater.joins import compiled_join as joins
from slackwater.operators.interval_join import IntervalJoinOperator
from slackwater.operators.panes import PaneOperator
from slackwater.operators.sessions import SessionOperator
from slackwater.operators.stateless import StatelessOperator
from slackwater.windows.aggregations import Agg


def compile_window(pipeline: Pipeline, columns: Mapping[str, Field]) -> PaneOperator | SessionOperator:
    """Bind keys and aggregations to the output columns of the SQL. Raises StartError, with one line per problem."""
    window = pipeline.transform.window
    assert window is not None
    return bind_window(pipeline.name, window, columns)


def bind_window(pipeline: str, window: Window, columns: Mapping[str, Field]) -> PaneOperator | SessionOperator:
    """Bind the keys and aggregations of a window to these columns. `pipeline`: the name that errors begin with.

    Raises StartError, with one line per problem.
    """
    problems: list[str] = []

    def find(name: str, where: str) -> Field | None:
        field = columns.get(name)
        if field is None:
            problems.append(
                f'{pipeline}: {where}: column "{name}" does not come out of the SQL{suggest_word_or_list(name, columns)}'
            )
        elif not field.is_scalar:
            problems.append(
                f'{pipeline}: {where}: column "{name}" has type {field.type}; expected a scalar type; cast it in the '
                "SQL"
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
        further = tuple(m for m in more if m is not None)
        if (column is None and spec.column is not None) or len(further) < len(more):
            continue
        try:
            aggs.append(Agg(spec, column, further, window.group_by))
        except StartError as error:
            problems.append(f"{pipeline}: {error}")
    held = {name: a.name for a in aggs for name in a.accumulators}
    problems += [
        f'{pipeline}: transform.window.group_by: "{k}" is also a state column of aggregation "{held[k]}"; rename one '
        "of them"
        for k in window.group_by
        if k in held
    ]
    if problems:
        raise StartError("\n".join(problems))
    kind = SessionOperator if window.kind == "session" else PaneOperator
    return kind(pipeline, window, tuple(k for k in keys if k is not None), tuple(aggs))


def compile_join(pipeline: Pipeline, columns: Sequence[Mapping[str, Field]]) -> IntervalJoinOperator:
    """Bind a join to the output columns of each side's SQL. Raises StartError, with one line per problem."""
    join = pipeline.transform.join
    assert join is not None
    where = f"{pipeline.name}: transform.join"
    problems: list[str] = []
    keys: tuple[list[Field], list[Field]] = ([], [])
    for side, listed, available in zip(keys, (join.left_keys, join.right_keys), columns, strict=True):
        which = "left" if side is keys[0] else "right"
        for name in listed:
            if name in available:
                side.append(available[name])
                continue
            problems.append(
                f'{where}.{which}_keys: column "{name}" does not come out of the {which} side{suggest_word_or_list(name, available)}'
            )
    if not problems:
        for one, other in zip(*keys, strict=True):
            problems += _key_problems(where, one, other)
    try:
        chosen = joined_column_names(join, list(columns[0]), list(columns[1]), _hidden(pipeline))
    except StartError as error:
        problems += [f"{pipeline.name}: {line}" for line in str(error).splitlines()]
        chosen = ({}, {})
    for word, names, available in zip(("left", "right"), chosen, columns, strict=True):
        problems += [
            f'{where}: column "{name}" of the {word} side has type {available[name].type}, which a join cannot store; '
            f"cast it in {word}_sql, or convert it to text with to_json()"
            for name in names
            if name in available and not available[name].is_result_type
        ]
    if problems:
        raise StartError("\n".join(problems))
    lower, upper = (1000 * ms for ms in join.bounds_ms)
    allowed = 1000 * effective_allowed_lateness_ms(join)
    left, right = (
        joins.build_join_side(
            which,
            source,
            keys[which],
            [columns[which][c] for c in names],
            [(name, columns[which][c]) for c, name in names.items()],
            lower,
            upper,
            allowed,
            join.outer[which],
        )
        for which, (source, names) in enumerate(zip(join.sources, chosen, strict=True))
    )
    return IntervalJoinOperator(
        pipeline.name, left, right, allowed, join.event_time, join.max_rows_per_key, join.on_state_cap == "drop_oldest"
    )


def bind_keyed_step(
    pipeline: Pipeline, columns: Mapping[str, Mapping[str, Field]]
) -> tuple[tuple[Field, ...], tuple[Field, ...]]:
    """Return the key columns of a keyed step, and all of its input columns except the event time.

    Raises StartError, with one line per problem.
    """
    step, first = pipeline.transform.step, next(iter(columns.values()))
    assert isinstance(step, KeyedStep)
    where, problems = f"{pipeline.name}: {step.CONFIG_PATH}", list[str]()
    for name in step.keys:
        if name not in first:
            problems.append(
                f'{where}.keys: column "{name}" does not come out of the SQL{suggest_word_or_list(name, first)}'
            )
        elif not first[name].is_scalar:
            problems.append(
                f'{where}.keys: column "{name}" has type {first[name].type}; expected a scalar type; cast it in the SQL'
            )
    fields = tuple(f for f in first.values() if f.name != EVENT_TIME)
    for field in fields:
        if field.name.startswith("__"):
            problems.append(f'{where}: column "{field.name}" has a name that Slackwater reserves; rename it')
        elif not field.is_result_type:
            problems.append(
                f'{where}: column "{field.name}" has type {field.type}, which no target supports; cast it in the SQL, '
                "or convert it to text with to_json()"
            )
    for name in step.added_columns:
        if name in first:
            problems.append(
                f'{where}: the SQL selects a column "{name}", which this step adds itself; rename the column in the SQL'
            )
    if problems:
        raise StartError("\n".join(problems))
    return tuple(first[k] for k in step.keys), fields


def compile_stateless(pipeline: Pipeline, columns: Sequence[Field]) -> StatelessOperator:
    """Build a stateless operator with the selected columns, in order. Raises StartError, with one line per problem."""
    where, seen = f"{pipeline.name}: {pipeline.transform.CONFIG_PATH}.sql", dict[str, str]()
    problems: list[str] = []
    for field in columns:
        if field.name.casefold() in ROW_COLUMNS:
            problems.append(f'{where}: column "{field.name}" has a name that Slackwater reserves; rename it')
        elif (other := seen.setdefault(field.name.casefold(), field.name)) != field.name or columns.count(field) > 1:
            problems.append(f'{where}: selects column "{other}" more than once; give each its own name')
        elif not field.is_result_type:
            problems.append(
                f'{where}: column "{field.name}" has type {field.type}, which no target supports; cast it in the SQL, '
                "or convert it to text with to_json()"
            )
    if problems:
        raise StartError("\n".join(dict.fromkeys(problems)))
    return StatelessOperator(pipeline.name, tuple(columns))


def _hidden(pipeline: Pipeline) -> tuple[Sequence[str], Sequence[str]]:
    """Return, for each side of a join, the metadata columns that the connector adds to its rows."""
    assert pipeline.transform.join is not None
    connections = {
        s.name: resolve_connection(s.connection, pipeline.connections) if s.connection else None
        for s in pipeline.sources
    }
    direct = {
        w.name: w.origin for w in pipeline.input_paths if not w.through
    }  # after SQL, only the selected columns remain
    left, right = (
        metadata_columns(c.kind if (c := connections.get(direct.get(name, ""))) else None)
        for name in pipeline.transform.join.sources
    )
    return left, right


def _key_problems(where: str, left: Field, right: Field) -> list[str]:
    """Return error messages about a pair of join keys; empty if they can be compared.

    Keys are compared by hash, so both must have the same type. Integer types of different widths count as the same
    type.
    """
    pair = f'"{left.name}" of the left side is {left.type} and "{right.name}" of the right side is {right.type}'
    if not (left.is_scalar and right.is_scalar):
        return [f"{where}: keys: {pair}; expected scalar types; cast them in left_sql and right_sql"]
    if left.type == right.type or (left.base in INTEGERS and right.base in INTEGERS):
        return []
    return [f"{where}: keys: {pair}; cast one of them in left_sql or right_sql, so that both have the same type"]
