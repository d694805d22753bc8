"""Restore the operator of a stage from its state: windows from their description, others by their own `from_state`."""

from __future__ import annotations

from slackwater.config.custom_aggregator import forbid_imports
from slackwater.config.spec_base import spec_from_data
from slackwater.config.window import Window
from slackwater.errors import StateError, Topic
from slackwater.evolution import commit_from_config, state_migration
from slackwater.operators.base import Operator
from slackwater.operators.registry import bind_window, find_type_by_kind
from slackwater.operators.window_base import WindowOperator
from slackwater.state.commit import Commit, StageState


def restore_operator(commit: Commit, number: int = 0, *, trusting: bool = False) -> Operator:
    """Restore the operator of one stage. Raises StateError if the state lacks the operator or contradicts itself.

    Operators other than windows are restored only as far as their stored rows require: a join, for example, can read
    and rewrite its rows, but cannot process new ones. `trusting`: do not raise StateError for contradictions.
    """
    stage = commit.stages[number]
    operator_type = find_type_by_kind(stage.fingerprint.get("kind"))
    if operator_type is None or operator_type.from_state is None:
        return restore_window(commit, number, trusting=trusting)
    try:
        return operator_type.from_state(commit.pipeline, stage)
    except (KeyError, TypeError, ValueError, IndexError):
        raise StateError(
            f"{commit.pipeline}: the state in epoch {commit.epoch} does not say which {operator_type.name} it belongs to",
            Topic.STATE_OF_OTHER_CONFIG,
        ) from None


def matches_description(logic: Operator, stage: StageState) -> bool:
    """Return whether the stored rows of a stage match the operator from its description.

    They do not match in a commit that has rewritten the rows for another config.
    """
    return bool(commit_from_config.stored_emission(stage) == logic.emission)


def find_contradiction(operator: Operator, state: StageState) -> str:
    """Return a clause that says how the fingerprint of a stage contradicts its description; empty if it does not.

    `operator`: the operator from the description.
    """
    wrote, described = dict(state.fingerprint), operator.fingerprint
    wrong = [key for key in described if wrote.get(key) != described[key]]
    return f"has a fingerprint and a description that differ in {', '.join(wrong)}" if wrong else ""


def restore_window(commit: Commit, number: int = 0, *, trusting: bool = False) -> WindowOperator:
    """Restore the window of a state from its description.

    Raises StateError if there is no description, or if it contradicts the fingerprint (unless `trusting`). Raises
    ConfigError if the description names an aggregation class whose module is not imported yet: only a config may cause
    imports, not a state.
    """
    stage = commit.stages[number]
    if "window" not in stage.described:
        operator_type = find_type_by_kind(stage.fingerprint.get("kind"))
        description = None if operator_type is None or operator_type.from_state is None else f"a {operator_type.name}"
        raise StateError(
            f"{commit.pipeline}: the state in epoch {commit.epoch} belongs to {description or 'a window that the state does not describe'}; "
            + ("only windows can be inspected" if description else "name the config's file instead")
        )
    with forbid_imports():
        window = spec_from_data(Window, stage.described["window"], f"state of {commit.pipeline}")
        bound = bind_window(commit.pipeline, window, commit_from_config.stored_columns(stage, window))
    logic = commit_from_config.with_stored_accumulators(bound, stage)
    if not trusting and (wrong := find_contradiction(logic, stage)):
        raise StateError(
            f"{commit.pipeline}: the state in epoch {commit.epoch} is damaged: it {wrong}; restore it from a backup",
            Topic.STATE_DAMAGED,
        )
    return logic.with_earlier_settings(state_migration.read_earlier_settings(stage))
