"""A client for schema registries with Confluent's API. It reads all versions of the subjects of a source's topics."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from slackwater.config.source import Source
from slackwater.connectors.source import spark_error_reason
from slackwater.errors import StartError, Topic

# Bytes before the payload: a zero byte, and the id of the writer's schema in 4 bytes
FRAME = 5


@dataclass(frozen=True)
class SchemaVersion:
    """One version of a subject. `references`: the referenced schemas, as strings, by the names that this schema uses."""

    id: int
    text: str
    references: Mapping[str, str]


def read_schema_versions(spec: Source, registry: str, topics: Sequence[str]) -> Iterator[SchemaVersion]:
    """Yield every version of each subject `<topic>-value`, oldest first.

    Raises StartError if the registry does not respond or lacks a subject.
    """
    for topic in topics:
        subject = f"{topic}-value"
        for number in _get(spec, registry, f"/subjects/{quote(subject, safe='')}/versions"):
            yield _version(spec, registry, subject, number)


def _version(spec: Source, registry: str, subject: str, number: int) -> SchemaVersion:
    entry = _get(spec, registry, f"/subjects/{quote(subject, safe='')}/versions/{number}")
    references: dict[str, str] = {}
    for other in entry.get("references") or ():
        version = _version(spec, registry, other["subject"], other["version"])
        references |= {**version.references, other["name"]: version.text}
    return SchemaVersion(int(entry["id"]), entry["schema"], references)


def _get(spec: Source, registry: str, path: str) -> Any:
    url = registry.rstrip("/") + path
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:  # the URL is the user's own
            return json.load(answer)
    except (OSError, ValueError) as error:
        raise StartError(
            f'source "{spec.name}": the schema registry does not answer {path} ({spark_error_reason(error)}); check schema_registry',
            Topic.SERVICE_UNREACHABLE,
        ) from None
