"""Valid configs, every possible mistake in them, and the lines that report it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from slackwater.config.connector_description import CONNECTORS
from slackwater.config.custom_aggregator import Aggregator
from slackwater.config.stage import STEP
from slackwater.config.toml import loads
from slackwater.errors import ConfigError

BASE = """\
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
TUMBLING = BASE.replace(SHAPE, 'kind = "tumbling"\nduration_ms = "1m"\nmax_groups_per_window = 10\n')
HOPPING = BASE.replace(SHAPE, 'kind = "hopping"\nduration_ms = "1m"\nhop_ms = "10s"\nmax_groups_per_window = 10\n')
PROCESSING = BASE.replace('event_time_column = "ts"', 'time_mode = "processing"')
STORE = '[state_store]\nkind = "files"\npath = "state"\n'
COUNT = 'agg = "count"\nas = "events"\n'
DISTINCT = 'agg = "count_distinct"\ncolumn = "amount"\nas = "amounts"\n'
FORMAT = 'format = "json"\n'
LAKE = '[connections.lake]\nkind = "files"\n'
OUT = '[target]\nconnection = "lake"\npath = "out"\n'
WINDOW = "[transform.window]\n"
ALL_WINDOW = BASE[BASE.index(WINDOW) : BASE.index("[transform.lookups")]
SOURCES = BASE[BASE.index("[[sources]]") : BASE.index("[transform]\n")]
W, A = "transform.window", "transform.window.aggregations"
DURATION = 'a duration greater than 0 ("30s", "5m", "2h" or milliseconds)'
NOT_NEGATIVE = 'a duration of 0 or more ("30s", "5m", "2h" or milliseconds)'
NEVER = "complete mode is not supported, because a result that never closes would need all rows forever"
FORMATS = '"json" or "csv" or "parquet" or "text"'
KINDS = " or ".join(f'"{kind}"' for kind in CONNECTORS)
INJECTED = 'declares "_event_ts", a column that Slackwater adds itself; rename it, or use it with event_time_column = "_event_ts"'
NO_KEY = 'missing or empty; a session window needs at least one key, as in ["user_id"]'


class Mean(Aggregator):
    inputs: Mapping[str, str] = {"value": "double"}
    accumulators: Mapping[str, str] = {"n": "bigint", "total": "double"}
    output = "double"

    def lift(self, value: Any) -> Any:
        return {"n": value.is_not_null().cast(int), "total": value.fill_null(0)}

    def merge(self, n: Any, total: Any) -> Any:
        return {"n": n.sum(), "total": total.sum()}

    def finish(self, n: Any, total: Any) -> Any:
        return total / n


OWN = f'agg = "{__name__}:Mean"\ncolumns = {{ value = "amount" }}\nas = "x"\n'
# base config, old text, new text, reported lines
# fmt: off
CASES: list[tuple[str, ...]] = [
    # -- unknown keys
    (BASE, 'name = "p"', 'nam = "p"',
     'nam: unknown key; did you mean "name"?', "name: missing; give the pipeline a name"),
    (BASE, 'name = "p"\n', 'name = "p"\ntriger_interval_ms = 1\n', 'triger_interval_ms: unknown key; did you mean "trigger_interval_ms"?'),
    (BASE, FORMAT, 'fromat = "json"\n',
     'sources[0].fromat: unknown key; did you mean "format"?', f"sources[0].format: missing; expected {FORMATS}"),
    (BASE, "gap_ms", "gapp", f'{W}.gapp: unknown key; did you mean "gap"?',
     f"{W}.gap_ms: missing; a session window needs a gap, the time without rows after which a session ends, for example \"30m\""),
    (BASE, 'gap_ms = "30s"', 'gap_ms = "30s"\ngap = "30s"', f"{W}.gap: gap_ms is also set; remove one of them"),
    (BASE, 'gap_ms = "30s"', "gap = 30", f'{W}.gap: found 30, expected a duration with its unit ("30s", "5m", "2h"); gap_ms takes milliseconds'),
    (BASE, 'gap_ms = "30s"', 'gap = "0s"', f'{W}.gap: found "0s", expected a duration greater than 0 ("30s", "5m", "2h")'),
    (BASE, COUNT, COUNT + 'clumn = "x"\n', f'{A}[0].clumn: unknown key; did you mean "column"?'),
    (BASE, 'as = "ev', 'as_ = "ev', f'{A}[0].as_: unknown key; did you mean "as"?', f"{A}[0].as: missing; name the output column"),
    (BASE, OUT, OUT + 'pth = "x"\n', 'target.pth: unknown key; did you mean "path"?'),
    (BASE, OUT, OUT + '"pa th" = 1\n', 'target."pa th": unknown key; did you mean "path"?'),
    (BASE, OUT, OUT + "xyz = 1\n",
     "target.xyz: unknown key; expected one of connection, create, delivery, format, from, key_columns, mode, name, partitions, path, table, topic, value_format"),
    (BASE, 'path = "state"', 'pahts = "state"', 'state_store.pahts: unknown key; did you mean "path"?',
     'state_store.path: missing; a "files" store needs a directory, for example "state"'),
    (BASE, FORMAT, FORMAT + 'dataframe = "x"\n', "sources[0].dataframe: is available only in Python; give a connection, a query and a format"),
    # -- wrong types
    (BASE, '"30s"', "true", f"{W}.gap_ms: found true, expected {DURATION}"),
    (BASE, '"30s"', "1.5", f"{W}.gap_ms: found 1.5, expected {DURATION}"),
    (BASE, '"30s"', '"30 sek"', f'{W}.gap_ms: found "30 sek", expected {DURATION}'),
    (BASE, '"30s"', "0", f"{W}.gap_ms: found 0, expected {DURATION}"),
    (BASE, '"30s"', '"-5s"', f'{W}.gap_ms: found "-5s", expected {DURATION}'),
    (BASE, '"30s"', "2024-01-01", f"{W}.gap_ms: found 2024-01-01, expected {DURATION}"),
    (BASE, '"30s"', '"9999999999d"', f'{W}.gap_ms: found "9999999999d", expected a duration of at most 10000 years'),
    (TUMBLING, '"1m"', "0", f"{W}.duration_ms: found 0, expected {DURATION}"),
    (HOPPING, '"10s"', "-1", f"{W}.hop_ms: found -1, expected {DURATION}"),
    (BASE, WINDOW, WINDOW + "lateness_ms = -1\n", f"{W}.lateness_ms: found -1, expected {NOT_NEGATIVE}"),
    (BASE, FORMAT, FORMAT + 'lateness_ms = "-1s"\n', f'sources[0].lateness_ms: found "-1s", expected {NOT_NEGATIVE}'),
    (BASE, WINDOW, WINDOW + "idle_close_ms = 0\n", f"{W}.idle_close_ms: found 0, expected {DURATION}"),
    (BASE, WINDOW, WINDOW + 'idle_close_ms = "59s"\n',
     f"{W}.idle_close_ms: found 59s, expected at least source_idleness_ms (1m), because a source is idle only after that time"),
    (TUMBLING, WINDOW, WINDOW + 'idle_close_ms = 999\nsource_idleness_ms = "1s"\n',
     f"{W}.idle_close_ms: found 999ms, expected at least source_idleness_ms (1s), because a source is idle only after that time"),
    (BASE, WINDOW, WINDOW + 'idle_close_ms = 1\nsource_idleness_ms = "x"\n', f'{W}.source_idleness_ms: found "x", expected {DURATION}'),
    (BASE, '["user_id"]', '"user_id"', f'{W}.group_by: found "user_id", expected a list; write ["user_id"]'),
    (BASE, '["user_id"]', "[1]", f"{W}.group_by: found [1], expected a list of non-empty strings"),
    (BASE, 'path = "out"', "path = 1", "target.path: found 1, expected a non-empty string"),
    (BASE, 'path = "out"', 'path = ""', 'target.path: found "", expected a non-empty string'),
    (BASE, 'name = "p"', "name = 5", "name: found 5, expected a non-empty string"),
    (BASE, STORE, "[[state_store]]\n", "state_store: found [an empty table], expected a table"),
    (BASE, "[[sources]]", "[sources]", "sources: found a table, expected a list of sources ([[sources]])"),
    (BASE, WINDOW, WINDOW + 'emit_metadata = "no"\n', f'{W}.emit_metadata: found "no", expected true or false'),
    (BASE, FORMAT, FORMAT + 'options = ["a"]\n',
     'sources[0].options: found ["a"], expected a table of reader options ({ sep = ",", header = "true" })'),
    (BASE, FORMAT, FORMAT + "options = { sep = [1] }\n", "sources[0].options.sep: found [1], expected a string, a number, true or false"),
    (BASE, FORMAT, FORMAT + "max_files_per_trigger = 0\n", "sources[0].max_files_per_trigger: found 0, expected a whole number of at least 1"),
    (BASE, STORE, STORE + "shards = 0\n", "state_store.shards: found 0, expected a whole number of at least 1 and at most 4096"),
    (BASE, DISTINCT, DISTINCT + "hll_precision = 3\n", f"{A}[1].hll_precision: found 3, expected a whole number of at least 4 and at most 18"),
    # -- choices
    (BASE, FORMAT, 'format = "jsn"\n', f'sources[0].format: found "jsn", expected {FORMATS}; did you mean "json"?'),
    (BASE, FORMAT, 'format = "avro"\n', f'sources[0].format: found "avro", expected {FORMATS}'),
    (BASE, FORMAT, "", f"sources[0].format: missing; expected {FORMATS}"),
    (BASE, '"fail"', '"ignore"', 'transform.on_error: found "ignore", expected "fail" or "drop" or "dlq"'),
    (BASE, 'agg = "count"\n', 'agg = "cont"\n', f'{A}[0].agg: found "cont", expected "count" or "sum" or "min" or "max" or "avg" '
     'or "first" or "last" or "count_distinct" or "stddev" or "var" or "approx_quantile" or "top_k" or "collect_set" or "collect_list" or "min_by" '
     'or "max_by" or the import path of a class ("package.module:Class"); did you mean "count"?'),
    (BASE, '"session"', '"sesion"', f'{W}.kind: found "sesion", expected "tumbling" or "hopping" or "session"; did you mean "session"?'),
    (BASE, 'kind = "session"\n', "", f'{W}.kind: missing; expected "tumbling" or "hopping" or "session"'),
    (BASE, WINDOW, WINDOW + 'event_time_unit = "min"\n', f'{W}.event_time_unit: found "min", expected "s" or "ms" or "us" or "ns"'),
    # -- the shape of windows
    (HOPPING, '"10s"', '"2m"', f"{W}.hop_ms: found 2m, expected at most duration_ms (1m), because rows between windows would otherwise be lost"),
    (HOPPING, '"1m"\nhop_ms = "10s"', '"1d"\nhop_ms = 1', f"{W}.hop_ms: found 1ms, expected at least 864ms, because each row would otherwise be in "
     "86,400,000 windows (duration_ms / hop_ms), but at most 100,000 are supported"),
    (HOPPING, WINDOW, WINDOW + 'offset_ms = "10s"\n', f"{W}.offset_ms: found 10s, expected less than hop_ms (10s) in either direction"),
    (TUMBLING, WINDOW, WINDOW + 'offset_ms = "-1m"\n', f"{W}.offset_ms: found -1m, expected less than duration_ms (1m) in either direction"),
    (TUMBLING, WINDOW, WINDOW + 'gap_ms = "5s"\n', f'{W}.gap_ms: applies only to session windows, but this one is "tumbling"; remove it'),
    (TUMBLING, WINDOW, WINDOW + 'hop_ms = "5s"\n', f'{W}.hop_ms: applies only to hopping windows, but this one is "tumbling"; remove it'),
    (HOPPING, WINDOW, WINDOW + "max_session_duration_ms = 1\n",
     f'{W}.max_session_duration_ms: applies only to session windows, but this one is "hopping"; remove it'),
    (BASE, WINDOW, WINDOW + 'duration_ms = "1m"\n', f'{W}.duration_ms: applies only to tumbling and hopping windows, but this one is "session"; remove it'),
    (BASE, WINDOW, WINDOW + "offset_ms = 1\n", f'{W}.offset_ms: applies only to tumbling and hopping windows, but this one is "session"; remove it'),
    (BASE, 'gap_ms = "30s"\n', "", f"{W}.gap_ms: missing; a session window needs a gap, the time without rows after which a session ends, for example \"30m\""),
    (BASE, 'max_session_duration_ms = "2h"\n', "", f"{W}.max_session_duration_ms: missing; a session window needs a limit on its length, for example \"12h\""),
    (BASE, '"2h"', '"30s"', f"{W}.max_session_duration_ms: found 30s, expected more than gap_ms (30s)"),
    (BASE, '["user_id"]', "[]", f"{W}.group_by: {NO_KEY}"),
    (BASE, 'group_by = ["user_id"]\n', "", f"{W}.group_by: {NO_KEY}"),
    (HOPPING, 'hop_ms = "10s"\n', "", f'{W}.hop_ms: missing; a hopping window needs the interval between window starts, for example "10s"'),
    (TUMBLING, 'duration_ms = "1m"\n', "", f'{W}.duration: missing; a tumbling window needs a length, for example "1m"'),
    # -- aggregations
    (BASE, COUNT, 'agg = "count"\n', f"{A}[0].as: missing; name the output column"),
    (BASE, COUNT, 'agg = "sum"\nas = "n"\n', f'{A}[0].column: missing; "sum" needs a column to aggregate'),
    (BASE, COUNT, 'agg = "count_col"\nas = "n"\n', f'{A}[0].column: missing; "count_col" needs a column to count'),
    (BASE, COUNT, COUNT + 'output_name = "n"\n', f'{A}[0].output_name: is the old name of the key "as", which is also set; remove the old key'),
    (BASE, COUNT, 'kind = "count"\noutput_name = 1\n', f"{A}[0].output_name: found 1, expected a non-empty string"),
    (BASE, COUNT, COUNT + "max_distinct_values_per_group = 5\n",
     f'{A}[0].max_distinct_values_per_group: applies only to "count_distinct" and "top_k", not to "count"; remove it'),
    (BASE, COUNT, 'agg = "sum"\ncolumn = "x"\nmode = "exact"\nas = "n"\n', f'{A}[0].mode: applies only to "count_distinct", not to "sum"; remove it'),
    (BASE, DISTINCT, DISTINCT + 'mode = "exact"\n',
     f'{A}[1].max_distinct_values_per_group: missing; mode = "exact" needs a limit; set one, or use mode = "approximate"'),
    (BASE, DISTINCT, DISTINCT + "max_distinct_values_per_group = 5\n",
     f'{A}[1].max_distinct_values_per_group: applies only to mode = "exact"; set that mode, or remove the limit'),
    (BASE, f"[[{A}]]\n{COUNT}[[{A}]]\n{DISTINCT}", "", f"{A}: missing; a window needs at least one aggregation ([[{A}]])"),
    (BASE, COUNT, 'agg = "stddev"\nas = "x"\n', f'{A}[0].column: missing; "stddev" needs a column to aggregate'),
    (BASE, DISTINCT, 'agg = "min_by"\ncolumn = "amount"\nas = "x"\n', f'{A}[1].by: missing; "min_by" needs the column that orders the rows'),
    (BASE, DISTINCT, DISTINCT + 'by = "ts"\n', f'{A}[1].by: applies only to "min_by" and "max_by", not to "count_distinct"; remove it'),
    (BASE, DISTINCT, 'agg = "approx_quantile"\ncolumn = "amount"\nas = "x"\n',
     f'{A}[1].quantile: missing; "approx_quantile" needs the quantile, for example 0.95'),
    (BASE, DISTINCT, 'agg = "approx_quantile"\ncolumn = "amount"\nas = "x"\nquantile = 1.5\n',
     f"{A}[1].quantile: found 1.5, expected a number from 0 to 1"),
    (BASE, DISTINCT, 'agg = "approx_quantile"\ncolumn = "amount"\nas = "x"\nquantile = 1\nk = 7\n',
     f"{A}[1].k: found 7, expected a whole number of at least 8 and at most 65535"),
    (BASE, DISTINCT, 'agg = "top_k"\ncolumn = "amount"\nas = "x"\n', f'{A}[1].k: missing; "top_k" needs the number of values, for example 10',
     f'{A}[1].max_distinct_values_per_group: missing; "top_k" stores every distinct value, so it needs a limit, for example 10000'),
    (BASE, DISTINCT, 'agg = "collect_list"\ncolumn = "amount"\nas = "x"\n',
     f'{A}[1].max_values_per_group: missing; "collect_list" needs a limit, for example 1000'),
    (BASE, COUNT, COUNT + "max_values_per_group = 5\n",
     f'{A}[0].max_values_per_group: applies only to "collect_set" and "collect_list", not to "count"; remove it'),
    (BASE, COUNT, COUNT + "columns = { value = 'x' }\n", f'{A}[0].columns: applies only to custom aggregations, not to "count"; remove it'),
    # -- custom aggregations
    (BASE, COUNT, 'agg = "no_such_module:X"\nas = "x"\n', f'{A}[0].agg: module "no_such_module" cannot be imported '
     "(ModuleNotFoundError: No module named 'no_such_module'); put the module on PYTHONPATH, or in the working directory"),
    (BASE, COUNT, OWN.replace("Mean", "Maen"), f'{A}[0].agg: module "{__name__}" has no "Maen"; did you mean "Mean"?'),
    (BASE, COUNT, OWN.replace("Mean", "replace_text"), f'{A}[0].agg: "{__name__}:replace_text" is a function, expected a class derived from slackwater.Aggregator'),
    (BASE, COUNT, OWN.replace("Mean", "Mapping"), f'{A}[0].agg: "{__name__}:Mapping" is the class Mapping, expected a class derived from slackwater.Aggregator'),
    (BASE, COUNT, OWN + "options = { k = 3 }\n", f"{A}[0].options: Mean does not accept these options (TypeError: Mean() takes no arguments)"),
    (BASE, COUNT, OWN + "options = 3\n", f"{A}[0].options: found 3, expected a table of arguments for the class ({{ k = 3 }})"),
    (BASE, COUNT, OWN.replace("{ value", "{ valeu"), f'{A}[0].columns: "valeu" is not an input of Mean; did you mean "value"?',
     f'{A}[0].columns: found no column for "value", expected a column for each input of Mean, as in {{ value = "price" }}'),
    (BASE, COUNT, OWN.replace('{ value = "amount" }', '"amount"'),
     f'{A}[0].columns: found "amount", expected a table of column names ({{ value = "price", weight = "quantity" }})'),
    (BASE, COUNT, OWN + 'column = "amount"\n', f'{A}[0].column: applies only to built-in aggregations, but this one is custom; name its input columns in the key "columns" instead'),
    (BASE, COUNT, OWN + "k = 3\n", f'{A}[0].k: applies only to built-in aggregations, but this one is custom; give its arguments in the key "options" instead'),
    # -- names
    (BASE, 'name = "p"', 'name = "a/b"', 'name: found "a/b", expected only letters, digits, ".", "_" and "-", because it names a directory'),
    (BASE, '"amounts"', '"events"', f'{A}[1].as: "events" is already the name of the result of aggregations[0]; choose another name'),
    (BASE, '"events"\n[[', '"user_id"\n[[', f'{A}[0].as: "user_id" is already the name of a key; choose another name'),
    (BASE, '"events"\n[[', '"window_end"\n[[', f'{A}[0].as: "window_end" is already the name of the column with the window end; choose another name'),
    (BASE, '"events"\n[[', '"session_id"\n[[', f'{A}[0].as: "session_id" is already the name of the column with the session ID; choose another name'),
    (BASE, '["user_id"]', '["user_id", "user_id"]', f'{W}.group_by: "user_id" is listed 2 times; list it once'),
    (BASE, '["user_id"]', '["user_id", "window_start"]',
     f'{W}.group_by: "window_start" is already the name of the column with the window start; rename the column in the SQL'),
    (BASE, WINDOW, WINDOW + 'window_start_column = "session_id"\n',
     f'{W}.window_start_column: "session_id" is the name of the column with the session ID; choose another name'),
    (BASE, WINDOW, WINDOW + 'window_start_column = "window_end"\n',
     f'{W}.window_end_column: found "window_end", expected a name other than that of window_start_column'),
    (BASE, "ts TIMESTAMP", "ts TIMESTAMP, TS STRING",
     'sources[0].schema: column "ts" is declared twice (Spark ignores the case of names); declare it once'),
    # -- the event time
    (BASE, "ts TIMESTAMP", "ts TIMESTAMP, _event_ts TIMESTAMP", f"sources[0].schema: {INJECTED}"),
    (BASE, '"events"\n[[', '"_event_ts"\n[[', f'{A}[0].as: "_event_ts" is reserved for the event time; choose another name'),
    (BASE, '["user_id"]', '["_event_ts"]', f'{W}.group_by: "_event_ts" is the event time, which cannot be a key; remove it'),
    (BASE, WINDOW, WINDOW + 'window_start_column = "_event_ts"\n', f'{W}.window_start_column: "_event_ts" is reserved for the event time; choose another name'),
    (BASE, 'event_time_column = "ts"\n', "", f'{W}.event_time_column: missing; source "events" reads files, whose rows have no default event time; '
     "name the column that contains the event time, or give a SQL expression"),
    (BASE, WINDOW, WINDOW + 'time_mode = "processing"\n',
     f'{W}.event_time_column: cannot be combined with time_mode = "processing", which uses the clock as the event time; remove one of them'),
    (PROCESSING, WINDOW, WINDOW + 'event_time_unit = "s"\n',
     f'{W}.event_time_unit: cannot be combined with time_mode = "processing", which uses the clock as the event time; remove one of them'),
    # -- missing parts, and names of parts
    (BASE, SOURCES, "", "sources: missing; define at least one source in [[sources]]"),
    ("sources = []\n" + BASE.replace(SOURCES, ""), "sources", "sources", "sources: empty; define at least one source in [[sources]]"),
    (BASE, OUT, "", "target: missing; define the destination of the results in [target]"),
    (BASE, ALL_WINDOW, "", f"{W}: missing; {STEP}"),
    (BASE, STORE, "", 'state_store: missing; a session window needs a state store, for example [state_store] with kind = "files" and path = "state"'),
    (BASE, "[transform]\n", SOURCES.replace("ts TIMESTAMP", "_event_ts TIMESTAMP") + "[transform]\n",
     'sources: 2 sources are called "events"; give each source a unique name', f"sources[1].schema: {INJECTED}"),
    (BASE, "lookups.users", "lookups.source", "transform.lookups.source: is reserved for the input rows in SQL; choose another name"),
    (BASE, "lookups.users", "lookups.my-users",
     'transform.lookups.my-users: found "my-users", expected a name of letters, digits and "_" that does not begin with a digit'),
    (BASE, "[target]", '[transform.lookups.Users]\nconnection = "lake"\nquery = "u.csv"\n[target]',
     'transform.lookups.Users: is equal to "users" in SQL, which ignores case; choose another name'),
    (BASE, '"lake"\nquery = "users.parquet"', '"lke"\nquery = "users"',
     f'transform.lookups.users.format: missing, and "users" has no known file extension; expected {FORMATS}'),
    # -- references
    (BASE, '"lake"\nquery = "in', '"lak"\nquery = "in', 'sources[0].connection: found "lak", which is not a connection; did you mean "lake"?'),
    (BASE, '"lake"\nquery = "in', '"screen"\nquery = "in', 'sources[0].connection: "screen" is of kind "console", but '
     'sources need a connection of kind "files" or "kafka" or "delta" or "iceberg" or "rabbitmq" or "kinesis" or "pubsub"; choose another connection'),
    (BASE, '[target]\nconnection = "lake"', '[target]\nconnection = "leak"',
     'target.connection: found "leak", which is not a connection; did you mean "lake"?'),
    (BASE, '"lake"\nquery = "users', '"lakes"\nquery = "users',
     'transform.lookups.users.connection: found "lakes", which is not a connection; did you mean "lake"?'),
    (BASE, "[connections.lake]", "[connections.sea]", *(f'{key}.connection: found "lake", which is not a connection; expected one of screen, sea'
     for key in ("sources[0]", "transform.lookups.users", "target"))),
    (BASE, LAKE + '[connections.screen]\nkind = "console"\n', "",
     *(f'{key}.connection: found "lake", which is not a connection; define it in [connections.<name>]'
       for key in ("sources[0]", "transform.lookups.users", "target"))),
    (BASE, LAKE, "[connections.lake]\n", f"connections.lake.kind: missing; expected {KINDS}"),
    (BASE, LAKE, '[connections.lake]\nkind = ["files"]\n', f'connections.lake.kind: found ["files"], expected {KINDS}'),
    (BASE, LAKE, '[connections.lake]\nkind = "fils"\n', 'connections.lake.kind: found "fils", which is not a kind of connection; did you mean "files"?'),
    (BASE, LAKE, '[connections.lake]\nkind = "redis"\n', "connections.lake.kind: found \"redis\", which is not a kind of connection; expected one of "
     "console, delta, files, iceberg, kafka, kinesis, postgres, pubsub, rabbitmq"),
    (BASE, LAKE, LAKE + 'host = "x"\n', "connections.lake.host: unknown key; expected one of kind, options"),
    (BASE, LAKE, '[connections]\nlake = "files"\n', 'connections.lake: found "files", expected a connection (kind = "files", "kafka", …)'),
    # -- not supported, not available yet
    (BASE, WINDOW, WINDOW + 'mode = "complete"\n', f'{W}.mode: {NEVER}; remove this key (emit = "on_close" is the default)'),
    (BASE, WINDOW, WINDOW + 'output_mode = "complete"\n', f'{W}.output_mode: {NEVER}; remove this key (emit = "on_close" is the default)'),
    (BASE, WINDOW, WINDOW + 'emit = "complete"\n', f'{W}.emit: {NEVER}; use emit = "on_close"'),
    (BASE, 'kind = "session"', 'kind = "complete"', f'{W}.kind: {NEVER}; use kind = "tumbling"'),
    (BASE, 'kind = "session"', 'kind = "sliding"',
     f'{W}.kind: sliding (per-row) windows are not supported; use kind = "hopping" with a small hop'),
    (BASE, WINDOW, WINDOW + 'allowed_lateness_ms = "1h"\n',
     f'{W}.allowed_lateness_ms: needs late_data = "reopen"; set it, or raise lateness_ms to wait longer for late rows'),
    (BASE, WINDOW, WINDOW + 'late_data = "dlp"\n', f'{W}.late_data: found "dlp", expected "drop" or "dlq" or "reopen" or "standalone"; did you mean "dlq"?'),
    (BASE, WINDOW, WINDOW + 'late_data = "dlq"\n',
     'dead_letter: missing, but required by late_data = "dlq"; define [dead_letter] with a connection and a path, table or topic'),
    (BASE, WINDOW, WINDOW + 'late_data = "standalone"\n',
     f'{W}.late_data: "standalone" emits separate results for late rows; set emit_metadata = true, so that the column _emit_reason distinguishes them from the other results'),
    (BASE, WINDOW, WINDOW + 'emit = "sometimes"\n', f'{W}.emit: found "sometimes", expected "on_close" or "final" or "updates"'),
    (BASE, WINDOW + SHAPE, WINDOW + SHAPE + 'emit_metadata = true\nwindow_end_column = "_final_at"\n',
     f'{W}.window_end_column: "_final_at" is a column that emit_metadata adds; choose another name'),
    (BASE, WINDOW, WINDOW + 'emit = "final"\nemit_interval_ms = "1s"\n',
     f'{W}.emit_interval_ms: applies only to emit = "updates", because other windows are emitted when they close; set it, or remove this key'),
    (BASE, WINDOW, WINDOW + 'emit_interval_ms = "1s"\n',
     f'{W}.emit_interval_ms: applies only to emit = "updates", because other windows are emitted when they close; set it, or remove this key'),
    (BASE, WINDOW, WINDOW + 'on_state_cap = "backpressure"\n',
     f'{W}.on_state_cap: "backpressure" is not available yet; use "fail" or "drop_new_groups"'),
    (BASE, '"30s"', '"30 sec * 2"', f'{W}.gap_ms: found "30 sec * 2", expected {DURATION}'),
    (BASE, "[target]\n", '[[stages]]\nname = "x"\n[target]\n',
     f"stages[0].window: missing; {STEP.replace('transform', 'stages')}",
     "stages: cannot be combined with [transform]; a pipeline has either [transform] or [[stages]]; remove one of them",
     "stages: found 1 stage, expected at least 2 stages; write a single stage as [transform]"),
    # -- the environment, and TOML
    (BASE, 'path = "out"', 'path = "${DIR}/out"', "target.path: environment variable DIR is not set; set it, or write $${DIR} for the literal text ${DIR}"),
    (BASE, 'name = "p"\n', "name = = 5\n", "is not valid TOML: Invalid value (at line 1, column 8)"),
    (BASE, 'path = "state"\n', 'path = ["state"\n', "is not valid TOML: Unclosed array (at end of document)"),
]


def expect_config_problems(content: str, **env: str) -> list[str]:
    """Return the lines that report an invalid config, without the file name."""
    with pytest.raises(ConfigError) as caught:
        loads(content, "p.toml", env)
    assert all(line.startswith("p.toml: ") and "\n" not in line for line in caught.value.problems)
    return [line.removeprefix("p.toml: ") for line in caught.value.problems]


def replace_text(base: str, old: str, new: str) -> str:
    assert old in base, f"{old!r} is not in the base config"
    return base.replace(old, new, 1)


def format_case_id(case: tuple[str, ...]) -> str:
    return case[3].split(";")[0]
