"""The specs of a transform and of a stage: lookups, SQL, and the window, join or keyed step. A stage also names its inputs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from slackwater.config.dedup import Dedup
from slackwater.config.join import Join
from slackwater.config.key import Converted, declare_key
from slackwater.config.keyed import Keyed
from slackwater.config.message_format import format_key, format_value, value_mismatch
from slackwater.config.source import Lookup
from slackwater.config.spec_base import Problem, Spec, Values, table_parser
from slackwater.config.step_base import ROWS, StepBase
from slackwater.config.value_parsers import (
    InvalidTableError,
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
            problems.append(f": {name}: is reserved for the rows in SQL; choose another name")
        elif not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            problems.append(f": {format_key(name)}: " + value_mismatch(name, 'a name of letters, digits and "_"'))
        elif seen.setdefault(name.casefold(), name) != name:
            problems.append(
                f": {name}: is the same name as {format_value(seen[name.casefold()])} in SQL; choose another name"
            )
    if problems or any(lookup._wrong for lookup in built.values()):
        raise InvalidTableError(problems, built)
    return built


class Transform(Spec):
    """The SQL before the step (row-wise, over the view `source`), the policy for bad rows, and the step.

    The step is a window, a join, dedup or keyed. With SQL alone, the stage has no state and emits what the SQL selects.
    `formerly`: the previous name of a renamed stage, under which its state is stored.
    """

    sql: str | None = declare_key(
        parse_text,
        "Row-wise SQL over the view `source`; it must select the columns that the window or join needs, and keep _event_ts. Without a window or join, it defines the results.",
        default=None,
    )
    on_error: str = declare_key(
        choice_parser("fail", "drop", "dlq"),
        "What to do with bad rows: stop the pipeline, drop and count them, or send them to [dead_letter].",
        default="fail",
    )
    window: Window | None = declare_key(table_parser(Window), "A window over the rows.", default=None)
    join: Join | None = declare_key(table_parser(Join), "A join of two sources, instead of a window.", default=None)
    dedup: Dedup | None = declare_key(
        table_parser(Dedup), "One row of each key instead of a window; its duplicates are dropped.", default=None
    )
    keyed: Keyed | None = declare_key(
        table_parser(Keyed), "A class of your own, with rows of state per key and timers.", default=None
    )
    lookups: Mapping[str, Lookup] = declare_key(
        _lookups, "Small tables that the SQL may join, by name: [transform.lookups.<name>].", default_factory=dict
    )
    formerly: str | None = declare_key(
        parse_text,
        "The previous name of a renamed stage. The stage continues with the open windows stored under that name.",
        default=None,
    )

    DOC_LINK: ClassVar[str] = "docs/configuration.md#transform"

    CONFIG_PATH: ClassVar[str] = "transform"  # its path in a config
    STEPS: ClassVar[Mapping[str, type[StepBase]]] = STEPS

    @property
    def stateful(self) -> StepBase | None:
        """The window, join or keyed step; None if the stage has only SQL, or if the step could not be read."""
        return next((step for key in self.STEPS if (step := getattr(self, key)) is not None), None)

    @property
    def step(self) -> StepBase:
        """The window, join or keyed step, or otherwise the stateless step of the SQL."""
        return self.stateful or ROWS

    @property
    def is_stateless(self) -> bool:
        """Return whether the stage has only SQL. Also valid for a draft."""
        return self.stateful is None and not {*self.STEPS} & self._wrong and self.sql is not None

    def sql_of(self, source: str) -> str | None:
        """Return the SQL for the rows of a source. Only the sides of a join have separate SQL."""
        if self.join is None:
            return self.sql
        return self.join.left_sql if source == self.join.left_source else self.join.right_sql

    def sql_key(self, source: str) -> str:
        """Return the config key of the SQL for the rows of a source."""
        if self.join is None:
            return "transform.sql"
        return f"{Join.CONFIG_PATH}.{'left' if source == self.join.left_source else 'right'}_sql"

    @classmethod
    def check(cls, values: Values, wrong: set[str]) -> Iterator[Problem]:
        present = [key for key in cls.STEPS if key in values or key in wrong]
        if not present and not ("sql" in values or "sql" in wrong):
            yield "window", f"missing; {STEP.replace('transform', cls.CONFIG_PATH)}"
        if present[1:]:
            yield (
                present[1],
                f"cannot be combined with [{cls.CONFIG_PATH}.{present[0]}]; a stage is one or the other; remove one of them",
            )
        elif "join" in present and "sql" in values:
            yield (
                "sql",
                f"applies only to windows; a join has separate SQL for each side: left_sql and right_sql in [{Join.CONFIG_PATH}]",
            )


class Stage(Transform):
    """One of several stages: a window, a join, dedup, a class of your own, or SQL alone.

    `name`: the name of its results where other stages read them. `from_`: its inputs, which are sources or stages
    above. By default, a join reads both its sides, the first stage reads all sources, and any other stage reads the
    stage above it.
    """

    name: str = declare_key(
        parse_text, "The name by which other stages refer to this stage.", required="give the stage a name"
    )
    from_: Converted[str | Sequence[str], tuple[str, ...]] = declare_key(
        parse_names,
        "What the stage reads: a source, a stage above it, or a list of them; by default, the stage directly above.",
        default=(),
    )

    DOC_LINK: ClassVar[str] = "docs/configuration.md#stages"

    CONFIG_PATH: ClassVar[str] = "stages"
