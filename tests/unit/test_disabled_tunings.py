"""Switches that turn off the tunings, and the effect of each switch."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import StringType, StructField, StructType
from tests.support.loopback_connection import acknowledges_at_once, make_interactive, open_loopback_connection

from slackwater.connectors.kafka import worker_reader
from slackwater.connectors.payloads import json_payload
from slackwater.connectors.payloads.json_payload import JsonPayload
from slackwater.connectors.source import Batch
from slackwater.connectors.spark_worker_socket import send_acknowledgments
from slackwater.operators.reports import IngestReport
from slackwater.spark import file_epoch
from slackwater.spark.epoch_query import EpochQueryBuilder
from slackwater.spark.sessions import jvm_launch, spark_session
from slackwater.spark.tuning import shuffle_tuning, source_statistics, worker_memory
from slackwater.spark.tuning.expression_cache import ExpressionCache
from slackwater.spark.tuning.shuffle_tuning import ArrowBatchSizer, OneTaskPolicy, PreaggregationPolicy
from slackwater.spark.tuning.source_statistics import SourceStatisticsCollector
from slackwater.tuning_switches import TUNINGS, VARIABLE, is_enabled


def limits_batches_by_rows() -> bool:
    sizer = ArrowBatchSizer()
    sizer.observe([(shuffle_tuning.MANY_ROWS, 1)])
    return sizer._are_narrow


def uses_class_archive() -> bool:
    with jvm_launch.use_class_archive():
        return "archive_of_this_test" in os.environ.get("SPARK_SUBMIT_OPTS", "")


def reuses_expressions() -> bool:
    cache = ExpressionCache()
    return cache.get_or_create("key", object) is cache.get_or_create("key", object)


def aggregates_after_shuffle() -> bool:
    policy = PreaggregationPolicy()
    policy.observe([IngestReport(shard=0, segments=(), rows=8, panes=8)])
    return policy._after_shuffle


def counts_in_separate_job() -> bool:
    class Frame:
        columns = (source_statistics.FINGERPRINT,)

        def agg(self, *aggregates: Any) -> Any:
            return SimpleNamespace(collect=lambda: [SimpleNamespace(asDict=dict)])

    collector = SourceStatisticsCollector()
    collector.record_rows("a", source_statistics.MANY_ROWS)
    rows, statistics = collector.attach("a", Frame(), [], lambda rows, aggregates: ("observed", None))  # type: ignore[arg-type, return-value]
    if isinstance(rows, str):
        return False
    statistics.get()
    return True


def decodes_many_records_in_workers() -> bool:
    payload = JsonPayload(StructType([StructField("k", StringType())]))
    return payload.runs_in_workers(json_payload.MANY_RECORDS)


def reads_kafka_in_workers() -> bool:
    local_spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(master="local[2]"))
    return worker_reader.can_read_in_workers(local_spark)


ONE_RECORD = Batch(None, {}, {"a": None}, partitions={"a": {"t-0": 1}}, shared=frozenset({"a"}))


def uses_one_task() -> bool:
    return OneTaskPolicy().applies(ONE_RECORD)


def runs_shards_in_this_process() -> bool:
    local_spark = SimpleNamespace(sparkContext=SimpleNamespace(master="local[2]"))
    rows: Any = SimpleNamespace(session=local_spark, pipeline=SimpleNamespace(lookups=(), sources=()))
    always = SimpleNamespace(applies=lambda batch, max_rows: True, knows_result_size=True)
    return EpochQueryBuilder(rows, None, one_task=always)._is_collected(ONE_RECORD)  # type: ignore[arg-type]


def imports_installed_pyspark() -> bool:
    return "spark.python.daemon.module" in spark_session.worker_settings(2, {})


def reads_files_in_workers() -> bool:
    local_spark = SimpleNamespace(sparkContext=SimpleNamespace(master="local[2]"))
    rows: Any = SimpleNamespace(session=local_spark, task_slots=2)
    return file_epoch.can_read_in_tasks(rows, 2)


def acknowledges_the_task() -> bool:
    if not hasattr(socket, "TCP_QUICKACK"):  # only Linux has it
        return is_enabled("quick_ack")
    with open_loopback_connection() as (spark, worker):
        make_interactive(spark, worker)
        send_acknowledgments()
        return acknowledges_at_once(worker)


EFFECTS: dict[str, Callable[[], bool]] = {
    "arrow_batch_size": limits_batches_by_rows,
    "class_archive": uses_class_archive,
    "expression_cache": reuses_expressions,
    "file_workers": reads_files_in_workers,
    "installed_pyspark": imports_installed_pyspark,
    "json_workers": decodes_many_records_in_workers,
    "jvm_options": lambda: bool(jvm_launch.jvm_options({})),
    "kafka_workers": reads_kafka_in_workers,
    "one_task": uses_one_task,
    "preaggregation": aggregates_after_shuffle,
    "query_reuse": runs_shards_in_this_process,
    "quick_ack": acknowledges_the_task,
    "statistics": counts_in_separate_job,
    "worker_memory": lambda: bool(worker_memory.environment()),
}


@pytest.mark.parametrize("tuning", TUNINGS)
def test_environment_variable_disables_one_tuning_and_no_other(
    tuning: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "archive_of_this_test"
    archive.touch()
    monkeypatch.setattr(jvm_launch, "class_archive_path", lambda java: archive)
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    monkeypatch.delenv(VARIABLE, raising=False)
    assert {name for name, is_effective in EFFECTS.items() if is_effective()} == set(TUNINGS)
    monkeypatch.setenv(VARIABLE, tuning)
    assert {name for name, is_effective in EFFECTS.items() if is_effective()} == {*TUNINGS} - {tuning}
