"""Every config mistake is reported before Spark starts, in one line with file, key, actual value and remedy.

This file covers TOML, windows, aggregations, names and references. test_connection_config.py covers connections.
"""

from __future__ import annotations

import datetime
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.support.config_mistakes import (
    BASE,
    CASES,
    COUNT,
    DURATION,
    FORMAT,
    FORMATS,
    HOPPING,
    LAKE,
    OUT,
    PROCESSING,
    STORE,
    TUMBLING,
    WINDOW,
    A,
    W,
    expect_config_problems,
    format_case_id,
    replace_text,
)

from slackwater.config.connection import Connection
from slackwater.config.connector_description import CONNECTORS
from slackwater.config.pipeline import Pipeline, check_run_flags
from slackwater.config.source import Lookup, Source
from slackwater.config.spec_base import Spec
from slackwater.config.stage import Transform
from slackwater.config.target import StateStore, Target
from slackwater.config.toml import load, loads
from slackwater.config.window import Aggregation, Window
from slackwater.errors import ConfigError

# fmt: on


@pytest.mark.parametrize("case", CASES, ids=format_case_id)
def test_each_invalid_config_is_refused_with_a_one_line_error(case: tuple[str, ...]) -> None:
    base, old, new, *lines = case
    assert expect_config_problems(replace_text(base, old, new)) == lines


def test_standalone_late_rows_need_an_append_only_target() -> None:
    standalone = replace_text(BASE, WINDOW, WINDOW + 'late_data = "standalone"\nemit_metadata = true\n')
    loads(standalone, "p.toml", {})
    table = replace_text(
        replace_text(standalone, LAKE, LAKE + '[connections.table]\nkind = "delta"\n'),
        OUT,
        OUT.replace("lake", "table"),
    )
    assert expect_config_problems(table) == [
        f'{W}.late_data: "standalone" needs an append-only target, but this delta target would replace the result of a window '
        'with that of its late rows; use "reopen" to correct the result, "dlq" to keep the late rows, or an append-only target '
        '(files, console, or delta or iceberg with mode = "append")'
    ]
    loads(replace_text(table, 'path = "out"\n', 'path = "out"\nmode = "append"\n'), "p.toml", {})


@pytest.mark.parametrize("content", [BASE, TUMBLING, HOPPING, PROCESSING, TUMBLING.replace(STORE, "")])
def test_base_configs_of_the_invalid_configs_are_valid(content: str) -> None:
    loads(content, "p.toml", {})


def test_all_mistakes_are_reported_at_once_across_sections() -> None:
    content = replace_text(BASE, '"30s"', "-5")
    content = replace_text(content, 'event_time_column = "ts"\n', "")
    content = replace_text(content, FORMAT, 'format = "jsn"\n')
    content = replace_text(content, 'connection = "lake"\nquery = "in', 'connection = "laek"\nquery = "in')
    content = replace_text(content, COUNT, 'agg = "sum"\nas = "user_id"\n')
    content = replace_text(content, STORE, "")
    content = replace_text(content, '[connections.screen]\nkind = "console"', '[connections.screen]\nkind = "kafka"')
    content = replace_text(content, OUT, '[target]\nconnection = "screen"\ntopic = "t"\n')
    assert expect_config_problems(content) == [
        'connections.screen.bootstrap_servers: missing; name the brokers, as in "kafka-1:9092,kafka-2:9092"',
        f'sources[0].format: found "jsn", expected {FORMATS}; did you mean "json"?',
        f"{W}.gap_ms: found -5, expected {DURATION}",
        f'{A}[0].column: missing; "sum" needs a column to aggregate',
        f'{A}[0].as: "user_id" is already the name of a key; choose another name',
        'sources[0].connection: found "laek", which is not a connection; did you mean "lake"?',
        f'{W}.event_time_column: missing; source "events" reads files, whose rows have no default event time; name the column that contains the event time, or give a SQL expression',
        'state_store: missing; a session window needs a state store, for example [state_store] with kind = "files" and path = "state"',
    ]


def test_unreadable_config_file_is_reported(tmp_path: Path) -> None:
    missing, binary = tmp_path / "no.toml", tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError) as caught:
        load(missing)
    assert str(caught.value) == f"{missing}: cannot be read (No such file or directory); expected a TOML file"
    with pytest.raises(ConfigError) as caught:
        load(binary)
    assert str(caught.value) == f"{binary}: is not UTF-8 text; expected a TOML file"


def test_flush_option_without_available_now_is_refused() -> None:
    check_run_flags(True, True)
    with pytest.raises(ConfigError) as caught:
        check_run_flags(False, True)
    assert caught.value.problems == (
        "--flush: needs --available-now, because only bounded input ends; add --available-now",
    )


VALUES = [
    1,
    -1.5,
    float("nan"),
    2**70,
    True,
    [],
    [[]],
    {},
    "",
    "x",
    [1],
    {"a": [1]},
    datetime.datetime(2024, 1, 1),
    datetime.time(10),
]
SECTIONS: list[tuple[type[Spec], tuple[str | int, ...]]] = [
    (Pipeline, ()),
    *((c.connection, ("connections", "lake")) for c in CONNECTORS.values()),
    (Source, ("sources", 0)),
    (Transform, ("transform",)),
    (Window, ("transform", "window")),
    (Aggregation, ("transform", "window", "aggregations", 1)),
    (Lookup, ("transform", "lookups", "users")),
    (Target, ("target",)),
    (StateStore, ("state_store",)),
    (Target, ("dead_letter",)),
]


@pytest.mark.parametrize(("spec", "path"), SECTIONS, ids=[s.__name__ for s, _ in SECTIONS])
def test_any_toml_value_of_a_key_is_accepted_or_refused_with_config_problems(
    spec: type[Spec], path: tuple[str | int, ...]
) -> None:
    """Try every key of every section with a value of every TOML type. Only config problems are reported."""
    for key in [*spec.KEYS, *spec.ALIASES, "allowed_lateness_ms", "mode", "unknown"]:
        for value in VALUES:
            data = tomllib.loads(BASE)
            table: Any = data
            for step in path:
                table = table.setdefault(step, {}) if isinstance(table, dict) else table[step]
            if issubclass(spec, Connection):
                table["kind"] = spec.model_fields["kind"].default
            table[key] = value
            lines: list[str] = []
            pipeline = Pipeline.parse(data, "p.toml", "", lines)
            assert (pipeline is None) == bool(lines), (key, value)
            assert all(x.startswith("p.toml: ") and "\n" not in x and "Error" not in x for x in lines), lines


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x = " + "[" * 5000 + "]" * 5000, "is nested too deeply to be read; expected at most 32 levels"),
        (
            "a" + ".a" * 900 + " = 1",
            "a: is nested more than 32 levels deep, which is deeper than any pipeline key; reduce the nesting",
        ),
        ("x = " + "[" * 400 + "]" * 400, "x: is nested more than 32 levels deep"),
        ("x = " + "1" * 5000, "is not valid TOML: Exceeds the limit"),
        ('name = "' + "a" * 300 + '"', "name: found 300 characters, expected at most 200"),
    ],
)
def test_malicious_toml_is_refused_with_a_one_line_error(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        loads(text, "p.toml", {})
    (line,) = [p for p in raised.value.problems if problem in p]
    assert line.startswith("p.toml: ")
    assert len(line) < 300
