"""Where sources begin when a pipeline starts over: earliest, latest, or stated offsets, for all of them or each by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from slackwater.config.connector_info import CONNECTORS, StartPosition
from slackwater.config.message_format import suggestion_or_list
from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.config.source import Source
from slackwater.errors import ConfigError

WORDS = ("earliest", "latest")
_SHAPE = 'earliest, latest, or JSON per source, as {"clicks": {"topic": {"0": 42}}} or {"clicks": "latest"}'


def parse_offsets(text: str | None) -> dict[str, Any]:
    """What --from says: per source, "*" for all; empty for what the config says. Raises ConfigError."""
    if text is None:
        return {}
    if text in WORDS:
        return {"*": text}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(v in WORDS or isinstance(v, dict) for v in found.values()):
        raise ConfigError([f"--from: found {text}, expected {_SHAPE}"])
    return found


def with_offsets(pipeline: Pipeline, given: Mapping[str, Any]) -> Pipeline:
    """The pipeline with its sources beginning where it is stated. Raises ConfigError."""
    names = [s.name for s in pipeline.sources]
    problems = [
        f'--from: there is no source "{n}"{suggestion_or_list(n, names)}' for n in given if n not in (*names, "*")
    ]
    sources = [_begins(pipeline, s, given.get(s.name, given.get("*")), problems) for s in pipeline.sources]
    if problems:
        raise ConfigError(problems)
    return pipeline.model_copy(update={"sources": tuple(sources)})


def _begins(pipeline: Pipeline, source: Source, at: Any, problems: list[str]) -> Source:
    begins = _begins_of(pipeline, source)
    if at is None or (at == "earliest" and begins.from_first):
        return source
    if begins.default is None or not (begins.offsets or at in WORDS):
        problems.append(
            f'--from: source "{source.name}" {begins.otherwise} and cannot be told to begin elsewhere; leave it out'
        )
        return source
    try:
        checked = Source.KINDS["starting_offsets"](at)
    except Exception as error:
        problems.append(f'--from: source "{source.name}": expected offsets per topic and partition ({error})')
        return source
    return source.model_copy(update={"starting_offsets": checked, "starting_version": None})


def _begins_of(pipeline: Pipeline, source: Source) -> StartPosition:
    connection = resolve_connection(source.connection, pipeline.connections)
    return StartPosition() if connection is None else CONNECTORS[connection.kind].begins


def offsets_text(pipeline: Pipeline) -> str:
    """Where each source begins, for people."""
    return ", ".join(f"{s.name} {source_start(pipeline, s)}" for s in pipeline.sources)


def source_start(pipeline: Pipeline, source: Source) -> str:
    """Where a source begins that was never read."""
    begins = _begins_of(pipeline, source)
    if begins.default is None:
        return begins.at
    if source.starting_version is not None:
        return f"at version {source.starting_version}"
    at = source.starting_offsets or begins.default
    return f"at {at}" if isinstance(at, str) else f"at {json.dumps(at)}"
