"""The policy that decides whether an epoch runs as one Spark task."""

from __future__ import annotations

from dataclasses import replace

from slackwater.connectors.source import Batch
from slackwater.operators.reports import IngestReport
from slackwater.spark.tuning.shuffle_tuning import MAX_ONE_TASK_ROWS, OneTaskPolicy


def kafka_batch(*rows_by_partition: int) -> Batch:
    counts = {f"t-{n}": rows for n, rows in enumerate(rows_by_partition)}
    return Batch(None, {}, {"events": None}, partitions={"events": counts})


def report(rows: int) -> IngestReport:
    return IngestReport(shard=0, rows=rows, segments=())


def test_epoch_with_few_known_rows_uses_one_task() -> None:
    policy = OneTaskPolicy()
    assert policy.applies(kafka_batch(MAX_ONE_TASK_ROWS - 7, 0, 7))
    assert not policy.applies(kafka_batch(MAX_ONE_TASK_ROWS, 1))


def test_epoch_with_unknown_row_count_uses_a_shuffle() -> None:
    files = Batch(None, {}, {"files": None})
    assert not OneTaskPolicy().applies(files)
    both = replace(kafka_batch(5), payload={"events": None, "files": None})
    assert not OneTaskPolicy().applies(both)


def test_rows_of_other_stages_count() -> None:
    batch = replace(kafka_batch(5), payload={"events": None, "joined": None})
    assert OneTaskPolicy().applies(replace(batch, stage_rows={"joined": MAX_ONE_TASK_ROWS - 5}))
    assert not OneTaskPolicy().applies(replace(batch, stage_rows={"joined": MAX_ONE_TASK_ROWS - 4}))


def test_sql_that_multiplied_rows_in_the_previous_epoch_lowers_the_limit() -> None:
    policy = OneTaskPolicy()
    policy.observe(kafka_batch(100), [report(150), report(250)])
    assert policy.applies(kafka_batch(MAX_ONE_TASK_ROWS // 4))
    assert not policy.applies(kafka_batch(MAX_ONE_TASK_ROWS // 4 + 1))
    policy.observe(kafka_batch(100), [report(3)])
    assert policy.applies(kafka_batch(MAX_ONE_TASK_ROWS)), "SQL that drops rows does not raise the limit"
    assert not policy.applies(kafka_batch(MAX_ONE_TASK_ROWS + 1))
