"""Fuzz configs: valid ones with damaged lines, keys and values. Each either makes a round trip or is rejected."""

from __future__ import annotations

import random

from tests.laws.fuzzers import hostile_texts as words

from slackwater import explain
from slackwater.config.toml import loads, to_toml
from slackwater.errors import SlackwaterError

WINDOWS = (
    'kind = "session"\ngap_ms = "30s"\nmax_session_duration_ms = "1h"\n',
    'kind = "tumbling"\nduration_ms = "1m"\nmax_groups_per_window = 1000\n',
    'kind = "hopping"\nduration_ms = "1m"\nhop_ms = "10s"\nmax_groups_per_window = 1000\nemit = "updates"\n',
)
HEAD = """name = "orders"
[connections.lake]
kind = "files"
[connections.k]
kind = "kafka"
bootstrap_servers = "${KAFKA}"
options = { "kafka.security.protocol" = "SSL" }
[connections.pg]
kind = "postgres"
url = "${PG}"
[[sources]]
name = "orders"
connection = "lake"
query = "in/*.jsonl"
format = "json"
schema = "user STRING, amount DOUBLE, ts TIMESTAMP"
lateness_ms = "5s"
[transform]
sql = "SELECT user, amount, _event_ts FROM source WHERE amount > 0"
on_error = "drop"
[transform.window]
event_time_column = "ts"
group_by = ["user"]
late_data = "drop"
"""
TAIL = """[[transform.window.aggregations]]
agg = "count"
as = "n"
[[transform.window.aggregations]]
agg = "sum"
column = "amount"
as = "total"
[target]
connection = "pg"
table = "results"
[state_store]
kind = "files"
path = "state"
shards = 4
"""
VALUES = (
    *(
        '""',
        '"x"',
        "[]",
        "{}",
        "[[]]",
        "0",
        "-1",
        "1e400",
        "nan",
        "inf",
        "true",
        "2024-01-01",
        "10:15:00",
        '"30s"',
        '"${NOSUCH}"',
        '"${PG}"',
    ),
    *(
        "{ a = { b = { c = 1 } } }",
        "9" * 5000,
        "0x" + "f" * 40,
        "0x" + "f" * 5000,
        "0b" + "1" * 20000,
        "[0o" + "7" * 6000 + "]",
        '"' + "x" * 10_000 + '"',
        '["a", 1]',
        '"\\u0000"',
        '"a\\nb"',
        "'''\nx'''",
    ),
    *(
        "[" * 200 + "]" * 200,
        "[" * 3000 + "]" * 3000,
        '"${"',
        '"$${X}"',
        '"-5m"',
        '"9999999999d"',
        '"orders.2"',
        '"' + "ä" * 300 + '"',
    ),
)
ENV = {"KAFKA": "broker:9092", "PG": "postgresql://u:pw-of-nobody@h/db"}


def draw_config(rng: random.Random) -> str:
    lines = (HEAD + rng.choice(WINDOWS) + TAIL).splitlines()
    for _ in range(rng.choice([0, 1, 1, 2, 3, 6])):
        line_number = rng.randrange(len(lines))
        key, equals, _ = lines[line_number].partition(" = ")
        change = rng.random()
        if change < 0.5 and equals:
            lines[line_number] = f"{key} = {rng.choice(VALUES)}"
        elif change < 0.6:
            del lines[line_number]
        elif change < 0.7:
            lines.insert(rng.randrange(len(lines)), lines[line_number])
        elif change < 0.8 and equals:
            lines[line_number] = lines[line_number].replace(
                key, rng.choice([key[:-1], key.upper(), f'"{key} "', f"{key}.x", "nosuch", "a." * 1200 + "b"]), 1
            )
        else:
            lines[line_number] = words.damage_text(rng, lines[line_number])
    return "\n".join(lines)


def check_random_config(rng: random.Random) -> str:
    content = draw_config(rng)
    try:
        pipeline = loads(content, "p.toml", ENV)
        plan = explain.build_plan(pipeline)
        text = to_toml(pipeline)
    except SlackwaterError as error:
        words.assert_slackwater_error(error)
        for line in getattr(error, "problems", ()):
            assert "\n" not in line, f"a problem of several lines: {line[:200]!r}"
            assert "pw-of-nobody" not in line, line
        return "refused"
    assert plan.stages
    assert loads(text, "again.toml", ENV) == pipeline, "what is written back is another config"
    return "read"
