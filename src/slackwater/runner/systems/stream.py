"""Systems that a connector for Spark reads, which cannot seek: a source goes on by Spark's checkpoint."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, NamedTuple

from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source
from slackwater.runner.systems.base import C, System, zone_of
from slackwater.sources import connect
from slackwater.sources.payloads.base import Undecoded
from slackwater.sources.payloads.formats import payload_of
from slackwater.sources.planning import not_over_connect
from slackwater.sources.streams import FrameSource
from slackwater.windows.aggregations import quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Records(NamedTuple):
    """A streaming DataFrame of records: its column with the bytes, and SQL for the columns beside them."""

    frame: DataFrame
    body: str
    beside: list[str]


class Stream(System[C]):
    @abstractmethod
    def records(self, session: SparkSession, spec: Source) -> Records: ...

    def source(self, session: SparkSession, pipeline: Pipeline, spec: Source, known: str | None) -> FrameSource:
        if connect.is_connect(session):
            raise not_over_connect(pipeline.name, spec.name)
        found = self.records(session, spec)
        payload = payload_of(Undecoded(session, spec, found.body, known=known, zone=zone_of(pipeline, spec)))
        beside = [*found.beside, f"{quote(found.body)} AS _value"]
        return FrameSource(spec.name, found.frame, lambda rows: payload.decode(rows, beside))
