"""A valid join config, and every mistake in it with the error lines that report it."""

from __future__ import annotations

from slackwater.config.stage import STEP

ISSUE = """\
name = "orders-payments"
[connections.kafka_prod]
kind = "kafka"
bootstrap_servers = "${KAFKA}"
[connections.warehouse]
kind = "postgres"
url = "${WAREHOUSE_URL}"
[[sources]]
name = "orders"
connection = "kafka_prod"
query = "orders"
[[sources]]
name = "payments"
connection = "kafka_prod"
query = "payments"
[transform.join]
kind = "stream_stream_join"
left_source = "orders"
right_source = "payments"
left_keys = ["order_id"]
right_keys = ["order_id"]
time_window_ms = 300000
event_time_column = "_event_ts"
lateness_ms = 10000
source_idleness_ms = 60000
late_data = "drop"
[target]
connection = "warehouse"
table = "public.paid_orders"
[state_store]
kind = "postgres"
url = "${STATE_URL}"
"""
J = "transform.join"
JOIN = f"[{J}]\n"
BOUNDS = "time_window_ms = 300000\n"
PAYMENTS = '[[sources]]\nname = "payments"\nconnection = "kafka_prod"\nquery = "payments"\n'
STORE = ISSUE[ISSUE.index("[state_store]") :]
ALL_JOIN = ISSUE[ISSUE.index(JOIN) : ISSUE.index("[target]")]
TARGET = '[target]\nconnection = "warehouse"\ntable = "public.paid_orders"\n'
LAKE = '[connections.lake]\nkind = "delta"\n'
LETTERS = '[dead_letter]\nconnection = "warehouse"\ntable = "letters"\n'
WINDOW = """[transform.window]
kind = "tumbling"
duration_ms = "1m"
max_groups_per_window = 5
[[transform.window.aggregations]]
agg = "count"
as = "n"
"""
DURATION = '"30s", "5m", "2h" or milliseconds'


def make_invalid_join_config(old: str, new: str, base: str = ISSUE) -> str:
    assert old in base, f"{old!r} is not in the base config"
    return base.replace(old, new, 1)


ADVICE = "choose another prefix, or list the columns to emit"
# fmt: off
CASES: list[tuple[str, str, *tuple[str, ...]]] = [  # old text, new text, expected error lines
    ('kind = "stream_stream_join"', 'kind = "iner"', f'{J}.kind: found "iner", expected "stream_stream_join" or "inner" or "left" or "right" or "full" '
     'or "left_outer" or "right_outer" or "full_outer"; did you mean "inner"?'),
    ('kind = "stream_stream_join"\n', "", f'{J}.kind: missing; expected "inner" or "left" or "right" or "full"'),
    ('kind = "stream_stream_join"', 'how = "left"', f'{J}.how: unknown key; did you mean "kind"?', f'{J}.kind: missing; expected "inner" or "left" or "right" or "full"'),
    # -- sides
    ('left_source = "orders"\n', "", f"{J}.left_source: missing; name the source of the left side"),
    ('left_source = "orders"', 'left_source = "ordres"', f'{J}.left_source: found "ordres", which is not a source; did you mean "orders"?'),
    ('right_source = "payments"', 'right_source = "zz"', f'{J}.right_source: found "zz", which is not a source; expected one of orders, payments'),
    ('right_source = "payments"', 'right_source = "orders"',
     f'{J}.right_source: found "orders", which is also left_source; for a self-join, define two [[sources]] with the same query and different names'),
    (PAYMENTS, "", "sources: found 1 source, expected 2 sources: one for left_source and one for right_source"),
    (PAYMENTS, PAYMENTS + PAYMENTS.replace("payments", "refunds"),
     'sources[2]: "refunds" is neither left_source nor right_source of the join; remove this source, or read it in another pipeline'),
    # -- keys
    ('left_keys = ["order_id"]', "left_keys = []", f'{J}.left_keys: empty; a join needs at least one key, as in ["order_id"]'),
    ('right_keys = ["order_id"]\n', "", f'{J}.right_keys: missing; name the right columns to compare, as in ["order_id"]'),
    ('right_keys = ["order_id"]', 'right_keys = "order_id"', f'{J}.right_keys: found "order_id", expected a list; write ["order_id"]'),
    ('right_keys = ["order_id"]', 'right_keys = ["order_id", "line"]',
     f'{J}.right_keys: found ["order_id", "line"], expected one key for each of left_keys (["order_id"]), because keys are compared in order'),
    ('left_keys = ["order_id"]', 'left_keys = ["_event_ts"]', f'{J}.left_keys: "_event_ts" is the event time, which cannot be a key, because the time bounds compare it; remove it from the keys'),
    # -- bounds
    (BOUNDS, "", f'{J}.time_window_ms: missing; set the maximum time between matching rows, for example "5m", '
     "or set lower_ms and upper_ms, the bounds of right.ts - left.ts, where ts is the event time"),
    (BOUNDS, BOUNDS + "lower_ms = 0\nupper_ms = 5\n",
     f"{J}.time_window_ms: cannot be combined with lower_ms and upper_ms, because this key sets both bounds; remove either this key or lower_ms and upper_ms"),
    (BOUNDS, BOUNDS + "lower_ms = 0\n", f"{J}.time_window_ms: cannot be combined with lower_ms, because this key sets both bounds; remove either this key or lower_ms"),
    (BOUNDS, "lower_ms = 0\n", f"{J}.upper_ms: missing; lower_ms is set, but a join needs both bounds: lower_ms <= right.ts - left.ts <= upper_ms"),
    (BOUNDS, "upper_ms = 0\n", f"{J}.lower_ms: missing; upper_ms is set, but a join needs both bounds: lower_ms <= right.ts - left.ts <= upper_ms"),
    (BOUNDS, 'lower_ms = "5m"\nupper_ms = "-1m"\n', f"{J}.lower_ms: found 5m, expected at most upper_ms (-1m), because otherwise no rows can match"),
    (BOUNDS, 'lower_ms = "x"\n', f'{J}.lower_ms: found "x", expected a duration ({DURATION})',
     f"{J}.upper_ms: missing; lower_ms is set, but a join needs both bounds: lower_ms <= right.ts - left.ts <= upper_ms"),
    (BOUNDS, "time_window_ms = -1\n", f"{J}.time_window_ms: found -1, expected a duration of 0 or more ({DURATION})"),
    # -- late rows, times
    (BOUNDS, BOUNDS + 'allowed_lateness_ms = "1h"\n', f'{J}.allowed_lateness_ms: needs late_data = "reopen"; set it, or raise lateness_ms to wait longer for late rows'),
    ('late_data = "drop"', 'late_data = "dlq"', 'dead_letter: missing, but required by late_data = "dlq"; define [dead_letter] with a connection and a path, table or topic'),
    ('late_data = "drop"', 'late_data = "standalone"', f'{J}.late_data: found "standalone", expected "drop" or "dlq" or "reopen"'),
    ("[target]", LETTERS + "[target]", 'dead_letter: unused, because on_error is "fail" and late_data is "drop"; set one of them to "dlq", or remove [dead_letter]'),
    (BOUNDS, BOUNDS + 'idle_close_ms = "1s"\n',
     f"{J}.idle_close_ms: found 1s, expected at least source_idleness_ms (1m), because a source is idle only after that time"),
    ('event_time_column = "_event_ts"', 'event_time_column = "ts"\ntime_mode = "processing"',
     f'{J}.event_time_column: cannot be combined with time_mode = "processing", which uses the clock as the event time; remove one of them'),
    # -- output
    (BOUNDS, BOUNDS + "left_prefix = 3\n", f"{J}.left_prefix: found 3, expected a string, which may be empty"),
    (BOUNDS, BOUNDS + 'output_left_columns = ["a", "a"]\n', f'{J}.output_left_columns: "a" is listed 2 times; list it once'),
    (BOUNDS, BOUNDS + 'output_left_columns = ["a", "b"]\noutput_right_columns = ["c", "B"]\nleft_prefix = "x"\nright_prefix = "x"\n',
     f'{J}.right_prefix: column "B" of the right side is emitted as "xB", which is already the output name of column "b" of the left side; {ADVICE}'),
    (BOUNDS, BOUNDS + 'output_left_columns = ["_event_ts"]\nleft_prefix = ""\n',
     f'{J}.left_prefix: column "_event_ts" of the left side is emitted as "_event_ts", which is already the output name of the event time; {ADVICE}'),
    (BOUNDS, BOUNDS + "max_rows_per_key = 0\n", f"{J}.max_rows_per_key: found 0, expected a whole number of at least 1"),
    (BOUNDS, BOUNDS + 'on_state_cap = "drop_new_groups"\n', f'{J}.on_state_cap: found "drop_new_groups", expected "fail" or "drop_oldest"'),
    # -- the rest of the pipeline
    (JOIN, WINDOW + JOIN, f"{J}: cannot be combined with [transform.window]; a stage has only one step; remove one of them"),
    (JOIN, '[transform]\nsql = "SELECT 1"\n' + JOIN, f"transform.sql: does not apply to a join, which has separate SQL for each side; use left_sql and right_sql in [{J}]"),
    (ALL_JOIN, "[transform]\n", f"transform.window: missing; {STEP}"),
    (ALL_JOIN, "", f"transform: missing; {STEP}"),
    ('name = "orders-payments"\n', 'name = "orders-payments"\njoin = {}\n', 'join: unknown key; did you mean "transform.join"?'),
    (STORE, "", 'state_store: missing; a join needs a state store, for example [state_store] with kind = "files" and path = "state"'),
    (BOUNDS, BOUNDS + 'crash_recovery = "kafka_eos"\n', f'{J}.crash_recovery: "kafka_eos" needs a kafka target with delivery = "exactly_once"; define such a target, or use "persisted"'),
    (TARGET, LAKE + '[target]\nconnection = "lake"\npath = "out"\nmode = "merge"\n',
     'target.mode: "merge" replaces rows with the same identity, but joined rows have no identity; use "append", which is the default for such rows'),
    (TARGET, TARGET + 'mode = "merge"\n', 'target.mode: applies only to connections of kind "delta" or "iceberg", but this one is "postgres"; remove it'),
]
