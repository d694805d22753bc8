"""Registry of operators: from which config step each is built, and how it is restored from a state.

Each new operator needs an entry in `OPERATOR_TYPES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from slackwater.config.dedup import Dedup
from slackwater.config.join import Join
from slackwater.config.keyed import Keyed
from slackwater.config.pipeline import Pipeline
from slackwater.config.stateless_step import StatelessStep as RowsSpec
from slackwater.config.step_base import StepBase
from slackwater.config.window import KINDS_OF_WINDOW, Window
from slackwater.core.schema import Field
from slackwater.errors import raise_unregistered
from slackwater.operators.base import Operator
from slackwater.operators.compile import compile_join, compile_stateless, compile_window
from slackwater.operators.dedup import DedupOperator
from slackwater.operators.interval_join import IntervalJoinOperator
from slackwater.operators.keyed_function import KeyedFunctionOperator
from slackwater.operators.panes import PaneOperator
from slackwater.operators.sessions import SessionOperator
from slackwater.operators.stateless import StatelessOperator
from slackwater.operators.stored_keyed import StoredKeyedOperator
from slackwater.state.commit import StageState

Columns = Mapping[str, Mapping[str, Field]]  # the output columns of each source's SQL, in order


@dataclass(frozen=True)
class OperatorType:
    """The operator type that implements a step of the config.

    `from_state`: a function that restores an operator from a pipeline's name and the state of a stage. It may raise
    KeyError, TypeError, ValueError or IndexError. None for windows, which `evolution.operator_from_state` restores.
    """

    name: str  # shown to users
    kinds: tuple[str, ...]  # the kinds that its fingerprints can have
    step: type[StepBase]
    operators: tuple[type[Operator], ...]
    compile: Callable[[Pipeline, Columns], Operator]  # raises StartError, with one line per problem
    from_state: Callable[[str, StageState], Operator] | None = None


def _window(pipeline: Pipeline, columns: Columns) -> Operator:
    return compile_window(pipeline, next(iter(columns.values())))


def _join(pipeline: Pipeline, columns: Columns) -> Operator:
    assert pipeline.transform.join is not None
    return compile_join(pipeline, [columns[source] for source in pipeline.transform.join.sources])


def _rows(pipeline: Pipeline, columns: Columns) -> Operator:
    return compile_stateless(pipeline, list(next(iter(columns.values())).values()))


OPERATOR_TYPES: list[OperatorType] = [
    OperatorType("window", KINDS_OF_WINDOW, Window, (PaneOperator, SessionOperator), _window),
    OperatorType("join", ("join",), Join, (IntervalJoinOperator,), _join, IntervalJoinOperator.from_state),
    OperatorType("stage without state", ("rows",), RowsSpec, (StatelessOperator,), _rows, StatelessOperator.from_state),
    OperatorType(
        "dedup", ("dedup",), Dedup, (DedupOperator,), DedupOperator.from_config, StoredKeyedOperator.from_state
    ),
    OperatorType(
        "keyed stage",
        ("keyed",),
        Keyed,
        (KeyedFunctionOperator,),
        KeyedFunctionOperator.from_config,
        StoredKeyedOperator.from_state,
    ),
]


def find_type_by_kind(kind: object) -> OperatorType | None:
    """Return the operator type whose fingerprints have this kind, or None."""
    return next((operator_type for operator_type in OPERATOR_TYPES if kind in operator_type.kinds), None)


def find_type_by_step(step: StepBase) -> OperatorType:
    """Return the operator type of a config step."""
    operator_type = next(
        (operator_type for operator_type in OPERATOR_TYPES if isinstance(step, operator_type.step)), None
    )
    if operator_type is None:
        raise_unregistered(step, "slackwater.operators.registry")
    return operator_type


def compile_step(pipeline: Pipeline, columns: Columns) -> Operator:
    """Compile a pipeline's step against the output columns of the SQL. Raises StartError, with one line per problem."""
    return find_type_by_step(pipeline.transform.step).compile(pipeline, columns)
