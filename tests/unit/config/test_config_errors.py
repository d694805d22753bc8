"""Every mistake in a config is one line, found before Spark starts: file, key, what was found, what to do."""

from __future__ import annotations

import datetime
import tomllib
from pathlib import Path
from typing import Any

import pytest

from slackwater.config.connection import FilesConnection
from slackwater.config.pipeline import Pipeline, Transform
from slackwater.config.source import Lookup, Source
from slackwater.config.spec import Spec
from slackwater.config.target import StateStore, Target
from slackwater.config.toml import load, loads
from slackwater.config.window import Aggregation, Window
from slackwater.errors import ConfigError

SESSION = """\
name = "p"
[connections.lake]
kind = "files"
[connections.screen]
kind = "console"
[[sources]]
name = "events"
connection = "lake"
query = "in/*.jsonl"
format = "json"
schema = "user_id STRING, amount DOUBLE, ts TIMESTAMP"
[transform]
on_error = "fail"
[transform.window]
kind = "session"
gap_ms = "30s"
max_session_duration_ms = "2h"
event_time_column = "ts"
group_by = ["user_id"]
[[transform.window.aggregations]]
agg = "count"
as = "events"
[[transform.window.aggregations]]
agg = "count_distinct"
column = "amount"
as = "amounts"
[transform.lookups.users]
connection = "lake"
query = "users.parquet"
[target]
connection = "lake"
path = "out"
[state_store]
kind = "files"
path = "state"
"""
SHAPE = 'kind = "session"\ngap_ms = "30s"\nmax_session_duration_ms = "2h"\n'
TUMBLING = SESSION.replace(SHAPE, 'kind = "tumbling"\nduration_ms = "1m"\nmax_groups_per_window = 10\n')
HOPPING = SESSION.replace(SHAPE, 'kind = "hopping"\nduration_ms = "1m"\nhop_ms = "10s"\nmax_groups_per_window = 10\n')
STORE = '[state_store]\nkind = "files"\npath = "state"\n'
COUNT = 'agg = "count"\nas = "events"\n'
DISTINCT = 'agg = "count_distinct"\n'
LAKE = '[connections.lake]\nkind = "files"\n'
WINDOW = "[transform.window]\n"
SOURCES = SESSION[SESSION.index("[[sources]]") : SESSION.index("[transform]\n")]
W, A = "transform.window", "transform.window.aggregations"
DURATION = 'a duration greater than 0 ("30s", "5m", "2h" or milliseconds)'
NOT_NEGATIVE = 'a duration of 0 or more ("30s", "5m", "2h" or milliseconds)'
NEVER = "complete mode is not supported: a result that never closes needs all rows for ever"


def problems(content: str, **env: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        loads(content, "p.toml", env)
    assert all("\n" not in line for line in caught.value.problems)
    return [line.removeprefix("p.toml: ") for line in caught.value.problems]


def swap(base: str, old: str, new: str) -> str:
    assert base.count(old) >= 1, f"{old!r} is not in the base config"
    return base.replace(old, new, 1)


CASES: list[tuple[str, str, str, str, str]] = [
    # id, base, what is replaced, by what, the line
    # -- unknown keys
    (
        "unknown key, far",
        SESSION,
        'path = "out"\n',
        'path = "out"\nxyz = 1\n',
        "target.xyz: unknown key; expected one of connection, format, path",
    ),
    (
        "unknown key at the top",
        SESSION,
        'name = "p"\n',
        'name = "p"\ntriger_interval_ms = 1\n',
        'triger_interval_ms: unknown key; did you mean "trigger_interval_ms"?',
    ),
    (
        "quoted key",
        SESSION,
        'path = "out"\n',
        'path = "out"\n"pa th" = 1\n',
        'target."pa th": unknown key; did you mean "path"?',
    ),
    (
        "dataframe in TOML",
        SESSION,
        'format = "json"\n',
        'format = "json"\ndataframe = "x"\n',
        "sources[0].dataframe: exists in Python only; give a connection, a query and a format",
    ),
    # -- wrong types
    ("date as duration", SESSION, '"30s"', "2024-01-01", f"{W}.gap_ms: found 2024-01-01, expected {DURATION}"),
    (
        "endless duration",
        SESSION,
        '"30s"',
        '"9999999999d"',
        f'{W}.gap_ms: found "9999999999d", expected a duration of at most 10000 years',
    ),
    (
        "negative per source",
        SESSION,
        'format = "json"\n',
        'format = "json"\nlateness_ms = "-1s"\n',
        f'sources[0].lateness_ms: found "-1s", expected {NOT_NEGATIVE}',
    ),
    (
        "numbers in a list",
        SESSION,
        '["user_id"]',
        "[1]",
        f"{W}.group_by: found [1], expected a list of non-empty strings",
    ),
    ("number for a string", SESSION, 'path = "out"', "path = 1", "target.path: found 1, expected a non-empty string"),
    ("empty string", SESSION, 'path = "out"', 'path = ""', 'target.path: found "", expected a non-empty string'),
    (
        "list for a table",
        SESSION,
        STORE,
        "[[state_store]]\n",
        "state_store: found [a table], expected a table",
    ),
    (
        "table for a list",
        SESSION,
        "[[sources]]",
        "[sources]",
        "sources: found a table, expected a list of sources ([[sources]])",
    ),
    (
        "string for a flag",
        SESSION,
        WINDOW,
        WINDOW + 'emit_metadata = "no"\n',
        f'{W}.emit_metadata: found "no", expected true or false',
    ),
    (
        "options",
        SESSION,
        'format = "json"\n',
        'format = "json"\noptions = { sep = [1] }\n',
        'sources[0].options: found a table, expected a table of reader options ({ sep = ",", header = "true" })',
    ),
    (
        "shards",
        SESSION,
        STORE,
        STORE + "shards = 0\n",
        "state_store.shards: found 0, expected a whole number of at least 1 and at most 4096",
    ),
    # -- choices
    (
        "no such format",
        SESSION,
        'format = "json"',
        'format = "jsn"',
        'sources[0].format: found "jsn", expected "json" or "csv" or "parquet" or "text"; did you mean "json"?',
    ),
    (
        "no such on_error",
        SESSION,
        '"fail"',
        '"ignore"',
        'transform.on_error: found "ignore", expected "fail" or "drop"',
    ),
    # -- the shape of windows
    (
        "cap in hopping",
        HOPPING,
        WINDOW,
        WINDOW + "max_session_duration_ms = 1\n",
        f'{W}.max_session_duration_ms: belongs to session windows, this one is "hopping"; remove it',
    ),
    (
        "offset in session",
        SESSION,
        WINDOW,
        WINDOW + "offset_ms = 1\n",
        f'{W}.offset_ms: belongs to tumbling and hopping windows, this one is "session"; remove it',
    ),
    (
        "no hop",
        HOPPING,
        'hop_ms = "10s"\n',
        "",
        f'{W}.hop_ms: missing; a hopping window needs the distance between window starts, as in "10s"',
    ),
    # -- aggregations
    (
        "both spellings",
        SESSION,
        COUNT,
        COUNT + 'output_name = "n"\n',
        f'{A}[0].output_name: is the older spelling of "as", which is given too; remove it',
    ),
    (
        "mistake in an older spelling",
        SESSION,
        COUNT,
        'kind = "count"\noutput_name = 1\n',
        f"{A}[0].output_name: found 1, expected a non-empty string",
    ),
    (
        "bound of count",
        SESSION,
        COUNT,
        COUNT + "max_distinct_values_per_group = 5\n",
        f'{A}[0].max_distinct_values_per_group: belongs to "count_distinct", not to "count"; remove it',
    ),
    # -- names
    (
        "key as window column",
        SESSION,
        '["user_id"]',
        '["user_id", "window_start"]',
        f'{W}.group_by: "window_start" is already the name of window_start_column; rename the column in the SQL',
    ),
    (
        "start as session id",
        SESSION,
        WINDOW,
        WINDOW + 'window_start_column = "session_id"\n',
        f'{W}.window_start_column: "session_id" is the name of the session\'s id; choose another name',
    ),
    # -- _event_ts
    (
        "unit under processing time",
        SESSION.replace('event_time_column = "ts"', 'time_mode = "processing"'),
        WINDOW,
        WINDOW + 'event_time_unit = "s"\n',
        f'{W}.event_time_unit: given with time_mode = "processing", where the clock is the event time; remove one of them',
    ),
    # -- references
    (
        "unknown connection of the target",
        SESSION,
        '[target]\nconnection = "lake"',
        '[target]\nconnection = "leak"',
        'target.connection: found "leak", which is no connection; did you mean "lake"?',
    ),
    (
        "unknown connection of a lookup",
        SESSION,
        'connection = "lake"\nquery = "users',
        'connection = "lakes"\nquery = "users',
        'transform.lookups.users.connection: found "lakes", which is no connection; did you mean "lake"?',
    ),
    (
        "format of a console",
        SESSION,
        '[target]\nconnection = "lake"\npath = "out"',
        '[target]\nconnection = "screen"\nformat = "json"',
        "target.format: belongs to a files target, this one is a console; remove it",
    ),
    (
        "files target without a path",
        SESSION,
        'path = "out"\n',
        "",
        'target.path: missing; a files target needs a directory, as in "out/sessions"',
    ),
    ("no sources", SESSION, SOURCES, "", "sources: missing; describe at least one in [[sources]]"),
    (
        "empty sources",
        "sources = []\n" + SESSION.replace(SOURCES, ""),
        "sources",
        "sources",
        "sources: empty; describe at least one in [[sources]]",
    ),
    (
        "column declared twice",
        SESSION,
        "ts TIMESTAMP",
        "ts TIMESTAMP, TS STRING",
        'sources[0].schema: column "ts" is declared twice (Spark reads names without regard to case); declare it once',
    ),
    (
        "lookup that SQL cannot name",
        SESSION,
        "lookups.users",
        "lookups.my-users",
        'transform.lookups.my-users: found "my-users", expected a name of letters, digits and "_"',
    ),
    (
        "two lookups in SQL's eyes one",
        SESSION,
        "[target]",
        '[transform.lookups.Users]\nconnection = "lake"\nquery = "u.csv"\n[target]',
        'transform.lookups.Users: is the same name as "users" in SQL; choose another name',
    ),
    (
        "no target",
        SESSION,
        '[target]\nconnection = "lake"\npath = "out"\n',
        "",
        "target: missing; say where results go in [target]",
    ),
    (
        "no window",
        SESSION,
        SESSION[SESSION.index(WINDOW) : SESSION.index("[transform.lookups")],
        "",
        f"{W}: missing; describe the window in [transform.window]",
    ),
    # -- state
    (
        "path of an in_memory store",
        SESSION,
        STORE,
        STORE.replace('"files"', '"in_memory"'),
        'state_store.path: belongs to kind = "files"; an in_memory store has no directory, remove it',
    ),
    # -- not supported, not available yet
    (
        "complete as a mode",
        SESSION,
        WINDOW,
        WINDOW + 'mode = "complete"\n',
        f'{W}.mode: {NEVER}; remove it (emit = "on_close" is the default)',
    ),
    (
        "complete as an output mode",
        SESSION,
        WINDOW,
        WINDOW + 'output_mode = "complete"\n',
        f'{W}.output_mode: {NEVER}; remove it (emit = "on_close" is the default)',
    ),
    *(
        (
            f"connection {kind}",
            SESSION,
            '[connections.screen]\nkind = "console"',
            f'[connections.screen]\nkind = "{kind}"',
            f'connections.screen.kind: "{kind}" is not available yet; expected "files" or "console"',
        )
        for kind in ("kafka", "postgres", "delta", "rabbitmq", "kinesis", "pubsub")
    ),
    # -- connections
    (
        "no kind of a connection",
        SESSION,
        LAKE,
        "[connections.lake]\n",
        'connections.lake.kind: missing; expected "files" or "console"',
    ),
    (
        "list as kind of a connection",
        SESSION,
        LAKE,
        '[connections.lake]\nkind = ["files"]\n',
        'connections.lake.kind: found ["files"], expected "files" or "console"',
    ),
    (
        "key of a connection",
        SESSION,
        LAKE,
        LAKE + 'host = "x"\n',
        "connections.lake.host: unknown key; expected one of kind",
    ),
    (
        "string for a connection",
        SESSION,
        LAKE,
        '[connections]\nlake = "files"\n',
        'connections.lake: found "files", expected a connection (kind = "files" or "console")',
    ),
]


@pytest.mark.parametrize(("base", "old", "new", "line"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_each_mistake_is_one_line(base: str, old: str, new: str, line: str) -> None:
    assert problems(swap(base, old, new)) == [line]


@pytest.mark.parametrize("content", [SESSION, TUMBLING, HOPPING, TUMBLING.replace(STORE, "")])
def test_the_configs_the_mistakes_are_made_in_are_right(content: str) -> None:
    loads(content, "p.toml", {})


def test_all_mistakes_come_at_once_also_those_between_parts() -> None:
    content = swap(SESSION, '"30s"', "-5")
    content = swap(content, 'event_time_column = "ts"\n', "")
    content = swap(content, 'format = "json"', 'format = "jsn"')
    content = swap(content, 'connection = "lake"\nquery = "in', 'connection = "laek"\nquery = "in')
    content = swap(content, COUNT, 'agg = "sum"\nas = "user_id"\n')
    content = swap(content, STORE, "")
    content = swap(content, '[connections.screen]\nkind = "console"', '[connections.screen]\nkind = "kafka"')
    content = swap(content, '[target]\nconnection = "lake"', '[target]\nconnection = "screen"')
    assert problems(content) == [
        'connections.screen.kind: "kafka" is not available yet; expected "files" or "console"',
        'sources[0].format: found "jsn", expected "json" or "csv" or "parquet" or "text"; did you mean "json"?',
        f"{W}.gap_ms: found -5, expected {DURATION}",
        f'{A}[0].column: missing; "sum" needs the column to aggregate',
        f'{A}[0].as: "user_id" is already the name of a key; choose another name',
        'sources[0].connection: found "laek", which is no connection; did you mean "lake"?',
        f'{W}.event_time_column: missing; source "events" reads files, which have no event time of their own: name a column or an expression',
        'state_store: missing; a session window needs it: [state_store] with kind = "files" and path = "state"',
    ]


def test_the_python_spelling_of_a_key_is_unknown_in_toml() -> None:
    assert problems(swap(SESSION, 'as = "ev', 'as_ = "ev')) == [
        f'{A}[0].as_: unknown key; did you mean "as"?',
        f"{A}[0].as: missing; name the output column",
    ]


def test_no_connections_at_all() -> None:
    content = swap(swap(SESSION, LAKE, ""), '[connections.screen]\nkind = "console"\n', "")
    assert problems(content) == [
        f'{key}.connection: found "lake", which is no connection; describe it in [connections.<name>]'
        for key in ("sources[0]", "transform.lookups.users", "target")
    ]


def test_syntax_errors_name_line_and_column() -> None:
    assert problems('name = "p"\ngap_ms = = 5\n') == ["is not valid TOML: Invalid value (at line 2, column 10)"]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    missing, binary = tmp_path / "no.toml", tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError) as caught:
        load(missing)
    assert str(caught.value) == f"{missing}: cannot be read (No such file or directory); expected a TOML file"
    with pytest.raises(ConfigError) as caught:
        load(binary)
    assert str(caught.value) == f"{binary}: is not UTF-8 text; expected a TOML file"


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
    (FilesConnection, ("connections", "lake")),
    (Source, ("sources", 0)),
    (Transform, ("transform",)),
    (Window, ("transform", "window")),
    (Aggregation, ("transform", "window", "aggregations", 1)),
    (Lookup, ("transform", "lookups", "users")),
    (Target, ("target",)),
    (StateStore, ("state_store",)),
]


@pytest.mark.parametrize(("spec", "path"), SECTIONS, ids=[s.__name__ for s, _ in SECTIONS])
def test_whatever_stands_at_a_key_is_taken_or_refused_in_lines(spec: type[Spec], path: tuple[str | int, ...]) -> None:
    """Every key of every section with a value of every TOML type: never an exception of another kind."""
    for key in [*spec.KINDS, *spec.OLD, *spec.LATER, "allowed_lateness_ms", "mode", "unknown"]:
        for value in VALUES:
            data = tomllib.loads(SESSION)
            table: Any = data
            for step in path:
                table = table[step]
            table[key] = value
            lines: list[str] = []
            made = Pipeline.build(data, "p.toml", "", lines)
            assert (made is None) == bool(lines), (key, value)
            assert all(x.startswith("p.toml: ") and "\n" not in x and "Error" not in x for x in lines), lines
