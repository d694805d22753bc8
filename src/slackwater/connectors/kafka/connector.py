"""Connector for Kafka topics with input, results and dead letters. It also counts unread records."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from slackwater.config.connection import KafkaConnection
from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Source
from slackwater.config.target import Target as TargetSpec
from slackwater.connectors.connector import Backlog, BacklogCounter, Connector, InputLister, source_time_zone
from slackwater.connectors.kafka.broker import KafkaBroker, client_settings, named_topics
from slackwater.connectors.kafka.planner import PlannedKafkaSource
from slackwater.connectors.kafka.reader import KafkaResultReader
from slackwater.connectors.kafka.source import sample_records
from slackwater.connectors.payloads import create_payload
from slackwater.connectors.payloads.base import RawRecords
from slackwater.connectors.target import TargetTable
from slackwater.core.dead_letter_schema import LETTER
from slackwater.core.humanize import plural
from slackwater.core.offsets import KafkaOffsets, group_by_topic
from slackwater.errors import StartError, Topic
from slackwater.state.protocol import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from slackwater.connectors.kafka.target import KafkaTarget


class KafkaConnector(Connector[KafkaConnection]):
    """Connector for Kafka topics as sources, as targets and for dead letters."""

    def source(
        self, session: SparkSession, pipeline: Pipeline, spec: Source, schema_json: str | None
    ) -> PlannedKafkaSource:
        broker, query = KafkaBroker(self.connection), spec.query or ""
        broker.partitions(query, f'source "{spec.name}"')
        records = RawRecords(
            session,
            spec,
            address=self.connection.schema_registry,
            topics=named_topics(query),
            stored_schema=schema_json,
            sample=lambda: sample_records(session, spec, self.connection),
            zone=source_time_zone(pipeline, spec),
        )
        used = pipeline.dead_letter is not None or any(
            not (texts := stage_pipeline.sql_chain(path)) or any("_headers" in sql for _, sql in texts)
            for stage_pipeline in pipeline.stage_pipelines.values()
            for path in stage_pipeline.input_paths_from(spec.name)
        )
        source = PlannedKafkaSource(
            spec, broker, create_payload(records), f"slackwater-{pipeline.name}-{spec.name}", used
        )
        source.check_connector(session)
        return source

    def check_source(self, spec: Source) -> None:
        KafkaBroker(self.connection).partitions(spec.query or "", f'source "{spec.name}"')

    def resolve_position(self, spec: Source, position: str | int) -> KafkaOffsets:
        broker = KafkaBroker(self.connection)
        topics = broker.partitions(spec.query or "", f'source "{spec.name}"')
        partitions = [(t, p) for t, parts in topics.items() for p in parts]
        if isinstance(position, int):
            offsets = broker.offsets_at_ms(partitions, -(-position // 1000))
        else:
            offsets = {
                p: bounds[("earliest", "latest").index(position)]
                for p, bounds in broker.offset_ranges(partitions).items()
            }
        return KafkaOffsets(group_by_topic(offsets), broker.topic_ids(topics))

    def input_lister(self, spec: Source) -> InputLister:
        return partial(list_backlog, KafkaBroker(self.connection), spec)

    def target_with_marker(self, spec: TargetSpec, table: TargetTable) -> KafkaTarget | None:
        """Return the target if it delivers exactly once. Otherwise return None, because it has no marker."""
        from slackwater.connectors.kafka.target import KafkaTarget

        if spec.delivery != "exactly_once":
            return None
        return KafkaTarget(self._settings, spec.topic or "", table, delivery=spec.delivery)

    @property
    def _settings(self) -> dict[str, str]:
        return client_settings(self.connection)

    def target(self, spec: TargetSpec, pipeline: Pipeline, table: TargetTable) -> KafkaTarget:
        from slackwater.connectors.kafka.target import KafkaTarget, TopicCreation

        window = None if spec is pipeline.dead_letter else pipeline.target_stage.transform.window
        upserts = spec.upserts("kafka", pipeline.target_stage.transform.window)
        compact = upserts and window is not None and (window.late_data == "reopen" or window.emit == "updates")
        return KafkaTarget(
            self._settings,
            spec.topic or "",
            table,
            value_format=spec.value_format or "json",
            delivery=spec.delivery or "at_least_once",
            key_columns=None if spec.key_columns is None else list(spec.key_columns),
            upserts=upserts,
            creation=None if spec.create is False else TopicCreation(spec.partitions, compact),
        )

    def result_reader(self, spec: TargetSpec, pipeline: Pipeline, writers: Sequence[str]) -> KafkaResultReader:
        is_dead_letter = spec is pipeline.dead_letter
        if spec.value_format == "avro" and not is_dead_letter:
            raise StartError(
                f'{pipeline.name}: its target is a topic with value_format = "avro", which cannot be shown yet; read it '
                "with a consumer that supports Avro",
                Topic.OUTPUT_UNREADABLE,
            )
        window = pipeline.target_stage.transform.window
        upserts = window is not None and spec.upserts(self.connection.kind, window)
        group = f"slackwater-{pipeline.name}-{'dlq' if is_dead_letter else 'show'}"
        return KafkaResultReader(self.connection, spec.topic or "", group, writers, upserts)

    def create_target(self, spec: TargetSpec, pipeline: Pipeline) -> None:
        self.target(spec, pipeline, TargetTable(pipeline.writer, LETTER, None)).create_topic()

    def check_target(self, spec: TargetSpec, key: str) -> None:
        if not self._exists(spec, key) and spec.create is False:
            raise StartError(
                f'{key}.topic: "{spec.topic}" does not exist at {self.connection.bootstrap_servers}, and create = '
                "false; create the topic, or remove create = false",
                Topic.INPUT_MISSING,
            )

    def will_create(self, spec: TargetSpec, key: str) -> str | None:
        if self._exists(spec, key):
            return None
        partitions_text = "the default number of partitions of the broker"
        partitions_text = partitions_text if spec.partitions is None else plural(spec.partitions, "partition")
        return f'{key}.topic: "{spec.topic}" does not exist; a start will create it, with {partitions_text}'

    def _exists(self, spec: TargetSpec, key: str) -> bool:
        return bool(KafkaBroker(self.connection).partitions(f"pattern:{re.escape(spec.topic or '')}", key))


def list_backlog(broker: KafkaBroker, source: Source) -> BacklogCounter:
    """Request the offset range of each partition, and return a function that counts the unread records."""
    partitions = broker.partitions(source.query or "", f'source "{source.name}"')
    bounds = broker.offset_ranges([(t, p) for t, parts in partitions.items() for p in parts])

    def count(snapshot: Snapshot) -> Backlog:
        record = snapshot.commit.sources.get(source.name)
        read = KafkaOffsets.coerce(None if record is None else record.offsets)
        # Without a committed offset, a partition is counted from its start. Records may expire before they are read.
        unread = sum(max(end - max(read.next_offset(*part) or low, low), 0) for part, (low, end) in bounds.items())
        return Backlog(source.name, "records", unread, unread)

    return count
