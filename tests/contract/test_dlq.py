"""`slackwater dlq list` and `dlq show` read published dead letters from every kind of target, without Spark."""

from __future__ import annotations

import base64
import datetime as dt
import json
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pytest
from tests.support import iceberg_tables
from tests.support.case_selection import select_cases

from slackwater.cli import dlq as command
from slackwater.cli import main as cli
from slackwater.config import toml
from slackwater.core.dead_letter_columns import LETTER, DeadLetterFilter
from slackwater.core.schema import Field
from slackwater.dead_letters.dead_letter_reader import (
    AttemptLedger,
    add_dead_letter_ids,
    count_dead_letters,
    format_applied_lines,
    read_newest,
)
from slackwater.engine.startup_recovery import first_commit
from slackwater.errors import StartError
from slackwater.operators.registry import compile_window
from slackwater.runner.component_factory import create_dead_letter_writer
from slackwater.state.store_access import create_store

AT = dt.datetime(2024, 3, 1, 9, 0, tzinfo=dt.UTC)
SCHEMA = {f.name: f.polars for f in LETTER}
CONFIG = """name = "NAME"
[connections.lake]
kind = "files"
[connections.out]
CONNECTION
[[sources]]
name = "orders"
connection = "lake"
query = "in/*.jsonl"
format = "json"
schema = "user STRING, ts TIMESTAMP"
[transform.window]
kind = "tumbling"
duration_ms = "1m"
event_time_column = "ts"
max_groups_per_window = 10
late_data = "dlq"
[[transform.window.aggregations]]
agg = "count"
as = "n"
[target]
connection = "lake"
path = "out"
[dead_letter]
connection = "out"
PLACE
"""
PLACES = ("parquet", "json", "csv", "delta", "iceberg", "postgres", "kafka")
Make = Callable[..., Path]


def dead_letter_row(**more: Any) -> dict[str, Any]:
    defaults = {
        "reason": "late", "pipeline": "p", "source": "orders", "epoch": 3, "topic": "orders", "partition": 1, "offset": 17,
        "key": b"k\0", "value": b'{"user":  "\xc3\xa9", "n": [1]}', "event_time": AT, "cause": "lateness",
        "headers": json.dumps([{"key": "trace", "value": base64.b64encode(b"abc").decode()}]),
        "watermark": AT + dt.timedelta(minutes=5, microseconds=250), "watermark_source": "orders", "late_us": 300_000_250,
        "windows_missed": 1, "windows": '["2024-03-01T09:00:00Z"]', "group_key": '{"user":"u1"}',
    }  # fmt: skip
    return {n: {**defaults, **more}.get(n) for n in SCHEMA}


LATE = dead_letter_row()
IDLE = dead_letter_row(
    epoch=4, offset=18, cause="idle", watermark_source=None, value=b"plain\x1b[2J text", key=None, headers=None
)
NOTHING_LATE = dict.fromkeys(
    ("cause", "watermark", "watermark_source", "late_us", "windows_missed", "windows", "key", "headers", "group_key")
)
BAD = dead_letter_row(**NOTHING_LATE, reason="undecodable", offset=19, event_time=None, value=b"\xff" * 70)
NULL = dead_letter_row(
    **NOTHING_LATE, reason="future", topic=None, partition=None, offset=None, file="/in/0.jsonl", value=None, epoch=5
)


@pytest.fixture
def write_config(tmp_path: Path, postgres: Any, kafka: Any) -> Make:
    """Return a function that writes a config for the pipeline `name` with a separate dead-letter table or topic."""
    unique_name = f"t{uuid.uuid4().hex[:8]}"
    kafka.create(unique_name, 2)

    def make(place: str, name: str = "p") -> Path:
        directory = f'path = "{tmp_path}/letters"'
        connection, where = {
            "delta": ('kind = "delta"', directory),
            "iceberg": (iceberg_tables.sql_catalog_connection(tmp_path), 'table = "shop.letters"'),
            "postgres": (f'kind = "postgres"\nurl = "{postgres.url}"', f'table = "public.{unique_name}"'),
            "kafka": (f'kind = "kafka"\nbootstrap_servers = "{kafka.address}"', f'topic = "{unique_name}"'),
            "console": ('kind = "console"', ""),
        }.get(place, ('kind = "files"', f'{directory}\nformat = "{place}"'))
        path = tmp_path / f"{name}.toml"
        path.write_text(CONFIG.replace("NAME", name).replace("CONNECTION", connection).replace("PLACE", where))
        return path

    return make


def publish_dead_letters(file: Path, epoch: int, *letters: dict[str, Any]) -> None:
    target = create_dead_letter_writer(toml.load(file), "state")
    assert target is not None
    target.open()
    target.publish(epoch, pl.DataFrame(letters, schema=SCHEMA))
    target.close()


def run_slackwater(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["slackwater", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out = capsys.readouterr()
    return int(ended.value.code or 0), out.out, out.err


@pytest.mark.parametrize("place", PLACES)
def test_published_dead_letters_are_read_back_newest_first(write_config: Make, place: str) -> None:
    file = write_config(place)
    assert count_dead_letters(toml.load(file)).is_empty(), "nothing was published yet"
    publish_dead_letters(file, 3, LATE, BAD)
    publish_dead_letters(write_config(place, "other"), 0, dead_letter_row(pipeline="other"))
    publish_dead_letters(file, 4, IDLE)
    publish_dead_letters(file, 5, NULL)
    pipeline = toml.load(file)
    letters = read_newest(pipeline, DeadLetterFilter()).to_dicts()
    assert letters == [NULL, IDLE, LATE, BAD]
    assert read_newest(pipeline, DeadLetterFilter(limit=2)).to_dicts() == [NULL, IDLE]
    assert read_newest(pipeline, DeadLetterFilter(reason="late", limit=5)).to_dicts() == [IDLE, LATE]
    assert read_newest(pipeline, DeadLetterFilter(source="payments")).is_empty()
    assert count_dead_letters(pipeline).rows() == [
        ("future", "orders", 1, 1, 0, 0, AT, AT),
        ("late", "orders", 2, 2, 0, 0, AT, AT),
        ("undecodable", "orders", 1, 1, 0, 0, None, None),
    ]


@pytest.mark.parametrize("state", select_cases(["files", "postgres"]))
@pytest.mark.parametrize("place", PLACES)
def test_list_and_show_report_replayed_dead_letters_and_replay_attempts(
    write_config: Make,
    place: str,
    state: str,
    postgres: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Read applied dead letters and numbers of tries from the state store. The commands do not change the state."""
    file = write_config(place)
    url = postgres.database(f"dlq{uuid.uuid4().hex[:8]}")
    where = f'kind = "files"\npath = "{tmp_path}/state"' if state == "files" else f'kind = "postgres"\nurl = "{url}"'
    file.write_text(f"{file.read_text()}\n[state_store]\n{where}\n")
    twice = dead_letter_row(
        **NOTHING_LATE, reason="undecodable", topic=None, partition=None, offset=None, file="/in/1.jsonl"
    )
    publish_dead_letters(file, 3, LATE, BAD)
    publish_dead_letters(file, 4, IDLE, twice, twice)
    pipeline = toml.load(file)
    letters = read_newest(pipeline, DeadLetterFilter())
    store = create_store(pipeline)
    fields = {"user": Field("user", "string")}
    logic = compile_window(pipeline, fields)
    assert store.open() is None
    store.prepare(logic)
    first = first_commit(["transform"], [logic], 1, 0, "state")
    first = first.model_copy(update={"epoch": 0})
    applied = add_dead_letter_ids(letters).filter(pl.col("reason") == "late")
    one_of_two = add_dead_letter_ids(letters).filter(pl.col("file") == "/in/1.jsonl").head(1)
    tried = add_dead_letter_ids(letters).filter(pl.col("offset") == 19)
    record = store.write_list(0, format_applied_lines(pl.concat([applied, one_of_two])))
    lines = AttemptLedger.from_commit(None, lambda name: []).update_attempts(tried, tried.clear())
    tries = store.write_list(0, [f"{line[:-1]}7" for line in lines])
    store.commit(first.model_copy(update={"replayed": (record,), "tried": (tries,)}))
    assert count_dead_letters(pipeline).drop("first", "last").rows() == [
        ("late", "orders", 2, 0, 2, 0),
        ("undecodable", "orders", 3, 2, 1, 7),
    ]
    store.close()
    code, out, err = run_slackwater(monkeypatch, capsys, "dlq", "list", file)
    assert (code, err) == (0, "")
    assert out.splitlines()[0].split() == [
        "reason", "source", "letters", "open", "applied", "tries", "first", "event", "last", "event",
    ]  # fmt: skip
    out = run_slackwater(monkeypatch, capsys, "dlq", "show", file, "--reason", "undecodable")[1]
    assert "epoch 3  -\n  tried    7 times, not applied\n  value" in out
    assert run_slackwater(monkeypatch, capsys, "dlq", "show", file, "--reason", "late")[1].count("\n  applied\n") == 2


def test_list_counts_and_show_prints_dead_letters(
    write_config: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_config("parquet")
    assert run_slackwater(monkeypatch, capsys, "dlq", "list", file) == (0, "p: no dead letters\n", "")
    assert run_slackwater(monkeypatch, capsys, "dlq", "show", file) == (0, "p: no dead letters\n", "")
    publish_dead_letters(file, 3, LATE, BAD)
    publish_dead_letters(file, 4, IDLE, NULL)
    assert run_slackwater(monkeypatch, capsys, "dlq", "list", file)[1].splitlines() == [
        "reason       source  letters  open  applied  tries  first event           last event",
        "future       orders        1     1        0      0  2024-03-01 09:00:00Z  2024-03-01 09:00:00Z",
        "late         orders        2     2        0      0  2024-03-01 09:00:00Z  2024-03-01 09:00:00Z",
        "undecodable  orders        1     1        0      0  -                     -",
        "total                      4     4        0      0",
    ]
    code, out, _ = run_slackwater(monkeypatch, capsys, "dlq", "show", file, "--limit", "3")
    assert code == 0
    assert out.splitlines() == [
        "future  /in/0.jsonl  epoch 5  2024-03-01 09:00:00Z",
        "  value    NULL",
        "",
        "late  orders-1 at offset 18  epoch 4  2024-03-01 09:00:00Z",
        "  late     by 5 m: watermark 2024-03-01 09:05:00.00025Z, while it was idle",
        "  missed   1 window: 2024-03-01T09:00:00Z",
        r"  value    plain\x1b[2J text",
        "",
        "late  orders-1 at offset 17  epoch 3  2024-03-01 09:00:00Z",
        '  late     by 5 m: watermark 2024-03-01 09:05:00.00025Z, held back by "orders"',
        "  missed   1 window: 2024-03-01T09:00:00Z",
        "  header   trace = abc",
        r"  key      k\x00",
        "  value    {",
        '             "user": "é",',
        '             "n": [',
        "               1",
        "             ]",
        "           }",
    ]
    out = run_slackwater(monkeypatch, capsys, "dlq", "show", file, "--reason", "undecodable")[1]
    assert out.splitlines() == [
        "undecodable  orders-1 at offset 19  epoch 3  -",
        f"  value    0x{'ff' * 64} … 70 bytes",
    ]


@pytest.mark.parametrize("place", ["parquet", "delta", "postgres"])
def test_dead_letters_of_an_older_version_are_read(
    write_config: Make, place: str, postgres: Any, tmp_path: Path
) -> None:
    """Dead letters from versions that did not store late rows lack the newer columns."""
    file = write_config(place)
    old = pl.DataFrame([BAD], schema=SCHEMA).drop([f.name for f in LETTER[12:]])
    if place == "parquet":
        (tmp_path / "letters").mkdir()
        old.write_parquet(tmp_path / "letters" / "p-letters-000000003.parquet")
    elif place == "delta":
        old.write_delta(str(tmp_path / "letters"))
    else:
        publish_dead_letters(file, 3, BAD)
        table = toml.load(file).dead_letter.table  # type: ignore[union-attr]
        with psycopg.connect(postgres.url) as db:
            for f in LETTER[12:]:
                db.execute(f'ALTER TABLE {table} DROP COLUMN "{f.name}"')
    assert read_newest(toml.load(file), DeadLetterFilter()).to_dicts() == [BAD]


def test_headers_of_an_earlier_dead_letter_do_not_replace_the_new_reason(write_config: Make, kafka: Any) -> None:
    """A dead-letter topic can be a source. A new dead letter then has the headers of the first one before its own."""
    file = write_config("kafka")
    first = [{"key": "slackwater-reason", "value": base64.b64encode(b"future").decode()}]
    publish_dead_letters(file, 3, dead_letter_row(headers=json.dumps(first)))
    (newest,) = read_newest(toml.load(file), DeadLetterFilter()).to_dicts()
    assert (newest["reason"], json.loads(newest["headers"])) == ("late", first)


def test_unreadable_dead_letters_are_reported(write_config: Make, tmp_path: Path, postgres: Any) -> None:
    with pytest.raises(
        StartError, match="p: dead letters go to the console, which does not store them; name another connection"
    ):
        count_dead_letters(toml.load(write_config("console")))
    file = write_config("parquet")
    file.write_text(file.read_text().split("[dead_letter]")[0].replace('"dlq"', '"drop"'))
    with pytest.raises(
        StartError,
        match=r"p: the config has no \[dead_letter\], so the pipeline stores no dead letters; add \[dead_letter\]",
    ):
        count_dead_letters(toml.load(file))
    file = write_config("parquet")
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "p-letters-000000000.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(
        StartError, match=r"p-letters-000000000\.parquet cannot be read as dead letters \(.*; move it away"
    ):
        count_dead_letters(toml.load(file))
    (tmp_path / "letters" / "_delta_log").mkdir()
    (tmp_path / "letters" / "_delta_log" / "00000000000000000000.json").write_text("no")
    with pytest.raises(StartError, match=r"Delta table .*/letters cannot be read \(.*\); check the path"):
        count_dead_letters(toml.load(write_config("delta")))
    file = write_config("postgres")
    with psycopg.connect(postgres.url) as db:
        db.execute(f"CREATE TABLE {toml.load(file).dead_letter.table} (reason int)")  # type: ignore[union-attr]
    with pytest.raises(
        StartError, match=r"table public\.t\w+ cannot be read as dead letters \(column .* does not exist.*\); check"
    ):
        count_dead_letters(toml.load(file))


def test_unresponsive_topic_is_reported_after_a_timeout(
    write_config: Make, kafka: Any, monkeypatch: pytest.MonkeyPatch
) -> None:

    file = write_config("kafka")
    publish_dead_letters(file, 0, LATE)
    from slackwater.connectors.kafka import connector as system

    monkeypatch.setattr(system, "_SECONDS", -1.0)
    with pytest.raises(
        StartError, match=r'dead_letter: topic "t\w+" at .* returned nothing for -1 s \(.*\); check that the'
    ):
        count_dead_letters(toml.load(file))


def test_content_that_is_not_a_json_object_is_shown_as_text() -> None:
    assert command.readable_content(b"1e400") == ["1e400"]
    assert command.readable_content(b"a\nb\tc") == ["a", r"b\tc"]
    assert command.readable_content(b"") == [""]


def test_dlq_list_does_not_import_spark_or_sqlglot(write_config: Make) -> None:
    file = write_config("parquet")
    publish_dead_letters(file, 3, LATE)
    code = (
        "import sys; sys.argv = ['slackwater', 'dlq', 'list', sys.argv[1]]\n"
        "from slackwater.cli.main import app\n"
        "try: app()\n"
        "finally: assert not [m for m in sys.modules if m.split('.')[0] in ('pyspark', 'sqlglot')]"
    )
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "late" in done.stdout


@pytest.mark.parametrize("place", PLACES)
def test_dead_letters_are_filtered_by_group_key(write_config: Make, place: str) -> None:
    file = write_config(place)
    other = dead_letter_row(group_key='{"user":null}', offset=21)
    publish_dead_letters(file, 3, LATE, BAD, other)
    publish_dead_letters(file, 4, dead_letter_row(epoch=4, offset=22))
    letters = read_newest(toml.load(file), DeadLetterFilter(group_keys={'{"user":"u1"}'}))
    assert letters["offset"].to_list() == [22, 17]
    assert read_newest(toml.load(file), DeadLetterFilter(group_keys={'{"user":null}'}))["offset"].to_list() == [21]


@pytest.mark.parametrize("place", ["delta", "iceberg", "postgres"])
def test_existing_dead_letter_table_gains_the_group_key_column(
    write_config: Make, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table from an earlier version retains its dead letters."""
    from slackwater.runner import component_factory

    file = write_config(place)
    monkeypatch.setattr(component_factory, "LETTER", tuple(f for f in LETTER if f.name != "group_key"))
    target = create_dead_letter_writer(toml.load(file), "state")
    assert target is not None
    target.open()
    target.publish(3, pl.DataFrame([LATE], schema=SCHEMA).drop("group_key"))
    target.close()
    monkeypatch.undo()
    publish_dead_letters(file, 4, dead_letter_row(epoch=4, offset=22))
    assert read_newest(toml.load(file), DeadLetterFilter())["group_key"].to_list() == ['{"user":"u1"}', None]
