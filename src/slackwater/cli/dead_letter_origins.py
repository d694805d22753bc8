"""Finds the line of a dead letter in its file, and the value that caused it, from its text and the config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source
from slackwater.core.file_uris import file_uri_to_path
from slackwater.operators.dead_letters import LATE
from slackwater.sources import bad_value_search

UNDECODABLE, NO_TIME, FUTURE = "undecodable", "no event time", "future"


def find_dead_letter_origins(pipeline: Pipeline, letters: Sequence[Mapping[str, Any]]) -> list[tuple[int | None, str]]:
    """Return the line of each dead letter (None if unknown), and the value that caused it."""
    sources = {s.name: s for s in pipeline.sources}
    places = [
        (sources.get(letter["source"]), file_uri_to_path(letter["file"]) if letter["file"] else None, _record(letter))
        for letter in letters
    ]
    causes = [_find_cause(pipeline, sources.get(letter["source"]), letter) for letter in letters]
    return list(zip(bad_value_search.find_line_numbers(places), causes, strict=True))


def _find_cause(pipeline: Pipeline, source: Source | None, letter: Mapping[str, Any]) -> str:
    text = _decode(letter["value"])
    if source is None or text is None or letter["reason"] == LATE:
        return ""
    if letter["reason"] == UNDECODABLE:
        return bad_value_search.describe_undecodable_row(source, text)
    if letter["reason"] in (NO_TIME, FUTURE):
        stage_pipeline = next(
            (one for one in pipeline.stage_pipelines.values() if any(s.name == source.name for s in one.sources)),
            pipeline,
        )
        return bad_value_search.describe_event_time(
            stage_pipeline.transform.step.event_time_column, bad_value_search.parse_json_object(text)
        )
    return ""


def _record(letter: Mapping[str, Any]) -> bad_value_search.Record:
    text = _decode(letter["value"])
    if text is None:
        return bad_value_search.Record()
    return (
        bad_value_search.Record(text)
        if letter["reason"] == UNDECODABLE
        else bad_value_search.Record(row=bad_value_search.parse_json_object(text))
    )


def _decode(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
