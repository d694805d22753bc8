"""What waits at the sources, as far as it can be asked without Spark and within a bound: files that no commit has, and the
records between a commit's offsets and the end of each Kafka partition.

A source is asked by a thread of its own, one at a time, and the page waits for it for LONGEST_S at most; what it says is
kept for FRESH_S. What a commit has of it is taken off then, so the answer fits the commit that is looked at.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import singledispatch
from itertools import islice
from pathlib import Path
from typing import Any

from slackwater.config.connection import (
    Connection,
    DeltaConnection,
    FilesConnection,
    IcebergConnection,
    KafkaConnection,
    KinesisConnection,
    PubSubConnection,
    RabbitMQConnection,
)
from slackwater.config.pipeline import Pipeline, resolve
from slackwater.config.source import Source
from slackwater.core.dispatch import unregistered
from slackwater.core.offsets import FilesRead, KafkaOffsets
from slackwater.core.words import plural
from slackwater.errors import SlackwaterError
from slackwater.sources.files import local_name, located, recall
from slackwater.sources.kafka_broker import Broker
from slackwater.state.protocol import Snapshot

LONGEST_S = 1.5
FRESH_S = 5.0
MOST = 100_000  # files that are listed, or compared


@dataclass(frozen=True)
class Waits:
    """One source: how many `files` or `records` no commit has yet, None where that is not known, and why it is not.

    `rows`: about how many rows these are, from what the source brought so far.
    """

    source: str
    what: str
    count: int | None
    rows: int | None
    problem: str | None = None


@dataclass
class _Known:
    """What a source said: names of files, or the end of each partition."""

    found: Any = None
    problem: str | None = "it is being asked"
    at: float = float("-inf")
    thread: threading.Thread | None = None


@dataclass
class Asker:
    """Asks the sources of one pipeline."""

    _known: dict[str, _Known] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def waits(self, pipeline: Pipeline, snapshot: Snapshot) -> tuple[Waits, ...]:
        """What waits at each source that can be asked, in the order of the config."""
        asked = [(s, ask) for s in pipeline.sources if (ask := _asked(pipeline, s)) is not None]
        with self._lock:
            threads = [t for s, ask in asked if (t := self._begin(s.name, ask)) is not None]
        end = time.monotonic() + LONGEST_S
        for thread in threads:
            thread.join(max(end - time.monotonic(), 0))
        return tuple(_answer(s, self._known[s.name], snapshot) for s, _ in asked)

    def _begin(self, name: str, ask: Callable[[], Any]) -> threading.Thread | None:
        known = self._known.setdefault(name, _Known())
        if known.thread is not None and known.thread.is_alive():
            return known.thread
        if time.monotonic() - known.at < FRESH_S:
            return None

        def run() -> None:
            try:
                known.found, known.problem = ask(), None
            except (SlackwaterError, OSError) as error:
                known.found, known.problem = None, str(error)
            known.at = time.monotonic()

        known.thread = threading.Thread(target=run, name=f"ui-asks-{name}", daemon=True)
        known.thread.start()
        return known.thread


def _asked(pipeline: Pipeline, source: Source) -> Callable[[], Any] | None:
    connection = None if source.connection is None else resolve(source.connection, pipeline.connections)
    return None if connection is None else _question(connection, source)


@singledispatch
def _question(connection: Connection, source: Source) -> Callable[[], Any] | None:
    """How a source is asked; None where it cannot be."""
    unregistered(connection, "slackwater.ui.waiting")


@_question.register
def _(
    connection: RabbitMQConnection | KinesisConnection | PubSubConnection | DeltaConnection | IcebergConnection,
    source: Source,
) -> Callable[[], Any] | None:
    return None


@_question.register
def _(connection: KafkaConnection, source: Source) -> Callable[[], Any] | None:
    broker = Broker(connection)
    return lambda: _ends(broker, source.query or "", f'source "{source.name}"')


@_question.register
def _(connection: FilesConnection, source: Source) -> Callable[[], Any] | None:
    query = source.query or ""
    return (lambda: _files(located(query))) if query and "://" not in query else None


def _ends(broker: Broker, query: str, where: str) -> dict[tuple[str, int], tuple[int, int]]:
    there = broker.partitions(query, where)
    return broker.bounds([(t, p) for t, parts in there.items() for p in parts])


def _files(pattern: str) -> list[str] | None:
    """The files that a query means; None where they are too many to list."""
    found = list(islice(_listed(pattern), MOST + 1))
    return None if len(found) > MOST else found


def _listed(pattern: str) -> Iterator[str]:
    """Escapes are Spark's: here a character stands for itself in brackets."""
    root = Path(Path(pattern).anchor)
    for path in root.glob(re.sub(r"\\(.)", r"[\1]", pattern[len(str(root)) :])):
        if not path.is_dir():
            yield from [str(path)] * _shown(path.name)
            continue
        for folder, folders, names in os.walk(path):
            folders[:] = [f for f in folders if _shown(f) or "=" in f]
            yield from (f"{folder}/{n}" for n in names if _shown(n))


def _shown(name: str) -> bool:
    """Spark leaves these out, too."""
    return not name.startswith((".", "_")) and not name.endswith("._COPYING_")


def _answer(source: Source, known: _Known, snapshot: Snapshot) -> Waits:
    record = snapshot.commit.sources.get(source.name)
    offsets = None if record is None else record.offsets
    rows = snapshot.commit.clocks[source.name].rows if record is not None else 0
    if isinstance(known.found, dict):
        read = offsets if isinstance(offsets, KafkaOffsets) else KafkaOffsets()
        # a partition that no commit knows begins at its start; records may be gone before they were read
        count = sum(max(end - max(read.of(*part) or low, low), 0) for part, (low, end) in known.found.items())
        return Waits(source.name, "records", count, count)
    if known.problem is not None:
        return Waits(source.name, "", None, None, known.problem)
    files = FilesRead.known(offsets)
    done = files.count
    if known.found is None or done > MOST:
        return Waits(source.name, "files", None, None, f"more than {plural(MOST, 'file')}, which are not compared")
    names = {local_name(e.path) for e in recall(snapshot, files)}
    count = sum(1 for name in known.found if str(Path(name)) not in names)
    return Waits(source.name, "files", count, round(rows / done * count) if done else (0 if not count else None))
