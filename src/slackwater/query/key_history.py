"""Read the history of a key: its late rows from the dead letters, and its latest results from the targets.

This requires neither Spark nor a lock. The dead letter of a late row contains the key of the row (`group_key`).
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from slackwater.config.pipeline import Pipeline
from slackwater.core.dead_letter_schema import LetterFilter
from slackwater.core.paths import file_uri_to_path
from slackwater.core.schema import Field
from slackwater.dead_letters.letter_reader import add_attempts, read_newest
from slackwater.errors import ConfigError, SlackwaterError, StartError, StateError, Topic
from slackwater.operators.dead_letters import LATE, group_key_json
from slackwater.operators.window_base import WindowOperator
from slackwater.query import state_inspection
from slackwater.query.locate_state import narrow_commit
from slackwater.query.result_readers import result_reader, sort_by_start
from slackwater.query.why_report import KeyHistory, LateRowReport, PublishedResults, StageReport, WhyReport
from slackwater.state.commit import Commit
from slackwater.state.protocol import StateStore

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
                f"{pipeline.name}: there is no state yet, so the types of the keys are unknown; leave out --key",
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
        letter_filter = LetterFilter(reason=LATE, group_keys={key}, limit=limit + 1)
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


__all__ = ["add_key_history", "format_dead_letter_keys", "read_key_history"]
