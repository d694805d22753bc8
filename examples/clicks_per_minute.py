"""Count clicks per minute and page in JSON-lines files with `page` and `ts`: python clicks_per_minute.py IN OUT STATE"""

import sys

import slackwater as sw


def pipeline(source: str, out: str, state: str) -> sw.Pipeline:
    """Build the pipeline without running it."""
    lake = sw.FilesConnection()
    return sw.pipeline(
        name="clicks-per-minute",
        source=sw.Source(
            name="clicks", connection=lake, query=source, format="json", schema="page STRING, ts TIMESTAMP"
        ),
        window=sw.Window(
            kind="tumbling",
            duration="1m",
            event_time_column="ts",
            lateness="10s",
            group_by=["page"],
            max_groups_per_window=10_000,
            aggregations=[sw.Aggregation(agg="count", as_="clicks")],
        ),
        target=lake,
        target_path=out,
        state_store=sw.StateStore(kind="files", path=state),
    )


if __name__ == "__main__":
    sw.run(pipeline(*sys.argv[1:4]), available_now=True, flush=True)
