"""Test that `slackwater init` writes a config that passes `check` and explains its choices, and overwrites no files."""

from __future__ import annotations

import csv
import datetime as dt
import gzip
import json
import os
import random
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from jsonschema import Draft202012Validator
from tests.support.case_selection import select_cases
from tests.support.command import Command

from slackwater.config import json_schema, toml
from slackwater.config.sql import schema_ddl
from slackwater.core.schema import Field
from slackwater.core.time import parse_duration_ms, parse_timestamp_us
from slackwater.errors import StartError
from slackwater.operators.registry import compile_window
from slackwater.scaffold import config_proposals
from slackwater.scaffold.config_proposals import infer_time_unit, measure_out_of_orderness
from slackwater.scaffold.sample import read_sample

START = dt.datetime(2024, 3, 1, 9, tzinfo=dt.UTC)
VALID = Draft202012Validator(json_schema.build_schema())


@pytest.fixture(autouse=True)
def disable_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable Spark, so that `init` does not compute the rows after SQL.

    tests/spark/test_slackwater_test_command.py tests `init` with Spark.
    """

    def refuse_spark(pipelines: object) -> None:
        raise StartError("no Spark in this test")

    monkeypatch.setattr("slackwater.testing.case_runner.spark_session", refuse_spark)


def run_init_and_load_config(slackwater: Command, *arguments: str) -> dict[str, Any]:
    """Write a config with `init`, check that `check` and the JSON Schema accept it, and return it."""
    outcome = slackwater("init", "p.toml", *arguments)
    assert (outcome.code, outcome.err) == (0, "")
    assert (
        "p.toml: written, with a comment on each choice\np.toml: ok — " in outcome.out and "problem" not in outcome.out
    )
    data = tomllib.loads(Path("p.toml").read_text())
    assert not [e.message for e in VALID.iter_errors(data)]
    return data


def write_json_lines(path: str, rows: list[dict[str, Any]]) -> str:
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def click_rows(count: int = 30, **more: Any) -> list[dict[str, Any]]:
    return [
        {
            "user_id": f"u{n % 4}",
            "ts": (START + dt.timedelta(seconds=10 * n)).isoformat().replace("+00:00", "Z"),
            **more,
        }
        for n in range(count)
    ]


# -- without a sample


@pytest.mark.parametrize("source", ["files", "kafka"])
@pytest.mark.parametrize("kind", ["session", "tumbling", "hopping", "join"])
def test_init_without_a_sample_writes_a_valid_config_of_each_kind(
    run_slackwater: Command, source: str, kind: str
) -> None:
    data = run_init_and_load_config(run_slackwater, "--source", source, "--kind", kind)
    step = data["transform"]["join" if kind == "join" else "window"]
    assert step["kind"] == ("inner" if kind == "join" else kind)
    assert data["sources"][0]["connection"] == ("bus" if source == "kafka" else "files")
    assert len(data["sources"]) == (2 if kind == "join" else 1)


def test_flags_set_config_values_without_a_sample(run_slackwater: Command) -> None:
    flags = (
        "--source",
        "kafka",
        "--topic",
        "orders",
        "--key",
        "shop",
        "--time",
        "at",
        "--brokers",
        "b:9092",
        "--name",
        "n",
    )
    data = run_init_and_load_config(run_slackwater, *flags)
    assert (data["name"], data["sources"][0]["query"]) == ("n", "orders")
    assert data["connections"]["bus"]["bootstrap_servers"] == "b:9092"
    window = data["transform"]["window"]
    assert (window["group_by"], window["event_time_column"]) == (["shop"], "at")


@pytest.mark.parametrize("kind", ["session", "tumbling", "hopping"])
def test_init_lists_the_columns_of_a_result(run_slackwater: Command, kind: str) -> None:
    """The list includes session_id, although no key of the config names it."""
    write_json_lines("in.jsonl", click_rows(30, amount=1.5, region="north"))
    assert (
        run_slackwater(
            "init", "p.toml", "--kind", kind, "--sample", "in.jsonl", "--key", "user_id", "--key", "region"
        ).code
        == 0
    )
    text = Path("p.toml").read_text()
    (comment,) = re.findall("# columns of a result: (.*), and those of the aggregations\n", text)
    pipeline = toml.loads(text)
    columns = {name: Field(name, "string") for name in ("user_id", "region")} | {"amount": Field("amount", "double")}
    output = [f.name for f in compile_window(pipeline, columns).output]
    assert [*comment.split(", "), "events", "amount_sum"] == output
    assert ("# session_id: " in text) == (kind == "session") == ("session_id" in output)


# -- the generated test


def test_init_with_a_sample_writes_a_test_and_never_overwrites_a_test(run_slackwater: Command) -> None:
    write_json_lines("in.jsonl", [*click_rows(30, amount=1.5), {"user_id": "u9"}])
    outcome = run_slackwater("init", "p.toml", "--sample", "in.jsonl")
    assert outcome.code == 0
    file = Path("tests/p.toml")
    assert "tests/p.toml: a test with 12 rows of the sample and 4 expected results\nnext: " in outcome.out
    data = tomllib.loads(file.read_text())
    assert data["pipeline"] == "../p.toml" and data["steps"][0]["rows"]["in"][0] == click_rows(30, amount=1.5)[0]
    start = {"user_id": "u0", "window_start": START, "window_end": START + dt.timedelta(minutes=31, seconds=20)}
    assert data["expect"]["rows"][0] == {**start, "events": 3, "amount_sum": 4.5}
    assert (data["expect"]["late"], data["expect"]["bad"]) == ([], [])
    file.write_text("mine")
    Path("p.toml").unlink()
    assert (
        "tests/p.toml: already exists and is not changed"
        in run_slackwater("init", "p.toml", "--sample", "in.jsonl").out
    )
    assert file.read_text() == "mine"


def test_init_without_a_sample_writes_no_test(run_slackwater: Command) -> None:
    assert run_slackwater("init", "p.toml").code == 0
    assert not Path("tests").exists()


# -- inference from a sample


def test_init_infers_schema_time_key_and_lateness_from_a_sample(run_slackwater: Command) -> None:
    rows = click_rows(100, amount=1.5, meta={"a": [1, 2]}, tags=[], gone=None)
    rows[50]["ts"], rows[54]["ts"] = (
        rows[54]["ts"],
        rows[50]["ts"],
    )  # 41 s would give the same lateness, because the next step is a minute
    Path("in").mkdir()
    write_json_lines("in/a.jsonl", rows)
    outcome = run_slackwater("init", "p.toml", "--sample", "in")
    data = tomllib.loads(Path("p.toml").read_text())
    (source,), window = data["sources"], data["transform"]["window"]
    assert source["query"] == "in/*.jsonl" and source["format"] == "json"
    assert schema_ddl.parse_ddl_columns(source["schema"]) == {
        "user_id": "string",
        "ts": "timestamp",
        "amount": "double",
        "meta": "struct<a:array<bigint>>",
        "tags": "array<string>",
        "gone": "string",
    }
    assert (window["event_time_column"], window["group_by"], window["lateness"]) == ("ts", ["user_id"], "1m")
    assert "event_time_unit" not in window
    assert (
        "  behind the newest earlier row: p50 0 s, p99 30 s, p99.9 40 s, max 40 s\n  lateness 1m keeps all of them\n"
        in outcome.out
    )
    assert (
        "\n  key: user_id (--key)\n  session windows: gap 30m, which is a guess; change it as needed\n" in outcome.out
    )
    assert "rows are out of order by up to 40 s in the sample" in Path("p.toml").read_text()
    assert window["aggregations"][1] == {"agg": "sum", "column": "amount", "as": "amount_sum"}


@pytest.mark.parametrize(("unit", "factor"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_init_infers_the_unit_of_epoch_timestamps(run_slackwater: Command, unit: str, factor: int) -> None:
    rows = [{"user": f"u{n % 3}", "at": int(START.timestamp() + n) * factor} for n in range(20)]
    window = run_init_and_load_config(run_slackwater, "--sample", write_json_lines("a.json", rows))["transform"][
        "window"
    ]
    assert (window["event_time_column"], window["event_time_unit"]) == ("at", unit)


def test_init_casts_fractional_epoch_seconds_to_timestamps(run_slackwater: Command) -> None:
    rows = [{"user": f"u{n % 3}", "at": START.timestamp() + n + 0.25} for n in range(20)]
    window = run_init_and_load_config(run_slackwater, "--sample", write_json_lines("a.json", rows))["transform"][
        "window"
    ]
    assert window["event_time_column"] == "CAST(at AS TIMESTAMP)" and "event_time_unit" not in window


def test_init_finds_the_event_time_inside_an_object(run_slackwater: Command) -> None:
    rows = [{"user": f"u{n % 3}", "meta": {"ts": row["ts"]}} for n, row in enumerate(click_rows())]
    assert (
        run_init_and_load_config(run_slackwater, "--sample", write_json_lines("a.json", rows))["transform"]["window"][
            "event_time_column"
        ]
        == "meta.ts"
    )


def test_time_flag_selects_the_event_time_column(run_slackwater: Command) -> None:
    rows = [{**row, "created": row["ts"], "received": row["ts"]} for row in click_rows()]
    data = run_init_and_load_config(
        run_slackwater, "--sample", write_json_lines("a.json", rows), "--time", "received", "--key", "user_id"
    )
    assert data["transform"]["window"]["event_time_column"] == "received"


def test_bad_rows_of_the_sample_are_dropped_and_counted(run_slackwater: Command) -> None:
    rows = [json.dumps(row) for row in click_rows(50)]
    rows[7] = '{"user_id": "u1", "ts":'
    rows[9] = '{"user_id": "u1", "ts": "10:15"}'
    Path("a.jsonl").write_text("\n".join(rows))
    data = run_init_and_load_config(run_slackwater, "--sample", "a.jsonl")
    assert data["transform"]["on_error"] == "drop"
    assert "2 rows of the sample are bad" in Path("p.toml").read_text()
    assert "ts TIMESTAMP" in data["sources"][0]["schema"]


def test_init_reports_a_possibly_wrong_clock_in_the_sample(run_slackwater: Command) -> None:
    rows = click_rows(100)
    rows[0]["ts"] = "2031-01-01T00:00:00Z"
    outcome = run_slackwater("init", "p.toml", "--sample", write_json_lines("a.json", rows))
    assert (
        "keeps 1% of the sample, where rows are out of order by up to 2497 d: a clock in it may be wrong, see max_jump"
        in outcome.out
    )


def test_init_infers_a_join_from_two_samples(run_slackwater: Command) -> None:
    orders = write_json_lines("orders.jsonl", [{**r, "order_id": n} for n, r in enumerate(click_rows())])
    payments = write_json_lines(
        "payments.jsonl", [{"order_id": n, "paid": 1.0, "ts": r["ts"]} for n, r in enumerate(click_rows())]
    )
    data = run_init_and_load_config(run_slackwater, "--kind", "join", "--sample", orders, "--sample", payments)
    join = data["transform"]["join"]
    assert (join["left_source"], join["right_source"], join["event_time_column"]) == ("orders", "payments", "ts")
    assert join["left_keys"] == join["right_keys"] == ["order_id"]


def test_init_configures_a_topic_from_a_sample_of_json_records(run_slackwater: Command) -> None:
    data = run_init_and_load_config(
        run_slackwater, "--source", "kafka", "--topic", "clicks", "--sample", write_json_lines("a.jsonl", click_rows())
    )
    assert data["sources"][0]["query"] == "clicks" and data["sources"][0]["payload_format"] == "json"
    rows = [{"user_id": "u1"}, {"user_id": "u1"}]
    run_slackwater("init", "q.toml", "--source", "kafka", "--sample", write_json_lines("b.jsonl", rows))
    assert (
        "event_time_column" not in tomllib.loads(Path("q.toml").read_text())["transform"]["window"]
    )  # the timestamp of the record is the event time


def test_init_reads_the_types_of_parquet(run_slackwater: Command) -> None:
    times = [START.replace(tzinfo=None) + dt.timedelta(seconds=n) for n in range(20)]
    frame = pl.DataFrame(
        {"device": ["a", "b"] * 10, "n": pl.Series(range(20), dtype=pl.UInt32), "at": times, "tags": [["x"]] * 20}
    )
    frame.with_columns(pl.col("at").dt.replace_time_zone("UTC")).write_parquet("a.parquet")
    data = run_init_and_load_config(run_slackwater, "--sample", "a.parquet")
    assert data["sources"][0]["schema"] == "device STRING, n BIGINT, at TIMESTAMP, tags ARRAY<STRING>"


@pytest.mark.parametrize("sep", [",", ";", "\t", "|", " "])
@pytest.mark.parametrize("header", [True, False])
def test_init_detects_separator_and_header_of_csv(run_slackwater: Command, sep: str, header: bool) -> None:
    with Path("a.csv").open("w", newline="") as out:
        rows = csv.writer(out, delimiter=sep)
        if header:
            rows.writerow(["user id", "zip", "at"])
        rows.writerows([f"u{n % 3}", "01234", 1709283600 + n] for n in range(20))
    data = run_init_and_load_config(run_slackwater, "--sample", "a.csv")
    (source,) = data["sources"]
    assert source.get("options", {}) == ({"sep": sep} if sep != "," else {}) | ({"header": "true"} if header else {})
    names = ("user id", "zip", "at") if header else ("c1", "c2", "c3")
    assert schema_ddl.parse_ddl_columns(source["schema"]) == dict(
        zip(names, ("string", "string", "bigint"), strict=True)
    )
    assert data["transform"]["window"]["group_by"] == [names[0]]


# -- random samples


def draw_random_sample(rng: random.Random) -> tuple[list[dict[str, Any]], int]:
    """Draw rows with a time column, keys and arbitrary JSON values.

    Return the rows, and the most seconds by which they are out of order.
    """
    names = [
        "page",
        "a b",
        "Größe",
        "select",
        "x.y",
        "n`q",
        "event_time_2",
        'q"uote',
        "$ {x}",
        "${HOME}",
        "session_id",
        "order",
    ]
    makers: list[Callable[[], Any]] = [
        lambda: rng.choice([1, -5, 2**40, 2**70]),
        lambda: rng.choice([1, 2.5, -1e300]),
        lambda: rng.choice(["x", "", "2024", "10:15", "\u2028", "a\nb"]),
        lambda: rng.choice([True, False, None]),
        lambda: {"a": rng.choice([1, None, "t"]), "A": 2, "in ner": {"z": [1.5]}},
        lambda: [rng.choice([1, "a", None, {"k": 1}])],
        list,
        dict,
        lambda: None,
        lambda: rng.choice([1, "a", [1], {"a": 1}, None]),
        lambda: {f"k{rng.randrange(500)}": 1},
    ]
    others = {name: rng.choice(makers) for name in rng.sample(names, rng.randrange(6))}
    time, key = (
        rng.choice(["ts", "time", "at", "createdAt", "Event Time"]),
        rng.choice(["user_id", "id", "ip", "Kunde"]),
    )
    spelled: list[Callable[[dt.datetime], Any]] = [
        lambda moment: moment.isoformat(),
        lambda moment: moment.isoformat(sep=" ").removesuffix("+00:00"),
        lambda moment: moment.strftime("%Y-%m-%dT%H:%M:%S.123456Z"),
        lambda moment: moment.strftime("%Y-%m-%d %H:%M:%S Europe/Berlin"),
        lambda moment: int(moment.timestamp()),
        lambda moment: int(moment.timestamp() * 1000),
        lambda moment: int(moment.timestamp() * 10**9),
        lambda moment: moment.timestamp() + 0.5,
    ]
    spell, count, jitter = rng.choice(spelled), rng.randrange(1, 60), rng.choice([0, 0, 3, 90, 5000])
    rows = []
    for n in range(count):
        row = {name: make() for name, make in others.items() if rng.random() < 0.9}
        moment = START + dt.timedelta(seconds=60 * n - rng.randrange(jitter + 1))
        rows.append({**row, key: rng.choice([f"u{n % 5}", f"u{n % 7}"]), time: spell(moment)})
    return rows, jitter


@pytest.mark.parametrize("seed", range(60))
def test_a_config_for_a_random_sample_passes_check(run_slackwater: Command, seed: int) -> None:
    rng = random.Random(seed)
    rows, jitter = draw_random_sample(rng)
    text = "".join(json.dumps(row, ensure_ascii=rng.random() < 0.5) + "\n" for row in rows)
    if rng.random() < 0.3:
        sample = "in.json.gz"
        Path(sample).write_bytes(gzip.compress(text.encode()))
    else:
        Path("in").mkdir()
        half = text.index("\n") + 1
        for name, part, modified_s in (("b.jsonl", text[:half], 1), ("a.jsonl", text[half:], 2)):
            (Path("in") / name).write_text(part)
            os.utime(Path("in") / name, (modified_s, modified_s))
        sample = "in" if text[half:] else "in/b.jsonl"
    kind = rng.choice(["session", "tumbling", "hopping"])
    data = run_init_and_load_config(run_slackwater, "--sample", sample, "--kind", kind)
    lateness = parse_duration_ms(data["transform"]["window"]["lateness"])
    behind = measure_out_of_orderness(config_proposals.propose_time_columns(read_sample(Path(sample)))[0].times_us)
    assert behind.most_us <= jitter * 1_000_000
    assert lateness == behind.lateness_ms and behind.in_time >= 0.999 and behind.p999_us <= lateness * 1000
    keeps_late = data["transform"]["window"]["late_data"] == "dlq"
    assert keeps_late == (behind.late > 0) == ("dead_letter" in data)
    assert data["sources"][0]["format"] == "json"


@pytest.mark.parametrize("seed", range(20))
def test_a_config_for_a_random_csv_passes_check(run_slackwater: Command, seed: int) -> None:
    rng = random.Random(1000 + seed)
    names = ["user", "ts", *rng.sample(["user name", "Price", "x`y", "plz", "flag", "", "price"], rng.randrange(5))]
    with Path("t.csv").open("w", newline="") as out:
        table = csv.writer(out, delimiter=rng.choice([",", ";", "\t"]))
        table.writerow(names)
        for n in range(rng.randrange(2, 40)):
            rest = [rng.choice(["", "1", "2.5", "007", "true", 'a "b", c', "1e5"]) for _ in names[2:]]
            table.writerow([f"u{n % 4}", (START + dt.timedelta(minutes=n)).isoformat(sep=" "), *rest])
    data = run_init_and_load_config(run_slackwater, "--sample", "t.csv", "--kind", rng.choice(["session", "tumbling"]))
    assert data["transform"]["window"]["event_time_column"] == "ts"
    assert data["transform"]["window"]["group_by"] == ["user"]


# -- mistakes


def expect_init_error(slackwater: Command, *arguments: str) -> str:
    outcome = slackwater("init", "p.toml", *arguments)
    assert outcome.out == "" and outcome.code in (1, 2) and outcome.err.count("\n") == 1, outcome
    return outcome.err.removeprefix("error: ").rstrip("\n")


def test_a_file_is_overwritten_only_with_force(run_slackwater: Command) -> None:
    Path("p.toml").write_text("mine")
    assert (
        expect_init_error(run_slackwater) == "p.toml: already exists; name another file, or overwrite it with --force"
    )
    assert Path("p.toml").read_text() == "mine"
    assert run_slackwater("init", "p.toml", "--force").code == 0
    assert toml.load("p.toml").name == "p"


def test_a_failed_init_writes_nothing(run_slackwater: Command) -> None:
    expect_init_error(run_slackwater, "--sample", "absent")
    Path("p.toml").write_text("mine")
    expect_init_error(run_slackwater, "--force", "--sample", "absent")
    assert Path("p.toml").read_text() == "mine"


WRONG: list[tuple[str, str | bytes | None, tuple[str, ...], str]] = [
    ("a.jsonl", None, (), "does not exist; expected a file or a directory"),
    ("a.jsonl", "", (), "is empty; expected JSON lines, CSV or Parquet"),
    ("a.jsonl", b"\xff\xfe\x00", (), "is not UTF-8 text"),
    ("a.json.gz", b"no gzip", (), "cannot be read"),
    ("a.json.gz", gzip.compress(b'{"a": 1}\n' * 9999)[:40], (), "cannot be read"),
    ("a.json", '[\n{"a": 1}\n]', (), "is one JSON array; expected one object per line"),
    ("a.json", "1\n2\n3\n", (), "none of the first 3 lines is a JSON object"),
    ("a.log", "one\ntwo words\nand three words\n", (), "its lines have no common separator"),
    ("a.parquet", b"PAR1nonsense", (), "cannot be read as Parquet"),
    ("a.csv", "user,ts\n", (), "has a header but no rows"),
    ("a.json", '{"a": "x", "b": 5}\n', (), "none of the columns (a, b) contains times"),
    (
        "a.json",
        '{"a": 1.5, "ts": "2024-01-01T00:00:00Z"}\n',
        (),
        "none of the columns (a, ts) is suitable as a session key",
    ),
    ("a.json", '{"a": "x", "ts": "2024-01-01T00:00:00Z"}\n', ("--key", "b"), '"b" is not a column'),
    (
        "a.json",
        '{"a": "x", "ts": "2024-01-01T00:00:00Z"}\n',
        ("--time", "a"),
        'column "a" of a.json does not contain times',
    ),
    (
        "a.json",
        '{"a": "x", "ts": "2024-01-01T00:00:00Z"}\n',
        ("--time", "tss"),
        '"tss" is not a column of a.json; did you mean "ts"?',
    ),
    (
        "a.json",
        '{"a": "x", "ts": "2024-01-01T00:00:00Z"}\n',
        ("--kind", "sesion"),
        '--kind: found "sesion"; did you mean "session"?',
    ),
    (
        "a.json",
        '{"a": "x", "ts": "2024-01-01T00:00:00Z"}\n',
        ("--source", "kafak"),
        '--source: found "kafak"; did you mean "kafka"?',
    ),
    (
        "a.json",
        '{"a": "x", "ts": "2024-01-01T00:00:00Z"}\n',
        ("--kind", "join"),
        "found 1 sample, expected 2, because a join has two sides",
    ),
    ("a.csv", "a,ts\nx,2024-01-01T00:00:00Z\n", ("--source", "kafka"), "is csv; expected JSON lines"),
    ("a.json", '{"a": "x", "ts": "2024-01-01T00:00:00Z"}\n', ("--name", "a/b"), 'name: found "a/b"'),
]


@pytest.mark.parametrize(
    ("name", "content", "flags", "line"), WRONG, ids=[f"{i}-{case[0]}" for i, case in enumerate(WRONG)]
)
def test_invalid_sample_or_flag_is_reported_with_a_one_line_error(
    run_slackwater: Command, name: str, content: str | bytes | None, flags: tuple[str, ...], line: str
) -> None:
    if content is not None:
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert line in expect_init_error(run_slackwater, "--sample", name, *flags)
    assert not Path("p.toml").exists()


def test_join_of_samples_with_different_event_time_columns_is_refused(run_slackwater: Command) -> None:
    a, b = (
        write_json_lines("a.json", click_rows()),
        write_json_lines("b.json", [{"user_id": r["user_id"], "at": r["ts"]} for r in click_rows()]),
    )
    line = expect_init_error(run_slackwater, "--kind", "join", "--sample", a, "--sample", b)
    assert 'are "ts" and "at"; in a join, both columns must have the same name and unit' in line


def test_config_path_in_a_missing_directory_is_refused(run_slackwater: Command) -> None:
    outcome = run_slackwater("init", "no/p.toml")
    assert outcome.err == "error: no/p.toml: the directory no does not exist; create it\n"


# -- prompts


def test_init_prompts_only_on_a_terminal(run_slackwater: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json_lines("a.jsonl", click_rows())
    answers = iter(["files", "tumbling", "a.jsonl"])
    prompts: list[str] = []

    def prompt(text: str, **_: Any) -> str:
        prompts.append(text)
        return next(answers)

    monkeypatch.setattr("typer.prompt", prompt)
    run_slackwater("init", "quiet.toml")
    assert prompts == []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    outcome = run_slackwater("init", "p.toml")
    assert outcome.code == 0 and len(prompts) == 3
    assert tomllib.loads(Path("p.toml").read_text())["transform"]["window"]["kind"] == "tumbling"
    run_slackwater("init", "q.toml", "--source", "files", "--kind", "session", "--sample", "a.jsonl")
    assert len(prompts) == 3


# -- rules of inference


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:01Z", 1_000_000),
        ("1970-01-01 00:00:01.5", 1_500_000),
        (" 1970-1-1 0:00:01.1234567+00:00 ", 1_123_456),
        ("1970-01-01T02:00:00+0200", 0),
        ("1970-01-01T01:00:00 Europe/Berlin", 0),
        ("1970-01-02", 86_400_000_000),
        ("10:15", None),
        ("T10:15:00Z", None),
        ("2024", None),
        ("2024-03", None),
        ("2024-13-01", None),
        ("17/May/2015:10:05:03 +0000", None),
        ("1970-01-01T00:00:00 Nowhere/At-All", None),
        ("1970-01-01T00:00:00../../etc/passwd", None),
    ],
)
def test_timestamps_in_text_are_recognised(text: str, expected: int | None) -> None:
    assert parse_timestamp_us(text) == expected


def test_time_unit_is_inferred_only_if_nearly_all_numbers_are_times() -> None:
    assert infer_time_unit([]) is None
    assert infer_time_unit([1, 2, 3]) is None
    assert infer_time_unit([1709283600, 5]) is None
    assert infer_time_unit([1709283600] * 200 + [5]) == "s"


def test_out_of_orderness_is_measured_against_the_newest_earlier_row() -> None:
    seen = measure_out_of_orderness([0, 100_000_000, 59_000_000, 200_000_000])
    assert (seen.most_us, seen.lateness_ms, seen.in_time) == (41_000_000, 60_000, 1.0)
    assert measure_out_of_orderness([]).lateness_ms == measure_out_of_orderness([1, 2, 3]).lateness_ms == 10_000


def test_the_proposed_lateness_keeps_999_of_1000_rows(run_slackwater: Command) -> None:
    """A few rows that are hours late become dead letters, so that they do not delay every result by hours."""
    rows = click_rows(4000)
    for n in (2000, 3000, 3999):
        rows[n]["ts"] = rows[1]["ts"]
    write_json_lines("a.jsonl", rows)
    outcome = run_slackwater("init", "p.toml", "--sample", "a.jsonl")
    data = tomllib.loads(Path("p.toml").read_text())
    assert (data["transform"]["window"]["lateness"], data["transform"]["window"]["late_data"]) == ("1s", "dlq")
    assert data["dead_letter"] == {"connection": "files", "path": "letters/p"}
    assert "behind the newest earlier row: p50 0 s, p99 0 s, p99.9 0 s, max " in outcome.out
    assert "lateness 1s keeps 99.92% of the sample, where rows are out of order by up to " in outcome.out
    assert "; 3 rows of the sample would be late, kept as dead letters\n" in outcome.out
    assert 'note: late_data = "dlq" keeps late rows only for inspection; dlq replay cannot apply them: ' in outcome.out


def test_the_dead_letter_section_is_a_comment_if_unused(run_slackwater: Command) -> None:
    write_json_lines("a.jsonl", click_rows(100))
    data = run_init_and_load_config(run_slackwater, "--sample", "a.jsonl")
    text = Path("p.toml").read_text()
    assert "dead_letter" not in data and "[dead_letter]" in text
    letters = text[text.index("# [dead_letter]") :].partition("\n\n")[0]
    letters = re.sub(r"(?m)^# ", "", letters)
    Path("q.toml").write_text(text.replace('late_data = "drop"', 'late_data = "dlq"') + letters + "\n")
    assert run_slackwater("check", "q.toml").code == 0


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.csv", "user,when\nann,soon\nbob,later\n", 'found "soon" in "when", line 2'),
        ("a.csv", "user,when\nann,2024-03-01T09:00:00Z\nbob,x\ncid,y\n", 'found "x" in "when", line 3'),
        ("a.jsonl", '{"u": 1, "ts": "' + "x" * 500 + '"}\n', f'found "{"x" * 59}… in "ts", line 1'),
        ("a.jsonl", '\n{"u": "a", "ts": 17}\n', 'found 17 in "ts", line 2'),
    ],
)
def test_invalid_time_is_reported_with_its_value_column_and_line(
    run_slackwater: Command, name: str, content: str, problem: str
) -> None:
    Path(name).write_text(content)
    outcome = run_slackwater("init", "p.toml", "--sample", name)
    assert outcome.code == 1 and problem in outcome.err


def test_lines_that_cannot_be_decoded_are_reported_with_their_number(run_slackwater: Command) -> None:
    Path("a.jsonl").write_text("hello\nworld\n")
    assert (
        'none of the first 2 lines is a JSON object; line 1 is "hello"'
        in run_slackwater("init", "p.toml", "--sample", "a.jsonl").err
    )
    rows = [f"u{n},2024-03-01T09:{n:02}:00Z,{n}" for n in range(40)]
    Path("a.csv").write_text("\n".join(["user,ts,amount", *rows[:20], "u,v", *rows[20:30], "u1,soon,1", *rows[30:]]))
    outcome = run_slackwater("init", "p.toml", "--sample", "a.csv")
    assert '1 line cannot be decoded: bad rows; line 22 has 2 cells, expected 3: "u,v"' in outcome.out
    assert 'event time: ts; 1 row without one: bad rows; line 33 has "soon"' in outcome.out


def test_init_does_not_import_pyspark_for_json_lines(run_slackwater: Command) -> None:
    import subprocess

    write_json_lines("a.jsonl", click_rows())
    code = (
        "import sys; sys.argv = ['slackwater', 'init', 'x.toml', '--sample', 'a.jsonl']\n"
        "from slackwater.cli.main import main\n"
        "try: main()\nexcept SystemExit as e: assert not e.code\n"
        "assert 'pyspark' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


# -- real data


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("name", "kind", "time", "unit", "key"),
    select_cases(
        [
            ("CollegeMsg.txt", "session", "weight", "s", "source"),
            ("ibis_commits.tsv.gz", "hopping", "commit_time", "s", "author_id"),
            ("wikiticker-2015-09-12.json.gz", "session", "time", None, "user"),
            ("wikiticker-bad-clock.json.gz", "tumbling", "time", None, "user"),
        ],
        keep=2,
    ),
)
def test_samples_of_real_data_are_recognised(
    run_slackwater: Command, real_events_folder: Path, name: str, kind: str, time: str, unit: str | None, key: str
) -> None:
    data = run_init_and_load_config(run_slackwater, "--sample", str(real_events_folder / name), "--kind", kind)
    window = data["transform"]["window"]
    assert (window["event_time_column"], window.get("event_time_unit"), window["group_by"]) == (time, unit, [key])


@pytest.mark.shared_data
def test_sample_of_a_web_server_log_is_refused(run_slackwater: Command, real_events_folder: Path) -> None:
    assert "contains times" in expect_init_error(
        run_slackwater, "--sample", str(real_events_folder / "apache_logs.log")
    )
