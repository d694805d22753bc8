"""What a state says about its stages: the settings and columns of its rows, and the operators that wrote them.

Windows are restored from their description, other operators by their own `from_state`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from slackwater.config.custom_aggregator import forbid_imports
from slackwater.config.spec_base import spec_from_data
from slackwater.config.window import Window
from slackwater.core.schema import Field
from slackwater.errors import StateError, Topic
from slackwater.operators.base import Operator
from slackwater.operators.registry import bind_window, find_type_by_kind
from slackwater.operators.window_base import WindowOperator
from slackwater.state.commit import Commit, StageState


def stored_emission(stage: StageState) -> dict[str, Any]:
    """Return the emission settings with which the windows of a state were emitted."""
    return {"updates": False, "retain_us": 0} | dict(stage.emission)


def stored_columns(stage: StageState, window: Window) -> dict[str, Field]:
    """Return the columns that a window of the state reads: from its description, or else from its fingerprint."""
    if "columns" in stage.described:
        return {name: Field(name, type_) for name, type_ in stage.described["columns"].items()}
    written = stage.fingerprint
    columns = {name: Field(name, type_) for name, _, type_ in (k.rpartition(" ") for k in written.get("keys", ()))}
    for a in window.aggregations:
        begin = f"{a.agg} {a.column} "
        fingerprint = str(written.get("aggregations", {}).get(a.as_, ""))
        if a.column is not None and fingerprint.startswith(begin):
            columns[a.column] = Field(a.column, fingerprint.removeprefix(begin).split(" ")[0])
    return columns


def with_stored_accumulators(operator: WindowOperator, stage: StageState) -> WindowOperator:
    """Return the operator with its accumulators in the form in which a state stores them, such as an earlier one."""
    fingerprints = dict(stage.fingerprint.get("aggregations", {}))
    return replace(operator, aggs=tuple(a.as_stored(fingerprints.get(a.name)) for a in operator.aggs))


def read_earlier_settings(state: StageState) -> dict[str, Any]:
    """Return the lasting effects of earlier configs, which the state of a stage stores."""
    return {"gone_us": state.gone_us, "rows_from_us": state.rows_from_us, "revised": state.revised}


def described_window(state: StageState) -> Window | None:
    """Return the window that a state describes, or None.

    Its aggregations are omitted, because their classes may no longer exist.
    """
    if "window" not in state.described:
        return None
    data = {**state.described["window"], "aggregations": [{"agg": "count", "as": "__"}]}
    return spec_from_data(Window, data, f"state of stage {state.name}")


def check_description(commit: Commit, stage: StageState, window: Window) -> None:
    """Raise StateError if a state's description contradicts the window that its rows were written for.

    This checks only what can be checked without the types of the aggregations. `window`: the described window.
    """
    wrote, described = stage.fingerprint, stage.described
    lengths = ("kind", "duration_ms", "hop_ms", "offset_ms", "gap_ms", "max_session_duration_ms")
    wrong = [key for key in lengths if wrote.get(key) != getattr(window, key)]
    columns = described.get("columns", {})
    if wrote.get("keys") != [f"{name} {columns.get(name)}" for name in window.group_by]:
        wrong.append("keys")
    named = [a.get("as") for a in described["window"].get("aggregations", ())]
    if set(wrote.get("aggregations", {})) != set(named):
        wrong.append("aggregations")
    if wrong:
        raise StateError(
            f"{commit.pipeline}: the state in epoch {commit.epoch} is damaged: its fingerprint and its description differ in "
            f"{', '.join(wrong)}; restore it from a backup",
            Topic.STATE_DAMAGED,
        )


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
    return bool(stored_emission(stage) == logic.emission)


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
        bound = bind_window(commit.pipeline, window, stored_columns(stage, window))
    logic = with_stored_accumulators(bound, stage)
    if not trusting and (wrong := find_contradiction(logic, stage)):
        raise StateError(
            f"{commit.pipeline}: the state in epoch {commit.epoch} is damaged: it {wrong}; restore it from a backup",
            Topic.STATE_DAMAGED,
        )
    return logic.with_earlier_settings(read_earlier_settings(stage))
