import slackwater as sw

lake = sw.FilesConnection()
sw.run_streaming_pipeline(
    name="user-sessions",
    source=sw.Source(
        name="events",
        connection=lake,
        query="data/events/*.jsonl",
        format="json",
        schema="user_id STRING, page_url STRING, event_type STRING, ts TIMESTAMP",
    ),
    transform_sql="SELECT user_id, page_url, _event_ts FROM source WHERE event_type = 'click'",
    window=sw.Window(
        kind="session",
        gap="30m",
        max_session_duration="12h",
        event_time_column="ts",
        lateness="1m",
        group_by=["user_id"],
        aggregations=[
            sw.Aggregation(agg="count", as_="clicks"),
            sw.Aggregation(agg="count_distinct", column="page_url", as_="pages"),
        ],
    ),
    target=lake,
    target_path="out/python",
    state_store=sw.StateStore(kind="files", path="state/python"),
    available_now=True,
    flush=True,
)
