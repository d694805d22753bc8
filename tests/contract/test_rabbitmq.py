"""The RabbitMQ source on a real broker: order, acknowledgement, redelivery, restarts and error messages."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.support.case_selection import exhaustive, select_cases
from tests.support.external_dependencies import skip_or_fail_without_dependency

from slackwater.errors import EpochError, StartError
from slackwater.testing.services import free_port

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def rabbitmq_broker() -> Iterator[Any]:
    from tests.support.servers.rabbitmq import _INSTALLED, RabbitMQ

    skip_or_fail_without_dependency("RabbitMQ broker", _INSTALLED.exists(), "apt-get install rabbitmq-server")
    with RabbitMQ.started() as broker:
        yield broker


@pytest.fixture(scope="module")
def rabbitmq_source_module() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark's own imports warn
        from slackwater.connectors.rabbitmq import source as rabbitmq_source
    return rabbitmq_source


@contextmanager
def rabbitmq_channel(rabbit: Any) -> Iterator[Any]:
    import pika

    with closing(pika.BlockingConnection(pika.URLParameters(rabbit.url))) as connection:
        yield connection.channel()


@pytest.fixture
def queue(rabbitmq_broker: Any) -> str:
    name = f"q-{uuid.uuid4().hex[:8]}"
    with rabbitmq_channel(rabbitmq_broker) as open_channel:
        open_channel.queue_declare(name, durable=True)
    return name


@pytest.fixture
def publish_numbers(rabbitmq_broker: Any, queue: str) -> Callable[..., None]:
    import pika

    def send(numbers: range, ids: bool = True, **properties: Any) -> None:
        with rabbitmq_channel(rabbitmq_broker) as open_channel:
            open_channel.confirm_delivery()
            for n in numbers:
                named = {"message_id": f"m{n}"} if ids else {}
                message_properties = pika.BasicProperties(delivery_mode=2, **named, **properties)
                open_channel.basic_publish("", queue, str(n).encode(), message_properties)

    return send


def count_ready_messages(rabbit: Any, queue: str) -> int:
    with rabbitmq_channel(rabbit) as open_channel:
        return int(open_channel.queue_declare(queue, passive=True).method.message_count)


def count_messages_after_readers_end(rabbit: Any, queue: str) -> int:
    """Return the number of messages in the queue after its readers ended and returned unacknowledged messages."""

    def readers() -> int:
        with rabbitmq_channel(rabbit) as open_channel:
            return int(open_channel.queue_declare(queue, passive=True).method.consumer_count)

    assert wait_until_equal(readers, 0)
    return count_ready_messages(rabbit, queue)


def wait_until_equal(value: Callable[[], Any], expected: Any) -> bool:
    end = time.monotonic() + 200
    while value() != expected:
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def parse_message_numbers(messages: list[Any]) -> list[int]:
    return [int(m.body) for m in messages]


READER = """
import os, signal, sys
from slackwater.connectors.rabbitmq.source import RabbitQueue
reader = RabbitQueue(sys.argv[1], sys.argv[2], max_messages=10)
assert len(reader.fetch(1)) == len(reader.fetch(2)) == 10
reader.ack(1)
os.kill(os.getpid(), signal.SIGKILL)
"""


# -- the queue ---------------------------------------------------------------------------------------------------------


def test_batches_arrive_in_order_and_acked_messages_are_removed(
    rabbitmq_broker: Any, rabbitmq_source_module: Any, queue: str, publish_numbers: Any
) -> None:
    publish_numbers(range(25))
    reader = rabbitmq_source_module.RabbitQueue(rabbitmq_broker.url, queue, max_messages=10)
    assert parse_message_numbers(reader.fetch(1)) == list(range(10))
    assert parse_message_numbers(reader.fetch(2)) == list(range(10, 20))
    reader.ack(1)
    assert parse_message_numbers(reader.fetch(3)) == list(range(20, 25))
    assert reader.fetch(4) == []
    reader.ack(2)
    reader.close()
    assert count_messages_after_readers_end(rabbitmq_broker, queue) == 5


@pytest.mark.parametrize("ids", [True, False])
def test_killed_reader_returns_its_unacked_messages(
    rabbitmq_broker: Any, rabbitmq_source_module: Any, queue: str, publish_numbers: Any, ids: bool
) -> None:
    publish_numbers(range(20), ids)
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", READER, rabbitmq_broker.url, queue])
    assert ended.returncode == -signal.SIGKILL
    assert count_messages_after_readers_end(rabbitmq_broker, queue) == 10
    second = rabbitmq_source_module.RabbitQueue(rabbitmq_broker.url, queue)
    again = second.fetch(2)
    assert parse_message_numbers(again) == list(range(10, 20)) and all(m.redelivered for m in again)
    second.close()


def test_lost_connection_repeats_only_messages_without_an_id(
    rabbitmq_broker: Any, rabbitmq_source_module: Any, queue: str, publish_numbers: Any
) -> None:
    publish_numbers(range(10))
    publish_numbers(range(10, 13), ids=False)
    reader = rabbitmq_source_module.RabbitQueue(rabbitmq_broker.url, queue)
    assert len(reader.fetch(1)) == 13
    reader._connection.close()
    assert parse_message_numbers(reader.fetch(2)) == [10, 11, 12]
    reader.ack(1)
    reader.close()
    assert count_messages_after_readers_end(rabbitmq_broker, queue) == 3


def test_ack_after_a_lost_connection_takes_effect(
    rabbitmq_broker: Any, rabbitmq_source_module: Any, queue: str, publish_numbers: Any
) -> None:
    publish_numbers(range(10))
    reader = rabbitmq_source_module.RabbitQueue(rabbitmq_broker.url, queue)
    reader.fetch(1)
    reader._connection.close()
    reader.ack(1)
    publish_numbers(range(10, 12))
    assert parse_message_numbers(reader.fetch(2)) == [10, 11]
    reader.ack(2)
    reader.close()
    assert count_messages_after_readers_end(rabbitmq_broker, queue) == 0


@exhaustive(beside="test_rabbitmq.py::test_lost_connection_repeats_only_messages_without_an_id")
def test_reader_reconnects_after_the_broker_restarts(
    rabbitmq_broker: Any, rabbitmq_source_module: Any, queue: str, publish_numbers: Any
) -> None:
    publish_numbers(range(10))
    reader = rabbitmq_source_module.RabbitQueue(rabbitmq_broker.url, queue, max_messages=5)
    assert parse_message_numbers(reader.fetch(1)) == list(range(5))
    rabbitmq_broker.stop_broker()
    rabbitmq_broker.start()
    reader.ack(1)
    rest = [n for batch in (2, 3, 4) for n in parse_message_numbers(reader.fetch(batch))]
    assert sorted({*range(5), *rest}) == list(range(10)) and rest[-5:] == list(range(5, 10))
    reader.close()


def test_message_contains_its_headers_and_routing(
    rabbitmq_broker: Any, rabbitmq_source_module: Any, queue: str, publish_numbers: Any
) -> None:
    publish_numbers(range(1), headers={"kind": "clíck", "raw": b"\x01", "deep": {"n": [1, 2]}})
    reader = rabbitmq_source_module.RabbitQueue(rabbitmq_broker.url, queue)
    (message,) = reader.fetch(1)
    reader.close()
    assert json.loads(message.headers) == {"kind": "clíck", "raw": "\x01", "deep": {"n": [1, 2]}}
    assert (message.routing_key, message.exchange, message.message_id) == (queue, "", "m0")
    assert not message.redelivered and message.received.tzinfo is not None


def test_batch_can_be_replayed_until_it_is_committed(
    rabbitmq_broker: Any, rabbitmq_source_module: Any, queue: str, publish_numbers: Any
) -> None:
    publish_numbers(range(10))
    settings = rabbitmq_source_module.RabbitSettings(rabbitmq_broker.url, queue, 5)
    reader = rabbitmq_source_module.RabbitReader(settings)
    rows, end = reader.read(reader.initialOffset())
    assert [int(r[0]) for r in rows] == list(range(5)) and end["batch"] == 1
    reader._open.close()
    other = rabbitmq_source_module.RabbitReader(settings)
    for _ in range(2):
        assert [int(r[0]) for r in other.readBetweenOffsets(reader.initialOffset(), end)] == list(range(5))
    rows, _ = other.read(end)  # the batch is complete, so its messages are not delivered again
    assert [int(r[0]) for r in rows] == list(range(5, 10))
    other.commit({"batch": 2})
    other._open.close()
    assert count_messages_after_readers_end(rabbitmq_broker, queue) == 0


def test_replay_of_missing_messages_fails_or_skips_as_configured(
    rabbitmq_broker: Any, rabbitmq_source_module: Any, queue: str, publish_numbers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rabbitmq_source_module, "_REPLAY", 0.0)
    monkeypatch.setattr(rabbitmq_source_module, "RECONNECT_SECONDS", 0.0)
    publish_numbers(range(3))
    gone = rabbitmq_source_module.RabbitMessage(b"9", queue, "", "m9", None, False, None).identity
    present = rabbitmq_source_module.RabbitMessage(b"1", queue, "", "m1", None, False, None).identity
    with pytest.raises(EpochError, match="returned 1 of the 2 messages of a batch that must be repeated"):
        rabbitmq_source_module.find_redelivered_messages(
            rabbitmq_source_module.RabbitSettings(rabbitmq_broker.url, queue), [present, gone]
        )
    replayed = rabbitmq_source_module.find_redelivered_messages(
        rabbitmq_source_module.RabbitSettings(rabbitmq_broker.url, queue, on_data_loss="skip"), [present, gone]
    )
    assert parse_message_numbers(replayed) == [1]


# -- errors ------------------------------------------------------------------------------------------------------------


def test_missing_queue_is_reported(rabbitmq_broker: Any, rabbitmq_source_module: Any) -> None:
    with pytest.raises(StartError, match='has no queue "nowhere"; declare it') as raised:
        rabbitmq_source_module.RabbitQueue(rabbitmq_broker.url, "nowhere")
    assert "guest" not in str(raised.value) and "\n" not in str(raised.value)


def test_unreachable_broker_is_reported_without_the_password(rabbitmq_source_module: Any) -> None:
    port = free_port()
    with pytest.raises(StartError, match="does not answer") as raised:
        rabbitmq_source_module.check_queue(f"amqp://me:s3cret@127.0.0.1:{port}/", "q")
    assert f"amqp://127.0.0.1:{port}/" in str(raised.value) and "s3cret" not in str(raised.value)
    assert "Connection refused" in str(raised.value) and "\n" not in str(raised.value)


def test_wrong_password_is_reported_but_not_printed(
    rabbitmq_broker: Any, rabbitmq_source_module: Any, queue: str
) -> None:
    with pytest.raises(StartError, match="refused the user") as raised:
        rabbitmq_source_module.check_queue(rabbitmq_broker.url.replace(":guest@", ":s3cret@"), queue)
    assert "s3cret" not in str(raised.value)


def test_wrong_virtual_host_is_reported(rabbitmq_broker: Any, rabbitmq_source_module: Any, queue: str) -> None:
    with pytest.raises(StartError, match="refused the virtual host"):
        rabbitmq_source_module.check_queue(rabbitmq_broker.url.replace("%2F", "elsewhere"), queue)


def test_missing_pika_is_reported_with_the_pip_command(
    rabbitmq_source_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pika", None)
    with pytest.raises(StartError, match=r"pip install 'slackwater\[rabbitmq\]'"):
        rabbitmq_source_module.check_queue("amqp://host", "q")


def test_missing_broker_binary_is_reported_with_the_apt_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support.servers import rabbitmq

    monkeypatch.setattr(rabbitmq, "_INSTALLED", Path("/nowhere/rabbitmq-server"))
    with pytest.raises(StartError, match="apt-get install rabbitmq-server"), rabbitmq.RabbitMQ.started():
        pass


@pytest.mark.parametrize(
    "url",
    ["amqp://u:12/s3cret@host/", "amqp://u:1#s3cret@host", "http://u:s3cret@host", "s3cret", "amqp://u:s3cret@h:x"],
)
def test_invalid_broker_url_is_reported_without_the_password(rabbitmq_source_module: Any, url: str) -> None:
    with pytest.raises(StartError, match="is not the address of a broker") as raised:
        rabbitmq_source_module.broker_address(url)
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queue": "q"}, "option url is missing"),
        ({"url": "amqp://h"}, "option queue is missing"),
        ({"max_messages_per_trigger": "0"}, 'found "0", expected a whole number from 1 to 10000'),
        ({"on_data_loss": "shrug"}, 'found "shrug", expected "fail" or "skip"'),
        ({"prefetch": "9"}, "unknown option prefetch"),
    ],
)
def test_invalid_source_options_are_reported(
    rabbitmq_source_module: Any, options: dict[str, str], message: str
) -> None:
    settings = options if "url" in options or "queue" in options else {"url": "amqp://h", "queue": "q", **options}
    with pytest.raises(StartError, match=message):
        rabbitmq_source_module.RabbitSettings.from_options(settings)


# -- through Spark -----------------------------------------------------------------------------------------------------


class BatchCollector:
    """Collect the batches of a query as lists of numbers. `fails`: raise "before" or "after" collecting a batch."""

    def __init__(self, fails: str = "") -> None:
        self.batches: dict[int, list[int]] = {}
        self.fails = fails

    def __call__(self, frame: Any, batch: int) -> None:
        if self.fails == "before":
            raise RuntimeError("the process dies")
        self.batches.setdefault(batch, []).extend(int(r.body) for r in frame.select("body").collect())
        if self.fails == "after":
            raise RuntimeError("the process dies")

    @property
    def numbers(self) -> list[int]:
        return [n for batch in sorted(self.batches) for n in self.batches[batch]]


@pytest.fixture
def start_rabbitmq_query(
    spark: Any, rabbitmq_source_module: Any, rabbitmq_broker: Any, queue: str, tmp_path: Path
) -> Callable[..., Any]:
    def start(into: BatchCollector, available_now: bool = False, **options: int) -> Any:
        frame = rabbitmq_source_module.stream(spark, rabbitmq_broker.url, queue, **options)
        writer = frame.writeStream.foreachBatch(into).option("checkpointLocation", str(tmp_path / "checkpoint"))
        return (writer.trigger(availableNow=True) if available_now else writer).start()

    return start


def expect_query_failure(query: Any) -> None:
    with pytest.raises(Exception, match="the process dies"):
        query.awaitTermination(60)


def test_query_reads_every_message_once_and_drains_the_queue(
    rabbitmq_broker: Any, queue: str, publish_numbers: Any, start_rabbitmq_query: Any
) -> None:
    publish_numbers(range(300))
    seen = BatchCollector()
    query = start_rabbitmq_query(seen, max_messages_per_trigger=100)
    try:
        assert wait_until_equal(lambda: len(seen.numbers), 300)
        publish_numbers(range(300, 500))
        assert wait_until_equal(lambda: len(seen.numbers), 500)
        time.sleep(2)  # an idle trigger acknowledges the last batch
    finally:
        query.stop()
    assert seen.numbers == list(range(500)) and max(map(len, seen.batches.values())) <= 100
    assert count_messages_after_readers_end(rabbitmq_broker, queue) == 0


@exhaustive(beside="test_rabbitmq.py::test_query_reads_every_message_once_and_drains_the_queue")
def test_available_now_drains_the_queue_and_stops(
    rabbitmq_broker: Any, queue: str, publish_numbers: Any, start_rabbitmq_query: Any
) -> None:
    publish_numbers(range(250))
    seen = BatchCollector()
    query = start_rabbitmq_query(seen, available_now=True, max_messages_per_trigger=100)
    assert query.awaitTermination(60)
    assert seen.numbers == list(range(250)) and len(seen.batches) == 3
    assert count_messages_after_readers_end(rabbitmq_broker, queue) == 0
    publish_numbers(range(250, 260))
    again = BatchCollector()
    assert start_rabbitmq_query(again, available_now=True).awaitTermination(60)
    assert again.numbers == list(range(250, 260))


@pytest.mark.parametrize("when", select_cases(["before", "after"]))
def test_failed_batch_is_repeated_with_the_same_messages(
    rabbitmq_broker: Any, queue: str, publish_numbers: Any, start_rabbitmq_query: Any, when: str
) -> None:
    publish_numbers(range(150))
    expect_query_failure(start_rabbitmq_query(BatchCollector(when), max_messages_per_trigger=100))
    seen = BatchCollector()
    assert start_rabbitmq_query(seen, available_now=True, max_messages_per_trigger=100).awaitTermination(120)
    assert seen.batches[0] == list(range(100)) and seen.numbers == list(range(150))


@exhaustive(beside="test_rabbitmq.py::test_killed_reader_returns_its_unacked_messages")
def test_failed_batch_without_message_ids_is_redelivered_as_new(
    rabbitmq_broker: Any, queue: str, publish_numbers: Any, start_rabbitmq_query: Any
) -> None:
    publish_numbers(range(50), ids=False)
    expect_query_failure(start_rabbitmq_query(BatchCollector("after")))
    seen = BatchCollector()
    assert start_rabbitmq_query(seen, available_now=True).awaitTermination(120)
    assert seen.numbers == list(range(50))


@exhaustive(beside="test_rabbitmq.py::test_killed_reader_returns_its_unacked_messages")
def test_lost_checkpoint_restarts_at_unacked_messages(
    rabbitmq_broker: Any, queue: str, publish_numbers: Any, start_rabbitmq_query: Any, tmp_path: Path
) -> None:
    publish_numbers(range(20))
    expect_query_failure(start_rabbitmq_query(BatchCollector("before")))
    shutil.rmtree(tmp_path / "checkpoint")
    seen = BatchCollector()
    assert start_rabbitmq_query(seen, available_now=True).awaitTermination(60)
    assert seen.numbers == list(range(20))


@exhaustive(beside="test_rabbitmq.py::test_missing_queue_is_reported")
def test_queue_deleted_during_a_query_is_reported_with_a_one_line_error(
    spark: Any, rabbitmq_source_module: Any, rabbitmq_broker: Any, queue: str, publish_numbers: Any, tmp_path: Path
) -> None:
    with rabbitmq_channel(rabbitmq_broker) as open_channel:
        open_channel.queue_declare(other := f"{queue}-other")
    frame = rabbitmq_source_module.stream(spark, rabbitmq_broker.url, other)
    seen = BatchCollector()
    query = frame.writeStream.foreachBatch(seen).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with rabbitmq_channel(rabbitmq_broker) as open_channel:
        open_channel.basic_publish("", other, b"1")
        assert wait_until_equal(lambda: seen.numbers, [1])
        open_channel.queue_delete(other)
    with pytest.raises(Exception, match="StartError") as raised:
        query.awaitTermination(60)
    error_lines = [line for line in str(raised.value).splitlines() if line.startswith("slackwater.errors.StartError: ")]
    assert error_lines and f'has no queue "{other}": it was deleted while it was being read' in error_lines[-1]
    assert "guest" not in str(raised.value) and "guest" not in frame._jdf.queryExecution().toString()


# -- through a pipeline ------------------------------------------------------------------------------------------------

PIPELINE = """
import sys
import slackwater as sw
from slackwater.spark.sessions import spark_session
from slackwater.connectors.rabbitmq.source import stream

def run(spark, url, queue, home, flush):
    sw.run_streaming_pipeline(
        name="rabbit",
        sources=[sw.Source(name="queue", dataframe=stream(spark, url, queue, max_messages_per_trigger=100))],
        transform_sql="SELECT CAST(CAST(body AS STRING) AS INT) AS n, _event_ts FROM source",
        window=sw.Window(
            kind="tumbling", duration_ms="1h", event_time_column="timestamp_seconds(1700000000)",
            max_groups_per_window=10,
            aggregations=[sw.Aggregation(agg="count", as_="count"), sw.Aggregation(agg="sum", column="n", as_="sum")],
        ),
        target=sw.FilesConnection(), target_path=home + "/out",
        state_store=sw.StateStore(kind="files", path=home + "/state"),
        available_now=True, flush=flush, spark=spark,
    )

if __name__ == "__main__":
    run(spark_session.start_session({"spark.master": "local[2]"}), *sys.argv[1:4], False)
"""


@pytest.mark.parametrize("step", ["commit.before@2", "commit.after@2"])
@exhaustive(beside="test_rabbitmq.py::test_failed_batch_is_repeated_with_the_same_messages")
def test_pipeline_killed_around_a_commit_counts_every_message_once(
    spark: Any,
    rabbitmq_source_module: Any,
    rabbitmq_broker: Any,
    queue: str,
    publish_numbers: Any,
    tmp_path: Path,
    step: str,
) -> None:
    publish_numbers(range(250))
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PIPELINE, rabbitmq_broker.url, queue, str(tmp_path)],
        env={**os.environ, "SLACKWATER_CRASH_AT": step},
        capture_output=True,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()[-2000:]
    program: dict[str, Any] = {"__name__": "pipeline"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(PIPELINE, program)
        program["run"](spark, rabbitmq_broker.url, queue, str(tmp_path), True)
    frame = pl.concat([pl.read_parquet(p) for p in (tmp_path / "out").glob("*.parquet")])
    assert frame.select("count", "sum").rows() == [(250, sum(range(250)))]
    assert count_messages_after_readers_end(rabbitmq_broker, queue) == 0


@exhaustive(beside="test_rabbitmq.py::test_batch_can_be_replayed_until_it_is_committed")
def test_dead_letters_of_late_messages_contain_body_and_headers(
    spark: Any, rabbitmq_broker: Any, queue: str, publish_numbers: Any, tmp_path: Path
) -> None:
    import slackwater as sw

    publish_numbers(range(20), headers={"kind": "clíck", "deep": {"n": [1]}})
    number = "CAST(CAST(body AS STRING) AS INT)"
    lake = sw.FilesConnection()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        last = sw.run_streaming_pipeline(
            name="late",
            source=sw.Source(
                connection=sw.RabbitMQConnection(url=rabbitmq_broker.url),
                query=queue,
                payload_format="raw",
                max_messages_per_trigger=10,
            ),
            transform_sql=f"SELECT {number} AS n, _event_ts FROM source",
            window=sw.Window(
                kind="tumbling",
                duration_ms="1m",
                event_time_column=f"timestamp_seconds(1700000000 + IF({number} < 10, 1000, 0))",
                max_groups_per_window=10,
                late_data="dlq",
                aggregations=[sw.Aggregation(agg="count", as_="count")],
            ),
            target=lake,
            target_path=str(tmp_path / "out"),
            dead_letter=sw.Target(connection=lake, path=str(tmp_path / "letters")),
            state_store=sw.StateStore(kind="files", path=str(tmp_path / "state")),
            available_now=True,
            spark=spark,
        )
    assert last is not None
    assert last.counters.letters == {"late": 10}
    letters = pl.read_parquet(tmp_path / "letters" / "*.parquet")
    assert sorted(letters["value"]) == [str(n).encode() for n in range(10, 20)]
    assert letters["source"].unique().to_list() == [queue]
    headers = {h["key"]: base64.b64decode(h["value"]).decode() for h in json.loads(letters["headers"][0])}
    assert headers == {"kind": "clíck", "deep": '{"n":[1]}'}


def test_stream_can_be_read_in_every_spark_session(
    spark: Any, rabbitmq_source_module: Any, rabbitmq_broker: Any, queue: str
) -> None:
    """Spark resolves a format name in the active session, and rejects a name that this session has already."""
    first, second = spark.newSession(), spark.newSession()
    first.createDataFrame([], "x INT")  # makes `first` the active session
    assert rabbitmq_source_module.stream(first, rabbitmq_broker.url, queue).isStreaming
    assert rabbitmq_source_module.stream(second, rabbitmq_broker.url, queue).isStreaming
    assert rabbitmq_source_module.stream(second, rabbitmq_broker.url, queue).isStreaming
    assert spark.getActiveSession()._jsparkSession.equals(first._jsparkSession)
