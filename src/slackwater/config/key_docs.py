"""Documentation of each config key: one sentence, and the page and heading with the details.

The JSON Schema (`json_schema`) uses the sentences, `slackwater check` the links.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from slackwater.config.aggregation import Aggregation
from slackwater.config.connection import Connection
from slackwater.config.join import Join
from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Lookup, Source
from slackwater.config.spec import Spec
from slackwater.config.step_spec import StepSpec
from slackwater.config.target import StateStore, Target
from slackwater.config.transform import Stage, Transform
from slackwater.config.window import Window

DocLink = str  # a page and one of its headings: "docs/configuration.md#windows"
_KEYS = "docs/configuration.md"

_TIMES = {
    "event_time_column": "The column that holds the event time, or a SQL expression over the row. Kafka records have one of their own (`_event_ts`).",
    "event_time_unit": "The unit of integer event times since 1970: seconds, milliseconds, microseconds or nanoseconds.",
    "event_time_zone": "The zone of texts without one, dates and TIMESTAMP_NTZ: an IANA name.",
    "time_mode": "`event`: time is what the rows say; `processing`: time is the clock when they are read.",
    "lateness_ms": "How far rows may be out of order: the watermark stays this far behind the newest event time.",
    "source_idleness_ms": "After this much silence a source no longer holds the watermark of the others.",
    "idle_close_ms": "After this much silence on all sources the watermark runs on with the clock; off by default.",
    "max_future_ms": "Rows further than this ahead of the clock are bad rows.",
    "max_jump_ms": "How far a source's newest time may jump before 100 rows confirm it; off by default.",
    "allowed_lateness_ms": 'With late_data = "reopen": how long after its close a window may be corrected.',
    "crash_recovery": "The guarantee that is asked for; checked against the state store and the target.",
}

TEXTS: Mapping[type[Spec], Mapping[str, str]] = {
    Pipeline: {
        "name": "Names the pipeline, its state and its files: letters, digits, `.`, `_` and `-`.",
        "formerly": "The name that the pipeline had before: the first start under the new name takes over its state.",
        "connections": "Where systems are and how to reach them, by name: [connections.<name>].",
        "sources": "The streams of rows that are read: [[sources]].",
        "transform": "The SQL, and the window or the join.",
        "stages": "Several steps instead of [transform], each over sources or over what stages above it emit: [[stages]].",
        "target": "Where results go.",
        "targets": "Several targets, each with what one of the stages emits, instead of [target].",
        "state_store": "Where open windows, offsets and watermarks are kept.",
        "dead_letter": 'Where bad rows go under on_error = "dlq", and late ones under late_data = "dlq".',
        "spark": 'Settings of Spark\'s session, in quotes: "spark.driver.memory" = "4g".',
        "trigger_interval_ms": "The pause between two epochs; 0: back to back.",
        "idle_pause_ms": "How often an idle pipeline looks at its clock.",
    },
    Connection: {
        "kind": "Which system it is.",
        "bootstrap_servers": "The brokers of a Kafka cluster: host:port, several with commas.",
        "options": "Settings of the client, storage or reader, as it spells them.",
        "schema_registry": "The URL of a Confluent-style registry, for Avro, JSON Schema and Protobuf payloads.",
        "url": "The address with user and password; keep it out of the file: ${WAREHOUSE_URL}.",
        "catalog": "Kind of the catalog (Iceberg).",
        "catalog_name": "PyIceberg's name of the catalog (Iceberg). A SQL catalog keeps its tables under it.",
        "region": "The region of Kinesis.",
        "endpoint": "Another endpoint of Kinesis.",
        "project": "The project of Pub/Sub: its number or name.",
        "location": "The region or zone of Pub/Sub.",
    },
    Source: {
        "name": "What the source is called in joins, metrics and state; by default its query.",
        "connection": "The name of one of the [connections].",
        "query": 'What is read: a path or glob; a Kafka topic, several with commas, or "pattern:…"; a queue, stream or subscription.',
        "format": "The format of files.",
        "schema": "The columns and their types, as Spark's DDL: user_id STRING, ts TIMESTAMP. Inferred once if absent.",
        "options": "Options of the reader, as Spark spells them.",
        "max_files_per_trigger": "At most this many files per epoch, in the order of their modification times; of delta and iceberg in that of versions.",
        "payload_format": "How records and messages are decoded.",
        "avro_schema_file": "A file with the Avro schema of the payload.",
        "protobuf_schema_file": "A .proto file, or a descriptor set, with the message of the payload.",
        "protobuf_message": "The full name of the message; by default the first one of its file.",
        "starting_offsets": "Where a new pipeline begins: earliest, latest, or offsets by topic and partition.",
        "starting_version": "The version (Delta) or snapshot ID (Iceberg) whose rows a new pipeline reads first.",
        "on_rewrite": "What to do with versions that remove or rewrite rows (Delta, Iceberg): fail stops, skip passes them over.",
        "schema_changes": "What to do with new columns (Delta, Iceberg): fail stops, add passes them to joins and targets, ignore does not read them.",
        "max_offsets_per_trigger": "At most this many records per epoch.",
        "on_data_loss": "What to do if the offsets to go on from are gone: fail, or skip to what is there.",
        "commit_group": "A consumer group whose offsets are written, for tools that watch its lag.",
        "max_messages_per_trigger": "At most this many messages per epoch.",
        "lateness_ms": "Overrides the lateness of the window or join for this source.",
    },
    Transform: {
        "sql": "Row-wise SQL over the view `source`; what it selects is what the window sees; keep _event_ts. Without a window or join: what comes out.",
        "on_error": "Bad rows: stop the pipeline, drop and count them, or send them to [dead_letter].",
        "window": "A window over the rows.",
        "join": "A join of two sources, instead of a window.",
        "lookups": "Small tables that the SQL may join, by name: [transform.lookups.<name>].",
        "formerly": "The name of the stage in the state whose open windows this one goes on with, if it was renamed.",
    },
    Stage: {
        "name": "What the rows that the stage emits are called where other stages read them.",
        "from": "What it reads: a source, a stage above it, or a list of them; by default the stage above it.",
    },
    Lookup: {
        "connection": "The name of one of the [connections] of kind files.",
        "query": "A path or glob.",
        "format": "The format of the files; known from a suffix.",
        "schema": "The columns and their types, as Spark's DDL.",
        "options": "Options of the reader, as Spark spells them.",
        "refresh_interval_ms": "How often the files are looked at again.",
    },
    Window: {
        **_TIMES,
        "kind": "tumbling: side by side; hopping: overlapping; session: as long as rows of a key keep coming.",
        "duration_ms": "The length of a tumbling or hopping window.",
        "hop_ms": "The distance between the starts of hopping windows. One row is in at most 100,000 of them.",
        "offset_ms": "Shifts the starts of tumbling and hopping windows.",
        "gap_ms": "A silence longer than this ends a session; or SQL over the row that gives it.",
        "max_session_duration_ms": "No session grows beyond this.",
        "group_by": "The keys: columns that come out of the SQL. A session needs at least one.",
        "late_data": "Late rows: dropped and counted, dead letters, corrections of retained windows, or results of their own.",
        "emit": "on_close: when a window closes; final: once, when nothing can change it any more; updates: every epoch's changes.",
        "emit_interval_ms": 'With emit = "updates": at most one update of a window per this much time.',
        "emit_metadata": "Adds _revision, _final_at and _emit_reason to the results.",
        "max_groups_per_window": "A bound on the keys of a window (of sessions: open at once); 1,000,000 where it is not given.",
        "on_state_cap": "At that bound: stop the pipeline, or refuse rows of new keys and count them.",
        "window_start_column": "The name of the column with the window's start.",
        "window_end_column": "The name of the column with the window's end.",
        "aggregations": "What is computed per window and key: [[transform.window.aggregations]].",
    },
    Aggregation: {
        "agg": 'A built-in aggregation, or the import path of your own: "package.module:Class".',
        "column": "The column to aggregate; count without one counts rows.",
        "as": "The name of the output column.",
        "by": "The column that orders the rows (min_by, max_by).",
        "on_overflow": "What to do if the result does not fit its type (sum, avg): stop the pipeline, or give NULL.",
        "mode": "approximate (HLL), or exact with a limit (count_distinct).",
        "max_distinct_values_per_group": "A bound on the values kept per key, of exact count_distinct and top_k.",
        "max_values_per_group": "A bound on the values kept per key, of collect_set and collect_list.",
        "hll_precision": "4 to 18; each step doubles the memory (approximate count_distinct).",
        "quantile": "The quantile, from 0 to 1 (approx_quantile).",
        "k": "The number of values (top_k), or the accuracy (approx_quantile).",
        "columns": "Inputs of a custom aggregation, each with its column.",
        "options": "Arguments of the class of a custom aggregation.",
    },
    Join: {
        **_TIMES,
        "kind": "Which rows come out without a partner: none, those of one side, or of both.",
        "left_source": "The name of the one of the [[sources]] that is the left side.",
        "right_source": "The name of the one of the [[sources]] that is the right side.",
        "left_keys": "The columns of the left side that are compared, in order.",
        "right_keys": "The columns of the right side that are compared, in the same order.",
        "time_window_ms": "How far apart partners may be, either way; inclusive.",
        "lower_ms": "Instead of time_window: the least right.ts - left.ts; may be negative.",
        "upper_ms": "Instead of time_window: the greatest right.ts - left.ts.",
        "late_data": "Late rows: dropped and counted, dead letters, or joined for allowed_lateness.",
        "allowed_lateness_ms": 'With late_data = "reopen": how far behind the watermark rows are still joined.',
        "left_sql": "Row-wise SQL over `source` for the left side.",
        "right_sql": "Row-wise SQL over `source` for the right side.",
        "output_left_columns": "The columns of the left side that come out, in order.",
        "output_right_columns": "The columns of the right side that come out, in order.",
        "left_prefix": "Stands before the names of the left columns in the output; may be empty.",
        "right_prefix": "Stands before the names of the right columns in the output; may be empty.",
        "event_time": "_event_ts of a joined row: the later of both, or that of one side.",
        "max_rows_per_key": "A bound on the rows kept per key and side.",
        "on_state_cap": "At that bound: stop the pipeline, or drop the oldest row and count it.",
    },
    Target: {
        "name": "What the target is called in errors, commands and metrics; by default as its stage.",
        "from": "The stage whose results it gets; by default the last one.",
        "connection": "The name of one of the [connections].",
        "path": "The directory to write to (files, Delta).",
        "format": "Format of the files.",
        "table": "name or schema.name (Postgres), namespace.name (Iceberg). Created if it does not exist.",
        "topic": "The topic to write to (Kafka).",
        "mode": "merge replaces the rows of a window, append only adds rows (Delta, Iceberg).",
        "delivery": "exactly_once publishes in transactions (Kafka).",
        "value_format": "Encoding of the values (Kafka).",
        "create": "Whether a start creates a missing topic (Kafka); true by default.",
        "partitions": "Number of partitions of a topic that a start creates (Kafka); by default the broker's.",
        "key_columns": "Columns of the record's key (Kafka); by default the identity of a window.",
    },
    StateStore: {
        "kind": "A directory, a database, or gone with the process.",
        "path": "A directory, or s3://…, gs://…, abfss://… (files); the directory of Spark's checkpoints (Postgres).",
        "url": "URL of the database (Postgres). Keep the password out of the file: ${STATE_URL}.",
        "schema": "Schema of the tables (Postgres).",
        "checkpoint_interval_ms": "How long quiet times may stay uncommitted.",
        "shards": "How many parts the state is spread over; by default one per core; may change between runs.",
        "options": 'Of files in an object store: region, endpoint, access_key_id = "${KEY}", …, as obstore spells them.',
    },
}

_DOC_LINKS: Mapping[type[Spec], DocLink] = {
    Pipeline: f"{_KEYS}#the-pipeline",
    Connection: f"{_KEYS}#connections",
    Source: f"{_KEYS}#sources",
    Transform: f"{_KEYS}#transform",
    Stage: f"{_KEYS}#stages",
    Lookup: f"{_KEYS}#transform",
    Window: f"{_KEYS}#windows",
    Aggregation: f"{_KEYS}#aggregations",
    Join: f"{_KEYS}#joins",
    Target: f"{_KEYS}#target-and-dead-letters",
    StateStore: f"{_KEYS}#state-store",
}


def key_sentence(spec: type[Spec], key: str) -> str:
    """Return the sentence for a key. A stage inherits those of a transform; specs in other modules define their own."""
    for cls in spec.__mro__:
        sentences = {**TEXTS.get(cls, {}), **vars(cls).get("TEXTS", {})}
        if key in sentences:
            return sentences[key]
    if issubclass(spec, StepSpec) and key in _TIMES:
        return _TIMES[key]
    step = getattr(spec, "STEPS", {}).get(key)  # otherwise, the first line of the step's docstring
    return "" if step is None else (step.__doc__ or "").partition("\n")[0]


def doc_link(spec: type[Spec]) -> DocLink:
    """Return where the keys of a table are documented."""
    return getattr(spec, "DOC_LINK", None) or next(_DOC_LINKS[c] for c in spec.__mro__ if c in _DOC_LINKS)


def find_doc_link(key: str) -> DocLink:
    """Return where a key is documented. The key is spelled as in errors: `transform.window.aggregations[0].as`.

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
