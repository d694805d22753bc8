"""Build commits and descriptions from a config: the first commit, and the stages and sources at a start."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import xxhash

from slackwater.config.config_paths import restore_written_path
from slackwater.config.pipeline import Pipeline
from slackwater.config.spec_base import spec_to_data
from slackwater.config.step_base import StepBase
from slackwater.config.window import Window
from slackwater.core.schema import Field
from slackwater.errors import StartError, StateError, Topic
from slackwater.operators.base import Operator
from slackwater.operators.window_base import WindowOperator
from slackwater.state.commit import ClockRecord, Commit, SourceRecord, StageState


def stored_emission(stage: StageState) -> dict[str, Any]:
    """Return the emission settings with which the windows of a state were emitted."""
    return {"updates": False, "retain_us": 0} | dict(stage.emission)


def _step_description(step: StepBase, operator: Operator) -> dict[str, Any]:
    """Return the description of a step for the commit; empty if the step contains values that cannot be stored.

    Every commit contains this description, so that a state can be read without a config. The description does not
    contain SQL, which may contain secrets; see `sql_hashes`.
    """
    data = spec_to_data(step)
    return {} if data is None else operator.description(data)


def sql_hashes(pipeline: Pipeline) -> dict[str, str]:
    """Return hashes of a stage's SQL, by config key; "" if there is no SQL."""
    transform = pipeline.transform
    hashes = {transform.sql_key(w.name): _hash(transform.sql_of(w.name)) for w in pipeline.input_paths}
    return hashes | {key: _hash(sql) for w in pipeline.input_paths for key, sql in pipeline.sql_chain(w)}


def query_hashes(pipeline: Pipeline) -> dict[str, str]:
    """Return the hash of each source's query; "" for a DataFrame source."""
    return {f'source "{s.name}" query': _hash(s.query and restore_written_path(s.query)) for s in pipeline.sources}


def _hash(text: str | None) -> str:
    return xxhash.xxh3_64_hexdigest(text.encode()) if text else ""


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


def with_stored_accumulators(operator: WindowOperator, stage: StageState) -> WindowOperator:
    """Return the operator with its accumulators in the form in which a state stores them, such as an earlier one."""
    fingerprints = dict(stage.fingerprint.get("aggregations", {}))
    return replace(operator, aggs=tuple(a.as_stored(fingerprints.get(a.name)) for a in operator.aggs))


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


def first_commit(
    names: Sequence[str], operators: Sequence[Operator], shards: int, clock_us: int, state_id: str = ""
) -> Commit:
    """Return a commit with all stages as they are before the first epoch. This commit is never stored."""
    stages = (_first_state(name, operator, shards) for name, operator in zip(names, operators, strict=True))
    return Commit(
        pipeline=operators[0].pipeline,
        state_id=state_id,
        epoch=-1,
        committed_us=clock_us,
        shards=shards,
        stages=tuple(stages),
    )


def _first_state(name: str, operator: Operator, shards: int) -> StageState:
    """Return a stage as it is before its first epoch."""
    none = (0,) * shards
    return StageState(
        name=name,
        segments=((),) * shards,
        groups=none,
        windows=none,
        fingerprint=operator.fingerprint,
        emission=operator.emission,
    )


def with_stages(
    commit: Commit, names: Sequence[str], operators: Sequence[Operator], matched: Sequence[StageState | None]
) -> Commit:
    """Return the state with the stages of this config: those that continue a stage of the state, and new ones.

    `matched`: see `stage_matching.StageMatch`.
    """
    stages = (
        before or _first_state(name, operator, commit.shards)
        for name, operator, before in zip(names, operators, matched, strict=True)
    )
    return commit.model_copy(update={"stages": tuple(stages)})


def with_descriptions(commit: Commit, stages: Sequence[tuple[str, Pipeline, Operator]]) -> Commit:
    """Add the descriptions of this config's stages.

    `stages`: for each stage, its name, a pipeline that contains only this stage, and its operator.
    """
    stage_states = []
    for state, (name, pipeline, operator) in zip(commit.stages, stages, strict=True):
        description = {
            "name": name,
            "described": _step_description(pipeline.transform.step, operator),
            "fingerprint": operator.fingerprint,
            "texts": sql_hashes(pipeline) | query_hashes(pipeline),
        }
        stage_states.append(state.model_copy(update=description))
    return commit.model_copy(update={"stages": tuple(stage_states)})


def with_sources(
    commit: Commit, names: Sequence[str], inputs: Mapping[str, Sequence[str]], schemas: Mapping[str, str]
) -> Commit:
    """Return the state with this config's sources: new ones are added, and removed ones dropped with their offsets.

    `names`: the sources. `inputs`: the inputs of each stage. `schemas`: the schemas of the sources that have one.
    """
    sources = {n: commit.sources.get(n, SourceRecord()).model_copy(update={"columns": schemas.get(n)}) for n in names}
    clocks = {
        n: clock for n, clock in commit.clocks.items() if n in names
    }  # a new stage starts with the clocks that other stages have
    stages = (
        s.model_copy(update={"clocks": {n: s.clocks.get(n) or clocks.get(n, ClockRecord()) for n in inputs[s.name]}})
        for s in commit.stages
    )
    return commit.model_copy(update={"sources": sources, "stages": tuple(stages)})


def check_schema(source: str, before: str | None, now: str) -> list[str]:
    """Compare a source's columns (Spark's JSON) with those at its first start.

    Raises StartError if a column is missing or has another type. Returns warnings about new columns.
    """
    if before is None:
        return []
    old, new = schema_types(before), schema_types(now)
    wrong = [f'"{c}" is now {new.get(c, "missing")} (was {t})' for c, t in old.items() if new.get(c) != t]
    if wrong:
        raise StartError(
            f'source "{source}": its columns changed since the first start: {"; ".join(wrong)}; restore them in the schema',
            Topic.STATE_OF_OTHER_CONFIG,
        )
    added = [c for c in new if c not in old]
    return [f'source "{source}": new columns since the first start: {", ".join(added)}'] if added else []


def schema_types(schema: str) -> dict[str, str]:
    """Return the types of a source's columns by name, as Spark writes them in JSON."""
    return {
        f["name"]: json.dumps(f["type"]) if isinstance(f["type"], dict) else f["type"]
        for f in json.loads(schema)["fields"]
    }
