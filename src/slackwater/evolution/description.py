"""The operator of a state as the state itself tells it: of windows from their description, of joins from their fingerprint."""

from __future__ import annotations

from slackwater.config.aggregator import without_imports
from slackwater.config.data import from_data
from slackwater.config.window import Window
from slackwater.core.schema import Field
from slackwater.errors import StateError
from slackwater.evolution import migrate, restore
from slackwater.joins.logic import Side, side
from slackwater.operators.base import Operator
from slackwater.operators.compile import bind_window
from slackwater.operators.interval_join import IntervalJoin
from slackwater.operators.rows import Rows
from slackwater.operators.windowed import Windowed
from slackwater.state.commit import Commit, StageState

SIDES = ("left", "right")


def step_in(commit: Commit, number: int = 0) -> Windowed | IntervalJoin | Rows:
    """What one stage is. Raises StateError where the state does not tell it.

    Of a join only what its buffers depend on: it can be read and rewritten by it, not run.
    """
    stage = commit.stages[number]
    if stage.fingerprint.get("kind") == "rows":
        return Rows(commit.pipeline, tuple(Field(n, t) for n, t in stage.described.get("columns", {}).items()))
    if stage.fingerprint.get("kind") != "join":
        return logic_in(commit, number)
    try:
        left, right = (_side(stage, which) for which in (0, 1))
    except (KeyError, TypeError, ValueError, IndexError):
        raise StateError(
            f"{commit.pipeline}: the state in epoch {commit.epoch} does not tell which join it is of"
        ) from None
    allowed = restore.emission_of(stage)["retain_us"]
    return IntervalJoin(commit.pipeline, left, right, allowed, "later", None, False)


def _side(stage: StageState, which: int) -> Side:
    written = stage.fingerprint
    keys, columns = ([_field(text) for text in written[part][which]] for part in ("keys", "columns"))
    low, high = written["bounds_us"]
    allowed = int(restore.emission_of(stage)["retain_us"])
    outer = SIDES[which] in written["outer"]
    return side(which, SIDES[which], keys, columns, (), int(low), int(high), allowed, outer)


def _field(text: object) -> Field:
    if not isinstance(text, str):
        raise TypeError("no column")
    name, _, type_ = text.rpartition(" ")
    return Field(name, type_)


def as_emitted(logic: Operator, stage: StageState) -> bool:
    """Whether the rows of a stage are as its description has them: not in the commit that rewrote them for another."""
    return bool(restore.emission_of(stage) == restore.emission(logic))


def logic_in(commit: Commit, number: int = 0) -> Windowed:
    """The window of a state as the state itself describes it. Raises StateError where it does not.

    It may name classes of aggregations: none is imported because of that (ConfigError), a config has to name it.
    """
    stage = commit.stages[number]
    if "window" not in stage.described:
        kinds = {"join": "a join", "rows": "a stage without state"}
        what = kinds.get(str(stage.fingerprint.get("kind")))
        raise StateError(
            f"{commit.pipeline}: the state in epoch {commit.epoch} is of {what or 'a window that the state does not describe'}; "
            + ("only windows can be looked into" if what else "name the config's file instead")
        )
    with without_imports():
        window = from_data(Window, stage.described["window"], f"state of {commit.pipeline}")
        logic = bind_window(commit.pipeline, window, restore.columns_of(stage, window))
    return logic.remembering(migrate.memory_of(stage))
