"""The specs of a transform and of a stage, and the paths on which rows reach a stage.

    clicks ──▶ paid (SQL) ──▶ per_minute ──▶ top (SQL) ──▶ target
               runs in its    has state      runs, because its
               reader                        results go to a target

A stateless stage whose results go only to other stages does not run on its own. Its SQL runs at the beginning of each
stage that reads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from slackwater.config.config_key import Converted, declare_key
from slackwater.config.dedup import Dedup
from slackwater.config.error_text import describe_value_mismatch, format_key, format_value
from slackwater.config.join import Join
from slackwater.config.keyed_step import Keyed
from slackwater.config.source import Lookup
from slackwater.config.spec_base import Problem, Spec, Values, table_parser
from slackwater.config.sql.select_scope import ROW_BY_ROW, GroupableColumns
from slackwater.config.step_base import ROWS, StepBase
from slackwater.config.value_parsers import (
    InvalidConfigTableError,
    InvalidValueError,
    attach_json_schema,
    choice_parser,
    parse_names,
    parse_text,
)
from slackwater.config.window import Window

STEPS: Mapping[str, type[StepBase]] = {
    "window": Window,
    "join": Join,
    "dedup": Dedup,
    "keyed": Keyed,
}  # a config has at most one of these tables
STEP = f"describe {', or '.join(f'the {key} in [transform.{key}]' for key in STEPS)}, or only sql in [transform]"


@attach_json_schema(
    of=Lookup, named={"pattern": "^[A-Za-z_][A-Za-z0-9_]*$", "not": {"pattern": "^[Ss][Oo][Uu][Rr][Cc][Ee]$"}}
)
def _lookups(value: Any) -> dict[str, Lookup]:
    if not isinstance(value, Mapping):
        raise InvalidValueError("a table of lookups ([transform.lookups.<name>])")
    problems: list[str] = []
    built = {name: Lookup.parse_partial(v, "", format_key(name), problems) for name, v in value.items()}
    seen: dict[str, str] = {}
    for name in value:
        if name.casefold() == "source":
            problems.append(f": {name}: is reserved for the input rows in SQL; choose another name")
        elif not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            problems.append(
                f": {format_key(name)}: "
                + describe_value_mismatch(name, 'a name of letters, digits and "_" that does not begin with a digit')
            )
        elif seen.setdefault(name.casefold(), name) != name:
            problems.append(
                f": {name}: is equal to {format_value(seen[name.casefold()])} in SQL, which ignores case; choose another name"
            )
    if problems or any(lookup._wrong for lookup in built.values()):
        raise InvalidConfigTableError(problems, built)
    return built


class Transform(Spec):
    """The processing of rows: row-wise SQL over the `source` view, then a window, join, dedup or keyed step.

    Without such a step, the rows that the SQL returns are the results, and no rows are kept in the state.
    """

    sql: str | None = declare_key(
        parse_text,
        "Row-wise SQL over the view `source`. It must select `_event_ts` and the columns that the window or other step needs. Without a step, the rows that it returns are the results.",
        default=None,
    )
    on_error: str = declare_key(
        choice_parser("fail", "drop", "dlq"),
        "What to do with bad rows: stop the pipeline, drop and count them, or write them to [dead_letter].",
        default="fail",
    )
    window: Window | None = declare_key(table_parser(Window), "Windows over the rows, with aggregations.", default=None)
    join: Join | None = declare_key(
        table_parser(Join), "A join of two inputs. It is an alternative to a window.", default=None
    )
    dedup: Dedup | None = declare_key(
        table_parser(Dedup),
        "Removes duplicates: emits one row per key among rows with nearby event times.",
        default=None,
    )
    keyed: Keyed | None = declare_key(
        table_parser(Keyed),
        "A keyed operator: your own class, with timers and any number of state rows per key.",
        default=None,
    )
    lookups: Mapping[str, Lookup] = declare_key(
        _lookups,
        "Small tables that the SQL may join: one table `[transform.lookups.<name>]` or `[stages.lookups.<name>]` per lookup.",
        default_factory=dict,
    )
    formerly: str | None = declare_key(
        parse_text,
        "The previous name of a renamed stage. The stage takes over the state that is stored under that name.",
        default=None,
    )

    DOC_LINK: ClassVar[str] = "docs/configuration.md#transform"

    CONFIG_PATH: ClassVar[str] = "transform"  # path of the table in a config
    STEPS: ClassVar[Mapping[str, type[StepBase]]] = STEPS

    @property
    def stateful(self) -> StepBase | None:
        """The window, join, dedup or keyed step; None if the stage has only SQL, or if the step is invalid (draft)."""
        return next((step for key in self.STEPS if (step := getattr(self, key)) is not None), None)

    @property
    def step(self) -> StepBase:
        """The window, join, dedup or keyed step; a `StatelessStep` if the stage has only SQL."""
        return self.stateful or ROWS

    @property
    def is_stateless(self) -> bool:
        """Return whether the stage has only SQL. A draft with an invalid step is not stateless."""
        return self.stateful is None and not {*self.STEPS} & self._wrong and self.sql is not None

    def sql_of(self, source: str) -> str | None:
        """Return the SQL for the rows of a source: for a join, the SQL of the source's side, otherwise `sql`."""
        if self.join is None:
            return self.sql
        return self.join.left_sql if source == self.join.left_source else self.join.right_sql

    def sql_key(self, source: str) -> str:
        """Return the config key of the SQL for the rows of a source, such as "transform.join.left_sql"."""
        if self.join is None:
            return "transform.sql"
        return f"{Join.CONFIG_PATH}.{'left' if source == self.join.left_source else 'right'}_sql"

    def map_lookups(self, change: Callable[[Lookup], Lookup]) -> Self:
        """Return a copy with `change` applied to each lookup."""
        return self.model_copy(update={"lookups": {name: change(lookup) for name, lookup in self.lookups.items()}})

    @classmethod
    def check(cls, values: Values, wrong: set[str]) -> Iterator[Problem]:
        present = [key for key in cls.STEPS if key in values or key in wrong]
        if not present and not ("sql" in values or "sql" in wrong):
            yield "window", f"missing; {STEP.replace('transform', cls.CONFIG_PATH)}"
        if present[1:]:
            yield (
                present[1],
                f"cannot be combined with [{cls.CONFIG_PATH}.{present[0]}]; a stage has only one step; remove one of "
                "them",
            )
        elif "join" in present and "sql" in values:
            yield (
                "sql",
                f"does not apply to a join, which has separate SQL for each side; use left_sql and right_sql in [{Join.CONFIG_PATH}]",
            )


class Stage(Transform):
    """One of several stages of a pipeline: SQL, a window, join, dedup or keyed step, and the names of its inputs.

    If `from_` is omitted, a join reads its `left_source` and `right_source`. Otherwise, the first stage reads all sources,
    and any other stage reads the stage before it.
    """

    name: str = declare_key(
        parse_text, "The name by which other stages refer to this stage.", required="give the stage a name"
    )
    from_: Converted[str | Sequence[str], tuple[str, ...]] = declare_key(
        parse_names,
        "The inputs of the stage: a source, a stage above it, or a list of them. By default, the stage directly above.",
        default=(),
    )

    DOC_LINK: ClassVar[str] = "docs/configuration.md#stages"

    CONFIG_PATH: ClassVar[str] = "stages"


@dataclass(frozen=True)
class InputPath:
    """A path on which rows reach a stage.

    Args:
        name: The input as the stage names it in `from`: a source or a stage.
        origin: The source, or the stage with state, from which the rows come.
        through: The stateless stages between the origin and the stage, in dataflow order.
    """

    name: str
    origin: str
    through: tuple[Stage, ...] = ()

    def passes(self, stage: str | None) -> bool:
        """Return whether rows on this path pass through a stage. `stage`: its name; None for the end of the path."""
        return stage is None or any(s.name == stage for s in self.through)

    def upstream_of(self, stage: str | None) -> tuple[str, ...]:
        """Return the names of the origin and of the stages before a given stage on this path.

        `stage`: the name of a stage on the path; None for the end of the path.
        """
        names = [s.name for s in self.through]
        return (self.origin, *(names if stage is None else names[: names.index(stage)]))

    @property
    def key(self) -> str:
        """A string that identifies the path among all paths to the same stage."""
        return " > ".join((self.origin, *(s.name for s in self.through)))


def stage_inputs(stages: Sequence[Stage], sources: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the names of the inputs of each stage, by stage name. `sources`: the names of all sources.

    By default, a join reads its two sides, the first stage reads all sources, and any other stage reads the stage above
    it.
    """
    inputs: dict[str, tuple[str, ...]] = {}
    before = tuple(sources)
    for stage in stages:
        join = stage.join
        sides = None if join is None else tuple(n for n in join.sources if n)
        inputs[stage.name] = tuple(stage.from_) or sides or before
        before = (stage.name,)
    return inputs


def executed_stages(stages: Sequence[Stage], shown: Iterable[str]) -> list[Stage]:
    """Return the stages that run: stages with state, and stateless stages whose results go to a target.

    `shown`: the names of the stages whose results go to a target.
    """
    needed = set(shown)
    return [s for s in stages if not s.is_stateless or s.name in needed]


def input_paths(stage: Stage, stages: Sequence[Stage], read: Mapping[str, Sequence[str]]) -> tuple[InputPath, ...]:
    """Return all paths on which rows reach a stage. `read`: the inputs of each stage, from `stage_inputs`."""
    stages_by_name = {s.name: s for s in stages}
    paths: list[InputPath] = []
    for name in read[stage.name]:
        before = stages_by_name.get(name)
        if before is None or not before.is_stateless:
            paths.append(InputPath(name, name))
        else:
            paths += [InputPath(name, w.origin, (*w.through, before)) for w in input_paths(before, stages, read)]
    return tuple(paths)


def find_groupable_columns(step: StepBase) -> GroupableColumns:
    """Return the columns by which SQL may group the results of a step, within the epoch that emits them."""
    if isinstance(step, Join):
        return GroupableColumns(
            reason="a joined row is emitted by the epoch that completes it, and the rows of a group may be in several epochs"
        )
    if not isinstance(step, Window):
        return ROW_BY_ROW
    if step.kind == "session":
        return GroupableColumns(
            reason="sessions with the same start and end may be emitted in different epochs: a session that is cut at "
            "max_session_duration closes before a session that ends there"
        )
    if step.emit != "final" and (step.emit != "on_close" or step.late_data not in ("drop", "dlq")):
        return GroupableColumns(
            reason='the windows that this SQL reads may be emitted more than once; set emit = "final" for them'
        )
    return GroupableColumns(frozenset((step.window_start_column, step.window_end_column)))
