"""Changing where the sources of a state go on, and nothing else of it: windows, clocks and counters stay as they are.

    --offsets earliest                                   every source from its beginning
    --offsets clicks=latest                              one source; or a time, as in clicks=2026-03-01T12:00:00Z
    --offsets '{"clicks": {"topic": {"0": 42}}}'         Kafka: partitions that are not named stay where they are

Words and times are asked of the broker, so they need the config; a files source can only be read again from its beginning,
a table from what it holds, or from what comes next.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slackwater.config.connection import KafkaConnection
from slackwater.config.pipeline import Pipeline, resolve
from slackwater.config.spelling import nearest
from slackwater.core.offsets import FilesRead, KafkaOffsets, Offsets, TableRead
from slackwater.errors import StartError
from slackwater.sources.kafka_broker import Broker
from slackwater.state.commit import Commit, SourceRecord

Wanted = str | int | Mapping[str, Any]  # a word, a time in µs, or offsets per topic and partition
_WORDS = ("earliest", "latest")
_EXPECTED = '"earliest", "latest", a time such as 2026-03-01T12:00:00Z, or {"topic": {"0": 42}}'


@dataclass(frozen=True)
class Move:
    """One source: where it went on, and where it will."""

    source: str
    before: Offsets | None
    after: Offsets

    def partitions(self) -> list[tuple[str, int | None, int]]:
        """Kafka: partition (`topic-n`), the offset it had (None: it was not read yet), and the new one."""
        if not isinstance(self.after, KafkaOffsets):
            return []
        known = self.before if isinstance(self.before, KafkaOffsets) else KafkaOffsets()
        moved = sorted(self.after.each(), key=lambda to: (to[0], int(to[1])))
        return [(f"{topic}-{part}", known.of(topic, part), offset) for topic, part, offset in moved]

    @property
    def again(self) -> bool:
        """Whether rows come that came before."""
        if isinstance(self.after, FilesRead):
            return isinstance(self.before, FilesRead) and self.before.count > 0
        if isinstance(self.after, TableRead):
            return self.after.never and self.before is not None
        return any(was is not None and offset < was for _, was, offset in self.partitions())

    @property
    def skips(self) -> bool:
        """Whether rows are passed over."""
        if isinstance(self.after, TableRead):
            return not self.after.never and self.before != self.after
        return any(was is not None and offset > was for _, was, offset in self.partitions())


def moves(commit: Commit, given: Sequence[str], pipeline: Pipeline | None) -> list[Move]:
    """What a reset does to each source that it names. `pipeline`: the config, where words are to be asked of a broker.

    Raises StartError, EpochError.
    """
    for name, source in commit.sources.items():
        if source.offsets is None and commit.clocks[name].rows:
            raise StartError(
                f'{commit.pipeline}: source "{name}" goes on by Spark\'s checkpoint only, which then holds the places of all '
                "sources; their offsets cannot be reset: give the pipeline a new name or state path to start over"
            )
    wanted = _wanted(given, sorted(commit.sources))  # a database keeps no order of names
    return [Move(name, commit.sources[name].offsets, _offsets(commit, name, w, pipeline)) for name, w in wanted]


def moved(commit: Commit, made: Sequence[Move]) -> Mapping[str, SourceRecord]:
    """The sources of a commit after these moves."""
    after = {m.source: m.after for m in made}
    return {n: s.model_copy(update={"offsets": after[n]}) if n in after else s for n, s in commit.sources.items()}


# -- what was asked for ----------------------------------------------------------------------------------------------


def _wanted(given: Sequence[str], names: Sequence[str]) -> list[tuple[str, Wanted]]:
    found: dict[str, Wanted] = {}
    for text in given:
        for name, wanted in _read(text, names).items():
            if name not in names:
                raise StartError(f'--offsets: the state has no source "{name}"{nearest(name, names)}')
            if name in found:
                raise StartError(f'--offsets: source "{name}" is given twice')
            found[name] = wanted if isinstance(wanted, Mapping) else _word(name, wanted)
    return list(found.items())


def _read(text: str, names: Sequence[str]) -> dict[str, Any]:
    if text.lstrip().startswith("{"):
        try:
            found = json.loads(text)
        except ValueError as error:
            raise StartError(f"--offsets: found {text}, which is not JSON ({error})") from None
        return dict(found)
    name, named, word = text.partition("=")
    return {name: word} if named else dict.fromkeys(names, text)


def _word(name: str, value: Any) -> str | int:
    if value in _WORDS:
        return str(value)
    try:
        at = dt.datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise StartError(f'--offsets: source "{name}": found {json.dumps(value)}, expected {_EXPECTED}') from None
    at = at if at.tzinfo else at.replace(tzinfo=dt.UTC)
    return (at - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)


# -- per kind of source ----------------------------------------------------------------------------------------------


def _offsets(commit: Commit, name: str, wanted: Wanted, pipeline: Pipeline | None) -> Offsets:
    where, before = f'--offsets: source "{name}"', commit.sources[name].offsets
    if isinstance(before, TableRead) or _kind(pipeline, name) in ("delta", "iceberg"):
        return _of_table(where, pipeline, name, wanted)
    broker = _broker(pipeline, name)
    if isinstance(before, FilesRead) or (broker is None and before is None and _kind(pipeline, name) == "files"):
        if wanted != "earliest":
            raise StartError(
                f'{where}: it reads files, which have no order to go on at; expected "earliest" (all of them are read again)'
            )
        return FilesRead()
    if isinstance(wanted, Mapping):
        if before is None and broker is None:
            raise StartError(f"{where}: it was never read, so the state does not know its partitions; {_NEEDS_FILE}")
        given, known = _checked(where, wanted), None if before is None else before.topics
        if known is None:
            assert broker is not None
            there = broker[0].partitions(broker[1], f'source "{name}"')
            known = {t: {str(p): 0 for p in parts} for t, parts in there.items()}
        _check_known(where, given, known)
        if before is None:
            return KafkaOffsets(given)
        return KafkaOffsets({t: {**parts, **given.get(t, {})} for t, parts in known.items()})
    if broker is None:
        raise StartError(f"{where}: a broker is to be asked where that is; {_NEEDS_FILE}")
    return KafkaOffsets(_asked(*broker, f'source "{name}"', wanted))


_NEEDS_FILE = "give the pipeline's TOML file as WHERE"


def _spec(pipeline: Pipeline | None, name: str) -> Any:
    return next((s for s in pipeline.sources if s.name == name), None) if pipeline else None


def _broker(pipeline: Pipeline | None, name: str) -> tuple[Broker, str] | None:
    """The cluster of a Kafka source of the config, and its query."""
    spec = _spec(pipeline, name)
    connection = resolve(spec.connection, pipeline.connections) if spec and pipeline else None
    return (Broker(connection), spec.query or "") if isinstance(connection, KafkaConnection) else None


def _kind(pipeline: Pipeline | None, name: str) -> str | None:
    spec = _spec(pipeline, name)
    connection = resolve(spec.connection, pipeline.connections) if spec and pipeline else None
    return None if connection is None else connection.kind


def _of_table(where: str, pipeline: Pipeline | None, name: str, wanted: Wanted) -> TableRead:
    """What the table holds when the next run begins, or the place behind what is there now."""
    from slackwater.runner.systems import system_of  # only here: it knows all targets

    if wanted == "earliest":
        return TableRead(files=0, content=True)
    if wanted != "latest":
        raise StartError(
            f'{where}: it reads a table; expected "earliest" (what it holds, from its first row) or "latest" (what comes next)'
        )
    spec = _spec(pipeline, name)
    connection = resolve(spec.connection, pipeline.connections) if spec and pipeline else None
    if spec is None or connection is None:
        raise StartError(f"{where}: the table is to be asked where that is; {_NEEDS_FILE}")
    return system_of(connection).newest(spec)


def _checked(where: str, given: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Offsets per topic and partition, as given. Raises StartError for what is none."""
    for topic, parts in given.items():
        if not isinstance(parts, dict) or not parts:
            raise StartError(
                f'{where}: topic "{topic}": found {json.dumps(parts)}, expected partitions, as in {{"0": 42}}'
            )
        for part, offset in parts.items():
            if not re.fullmatch(r"0|[1-9]\d*", part):
                raise StartError(
                    f'{where}: topic "{topic}": found the partition "{part}", expected a number such as "0"'
                )
            if type(offset) is not int or not 0 <= offset < 2**63:
                raise StartError(
                    f"{where}: {topic}-{part}: found {json.dumps(offset)}, expected an offset: a whole number from 0"
                )
    return {topic: dict(parts) for topic, parts in given.items()}


def _check_known(where: str, given: Mapping[str, Mapping[str, int]], known: Mapping[str, Mapping[str, Any]]) -> None:
    for topic, parts in given.items():
        if topic not in known:
            raise StartError(f'{where}: it does not read a topic "{topic}"{nearest(topic, list(known))}')
        for part in parts:
            if part not in known[topic]:
                there = ", ".join(sorted(known[topic], key=int))
                raise StartError(f'{where}: topic "{topic}" has no partition {part}; there are: {there}')


def _asked(broker: Broker, query: str, where: str, wanted: str | int) -> dict[str, dict[str, int]]:
    there = [(t, p) for t, parts in broker.partitions(query, where).items() for p in parts]
    if isinstance(wanted, int):
        found = broker.since(there, wanted)
    else:
        found = {p: bounds[_WORDS.index(wanted)] for p, bounds in broker.bounds(there).items()}
    offsets: dict[str, dict[str, int]] = {}
    for (topic, part), offset in found.items():
        offsets.setdefault(topic, {})[str(part)] = offset
    return offsets
