"""Complete configs that tests of several packages use."""

from __future__ import annotations

ISSUE = '''
name = "user-sessions"

[connections.lake]
kind = "files"

[[sources]]
name = "events"                      # default: the query
connection = "lake"
query = "data/events/*.jsonl"        # for files: a path or glob; for Kafka: a topic
format = "json"                      # json | csv | parquet | text (gz read as Spark reads it)
schema = "user_id STRING, amount DOUBLE, page_url STRING, event_type STRING, ts TIMESTAMP"
options = {}                         # reader options, e.g. { sep = " ", header = "true" }
max_files_per_trigger = 1
# lateness_ms = 5000                 # per-source override

[transform]
on_error = "fail"                    # | "drop"
sql = """
  SELECT user_id, amount, page_url, _event_ts FROM source WHERE event_type = 'click'
"""

[transform.window]
kind                     = "session"   # "tumbling" (duration_ms) | "hopping" (duration_ms, hop_ms), both with offset_ms
gap_ms                   = 30000       # any *_ms also takes "30s", "5m", "2h"
max_session_duration_ms  = 7200000
event_time_column        = "ts"        # a source column or an SQL expression over source columns; default "_event_ts"
time_mode                = "event"     # | "processing"
lateness_ms              = 30000
source_idleness_ms       = 60000
group_by                 = ["user_id"]
late_data                = "drop"
max_groups_per_window    = 1000000
on_state_cap             = "fail"      # | "drop_new_groups"
window_start_column      = "window_start"
window_end_column        = "window_end"
crash_recovery           = "persisted"

[[transform.window.aggregations]]
agg = "count"
as  = "events"

[[transform.window.aggregations]]
agg    = "count_distinct"
column = "page_url"
mode   = "approximate"                 # "exact" needs max_distinct_values_per_group
as     = "unique_pages"

[transform.lookups.users]              # joined in the SQL as `users`; re-read every refresh_interval_ms
connection = "lake"
query = "data/users.parquet"
refresh_interval_ms = 60000

[target]
connection = "lake"
path = "out/sessions"
format = "parquet"                     # parquet | json | csv; also a connection of kind "console"

[state_store]
kind = "files"                         # | "in_memory" (loud warning)
path = "state"
checkpoint_interval_ms = 60000
'''
