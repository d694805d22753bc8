"""Restore the settings, columns and operators of stages from a state, or a whole pipeline.

Windows are restored from their description, and other operators by their own `from_state`. A pipeline from a state is
sufficient to inspect the state, but not to run the pipeline: a commit contains the names and lateness of sources, but no
queries, SQL, targets or secrets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from slackwater.config.connection import DeltaConnection, FilesConnection
from slackwater.config.custom_aggregator import forbid_imports
from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source
from slackwater.config.spec_base import spec_from_data
from slackwater.config.stage import Stage, Transform
from slackwater.config.step_base import effective_allowed_lateness_ms
from slackwater.config.target import StateStore, Target
from slackwater.config.window import Window
from slackwater.core.schema import Field
from slackwater.errors import ConfigError, StateError, Topic
from slackwater.operators.base import Operator
from slackwater.operators.registry import bind_window, find_type_by_kind
from slackwater.operators.window_operator_base import WindowOperator
from slackwater.state.commit import Commit, StageState


def stored_emission(stage: StageState) -> dict[str, Any]:
    """Return the emission settings under which the rows of a stage were written."""
    return {"updates": False, "retain_us": 0} | dict(stage.emission)


def stored_columns(stage: StageState, window: Window) -> dict[str, Field]:
    """Return the columns that a stored window reads, from the description of the stage or else from its fingerprint."""
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
    """Return the operator with its accumulators in the form that the state stores, which may be an earlier form."""
    fingerprints = dict(stage.fingerprint.get("aggregations", {}))
    return replace(operator, aggs=tuple(a.to_matching_stored_form(fingerprints.get(a.name)) for a in operator.aggs))


def read_earlier_settings(state: StageState) -> dict[str, Any]:
    """Return the lasting effects of earlier configs that the state of a stage stores."""
    return {"gone_us": state.gone_us, "rows_from_us": state.rows_from_us, "revised": state.revised}


def described_window(state: StageState) -> Window | None:
    """Return the window that a state describes; None if it does not describe a window.

    The aggregations are omitted, because their classes may no longer exist.
    """
    if "window" not in state.described:
        return None
    data = {**state.described["window"], "aggregations": [{"agg": "count", "as": "__"}]}
    return spec_from_data(Window, data, f"state of stage {state.name}")


def check_description(commit: Commit, stage: StageState, window: Window) -> None:
    """Raise StateError if the description of a stage contradicts its fingerprint. `window`: the described window.

    The types of aggregations are not checked, because they may be unknown.
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
    """Restore the operator of one stage. Unless the stage is a window, the operator can only read and rewrite state.

    Args:
        commit: The commit of the state.
        number: The index of the stage.
        trusting: Whether to accept a description that contradicts the fingerprint.

    Raises StateError if the state does not describe the operator, or contradicts itself (unless `trusting`).
    """
    stage = commit.stages[number]
    operator_type = find_type_by_kind(stage.fingerprint.get("kind"))
    if operator_type is None or operator_type.from_state is None:
        return restore_window(commit, number, trusting=trusting)
    try:
        return operator_type.from_state(commit.pipeline, stage)
    except (KeyError, TypeError, ValueError, IndexError):
        raise StateError(
            f"{commit.pipeline}: the state in epoch {commit.epoch} does not fully describe its {operator_type.name}; "
            "restore the state from a backup, or install the version that wrote it",
            Topic.STATE_OF_OTHER_CONFIG,
        ) from None


def matches_description(logic: Operator, stage: StageState) -> bool:
    """Return whether the stored rows of a stage match its described operator.

    They do not match if a commit has rewritten the rows for another config.
    """
    return bool(stored_emission(stage) == logic.emission)


def find_contradiction(operator: Operator, state: StageState) -> str:
    """Return how the fingerprint of a stage contradicts its description, as a clause for a message; "" if it does not.

    `operator`: the described operator.
    """
    wrote, described = dict(state.fingerprint), operator.fingerprint
    wrong = [key for key in described if wrote.get(key) != described[key]]
    return f"has a fingerprint and a description that differ in {', '.join(wrong)}" if wrong else ""


def restore_window(commit: Commit, number: int = 0, *, trusting: bool = False) -> WindowOperator:
    """Restore the window of one stage from its description.

    Args:
        commit: The commit of the state.
        number: The index of the stage.
        trusting: Whether to accept a description that contradicts the fingerprint.

    Raises StateError if the state does not describe a window, or contradicts itself (unless `trusting`). Raises
    ConfigError if the module of an aggregation class is not imported yet, because a state must not cause imports.
    """
    stage = commit.stages[number]
    if "window" not in stage.described:
        operator_type = find_type_by_kind(stage.fingerprint.get("kind"))
        description = None if operator_type is None or operator_type.from_state is None else f"a {operator_type.name}"
        raise StateError(
            f"{commit.pipeline}: the state in epoch {commit.epoch} belongs to {description or 'a window that the state does not describe'}; "
            + ("only windows can be inspected" if description else "pass the config file instead")
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


# -- pipelines -----------------------------------------------------------------------------------------------------------


def rebuild_pipeline(commit: Commit) -> Pipeline:
    """Rebuild the pipeline of a commit. Raises StateError if the state does not describe its window or join."""
    try:
        with forbid_imports():
            steps = [_step_argument(commit.pipeline, stage) for stage in commit.stages]
            if not all(steps):
                raise StateError(_missing_description(commit), Topic.STATE_OF_OTHER_CONFIG)
            return _pipeline(commit, steps)
    except ConfigError as error:
        raise StateError(
            f"{_missing_description(commit)} ({'; '.join(error.problems)})", Topic.STATE_OF_OTHER_CONFIG
        ) from None


def _step_argument(pipeline: str, stage: StageState) -> dict[str, Any]:
    """Return the step of a stage as a keyword argument; empty if the state does not describe the step."""
    where, kind = f"state of {pipeline}", stage.fingerprint.get("kind")
    for name, spec in Transform.STEPS.items():
        if name in stage.described:
            return {name: spec_from_data(spec, stage.described[name], where)}
        if kind == name and "step" in stage.described:
            return {name: spec_from_data(spec, stage.described["step"], where)}
    if kind == "rows":
        return {"sql": "SELECT * FROM source"}  # a placeholder: the SQL is not in the state
    return {}


def _missing_description(commit: Commit) -> str:
    return (
        f"{commit.pipeline}: the state in epoch {commit.epoch} does not describe its window or join; "
        "pass the config file instead"
    )


def _pipeline(commit: Commit, steps: list[dict[str, Any]]) -> Pipeline:
    several = len(steps) > 1
    sources = tuple(
        Source(name=n, dataframe=object(), lateness_ms=_lateness_ms(commit, steps, n)) for n in commit.sources
    )
    return Pipeline(
        name=commit.pipeline,
        sources=sources,
        transform=None if several else Transform(on_error="dlq", **steps[0]),
        stages=tuple(_stages(commit, steps)) if several else None,
        **_targets(commit, steps),
        connections={"table": DeltaConnection(), "lake": FilesConnection()},
        dead_letter=Target(connection="lake", path="letters"),
        state_store=StateStore(kind="files", path="state"),
    )


def _lateness_ms(commit: Commit, steps: list[dict[str, Any]], source: str) -> int | None:
    """Return the lateness that the stages recorded for a source (ms); None if they recorded different values."""
    lateness_values = set()
    for stage, step in zip(commit.stages, steps, strict=True):
        window, of_us = step.get("window"), stage.counters.get("lateness", {}).get("of_us", {})
        final_wait_us = 0 if window is None or window.emit != "final" else 1000 * effective_allowed_lateness_ms(window)
        if source in of_us:
            lateness_values.add(max(of_us[source] - final_wait_us, 0) // 1000)
    return lateness_values.pop() if len(lateness_values) == 1 else None


def _stages(commit: Commit, steps: list[dict[str, Any]]) -> Iterator[Stage]:
    """Yield the stages with their inputs.

    If a side of a join is a stateless stage that is not in the state, a placeholder with its name precedes the join.
    """
    names = [*commit.sources]
    for stage, step in zip(commit.stages, steps, strict=True):
        read, join = tuple(stage.clocks), step.get("join")
        sides = () if join is None else tuple(s for s in join.sources if s)
        for side in sides:
            if side not in names:
                names.append(side)
                origins = tuple(n for n in read if n not in sides) or read
                yield Stage(name=side, sql="SELECT * FROM source", from_=origins, on_error="dlq")
        names.append(stage.name)
        if read and not sides:  # a join names its inputs itself
            step = {**step, "from_": read}
        yield Stage(name=stage.name, on_error="dlq", **step)


def _targets(commit: Commit, steps: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a target for each stage that no other stage reads."""
    read = {n for s in commit.stages for n in s.clocks}
    ends = [(s.name, step) for s, step in zip(commit.stages, steps, strict=True) if s.name not in read]
    targets = tuple(
        Target(
            **({"from_": name, "name": f"t{n}"} if ends[1:] else {}),  # type: ignore[arg-type]
            connection="table",
            path=f"out{n}",
            mode="merge" if "window" in step else "append",
        )
        for n, (name, step) in enumerate(ends)
    )
    return {"targets": targets} if targets[1:] else {"target": targets[0]}
