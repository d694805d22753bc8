"""Join the messages of a real network with their replies through `slackwater run`. The exact results are known.

message   a ─▶ b  ──●────────────▶ time         a reply: b ─▶ a, 1 second to 30 minutes later
reply     b ─▶ a     ├────────┤
                   1 ms     30 min

Both sides read the same messages at different paces. The slower side holds the watermark back, so no row is late.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pytest
from tests.support.case_selection import exhaustive
from tests.support.command import run_command_for_exit_code

pytestmark = [pytest.mark.spark, pytest.mark.shared_data]

SECONDS = {"30m": 1800, "5m": 300}
KNOWN = {"30m": (43_116, 16_568, 16_494), "5m": (15_237, None, None)}  # pairs, distinct messages, distinct replies
CSV = """format = "csv"
schema = "n INT, source INT, target INT, unixtime BIGINT"
options = { sep = " " }
"""
JSON = 'schema = "n INT, source INT, target INT, unixtime BIGINT"\n'
PARTITIONS = 3


def read_numbered_messages(file: Path) -> pl.DataFrame:
    """Return numbered messages, because a person may write to another person twice in a second."""
    frame = pl.read_csv(file, separator=" ", new_columns=["source", "target", "unixtime"])
    return frame.with_row_index("n").cast(pl.Int64)


def expected_reply_pairs(rows: pl.DataFrame, within_s: int) -> pl.DataFrame:
    """Compute the batch answer: the numbers of message and reply, sorted."""
    both = rows.join(rows, left_on=["source", "target"], right_on=["target", "source"], suffix="_reply")
    return (
        both.filter((pl.col("unixtime_reply") - pl.col("unixtime")).is_between(1, within_s))
        .select(left_n="n", right_n="n_reply")
        .sort(pl.all())
    )


def write_message_files(rows: pl.DataFrame, into: Path, parts: int) -> None:
    """Write the messages to `parts` files in order, with ascending modification times."""
    into.mkdir()
    size = -(-rows.height // parts)
    for n in range(parts):
        path = into / f"{n:02}.txt"
        rows[n * size : (n + 1) * size].write_csv(path, separator=" ", include_header=False)
        os.utime(path, (1_500_000_000 + n, 1_500_000_000 + n))


def write_config(home: Path, within: str, bus: str, sides: tuple[str, str], store: str, target: str) -> Path:
    """Write the pipeline as a TOML file. `bus` is the source connection, `sides` are the keys of the two sources."""
    connection, place = target.split("|")
    path = home / "replies.toml"
    path.write_text(
        f"""name = "replies"

[connections.bus]
{bus}

[connections.out]
{connection}

[[sources]]
name = "sent"
connection = "bus"
{sides[0]}

[[sources]]
name = "replies"
connection = "bus"
{sides[1]}

[transform.join]
kind = "stream_stream_join"
left_source = "sent"
right_source = "replies"
left_keys = ["source", "target"]
right_keys = ["target", "source"]
lower_ms = 1
upper_ms = "{within}"
event_time_column = "unixtime"
event_time_unit = "s"

[target]
connection = "out"
{place}

[state_store]
{store}
"""
    )
    return path


def files_state_and_target(home: Path) -> tuple[str, str]:
    """Return a state and a target in files."""
    return f'kind = "files"\npath = "{home}/state"', f'kind = "files"|path = "{home}/out"'


def postgres_state_and_target(url: str) -> tuple[str, str]:
    """Return a state and a target in one database."""
    return f'kind = "postgres"\nurl = "{url}"', f'kind = "postgres"\nurl = "{url}"|table = "public.replies"'


def read_parquet_output(home: Path) -> pl.DataFrame:
    return pl.concat([pl.read_parquet(p) for p in sorted((home / "out").glob("*.parquet"))])


def read_postgres_output(url: str) -> pl.DataFrame:
    with psycopg.connect(url, options="-c timezone=UTC") as db:
        cursor = db.execute("SELECT * FROM replies")
        assert cursor.description is not None
        return pl.DataFrame(cursor.fetchall(), schema=[c.name for c in cursor.description], orient="row")


def check_reply_pairs(frame: pl.DataFrame, rows: pl.DataFrame, within: str, said: str) -> None:
    """Check that each pair is complete and unique and has the later of its two times, and that no row is late."""
    pairs, sent, answers = KNOWN[within]
    assert frame.height == pairs
    if sent is not None:
        assert (frame["left_n"].n_unique(), frame["right_n"].n_unique()) == (sent, answers)
    numbers = frame.select(pl.col("left_n", "right_n").cast(pl.Int64))
    assert numbers.sort(pl.all()).equals(expected_reply_pairs(rows, SECONDS[within]))
    assert frame.columns[:4] == ["left_n", "left_source", "left_target", "left_unixtime"]
    for side in ("left", "right"):
        whole = frame.select(pl.col(f"{side}_{c}").cast(pl.Int64).alias(c) for c in rows.columns)
        assert whole.equals(rows[whole["n"]])
    event_us = frame["_event_ts"].dt.timestamp("us")
    assert (event_us == 1_000_000 * frame["right_unixtime"]).all()
    assert f"{2 * rows.height:,} used, 0 late, 0 refused, 0 bad" in said


@pytest.mark.parametrize(
    ("parts", "paces", "where", "within"),
    [
        (7, (1, 3), "database", "30m"),
        (1, (1, 1), "files", "30m"),
        (40, (7, 3), "files", "30m"),
        (7, (3, 1), "files", "5m"),
    ],
)
@pytest.mark.usefixtures("spark")
@exhaustive(beside="test_joins.py::test_stream_join_gives_the_rows_of_a_batch_join")
def test_messages_in_files_join_with_their_replies(
    real_events_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
    parts: int,
    paces: tuple[int, int],
    where: str,
    within: str,
) -> None:
    rows = read_numbered_messages(real_events_folder / "CollegeMsg.txt")
    write_message_files(rows, tmp_path / "in", parts)
    url = request.getfixturevalue("postgres").database("replies_files") if where == "database" else ""
    left, right = (f'query = "{tmp_path}/in/*"\nmax_files_per_trigger = {pace}\n{CSV}' for pace in paces)
    store, target = postgres_state_and_target(url) if url else files_state_and_target(tmp_path)
    path = write_config(tmp_path, within, 'kind = "files"', (left, right), store, target)
    assert run_command_for_exit_code(monkeypatch, "check", str(path)) == 0
    assert run_command_for_exit_code(monkeypatch, "run", str(path), "--available-now", "--flush") == 0
    check_reply_pairs(
        read_postgres_output(url) if url else read_parquet_output(tmp_path), rows, within, capsys.readouterr().out
    )


@pytest.fixture(scope="module")
def fill_messages_topic(kafka: Any) -> Any:
    """Return a function that produces the messages once as JSON, in a topic of three partitions, in order within each."""
    topics: list[str] = []

    def produced(rows: pl.DataFrame) -> str:
        from confluent_kafka import Producer

        if topics:
            return topics[0]
        kafka.create("college", PARTITIONS)
        producer = Producer({"bootstrap.servers": kafka.address, "linger.ms": 20, "enable.idempotence": True})
        for row in rows.iter_rows(named=True):
            while True:
                try:
                    producer.produce("college", json.dumps(row), partition=row["n"] % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(60) == 0
        topics.append("college")
        return topics[0]

    return produced


@pytest.mark.parametrize("where", ["files", "database"])
@pytest.mark.usefixtures("spark")
@exhaustive(beside="test_joins.py::test_stream_join_gives_the_rows_of_a_batch_join")
def test_messages_in_one_kafka_topic_join_with_their_replies(
    real_events_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kafka: Any,
    fill_messages_topic: Any,
    postgres: Any,
    where: str,
) -> None:
    rows = read_numbered_messages(real_events_folder / "CollegeMsg.txt")
    name = fill_messages_topic(rows)
    left, right = (f'query = "{name}"\nmax_offsets_per_trigger = {pace}\n{JSON}' for pace in (20_000, 9_000))
    url = postgres.database("replies_kafka") if where == "database" else ""
    store, target = postgres_state_and_target(url) if url else files_state_and_target(tmp_path)
    bus = f'kind = "kafka"\nbootstrap_servers = "{kafka.address}"'
    path = write_config(tmp_path, "30m", bus, (left, right), store, target)
    assert run_command_for_exit_code(monkeypatch, "run", str(path), "--available-now", "--flush") == 0
    check_reply_pairs(
        read_postgres_output(url) if url else read_parquet_output(tmp_path), rows, "30m", capsys.readouterr().out
    )
