"""Explain why a pipeline has not emitted a result: committed watermarks, what holds them back, and open windows."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from slackwater.config import toml
from slackwater.config.pipeline import Pipeline
from slackwater.errors import StartError, StateError, Topic
from slackwater.evolution import compare
from slackwater.evolution.stage_matching import match_stages
from slackwater.query import state_inspection
from slackwater.query.key_history import add_key_history
from slackwater.query.locate_state import find_stage_index, locate_store
from slackwater.query.stage_inspector import StageInspector
from slackwater.query.state_inspection import Texts
from slackwater.query.why_report import KeyReport, WhyReport, start_text
from slackwater.state.protocol import Snapshot, StateStore


def build_why_report(
    pipeline: Pipeline,
    store: StateStore,
    now_us: int,
    key: state_inspection.Texts = (),
    stage: str | None = None,
    file: str | None = None,
) -> WhyReport:
    """Report on the latest commit of a pipeline.

    Args:
        pipeline: The pipeline.
        store: The state store.
        now_us: The current time (µs).
        key: A key to include in the report.
        stage: The only stage to report on; None for all stages.
        file: The config file as named in the command; None for a pipeline defined in Python.

    Raises StateError if there is no commit, or if the config does not match it. Raises StartError if the key is
    invalid or the stage does not exist.
    """
    runner = store.runner()
    with store.peek() as snapshot:
        if snapshot is None:
            waiting = f"{runner} runs and has not committed its first epoch"
            hint = waiting if runner else f"start it with: {start_text(file)}"
            raise StateError(f"{pipeline.name}: there is no state yet; {hint}", Topic.NO_STATE)
        return replace(build_why_report_from_snapshot(pipeline, snapshot, runner, now_us, key, stage), file=file)


def build_why_report_from_snapshot(
    pipeline: Pipeline,
    snapshot: Snapshot,
    runner: str | None,
    now_us: int,
    key: state_inspection.Texts = (),
    stage: str | None = None,
) -> WhyReport:
    """Report on an open snapshot. See `build_why_report`. `runner`: the process that runs the pipeline, or None."""
    commit = snapshot.commit
    inspectors = _inspect_stages(pipeline, snapshot)
    if stage is not None and commit.stages[1:]:
        number = find_stage_index(commit, stage)
        inspectors = [inspector for inspector in inspectors if inspector.number == number]
    keyed = _key_reports(pipeline.name, inspectors, key) if key else {}
    read_by = {s.name: tuple(other.name for other in commit.stages if s.name in other.clocks) for s in commit.stages}
    reports = tuple(replace(i.report(), key=keyed.get(i.name), read_by=read_by[i.name]) for i in inspectors)
    return WhyReport(
        **vars(reports[-1]),
        pipeline=pipeline.name,
        now_us=now_us,
        runner=runner,
        epoch=commit.epoch,
        committed_us=commit.committed_us,
        is_published=not commit.staged or snapshot.published >= commit.epoch,
        changed_files={
            n: s.offsets.changed.to_json()
            for n, s in commit.sources.items()
            if s.offsets is not None and s.offsets.changed is not None
        },
        stages=reports if reports[1:] else (),
    )


def _inspect_stages(pipeline: Pipeline, snapshot: Snapshot) -> list[StageInspector]:
    """Return an inspector for each stage that is both in the snapshot and in the config.

    Raises StateError if the config cannot continue the state.
    """
    commit = snapshot.commit
    compare.compare_config(pipeline, commit).check()
    names, inspectors = [s.name for s in commit.stages], dict[str, StageInspector]()
    stage_pipelines = pipeline.stage_pipelines
    matched = match_stages(pipeline.former_names, commit).matched
    for (name, stage_pipeline), state in zip(stage_pipelines.items(), matched, strict=True):
        if state is not None:
            read_names = [s.name for s in stage_pipeline.sources if s.is_stage_output]
            read = {n: inspectors[n] for n in read_names if n in inspectors}
            inspectors[name] = StageInspector(stage_pipeline, snapshot, names.index(state.name), read)
    return list(inspectors.values())


def _key_reports(
    pipeline: str, inspectors: Sequence[StageInspector], key: state_inspection.Texts
) -> dict[str, KeyReport]:
    """Return the reports on a key, by stage. Raises StartError if no stage has these key columns."""
    reports, problems = dict[str, KeyReport](), list[StartError]()
    for inspector in inspectors:
        try:
            reports[inspector.name] = inspector.key_report(key)
        except StartError as error:
            problems.append(error)
    if reports:
        return reports
    if not problems[1:]:
        raise problems[0]
    keys_text = "; ".join(f"{inspector.name}: {', '.join(inspector.key_names) or 'none'}" for inspector in inspectors)
    raise StartError(
        f"{pipeline}: --key: no stage has windows with these keys; keys by stage: {keys_text}", Topic.VALUE
    )


def why(
    pipeline: Pipeline | str | Path, key: Mapping[str, Any] | str | None = None, stage: str | None = None
) -> WhyReport:
    """Report what holds back the watermark in the latest commit, and which windows close next.

    This function takes no lock and does not start Spark. The pipeline may be running.

    Args:
        pipeline: The pipeline, or its TOML file.
        key: A key to include in the report, as a mapping or as a string ("user_id=u1,page=/"). The report then
            contains the open windows, late rows and newest published results of the key.
        stage: The only stage to report on. By default, the report describes the last stage, and if there are several
            stages, its `stages` field describes each of them.

    Raises StateError if there is no state yet or the config cannot continue it. Raises StartError if the key is
    invalid, the stage does not exist or the state cannot be read. Raises ConfigError if the TOML file is invalid.
    """
    spec = pipeline if isinstance(pipeline, Pipeline) else toml.load(Path(pipeline))
    store, texts = locate_store(spec), _texts(key)
    try:
        file = None if isinstance(pipeline, Pipeline) else str(pipeline)
        report = build_why_report(spec, store, time.time_ns() // 1000, texts, stage, file)
        return add_key_history(spec, store, report, texts)
    finally:
        store.close()


def _texts(key: Mapping[str, Any] | str | None) -> Texts:
    if key is None:
        return ()
    if isinstance(key, str):
        return (key,)
    return {name: None if value is None else str(value) for name, value in key.items()}
