"""Every mistake in a config is told in one line: file, key, what was found, what was expected, what to do."""

from __future__ import annotations

import pytest

from slackwater.config import toml
from slackwater.config.pipeline import check_run_flags
from slackwater.config.window import Aggregation, Window
from slackwater.errors import ConfigError

BASE = """name = "p"

[connections.lake]
kind = "files"

[connections.screen]
kind = "console"

[[sources]]
name = "events"
connection = "lake"
query = "data/*.json"
format = "json"
schema = "user STRING, x INT, ts TIMESTAMP"

[transform]
sql = "SELECT * FROM source"

[transform.window]
kind = "session"
gap_ms = "30s"
max_session_duration_ms = "2h"
event_time_column = "ts"
group_by = ["user"]

[[transform.window.aggregations]]
agg = "count"
as = "n"

[target]
connection = "lake"
path = "out"

[state_store]
kind = "files"
path = "state"
"""

TUMBLING = (
    'kind = "session"\ngap_ms = "30s"\nmax_session_duration_ms = "2h"',
    'kind = "tumbling"\nduration_ms = "1m"\nmax_groups_per_window = 10',
)
HOPPING = (
    'kind = "session"\ngap_ms = "30s"\nmax_session_duration_ms = "2h"',
    'kind = "hopping"\nduration_ms = "1m"\nhop_ms = "10s"\nmax_groups_per_window = 10',
)

# what is replaced in BASE, by what; and the lines that come out
CASES: list[tuple[list[tuple[str, str]], list[str]]] = [
    (
        [('gap_ms = "30s"', 'gap = "30s"')],
        [
            'transform.window.gap: unknown key; did you mean "gap_ms"?',
            "transform.window.gap_ms: missing; a session window needs it: how long a silence ends a session",
        ],
    ),
    (
        [('name = "p"', 'nam = "p"')],
        ['nam: unknown key; did you mean "name"?', "name: missing; give the pipeline a name"],
    ),
    (
        [('format = "json"', 'fromat = "json"')],
        [
            'sources[0].fromat: unknown key; did you mean "format"?',
            'sources[0].format: missing; expected "json" or "csv" or "parquet" or "text"',
        ],
    ),
    ([("[target]\n", '[target]\npth = "x"\n')], ['target.pth: unknown key; did you mean "path"?']),
    (
        [('path = "state"', 'pahts = "state"')],
        [
            'state_store.pahts: unknown key; did you mean "path"?',
            'state_store.path: missing; a files store needs a directory, as in "state"',
        ],
    ),
    (
        [('agg = "count"\nas = "n"', 'agg = "cont"\nas = "n"')],
        [
            'transform.window.aggregations[0].agg: found "cont", expected "count" or "sum" or "min" or "max" or "avg" or "first" or "last" or "count_distinct"; did you mean "count"?'
        ],
    ),
    (
        [('agg = "count"\nas = "n"', 'agg = "count"\nas = "n"\nclumn = "x"')],
        ['transform.window.aggregations[0].clumn: unknown key; did you mean "column"?'],
    ),
    (
        [('gap_ms = "30s"', "gap_ms = true")],
        ['transform.window.gap_ms: found true, expected a duration greater than 0 ("30s", "5m", "2h" or milliseconds)'],
    ),
    (
        [('gap_ms = "30s"', "gap_ms = 1.5")],
        ['transform.window.gap_ms: found 1.5, expected a duration greater than 0 ("30s", "5m", "2h" or milliseconds)'],
    ),
    (
        [('gap_ms = "30s"', 'gap_ms = "soon"')],
        [
            'transform.window.gap_ms: found "soon", expected a duration greater than 0 ("30s", "5m", "2h" or milliseconds)'
        ],
    ),
    (
        [('gap_ms = "30s"', "gap_ms = 0")],
        ['transform.window.gap_ms: found 0, expected a duration greater than 0 ("30s", "5m", "2h" or milliseconds)'],
    ),
    (
        [('gap_ms = "30s"', 'gap_ms = "-5s"')],
        [
            'transform.window.gap_ms: found "-5s", expected a duration greater than 0 ("30s", "5m", "2h" or milliseconds)'
        ],
    ),
    (
        [TUMBLING, ('duration_ms = "1m"', "duration_ms = 0")],
        [
            'transform.window.duration_ms: found 0, expected a duration greater than 0 ("30s", "5m", "2h" or milliseconds)'
        ],
    ),
    (
        [HOPPING, ('hop_ms = "10s"', "hop_ms = -1")],
        ['transform.window.hop_ms: found -1, expected a duration greater than 0 ("30s", "5m", "2h" or milliseconds)'],
    ),
    (
        [('event_time_column = "ts"', 'event_time_column = "ts"\nlateness_ms = -1')],
        [
            'transform.window.lateness_ms: found -1, expected a duration of 0 or more ("30s", "5m", "2h" or milliseconds)'
        ],
    ),
    (
        [HOPPING, ('hop_ms = "10s"', 'hop_ms = "2m"')],
        ["transform.window.hop_ms: found 2m, expected at most duration_ms (1m); rows between windows would be lost"],
    ),
    (
        [HOPPING, ('hop_ms = "10s"', 'hop_ms = "10s"\noffset_ms = "10s"')],
        ["transform.window.offset_ms: found 10s, expected less than hop_ms (10s) either way"],
    ),
    (
        [TUMBLING, ('duration_ms = "1m"', 'duration_ms = "1m"\noffset_ms = "-1m"')],
        ["transform.window.offset_ms: found -1m, expected less than duration_ms (1m) either way"],
    ),
    (
        [TUMBLING, ('duration_ms = "1m"', 'duration_ms = "1m"\ngap_ms = "5s"')],
        ['transform.window.gap_ms: belongs to session windows, this one is "tumbling"; remove it'],
    ),
    (
        [TUMBLING, ('duration_ms = "1m"', 'duration_ms = "1m"\nhop_ms = "5s"')],
        ['transform.window.hop_ms: belongs to hopping windows, this one is "tumbling"; remove it'],
    ),
    (
        [('gap_ms = "30s"', 'gap_ms = "30s"\nduration_ms = "1m"')],
        ['transform.window.duration_ms: belongs to tumbling and hopping windows, this one is "session"; remove it'],
    ),
    (
        [('gap_ms = "30s"', "")],
        ["transform.window.gap_ms: missing; a session window needs it: how long a silence ends a session"],
    ),
    (
        [('max_session_duration_ms = "2h"', "")],
        ["transform.window.max_session_duration_ms: missing; a session window needs it: how long one session may grow"],
    ),
    (
        [('group_by = ["user"]', "group_by = []")],
        ['transform.window.group_by: missing or empty; a session window needs at least one key, as in ["user_id"]'],
    ),
    (
        [('group_by = ["user"]', "")],
        ['transform.window.group_by: missing or empty; a session window needs at least one key, as in ["user_id"]'],
    ),
    (
        [('[state_store]\nkind = "files"\npath = "state"\n', "")],
        ['state_store: missing; a session window needs it: [state_store] with kind = "files" and path = "state"'],
    ),
    ([('"2h"', '"30s"')], ["transform.window.max_session_duration_ms: found 30s, expected more than gap_ms (30s)"]),
    (
        [('agg = "count"\nas = "n"', 'agg = "count"')],
        ["transform.window.aggregations[0].as: missing; name the output column"],
    ),
    (
        [
            (
                'agg = "count"\nas = "n"',
                'agg = "count"\nas = "n"\n[[transform.window.aggregations]]\nagg = "sum"\ncolumn = "x"\nas = "n"',
            )
        ],
        ['transform.window.aggregations[1].as: "n" is already the name of aggregations[0]; choose another name'],
    ),
    (
        [('agg = "count"\nas = "n"', 'agg = "count"\nas = "user"')],
        ['transform.window.aggregations[0].as: "user" is already the name of a key; choose another name'],
    ),
    (
        [('agg = "count"\nas = "n"', 'agg = "count"\nas = "window_end"')],
        [
            'transform.window.aggregations[0].as: "window_end" is already the name of window_end_column; choose another name'
        ],
    ),
    (
        [('agg = "count"\nas = "n"', 'agg = "count"\nas = "session_id"')],
        [
            'transform.window.aggregations[0].as: "session_id" is already the name of the session\'s id; choose another name'
        ],
    ),
    (
        [('agg = "count"\nas = "n"', 'agg = "sum"\nas = "n"')],
        ['transform.window.aggregations[0].column: missing; "sum" needs the column to aggregate'],
    ),
    (
        [('agg = "count"\nas = "n"', 'agg = "count_col"\nas = "n"')],
        ['transform.window.aggregations[0].column: missing; "count_col" needs the column to count'],
    ),
    (
        [('agg = "count"\nas = "n"', 'agg = "count_distinct"\ncolumn = "x"\nmode = "exact"\nas = "n"')],
        [
            'transform.window.aggregations[0].max_distinct_values_per_group: missing; mode = "exact" needs a bound, or use mode = "approximate"'
        ],
    ),
    (
        [
            (
                'agg = "count"\nas = "n"',
                'agg = "count_distinct"\ncolumn = "x"\nmax_distinct_values_per_group = 5\nas = "n"',
            )
        ],
        [
            'transform.window.aggregations[0].max_distinct_values_per_group: belongs to mode = "exact"; set it, or remove the bound'
        ],
    ),
    (
        [('agg = "count"\nas = "n"', 'agg = "sum"\ncolumn = "x"\nmode = "exact"\nas = "n"')],
        ['transform.window.aggregations[0].mode: belongs to "count_distinct", not to "sum"; remove it'],
    ),
    (
        [('agg = "count"\nas = "n"', 'agg = "count_distinct"\ncolumn = "x"\nhll_precision = 3\nas = "n"')],
        [
            "transform.window.aggregations[0].hll_precision: found 3, expected a whole number of at least 4 and at most 18"
        ],
    ),
    (
        [TUMBLING, ("max_groups_per_window = 10", "")],
        [
            "transform.window.max_groups_per_window: missing; a tumbling window needs a bound on its groups, as in 1000000"
        ],
    ),
    (
        [HOPPING, ("max_groups_per_window = 10", "")],
        [
            "transform.window.max_groups_per_window: missing; a hopping window needs a bound on its groups, as in 1000000"
        ],
    ),
    (
        [('event_time_column = "ts"', 'event_time_column = "ts"\nallowed_lateness_ms = "1h"')],
        [
            'transform.window.allowed_lateness_ms: needs late_data = "reopen"; to wait longer for late rows raise lateness_ms'
        ],
    ),
    (
        [('event_time_column = "ts"', 'event_time_column = "ts"\nallowed_lateness_ms = "1h"\nlate_data = "reopen"')],
        [
            'transform.window.allowed_lateness_ms: not available yet, as is late_data = "reopen"; raise lateness_ms',
            'transform.window.late_data: "reopen" is not available yet; use "drop" and raise lateness_ms',
        ],
    ),
    (
        [("ts TIMESTAMP", "ts TIMESTAMP, _event_ts TIMESTAMP")],
        [
            'sources[0].schema: declares "_event_ts", which is injected; rename the column, or use it with event_time_column = "_event_ts"'
        ],
    ),
    (
        [('agg = "count"\nas = "n"', 'agg = "count"\nas = "_event_ts"')],
        ['transform.window.aggregations[0].as: "_event_ts" is the event time; choose another name'],
    ),
    (
        [('group_by = ["user"]', 'group_by = ["_event_ts"]')],
        ['transform.window.group_by: "_event_ts" is the event time; it cannot be a key'],
    ),
    (
        [('event_time_column = "ts"', 'event_time_column = "ts"\nwindow_start_column = "_event_ts"')],
        ['transform.window.window_start_column: "_event_ts" is the event time; choose another name'],
    ),
    (
        [('event_time_column = "ts"', 'event_time_column = "ts"\nwindow_start_column = "window_end"')],
        ['transform.window.window_end_column: found "window_end", expected another name than window_start_column'],
    ),
    (
        [('group_by = ["user"]', 'group_by = "user"')],
        ['transform.window.group_by: found "user", expected a list; write ["user"]'],
    ),
    (
        [('group_by = ["user"]', 'group_by = ["user", "user"]')],
        ['transform.window.group_by: "user" is listed 2 times; list it once'],
    ),
    (
        [('kind = "session"', 'kind = "sliding"')],
        [
            'transform.window.kind: sliding (per-row) windows are not supported; use kind = "hopping" with a small hop_ms'
        ],
    ),
    (
        [('kind = "session"', 'kind = "complete"')],
        [
            'transform.window.kind: complete mode is not supported: a result that never closes needs all rows for ever; use kind = "tumbling"'
        ],
    ),
    (
        [('event_time_column = "ts"', 'event_time_column = "ts"\nemit = "complete"')],
        [
            'transform.window.emit: complete mode is not supported: a result that never closes needs all rows for ever; use emit = "on_close"'
        ],
    ),
    (
        [('kind = "session"', 'kind = "sesion"')],
        [
            'transform.window.kind: found "sesion", expected "tumbling" or "hopping" or "session"; did you mean "session"?'
        ],
    ),
    ([('kind = "session"\n', "")], ['transform.window.kind: missing; expected "tumbling" or "hopping" or "session"']),
    (
        [('event_time_column = "ts"', "")],
        [
            'transform.window.event_time_column: missing; source "events" reads files, which have no event time of their own: name a column or an expression'
        ],
    ),
    (
        [('event_time_column = "ts"', 'event_time_column = "ts"\ntime_mode = "processing"')],
        [
            'transform.window.event_time_column: given with time_mode = "processing", where the clock is the event time; remove one of them'
        ],
    ),
    (
        [('event_time_column = "ts"', 'event_time_column = "ts"\nevent_time_unit = "min"')],
        ['transform.window.event_time_unit: found "min", expected "s" or "ms" or "us" or "ns"'],
    ),
    (
        [('event_time_column = "ts"', 'event_time_column = "ts"\nlate_data = "dlq"')],
        ['transform.window.late_data: "dlq" is not available yet; use "drop" and raise lateness_ms'],
    ),
    (
        [('event_time_column = "ts"', 'event_time_column = "ts"\nlate_data = "standalone"')],
        ['transform.window.late_data: "standalone" is not available yet; use "drop" and raise lateness_ms'],
    ),
    (
        [('event_time_column = "ts"', 'event_time_column = "ts"\nemit = "updates"')],
        ['transform.window.emit: "updates" is not available yet; use "on_close"'],
    ),
    (
        [('event_time_column = "ts"', 'event_time_column = "ts"\nemit = "final"')],
        ['transform.window.emit: "final" is not available yet; use "on_close"'],
    ),
    (
        [('event_time_column = "ts"', 'event_time_column = "ts"\nemit_metadata = true')],
        ["transform.window.emit_metadata: not available yet; remove it"],
    ),
    (
        [('event_time_column = "ts"', 'event_time_column = "ts"\nidle_close_ms = "1h"')],
        ["transform.window.idle_close_ms: not available yet"],
    ),
    (
        [('event_time_column = "ts"', 'event_time_column = "ts"\nemit_interval_ms = "1s"')],
        [
            'transform.window.emit_interval_ms: not available yet; windows are emitted when they close (emit = "on_close")'
        ],
    ),
    (
        [('event_time_column = "ts"', 'event_time_column = "ts"\non_state_cap = "backpressure"')],
        ['transform.window.on_state_cap: "backpressure" is not available yet; use "fail" or "drop_new_groups"'],
    ),
    (
        [('event_time_column = "ts"', 'event_time_column = "ts"\ncrash_recovery = "kafka_eos"')],
        ['transform.window.crash_recovery: "kafka_eos" is not available yet; use "persisted"'],
    ),
    (
        [('gap_ms = "30s"', 'gap_ms = "x * 1000"')],
        ['transform.window.gap_ms: a gap by SQL expression ("x * 1000") is not available yet; give a fixed duration'],
    ),
    (
        [('sql = "SELECT', 'on_error = "dlq"\nsql = "SELECT')],
        ['transform.on_error: "dlq" is not available yet; use "fail" or "drop"'],
    ),
    (
        [('[connections.lake]\nkind = "files"', '[connections.lake]\nkind = "kafka"')],
        ['connections.lake.kind: "kafka" is not available yet; expected "files" or "console"'],
    ),
    (
        [('[connections.lake]\nkind = "files"', '[connections.lake]\nkind = "fils"')],
        ['connections.lake.kind: found "fils"; did you mean "files"?'],
    ),
    (
        [('[state_store]\nkind = "files"\npath = "state"', '[state_store]\nkind = "postgres"\nurl = "x"')],
        [
            'state_store.kind: "postgres" is not available yet; use "files"',
            "state_store.url: not available yet; it belongs to the postgres store",
        ],
    ),
    (
        [('[state_store]\nkind = "files"\npath = "state"', '[state_store]\nkind = "files"')],
        ['state_store.path: missing; a files store needs a directory, as in "state"'],
    ),
    ([("[target]", '[dead_letter]\npath = "x"\n\n[target]')], ["dead_letter: not available yet"]),
    ([("[target]\n", '[[stages]]\nname = "x"\n\n[target]\n')], ["stages: not available yet"]),
    (
        [("[transform]\n", "[transform]\njoin = {}\n")],
        ["transform.join: not available yet; stream-stream joins come later; describe a [transform.window]"],
    ),
    (
        [('[target]\nconnection = "lake"\npath = "out"', '[target]\nconnection = "lake"\ntable = "t"')],
        ['target.table: not available yet; targets with tables come later; write files with path = "…"'],
    ),
    (
        [('[target]\nconnection = "lake"\npath = "out"', '[target]\nconnection = "screen"\npath = "out"')],
        ["target.path: belongs to a files target, this one is a console; remove it"],
    ),
    (
        [('connection = "lake"\nquery', 'connection = "lak"\nquery')],
        ['sources[0].connection: found "lak", which is no connection; did you mean "lake"?'],
    ),
    (
        [('connection = "lake"\nquery', 'connection = "screen"\nquery')],
        ['sources[0].connection: "screen" is a console; rows are read from a connection of kind "files"'],
    ),
    (
        [
            (
                "[transform]\n",
                '[[sources]]\nname = "events"\nconnection = "lake"\nquery = "x"\nformat = "parquet"\nschema = "_event_ts TIMESTAMP"\n\n[transform]\n',
            )
        ],
        [
            'sources: 2 sources are called "events"; give each its own name',
            'sources[1].schema: declares "_event_ts", which is injected; rename the column, or use it with event_time_column = "_event_ts"',
        ],
    ),
    (
        [('name = "p"', 'name = "a/b"')],
        ['name: found "a/b", expected letters, digits, ".", "_" and "-" (it names a directory)'],
    ),
    ([('name = "p"', "name = 5")], ["name: found 5, expected a non-empty string"]),
    (
        [('format = "json"', 'format = "avro"')],
        ['sources[0].format: found "avro", expected "json" or "csv" or "parquet" or "text"'],
    ),
    ([('format = "json"', "")], ['sources[0].format: missing; expected "json" or "csv" or "parquet" or "text"']),
    (
        [('format = "json"', 'format = "json"\nmax_files_per_trigger = 0')],
        ["sources[0].max_files_per_trigger: found 0, expected a whole number of at least 1"],
    ),
    (
        [('format = "json"', 'format = "json"\noptions = ["a"]')],
        ['sources[0].options: found ["a"], expected a table of reader options ({ sep = ",", header = "true" })'],
    ),
    (
        [('[[transform.window.aggregations]]\nagg = "count"\nas = "n"', "")],
        [
            "transform.window.aggregations: missing; a window needs at least one aggregation ([[transform.window.aggregations]])"
        ],
    ),
    (
        [
            ('event_time_column = "ts"', 'event_time_column = "ts"\ncrash_recovery = "persisted"'),
            ('kind = "files"\npath = "state"', 'kind = "in_memory"'),
        ],
        ['transform.window.crash_recovery: "persisted" needs a durable [state_store]; use kind = "files"'],
    ),
    (
        [("[target]\n", '[transform.lookups.source]\nconnection = "lake"\nquery = "u.parquet"\n\n[target]\n')],
        ["transform.lookups.source: the name is taken by the rows themselves; choose another name"],
    ),
    (
        [("[target]\n", '[transform.lookups.users]\nconnection = "lke"\nquery = "users"\n\n[target]\n')],
        [
            'transform.lookups.users.format: missing, and "users" has no known suffix; expected "json" or "csv" or "parquet" or "text"'
        ],
    ),
    (
        [('path = "out"', 'path = "${MISSING_DIR}/out"')],
        [
            "target.path: environment variable MISSING_DIR is not set; set it, or write $${MISSING_DIR} for the text itself"
        ],
    ),
    ([('path = "out"', 'path = ["out"')], ["is not valid TOML: Unclosed array (at line 34, column 1)"]),
]


def edited(changes: list[tuple[str, str]]) -> str:
    text = BASE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return text


def test_the_base_is_right() -> None:
    assert toml.loads(BASE).transform.window.kind == "session"


@pytest.mark.parametrize(("changes", "lines"), CASES)
def test_exact_message(changes: list[tuple[str, str]], lines: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        toml.loads(edited(changes), "p.toml", env={})
    assert list(raised.value.problems) == [f"p.toml: {line}" for line in lines]


def test_all_mistakes_come_at_once() -> None:
    changes = [
        ('gap_ms = "30s"', "gap_ms = 0"),
        ('group_by = ["user"]', 'group_by = "user"'),
        ('[target]\nconnection = "lake"', '[target]\nconnection = "lkae"'),
        ('[state_store]\nkind = "files"\npath = "state"', ""),
    ]
    with pytest.raises(ConfigError) as raised:
        toml.loads(edited(changes), "p.toml")
    keys = [line.split(": ")[1] for line in raised.value.problems]
    assert keys == ["transform.window.gap_ms", "transform.window.group_by", "target.connection", "state_store"]


def test_python_says_the_same() -> None:
    with pytest.raises(ConfigError) as raised:
        Window(kind="session", gap_ms="30s", group_by="user", aggregations=[Aggregation(agg="count", as_="n")])
    assert raised.value.problems == (
        'Window: group_by: found "user", expected a list; write ["user"]',
        "Window: max_session_duration_ms: missing; a session window needs it: how long one session may grow",
    )
    with pytest.raises(ConfigError, match='Aggregation: column: missing; "sum" needs the column to aggregate'):
        Aggregation(agg="sum", as_="n")


def test_flush_needs_an_end() -> None:
    check_run_flags(True, True)
    with pytest.raises(
        ConfigError, match="--flush: needs --available-now: only bounded input has an end to flush at; add it"
    ):
        check_run_flags(False, True)


def test_a_missing_file() -> None:
    with pytest.raises(
        ConfigError, match=r"nowhere.toml: cannot be read \(No such file or directory\); expected a TOML file"
    ):
        toml.load("nowhere.toml")


def test_secrets_are_never_printed() -> None:
    text = edited([('name = "p"', 'name = "${TOKEN}"')])
    with pytest.raises(ConfigError) as raised:
        toml.loads(text, "p.toml", env={"TOKEN": "s3cret/value"})
    assert raised.value.problems == (
        'p.toml: name: found "${TOKEN}", expected letters, digits, ".", "_" and "-" (it names a directory)',
    )
