"""Change the offsets of sources in a state. Windows, clocks and counters stay unchanged.

    --offsets earliest                                   move every source to its beginning
    --offsets clicks=latest                              move one source to its end
    --offsets clicks=2026-03-01T12:00:00Z                move one source to a time
    --offsets '{"clicks": {"topic": {"0": 42}}}'         move one Kafka partition; the others stay unchanged

Resolving a word or a time requires the broker, and therefore the config. A files source can restart only from its
beginning. A table source restarts from its current content or from the next change.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slackwater.config.connector_description import CONNECTORS
from slackwater.config.error_text import suggest_or_list_words
from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.core.humanize import mismatch
from slackwater.core.offset_base import NEEDS_FILE, OffsetLookup, Offsets
from slackwater.core.offsets import KafkaOffsets
from slackwater.errors import StartError, Topic
from slackwater.state.commit import Commit, SourceRecord

Position = str | int | Mapping[str, Any]  # a word, a time in µs, or offsets by topic and partition
_WORDS = ("earliest", "latest")
_EXPECTED = '"earliest", "latest", a time such as 2026-03-01T12:00:00Z, or {"topic": {"0": 42}}'


@dataclass(frozen=True)
class OffsetMove:
    """The offsets of one source before and after a reset. `before` is None if the source was never read."""

    source: str
    before: Offsets | None
    after: Offsets


def plan_moves(commit: Commit, arguments: Sequence[str], pipeline: Pipeline | None) -> list[OffsetMove]:
    """Return the offset change of each source that the `--offsets` arguments name.

    Args:
        commit: The commit of the state.
        arguments: The values of `--offsets`.
        pipeline: The config, which is needed to resolve words and times; None if there is no config.

    Raises StartError or EpochError if an argument is invalid or cannot be resolved.
    """
    for name, source in commit.sources.items():
        if source.offsets is None and commit.clocks[name].rows:
            raise StartError(
                f'{commit.pipeline}: no offsets can be reset, because source "{name}" resumes only from Spark\'s '
                "checkpoint, which contains the offsets of all sources; give the pipeline a new name or state path to "
                "start over",
                Topic.CHECKPOINT_ONLY,
            )
    positions = _parse_arguments(arguments, sorted(commit.sources))  # a database does not preserve the order of names
    return [OffsetMove(n, commit.sources[n].offsets, _resolve(commit, n, p, pipeline)) for n, p in positions]


def apply_moves(commit: Commit, moves: Sequence[OffsetMove]) -> Mapping[str, SourceRecord]:
    """Return the sources of a commit, with the new offsets from `moves`."""
    moved = {m.source: commit.sources[m.source].model_copy(update={"offsets": m.after}) for m in moves}
    return {**commit.sources, **moved}


# -- arguments -------------------------------------------------------------------------------------------------------


def _parse_arguments(arguments: Sequence[str], names: Sequence[str]) -> list[tuple[str, Position]]:
    positions: dict[str, Position] = {}
    for text in arguments:
        for name, position in _parse_argument(text, names).items():
            if name not in names:
                raise StartError(
                    f'--offsets: the state has no source "{name}"{suggest_or_list_words(name, names)}', Topic.OFFSETS
                )
            if name in positions:
                raise StartError(f'--offsets: source "{name}" is named twice', Topic.OFFSETS)
            positions[name] = position if isinstance(position, Mapping) else _parse_position(name, position)
    return list(positions.items())


def _parse_argument(text: str, names: Sequence[str]) -> dict[str, Any]:
    if text.lstrip().startswith("{"):
        try:
            parsed = json.loads(text)
        except ValueError as error:
            raise StartError(f"--offsets: found {text}, which is not JSON ({error})", Topic.OFFSETS) from None
        return dict(parsed)
    name, separator, word = text.partition("=")
    return {name: word} if separator else dict.fromkeys(names, text)


def _parse_position(name: str, value: Any) -> str | int:
    if value in _WORDS:
        return str(value)
    try:
        moment = dt.datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise StartError(
            f'--offsets: source "{name}": ' + mismatch(json.dumps(value), _EXPECTED), Topic.OFFSETS
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
    return (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)


# -- offsets ---------------------------------------------------------------------------------------------------------


def _resolve(commit: Commit, name: str, position: Position, pipeline: Pipeline | None) -> Offsets:
    """Resolve a position to the kind of offsets that the source uses.

    Args:
        commit: The commit of the state.
        name: The name of the source.
        position: The position.
        pipeline: The config, which determines the kind of offsets; None to use the kind in the state.
    """
    where, before = f'--offsets: source "{name}"', commit.sources[name].offsets
    spec = next((s for s in pipeline.sources if s.name == name), None) if pipeline else None
    connection = resolve_connection(spec.connection, pipeline.connections) if spec and pipeline else None
    kind = None if connection is None else CONNECTORS[connection.kind].offsets
    current = (kind or (KafkaOffsets if before is None else type(before))).coerce(before)

    def ask(word: str | int) -> Offsets:
        from slackwater.connectors.connector import connector_for  # imported here because it imports all targets

        assert spec is not None
        assert connection is not None
        return connector_for(connection).resolve_position(spec, word)

    resolve = None if kind is None else ask
    if isinstance(position, Mapping) and isinstance(current, KafkaOffsets):
        return _resolve_partitions(current, where, position, resolve)
    return current.resolve_reset(where, position, resolve)


def _resolve_partitions(
    current: KafkaOffsets, where: str, position: Mapping[str, Any], ask: OffsetLookup | None
) -> KafkaOffsets:
    if not current.topics and ask is None:
        raise StartError(
            f"{where}: this source has never been read, so the state does not know its partitions; {NEEDS_FILE}",
            Topic.OFFSETS,
        )
    offsets = _parse_offsets(where, position)
    partitions = current if current.topics or ask is None else KafkaOffsets.coerce(ask("latest"))
    _check_partitions(where, offsets, partitions.topics)
    moved = {t: {**parts, **offsets.get(t, {})} for t, parts in current.topics.items()}
    return KafkaOffsets(moved or offsets)  # a source that was never read starts at the specified offsets


def _parse_offsets(where: str, offsets: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Validate and return offsets by topic and partition. Raises StartError if they are invalid.

    `where`: the beginning of the error message.
    """
    for topic, parts in offsets.items():
        if not isinstance(parts, dict) or not parts:
            raise StartError(
                f'{where}: topic "{topic}": ' + mismatch(json.dumps(parts), 'partitions, as in {"0": 42}'),
                Topic.OFFSETS,
            )
        for part, offset in parts.items():
            if not re.fullmatch(r"0|[1-9]\d*", part):
                raise StartError(
                    f'{where}: topic "{topic}": ' + mismatch(f'the partition "{part}"', 'a number such as "0"'),
                    Topic.OFFSETS,
                )
            if type(offset) is not int or not 0 <= offset < 2**63:
                raise StartError(
                    f"{where}: {topic}-{part}: "
                    + mismatch(json.dumps(offset), "an offset (0 or a positive whole number)"),
                    Topic.OFFSETS,
                )
    return {topic: dict(parts) for topic, parts in offsets.items()}


def _check_partitions(
    where: str, offsets: Mapping[str, Mapping[str, int]], topics: Mapping[str, Mapping[str, Any]]
) -> None:
    for topic, parts in offsets.items():
        if topic not in topics:
            raise StartError(
                f'{where}: this source does not read topic "{topic}"{suggest_or_list_words(topic, list(topics))}',
                Topic.OFFSETS,
            )
        for part in parts:
            if part not in topics[topic]:
                partitions = ", ".join(sorted(topics[topic], key=int))
                raise StartError(
                    f'{where}: topic "{topic}" has no partition {part}; available: {partitions}', Topic.OFFSETS
                )
