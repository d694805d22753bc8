"""A custom connector for ascending numbers, with the minimal code that a seekable source needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pytest

from slackwater.config.config_key import declare_key
from slackwater.config.connection import Connection
from slackwater.config.connector_description import ConnectorDescription, StartPosition
from slackwater.config.source import Source
from slackwater.config.value_parsers import integer_parser
from slackwater.connectors import dead_letter_restoration
from slackwater.connectors.connector import Connector
from slackwater.connectors.source import SelfPlannedSource, SourceBatch
from slackwater.core.connector_registry import TABLE
from slackwater.core.offset_base import OffsetChange, OffsetLookup, Offsets
from slackwater.errors import StartError
from slackwater.state.commit import SourceRecord


# -- connectors/ticks/description.py ----------------------------------------------------------------------------------------
class TicksConnection(Connection):
    """Numbers below `count`, which are also seconds since 1970."""

    kind: Literal["ticks"] = "ticks"
    count: int = declare_key(integer_parser(0), required="how many numbers there are")
    WRITES: ClassVar[bool] = False


# -- core/offsets/ticks.py ---------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class TicksOffsets(Offsets):
    """Offsets of a ticks source. `next`: the next number."""

    connector = "ticks"

    next: int = 0

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> TicksOffsets | None:
        return cls(int(stored["ticks"])) if stored.keys() == {"ticks"} and isinstance(stored["ticks"], int) else None

    def to_json(self) -> dict[str, Any]:
        return {"ticks": self.next}

    def positions(self) -> dict[str, str]:
        return {"next": str(self.next)}

    def describe(self) -> str:
        return f"from tick {self.next}"

    def changes(self, before: Offsets | None) -> list[OffsetChange]:
        was = TicksOffsets.coerce(before).next
        return [OffsetChange("ticks", str(was), str(self.next), rereads=self.next < was, skips_rows=self.next > was)]

    def resolve_reset(self, prefix: str, start: object, lookup: OffsetLookup | None) -> Offsets:
        if not isinstance(start, str) or lookup is None:
            raise StartError(f"{prefix}: no tick")
        return lookup(start)


# -- config/connector_description.py ----------------------------------------------------------------------------------------------
TICKS = ConnectorDescription(
    kind="ticks",
    connection=TicksConnection,
    connector="tests.support.ticks_connector:TicksConnector",
    keeps_history=True,
    has_timestamp=True,
    keys=("starting_offsets", "max_messages_per_trigger"),
    offsets=TicksOffsets,
    start=StartPosition("earliest", no_offsets_reason="ticks begin at the first"),
    short_name=lambda s: f"ticks of {s.query}",
    plan_text=lambda s: f"ticks of {s.query}",
)


# -- connectors/ticks/source.py -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class TicksSource(SelfPlannedSource):
    """A source of `count` numbers."""

    count: int
    schema: Any
    kind = "clock"

    def latest(self) -> TicksOffsets:
        return TicksOffsets(self.count)

    def configured_start(self) -> TicksOffsets:
        return TicksOffsets()

    def planner(self, record: SourceRecord, files: Iterable[Any]) -> TicksPlanner:
        return TicksPlanner(self, TicksOffsets.coerce(record.offsets).next)

    def decode_dead_letter_rows(self, letters: Any, letter: str, file: str) -> Any:
        return dead_letter_restoration.restore_decoded_rows(letters, self.schema, [letter])


@dataclass(frozen=True)
class TicksBatch:
    source: TicksSource
    first: int
    end: int

    def read(self, session: Any, store: Any, epoch: int, record: SourceRecord) -> SourceBatch:
        frame = session.range(self.first, self.end).selectExpr("id AS n", "timestamp_seconds(id) AS _event_ts")
        return SourceBatch(frame, TicksOffsets(self.end))


class TicksPlanner:
    unplanned_files = 0

    def __init__(self, source: TicksSource, first: int) -> None:
        self._source, self._next = source, first

    def stop_at_current_end(self) -> None:
        """Do nothing, because the numbers are finite."""

    def next(self) -> TicksBatch | None:
        first, most = self._next, self._source.spec.max_messages_per_trigger or self._source.count
        self._next = min(first + most, self._source.count)
        return TicksBatch(self._source, first, self._next) if first < self._next else None


# -- connectors/ticks/connector.py ----------------------------------------------------------------------------------------
class TicksConnector(Connector[TicksConnection]):
    def source(self, session: Any, pipeline: Any, spec: Source, schema_json: str | None) -> TicksSource:
        from pyspark.sql import types as T  # noqa: N812

        fields = [T.StructField("n", T.LongType()), T.StructField("_event_ts", T.TimestampType())]
        return TicksSource(spec, self.connection.count, T.StructType(fields))

    def resolve_position(self, spec: Source, position: str | int) -> TicksOffsets:
        return TicksOffsets(self.connection.count if position == "latest" else 0)


@contextmanager
def register_connector() -> Iterator[None]:
    """Register the connector for the duration of the context."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TABLE._loaded, "ticks", TICKS)
        yield
