"""Explain why a pipeline has not emitted a result: committed watermarks, what holds them back, and open windows.

The report about a key also contains its history: its late rows from the dead letters, and its latest results from the
targets. The dead letter of a late row contains the key of the row (`group_key`). Neither Spark nor a lock is needed.
"""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from slackwater.config import toml
from slackwater.config.pipeline import Pipeline
from slackwater.core.dead_letter_columns import DeadLetterFilter
from slackwater.core.paths import file_uri_to_path
from slackwater.core.schema import Field
from slackwater.dead_letters.dead_letter_reader import add_attempts, read_newest
from slackwater.errors import ConfigError, SlackwaterError, StartError, StateError, Topic
from slackwater.evolution import config_state_comparison
from slackwater.evolution.stage_matching import match_stages
from slackwater.operators.dead_letters import LATE, group_key_json
from slackwater.operators.window_operator_base import WindowOperator
from slackwater.query import state_inspection
from slackwater.query.results import result_reader, sort_by_start
from slackwater.query.stage_inspector import StageInspector
from slackwater.query.state_inspection import Texts
from slackwater.query.state_locator import find_stage_index, locate_store, narrow_commit
from slackwater.query.why_report import (
    KeyHistory,
    KeyReport,
    LateRowReport,
    PublishedResults,
    StageReport,
    WhyReport,
    format_start_command,
)
from slackwater.state.commit import Commit
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
            waiting = f"{runner} is running, but has not committed its first epoch yet"
            hint = waiting if runner else f"start it with: {format_start_command(file)}"
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
    config_state_comparison.compare_config(pipeline, commit).check()
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
        f"{pipeline}: --key: no stage has windows with these key columns; key columns by stage: {keys_text}",
        Topic.VALUE,
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

    Raises StateError if there is no state yet, or if the state is incompatible with the config. Raises StartError if the
    key is invalid, the stage does not exist or the state cannot be read. Raises ConfigError if the TOML file is invalid.
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


# -- history of a key ----------------------------------------------------------------------------------------------------


SHOWN = 5  # the default limit for late rows, and for results per target


def add_key_history(
    pipeline: Pipeline, store: StateStore, answer: WhyReport, key: state_inspection.Texts, limit: int = SHOWN
) -> WhyReport:
    """Add the history of a key to a report, for each stage with these key columns.

    Args:
        pipeline: The pipeline.
        store: The state store.
        answer: The report.
        key: The key, as for `query.state_inspection.parse_key`.
        limit: The largest number of late rows, and of results per target.
    """
    with store.peek() as snapshot:
        if snapshot is None or not key:
            return answer
        key_frames = _key_frames(pipeline, snapshot.commit, key)
    stages = tuple(_with_key_history(pipeline, stage, key_frames, limit) for stage in answer.reported_stages)
    return replace(answer, key=stages[-1].key, stages=stages if answer.stages else ())


def read_key_history(
    pipeline: Pipeline, stage: str, keys: Sequence[Field], key: pl.DataFrame, limit: int = SHOWN
) -> KeyHistory:
    """Return the history of a key in one stage. If dead letters or a target cannot be read, the history says why.

    Args:
        pipeline: The pipeline.
        stage: The name of the stage.
        keys: The key columns of the stage.
        key: One row with the key columns, from `query.state_inspection.parse_key`.
        limit: The largest number of late rows, and of results per target.
    """
    late, more, problem = _late_rows(pipeline, stage, key.select(group_key_json(keys)).item(), limit)
    targets = (single for single in pipeline.per_target.values() if single.target.from_ in (stage, None))
    return KeyHistory(late, more, problem, tuple(_published_results(single, keys, key, limit) for single in targets))


def format_dead_letter_keys(pipeline: Pipeline, store: StateStore, key: state_inspection.Texts) -> set[str]:
    """Return a key in the form that dead letters contain: one string for each combination of key types in the stages.

    Raises StateError if there is no state, and StartError if no stage has these key columns.
    """
    with store.peek() as snapshot:
        if snapshot is None:
            raise StateError(
                f"{pipeline.name}: there is no state yet, so the types of the keys are unknown; omit --key",
                Topic.NO_STATE,
            )
        key_frames = _key_frames(pipeline, snapshot.commit, key)
    return {frame.select(group_key_json(operator.keys)).item() for operator, frame in key_frames.values()}


def _key_frames(
    pipeline: Pipeline, commit: Commit, key: state_inspection.Texts
) -> dict[str, tuple[WindowOperator, pl.DataFrame]]:
    """For each stage with these key columns, return the operator, and the key as a one-row frame.

    Raises StartError if no stage has these key columns.
    """
    key_frames, problems = dict[str, tuple[WindowOperator, pl.DataFrame]](), list[StartError]()
    for number, stage in enumerate(commit.stages):
        stage_pipeline = pipeline.stage_pipelines.get(stage.name, pipeline)
        operator = state_inspection.rebuild_operator(stage_pipeline, narrow_commit(commit, number))
        if isinstance(operator, WindowOperator):
            try:
                key_frames[stage.name] = operator, state_inspection.parse_key(operator, key, "--key")
            except StartError as error:
                problems.append(error)
    if not key_frames:
        no_windows = StartError(f"{pipeline.name}: --key: no stage has windows; omit --key", Topic.VALUE)
        raise problems[0] if problems else no_windows
    return key_frames


def _with_key_history(
    pipeline: Pipeline, stage: StageReport, key_frames: Mapping[str, tuple[WindowOperator, pl.DataFrame]], limit: int
) -> StageReport:
    if stage.key is None or stage.stage not in key_frames:
        return stage
    operator, frame = key_frames[stage.stage]
    history = read_key_history(pipeline, stage.stage, operator.keys, frame, limit)
    return replace(stage, key=replace(stage.key, history=history))


# -- late rows -------------------------------------------------------------------------------------------------------


def _late_rows(
    pipeline: Pipeline, stage: str, key: str, limit: int
) -> tuple[tuple[LateRowReport, ...], bool, str | None]:
    """Return the newest late rows of a key, whether more exist, and why they are unknown (None if they are known)."""
    stage_pipeline = pipeline.stage_pipelines.get(stage, pipeline)
    if all(s.is_stage_output for s in stage_pipeline.sources):
        return (), False, None  # the results of a stage are never late for its readers
    late_data = getattr(stage_pipeline.transform.step, "late_data", "drop")
    if late_data != "dlq" or pipeline.dead_letter is None:
        how = "not kept" if late_data == "drop" else "used"
        return (), False, f'late rows are {how} (late_data = "{late_data}"); late_data = "dlq" keeps them'
    try:
        letter_filter = DeadLetterFilter(reason=LATE, group_keys={key}, limit=limit + 1)
        letters = add_attempts(pipeline, read_newest(pipeline, letter_filter))
    except (SlackwaterError, OSError) as error:
        return (), False, str(error)
    rows = [_late_row(letter) for letter in letters.head(limit).iter_rows(named=True)]
    return tuple(rows), letters.height > limit, None


def _late_row(letter: Mapping[str, Any]) -> LateRowReport:
    place = None if letter["file"] is None else file_uri_to_path(letter["file"])
    if letter["topic"] is not None:
        place = f"{letter['topic']}-{letter['partition']} at offset {letter['offset']}"
    return LateRowReport(
        source=letter["source"],
        place=place,
        epoch=letter["epoch"],
        event_us=_to_micros(letter["event_time"]),
        late_us=letter["late_us"],
        watermark_us=_to_micros(letter["watermark"]),
        watermark_source=letter["watermark_source"],
        cause=letter["cause"],
        windows=tuple(json.loads(letter["windows"] or "[]")),
        applied=bool(letter["__applied"]),
        value=None if letter["value"] is None else letter["value"].decode(errors="replace"),
    )


def _to_micros(time: dt.datetime | None) -> int | None:
    return None if time is None else (time - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)


# -- results ---------------------------------------------------------------------------------------------------------


def _published_results(pipeline: Pipeline, keys: Sequence[Field], key: pl.DataFrame, limit: int) -> PublishedResults:
    """Return the newest published rows of a key in the first target of a pipeline."""
    name = pipeline.target.name or pipeline.name
    window = pipeline.target_stage.transform.window
    start = None if window is None else window.window_start_column
    try:
        reader = result_reader(pipeline)
    except (SlackwaterError, ConfigError) as error:
        return PublishedResults(name, "", (), str(error))
    try:
        newest_rows = reader.read({k.name: _sql_text(key, k) for k in keys}, limit)
        rows = None if newest_rows is None else newest_rows.filter(_key_filter(newest_rows, keys, key))
    except (SlackwaterError, OSError) as error:
        return PublishedResults(name, reader.location, (), str(error))
    finally:
        reader.close()
    newest = [] if rows is None else sort_by_start(rows, start).tail(limit).to_dicts()
    return PublishedResults(name, reader.location, tuple(newest))


def _sql_text(key: pl.DataFrame, field: Field) -> str | None:
    """Return the value of a key column as text that Postgres can parse."""
    value = key[field.name].item()
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    return value.isoformat() if isinstance(value, dt.date) else str(value)


def _key_filter(rows: pl.DataFrame, keys: Sequence[Field], key: pl.DataFrame) -> pl.Expr:
    """Return a filter for the rows of a key. JSON and CSV files contain numbers, times and bytes as text."""
    same = pl.lit(True)
    for field in keys:
        if field.name not in rows.columns:
            return pl.lit(False)
        kind, value = rows.schema[field.name], key[field.name]
        if kind == pl.String and field.polars != pl.String:
            text = pl.col(field.name)
            if field.base in ("timestamp", "timestamp_ntz"):
                zone = "UTC" if field.base == "timestamp" else None
                form = "%Y-%m-%dT%H:%M:%S%.f" + ("Z" if zone else "")
                column = text.str.to_datetime(form, time_unit="us", time_zone=zone, strict=False)
            elif field.base == "date":
                column = text.str.to_date(strict=False)
            elif field.base == "binary":
                column = text.str.decode("hex", strict=False)
            elif field.base == "boolean":
                column = pl.when(text.is_not_null()).then(text == "true")
            else:
                column = text.cast(field.polars, strict=False)
            same &= column.eq_missing(pl.lit(value.item(), field.polars))
        else:
            same &= pl.col(field.name).cast(field.polars, strict=False).eq_missing(pl.lit(value.item(), field.polars))
    return same
