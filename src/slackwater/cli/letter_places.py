"""Of dead letters: the line of its file, and the value to blame, as far as the text of a letter and the config tell."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source
from slackwater.core.local_files import local_name
from slackwater.operators.dead_letters import LATE
from slackwater.sources import bad_values

UNDECODABLE, NO_TIME, FUTURE = "undecodable", "no event time", "future"


def seen(pipeline: Pipeline, letters: Sequence[Mapping[str, Any]]) -> list[tuple[int | None, str]]:
    """Of each letter its line and the value to blame; each file is read once."""
    sources = {s.name: s for s in pipeline.sources}
    found: list[tuple[int | None, str]] = [(None, _why(pipeline, sources.get(one["source"]), one)) for one in letters]
    files: dict[tuple[str, str], list[int]] = {}
    for n, one in enumerate(letters):
        if one["file"] and one["source"] in sources:
            files.setdefault((one["source"], local_name(one["file"])), []).append(n)
    for (name, file), numbers in files.items():
        lines = bad_values.lines_of(sources[name], file, [_record(letters[n]) for n in numbers])
        for n, line in zip(numbers, lines, strict=True):
            found[n] = line, found[n][1]
    return found


def _why(pipeline: Pipeline, source: Source | None, letter: Mapping[str, Any]) -> str:
    text = _text(letter["value"])
    if source is None or text is None or letter["reason"] == LATE:
        return ""
    if letter["reason"] == UNDECODABLE:
        return bad_values.told(source, text)
    if letter["reason"] in (NO_TIME, FUTURE):
        own = next(
            (one for one in pipeline.alone.values() if any(s.name == source.name for s in one.sources)), pipeline
        )
        return bad_values.time_told(own.transform.step.event_time_column, _object(text))
    return ""


def _record(letter: Mapping[str, Any]) -> bad_values.Record:
    text = _text(letter["value"])
    if text is None:
        return bad_values.Record()
    return bad_values.Record(text) if letter["reason"] == UNDECODABLE else bad_values.Record(row=_object(text))


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
