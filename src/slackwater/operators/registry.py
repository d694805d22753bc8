"""Registry of operator types: how a config step is compiled into an operator, and how one is restored from a state.

A step is bound to the output columns of the SQL. Each new operator needs an entry in `OPERATOR_TYPES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slackwater.config.connector_description import metadata_columns
from slackwater.config.dedup import Dedup
from slackwater.config.error_text import suggest_or_list_words
from slackwater.config.join import SIDES, Join, joined_column_names
from slackwater.config.keyed_step import Keyed
from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.config.step_base import StatelessStep, StepBase, effective_allowed_lateness_ms
from slackwater.config.window import KINDS_OF_WINDOW, Window
from slackwater.core.column_names import ROW_COLUMNS
from slackwater.core.schema import INTEGERS, Field
from slackwater.errors import StartError, raise_unregistered
from slackwater.joins.compiled_join import build_join_side
from slackwater.operators.base import Operator
from slackwater.operators.dedup import DedupOperator
from slackwater.operators.interval_join import IntervalJoinOperator
from slackwater.operators.keyed_operator_base import StoredKeyedOperator, find_result_problem, find_scalar_problem
from slackwater.operators.stateless import StatelessOperator
from slackwater.operators.user_keyed_operator import UserKeyedOperator
from slackwater.operators.window_operators import PaneWindowOperator, SessionWindowOperator
from slackwater.state.commit import StageState
from slackwater.windows.aggregations import AggregateFunction, bind_aggregation

Columns = Mapping[str, Mapping[str, Field]]  # the output columns of each source's SQL, in order


@dataclass(frozen=True)
class OperatorType:
    """Operator type that implements one kind of config step.

    `from_state` restores an operator from the name of a pipeline and the state of a stage. It may raise KeyError,
    TypeError, ValueError or IndexError. It is None for windows, which `evolution.pipeline_from_state` restores.
    """

    name: str  # shown to users
    kinds: tuple[str, ...]  # the kinds that its fingerprints can have
    step: type[StepBase]
    operators: tuple[type[Operator], ...]
    compile: Callable[[Pipeline, Columns], Operator]  # raises StartError, with one line per problem
    from_state: Callable[[str, StageState], Operator] | None = None


OPERATOR_TYPES: list[OperatorType] = [
    OperatorType(
        "window",
        KINDS_OF_WINDOW,
        Window,
        (PaneWindowOperator, SessionWindowOperator),
        lambda pipeline, columns: compile_window(pipeline, next(iter(columns.values()))),
    ),
    OperatorType(
        "join",
        ("join",),
        Join,
        (IntervalJoinOperator,),
        lambda pipeline, columns: compile_join(pipeline, [columns[source] for source in _join_of(pipeline).sources]),
        IntervalJoinOperator.from_state,
    ),
    OperatorType(
        "stage without state",
        ("rows",),
        StatelessStep,
        (StatelessOperator,),
        lambda pipeline, columns: compile_stateless(pipeline, list(next(iter(columns.values())).values())),
        StatelessOperator.from_state,
    ),
    OperatorType(
        "dedup", ("dedup",), Dedup, (DedupOperator,), DedupOperator.from_config, StoredKeyedOperator.from_state
    ),
    OperatorType(
        "keyed stage",
        ("keyed",),
        Keyed,
        (UserKeyedOperator,),
        UserKeyedOperator.from_config,
        StoredKeyedOperator.from_state,
    ),
]


def find_type_by_kind(kind: object) -> OperatorType | None:
    """Return the operator type whose fingerprints can have this kind, or None."""
    return next((t for t in OPERATOR_TYPES if kind in t.kinds), None)


def find_type_by_step(step: StepBase) -> OperatorType:
    """Return the operator type of a config step."""
    operator_type = next((t for t in OPERATOR_TYPES if isinstance(step, t.step)), None)
    if operator_type is None:
        raise_unregistered(step, "slackwater.operators.registry")
    return operator_type


def compile_step(pipeline: Pipeline, columns: Columns) -> Operator:
    """Compile a pipeline's step against the output columns of the SQL. Raises StartError, with one line per problem."""
    return find_type_by_step(pipeline.transform.step).compile(pipeline, columns)


# -- compilation ------------------------------------------------------------------------------------------------------


def compile_window(pipeline: Pipeline, columns: Mapping[str, Field]) -> PaneWindowOperator | SessionWindowOperator:
    """Bind a pipeline's window to the output columns of the SQL. Raises StartError, with one line per problem."""
    window = pipeline.transform.window
    assert window is not None
    return bind_window(pipeline.name, window, columns)


def bind_window(
    pipeline: str, window: Window, columns: Mapping[str, Field]
) -> PaneWindowOperator | SessionWindowOperator:
    """Bind the keys and aggregations of a window to columns. `pipeline`: the name of the pipeline, for messages.

    Raises StartError, with one line per problem.
    """
    problems: list[str] = []

    def find(name: str, where: str) -> Field | None:
        problem = find_scalar_problem(f"{pipeline}: {where}", name, columns)
        if problem is None:
            return columns[name]
        problems.append(problem)
        return None

    keys = [find(k, "transform.window.group_by") for k in window.group_by]
    aggs: list[AggregateFunction] = []
    for spec in window.aggregations:
        where = f'aggregation "{spec.as_}"'
        column = find(spec.column, where) if spec.column else None
        more = [find(name, where) for name in spec.further_columns()]
        further = tuple(m for m in more if m is not None)
        if (column is None and spec.column is not None) or len(further) < len(more):
            continue
        try:
            aggs.append(bind_aggregation(spec, column, further, window.group_by))
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
    kind = SessionWindowOperator if window.kind == "session" else PaneWindowOperator
    return kind(pipeline, window, tuple(k for k in keys if k is not None), tuple(aggs))


def compile_join(pipeline: Pipeline, columns: Sequence[Mapping[str, Field]]) -> IntervalJoinOperator:
    """Bind a join to the output columns of both sides. Raises StartError, with one line per problem."""
    join, where = _join_of(pipeline), f"{pipeline.name}: transform.join"
    problems: list[str] = []
    keys: tuple[list[Field], list[Field]] = ([], [])
    for which, side, listed, available in zip(SIDES, keys, (join.left_keys, join.right_keys), columns, strict=True):
        side += [available[name] for name in listed if name in available]
        problems += [
            f'{where}.{which}_keys: column "{name}" does not come out of the {which} side'
            f"{suggest_or_list_words(name, available)}"
            for name in listed
            if name not in available
        ]
    if not problems:
        for one, other in zip(*keys, strict=True):
            problems += _key_problems(where, one, other)
    try:
        chosen = joined_column_names(join, list(columns[0]), list(columns[1]), _hidden(pipeline))
    except StartError as error:
        problems += [f"{pipeline.name}: {line}" for line in str(error).splitlines()]
        chosen = ({}, {})
    for word, names, available in zip(SIDES, chosen, columns, strict=True):
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
        build_join_side(
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


def compile_stateless(pipeline: Pipeline, columns: Sequence[Field]) -> StatelessOperator:
    """Build a stateless operator for the output columns of the SQL. Raises StartError, with one line per problem."""
    where, seen = f"{pipeline.name}: {pipeline.transform.CONFIG_PATH}.sql", dict[str, str]()
    problems: list[str] = []
    for field in columns:
        folded = field.name.casefold()
        is_reserved, other = folded in ROW_COLUMNS, seen.setdefault(folded, field.name)
        if not is_reserved and (other != field.name or columns.count(field) > 1):
            problems.append(f'{where}: selects column "{other}" more than once; give each its own name')
        elif (problem := find_result_problem(where, field, is_reserved)) is not None:
            problems.append(problem)
    if problems:
        raise StartError("\n".join(dict.fromkeys(problems)))
    return StatelessOperator(pipeline.name, tuple(columns))


def _join_of(pipeline: Pipeline) -> Join:
    assert pipeline.transform.join is not None
    return pipeline.transform.join


def _hidden(pipeline: Pipeline) -> tuple[Sequence[str], Sequence[str]]:
    """Return the metadata columns that connectors add to the rows of each side of a join."""
    connections = {
        s.name: resolve_connection(s.connection, pipeline.connections) if s.connection else None
        for s in pipeline.sources
    }
    # the SQL of another stage keeps only the selected columns
    direct = {w.name: w.origin for w in pipeline.input_paths if not w.through}
    left, right = (
        metadata_columns(c.kind if (c := connections.get(direct.get(name, ""))) else None)
        for name in _join_of(pipeline).sources
    )
    return left, right


def _key_problems(where: str, left: Field, right: Field) -> list[str]:
    """Return error messages about a pair of join keys, if their values cannot be compared.

    Keys are compared by hash. Therefore, both must have the same type. All integer types count as the same type.
    """
    pair = f'"{left.name}" of the left side is {left.type} and "{right.name}" of the right side is {right.type}'
    if not (left.is_scalar and right.is_scalar):
        return [f"{where}: keys: {pair}; expected scalar types; cast them in left_sql and right_sql"]
    if left.type == right.type or (left.base in INTEGERS and right.base in INTEGERS):
        return []
    return [f"{where}: keys: {pair}; cast one of them in left_sql or right_sql, so that both have the same type"]
