"""Documentation of each config key: one sentence, and the page and heading with the details.

The JSON Schema (`json_schema`) uses the sentences, and `slackwater check` prints the links.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from slackwater.config.connection import Connection
from slackwater.config.join import Join
from slackwater.config.pipeline import Pipeline
from slackwater.config.spec_base import Spec
from slackwater.config.stage import Stage, Transform
from slackwater.config.step_base import StepBase
from slackwater.config.window import Window

DocLink = str  # a page and one of its headings: "docs/configuration.md#windows"
_KEYS = "docs/configuration.md"

_TIMES = {
    "event_time_column": "The column that holds the event time, or a SQL expression over the row. Without it, Kafka records use their timestamp (`_event_ts`).",
    "event_time_unit": "The unit of integer event times, counted from 1970: seconds, milliseconds, microseconds or nanoseconds.",
    "event_time_zone": "The time zone (IANA name) of dates, TIMESTAMP_NTZ, and strings without an offset.",
    "time_mode": "`event` uses the time in the row, `processing` the clock at the time the row is read.",
    "lateness_ms": "How far rows may be out of order: the watermark stays this far behind the newest event time.",
    "source_idleness_ms": "A source that returns no rows for this long counts as idle and no longer holds the watermark back.",
    "idle_close_ms": "Once all sources have been quiet for this long, the watermark advances with the clock; off by default.",
    "max_future_ms": "Rows more than this far ahead of the clock are bad rows.",
    "max_jump_ms": "How far the newest event time of a source may jump before 100 rows confirm it; off by default.",
    "allowed_lateness_ms": 'With late_data = "reopen": how long a closed window can still be corrected.',
    "crash_recovery": "The required delivery guarantee. It is checked against the state store and the target.",
}

TEXTS: Mapping[type[Spec], Mapping[str, str]] = {
    Pipeline: {
        "name": "The name of the pipeline, its state and its files. It may contain letters, digits, `.`, `_` and `-`.",
        "formerly": "The previous name of the pipeline. The first start under the new name takes over its state.",
        "connections": "The systems to read from and write to, with their addresses, by name: [connections.<name>].",
        "sources": "The inputs of the pipeline: [[sources]].",
        "transform": "The SQL, and the window or join.",
        "stages": "Several stages instead of [transform]. Each reads sources or the output of stages above it: [[stages]].",
        "target": "Where results are written.",
        "targets": "Several targets instead of [target], each for the output of one stage.",
        "state_store": "Where open windows, offsets and watermarks are stored.",
        "dead_letter": 'Where bad rows (on_error = "dlq") and late rows (late_data = "dlq") are written.',
        "spark": 'Settings of the Spark session, in quotes: "spark.driver.memory" = "4g".',
        "trigger_interval_ms": "The interval at which the sources are polled; 0 means no pause.",
        "idle_pause_ms": "How often an idle pipeline checks its clock.",
    },
    Connection: {
        "kind": "The kind of system.",
        "bootstrap_servers": "The brokers of a Kafka cluster: host:port, separated by commas.",
        "options": "Settings of the client, storage or reader, by the names that it uses.",
        "schema_registry": "The URL of a Confluent-style registry, for Avro, JSON Schema and Protobuf payloads.",
        "url": "The URL, with user and password. Keep it out of the file: ${WAREHOUSE_URL}.",
        "catalog": "The kind of catalog (Iceberg).",
        "catalog_name": "The name of the catalog in PyIceberg (Iceberg). A SQL catalog stores its tables under this name.",
        "region": "The AWS region of the stream (Kinesis).",
        "endpoint": "An endpoint other than the default of the region (Kinesis).",
        "project": "The Google Cloud project, by name or number (Pub/Sub).",
        "location": "The region or zone (Pub/Sub).",
    },
    Transform: {
        "sql": "Row-wise SQL over the view `source`; it must select the columns that the window or join needs, and keep _event_ts. Without a window or join, it defines the results.",
        "on_error": "What to do with bad rows: stop the pipeline, drop and count them, or send them to [dead_letter].",
        "window": "A window over the rows.",
        "join": "A join of two sources, instead of a window.",
        "dedup": "One row of each key instead of a window; its duplicates are dropped.",
        "keyed": "A class of your own, with rows of state per key and timers.",
        "lookups": "Small tables that the SQL may join, by name: [transform.lookups.<name>].",
        "formerly": "The previous name of a renamed stage. The stage continues with the open windows stored under that name.",
    },
    Stage: {
        "name": "The name by which other stages refer to this stage.",
        "from": "What the stage reads: a source, a stage above it, or a list of them; by default, the stage directly above.",
    },
    Window: {
        **_TIMES,
        "kind": "The kind of window. tumbling: adjacent; hopping: overlapping; session: lasts as long as rows of a key arrive within the gap.",
        "duration_ms": "The length of a tumbling or hopping window.",
        "hop_ms": "The distance between the starts of hopping windows. A row may belong to at most 100,000 windows.",
        "offset_ms": "Shifts the starts of tumbling and hopping windows.",
        "gap_ms": "A session ends after this much time without rows of its key. May be a SQL expression over the row.",
        "max_session_duration_ms": "A session that would last this long or longer is cut.",
        "group_by": "The key columns, from the result of the SQL. A session needs at least one.",
        "late_data": "What happens to late rows: drop and count them, write dead letters, correct retained windows, or emit separate results.",
        "emit": "When a window is emitted. on_close: when it closes; final: once, when it can no longer change; updates: in every epoch that changes it.",
        "emit_interval_ms": 'With emit = "updates": the minimum time between two updates of a window.',
        "emit_metadata": "Adds _revision, _final_at and _emit_reason to the results.",
        "max_groups_per_window": "The maximum number of keys of a window (for sessions: keys open at once); 1,000,000 by default.",
        "on_state_cap": "What to do at the limit: stop the pipeline, or refuse and count rows of new keys.",
        "window_start_column": "The name of the column for the start of the window.",
        "window_end_column": "The name of the column for the end of the window.",
        "aggregations": "What is computed per window and key: [[transform.window.aggregations]].",
    },
    Join: {
        **_TIMES,
        "kind": "Which rows without a partner are emitted: none, those of one side, or those of both.",
        "left_source": "The source on the left side, by its name in [[sources]].",
        "right_source": "The source on the right side, by its name in [[sources]].",
        "left_keys": "The key columns of the left side, in order.",
        "right_keys": "The key columns of the right side, in the same order as left_keys.",
        "time_window_ms": "The maximum time between two partners, in either direction; inclusive.",
        "lower_ms": "Instead of time_window: the minimum of right.ts - left.ts; may be negative.",
        "upper_ms": "Instead of time_window: the maximum of right.ts - left.ts; may be negative.",
        "late_data": "What happens to late rows: drop and count them, write dead letters, or still join them for allowed_lateness.",
        "allowed_lateness_ms": 'With late_data = "reopen": how far behind the watermark a row may be and still be joined.',
        "left_sql": "Row-wise SQL over `source` for the left side.",
        "right_sql": "Row-wise SQL over `source` for the right side.",
        "output_left_columns": "The columns of the left side to emit, in order.",
        "output_right_columns": "The columns of the right side to emit, in order.",
        "left_prefix": "The prefix of the left columns in the output; may be empty.",
        "right_prefix": "The prefix of the right columns in the output; may be empty.",
        "event_time": "The _event_ts of a joined row: the later time of its two rows, or the time of one side.",
        "max_rows_per_key": "The maximum number of rows kept per key and side.",
        "on_state_cap": "What to do at the limit: stop the pipeline, or drop and count the oldest row.",
    },
}

_DOC_LINKS: Mapping[type[Spec], DocLink] = {
    Pipeline: f"{_KEYS}#the-pipeline",
    Connection: f"{_KEYS}#connections",
    Transform: f"{_KEYS}#transform",
    Stage: f"{_KEYS}#stages",
    Window: f"{_KEYS}#windows",
    Join: f"{_KEYS}#joins",
}


def iterate_specs(spec: type[Spec] = Pipeline) -> Iterator[type[Spec]]:
    """Yield a spec, and the specs of all tables that its keys contain."""
    yield spec
    for parse in spec.PARSERS.values():
        shape = getattr(parse, "shape", {})
        if "of" in shape:
            yield from iterate_specs(shape["of"])


def describe_config_key(spec: type[Spec], key: str) -> str:
    """Return the sentence that describes a key of a spec; "" if there is none.

    A stage inherits the sentences of a transform. A spec that this module does not list defines them in its `TEXTS`.
    """
    for cls in spec.__mro__:
        sentences = {**TEXTS.get(cls, {}), **vars(cls).get("TEXTS", {})}
        if key in sentences:
            return sentences[key]
    if issubclass(spec, StepBase) and key in _TIMES:
        return _TIMES[key]
    step = getattr(spec, "STEPS", {}).get(key)  # otherwise, the first line of the step's docstring
    return "" if step is None else (step.__doc__ or "").partition("\n")[0]


def doc_link(spec: type[Spec]) -> DocLink:
    """Return the link to the documentation of a spec's keys."""
    return getattr(spec, "DOC_LINK", None) or next(_DOC_LINKS[c] for c in spec.__mro__ if c in _DOC_LINKS)


def find_doc_link(key: str) -> DocLink:
    """Return the link to the documentation of a key, spelled as in errors: `stage.window.aggregations[0].as`.

    For an unknown key, this is the link of its table.
    """
    spec: type[Spec] = Pipeline
    steps = re.findall(r'"(?:[^"\\]|\\.)*"|[^.\[\]"]+|\[\d+\]', key)
    table = 0
    while table < len(steps):
        kind = spec.PARSERS.get(spec.ALIASES.get(steps[table], steps[table]))
        shape = getattr(kind, "shape", {})
        table += 1
        if "of" not in shape:
            break
        spec = shape["of"]
        if shape.get("type") == "array" or "named" in shape:
            table += 1  # skip the index or the name
    return doc_link(spec)
