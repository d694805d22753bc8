"""Messages about sources, targets and services."""

from __future__ import annotations

from collections.abc import Sequence

from slackwater.messages.family import START, MessageFamily

SERVICES: Sequence[MessageFamily] = (
    MessageFamily(
        "`init` cannot use the sample",
        START,
        "The file or directory of `--sample` does not exist, holds no rows, or has no column that can be a time or a "
        "key.",
        "Pass another sample, or name the columns with `--time` and `--key`: [what `init` infers from a "
        "sample](first-day.md#what-init-infers-from-a-sample).",
        ("--sample", "--time: ", "--key: .* is not a column", "found no valid config"),
    ),
    MessageFamily(
        "The offsets cannot be used",
        START,
        "The offsets for a source do not have the expected form, or name a partition or a position that the source "
        "does not have. Nothing was committed.",
        "See [reset the offsets of a source](state/offsets.md).",
        (
            "--offsets",
            "expected an offset",
            "expected partitions",
            "has no partition",
            "does not read topic",
            "found the partition",
            "the sources already continue there",
            "which have no offsets to continue from",
            "must be looked up on a broker",
            "this source was never read",
        ),
    ),
    MessageFamily(
        "A service cannot be reached",
        START,
        "A broker, a database or a registry does not answer at the configured address, or refuses the user.",
        "Check the address, name and password, and that the service is running. `slackwater check FILE --connect` "
        "connects to all services. Nothing is lost, and the next start continues.",
        (
            "cannot be reached",
            "do(es)? not answer",
            "did not answer",
            "returned nothing for",
            "refused the",
            r"cannot be used \(.*brokers",
            "is not the address of a broker",
            "the url is not valid",
            r'url"? has an unknown setting',
            "exited immediately",
        ),
    ),
    MessageFamily(
        "The archive of Spark's classes was not created",
        START,
        "`slackwater prepare` runs a small pipeline to save Spark's loaded classes, so that later starts are faster. "
        "That run failed.",
        "Fix the problem that the message reports, and run `slackwater prepare` again. Without the archive, "
        "pipelines start more slowly.",
        ("the archive of Spark's classes was not created",),
    ),
    MessageFamily(
        "Permission is missing",
        START,
        "The service answers, but this role lacks a permission.",
        "Grant the role the permission that the message names.",
        ("check the role's permissions", "cannot be accessed", "denies access to queue"),
    ),
    MessageFamily(
        "Something is not installed",
        START,
        "A package, a jar, Java or a server is not on this machine.",
        "Install what the message names: [what is downloaded, and from where](operations.md#before-the-first-run).",
        (
            "pip install",
            "needs? the package",
            "needs Java",
            "apt-get install",
            "cannot be fetched from Maven",
            "has no Kafka connector",
            "of a connector does not exist",
        ),
    ),
    MessageFamily(
        "It is not available over Spark Connect",
        START,
        "The server in `SPARK_REMOTE` does not exist, or a pipeline needs something that a client cannot use. "
        "Examples are settings of the server, a streaming query, and packages that are not installed.",
        "See what runs over Spark Connect, and which settings it needs: [over Spark "
        "Connect](cluster.md#over-spark-connect).",
        ("Spark Connect",),
    ),
    MessageFamily(
        "Spark does not start",
        START,
        "Spark's process ended before it was ready. Nothing was read.",
        "Check that `java -version` reports 17 or later. The lines above the message in the log come from Spark.",
        ("Spark did not start",),
    ),
)
SOURCES_AND_TARGETS: Sequence[MessageFamily] = (
    MessageFamily(
        "The input does not exist",
        START,
        "The topic, queue, directory or file of a source or a lookup does not exist.",
        "Create it, or correct `query`. `slackwater check FILE --connect` checks all of them.",
        (
            "there is no topic",
            "and create = false",
            "expected the directory of a Delta table",
            "is not in the catalog",
            "has no queue",
            "deleted queue",
            "expected the directory or files",
            "^lookup ",
        ),
    ),
    MessageFamily(
        "A Kafka setting is not accepted",
        START,
        "The Kafka client does not accept one of the `options` of the connection. The message names the setting. The "
        "client did not connect to a broker.",
        "Correct or remove the setting. Slackwater's own client (librdkafka) uses `sasl.username`, `sasl.password` "
        "and `ssl.ca.location`, for which Java has other names: [Kafka](sources/kafka.md).",
        ("a setting is not accepted",),
    ),
    MessageFamily(
        "A topic was deleted and created again",
        ("EpochError",),
        "The topic has another id than the topic that the state read, so the offsets in the state do not apply to it. "
        "Nothing was read from it.",
        "Start at its first record with `slackwater state reset … --offsets NAME=earliest`, or set `on_data_loss = "
        '"skip"`: [Kafka](sources/kafka.md).',
        ("belong to the deleted topic",),
    ),
    MessageFamily(
        "A table cannot be read any further",
        (*START, "EpochError"),
        "A source table cannot be read from the offsets in the state. A version removes or rewrites rows, the log, "
        "the snapshot or the files of a needed version are gone, or another table has replaced the source table. All "
        "earlier rows are committed.",
        "Restore what is missing, skip such versions with `on_rewrite`, or set other offsets with `slackwater state "
        "reset`: [Delta and Iceberg tables](sources/tables.md).",
        (
            "rows that were read cannot be taken back",
            "rows would be lost",
            "is not the table that was read",
            "while it was being read",
            "was replaced by another table",
            "no longer descends from",
            "the log of the table was changed",
            "in the history of its current snapshot",
            "expected a version up to",
            "this source reads a table",
            "must be looked up in the table",
        ),
    ),
    MessageFamily(
        "The columns of a table changed",
        (*START, "EpochError"),
        "The columns of a source table changed after the start of the run, or after the state was created. The "
        "changed columns were not read.",
        'For new columns, set `schema_changes`: `"add"` reads them, `"ignore"` leaves them out. Restore columns that '
        "were changed or removed: [Delta and Iceberg tables](sources/new-columns.md).",
        ("its columns changed in", "new columns in", "a run ended because of new columns"),
    ),
    MessageFamily(
        "A table needs another reader",
        START,
        "Slackwater reads the Parquet files of a table with Spark. This table has delete files, table features or "
        "types that this reader does not support, or files in another format.",
        "Rewrite the files of the table without these features, start after the versions that use them, or read "
        "another table: [what is read](sources/tables.md).",
        ("needs readers that support", "Parquet reader", "has files in the format", "which is a binary column"),
    ),
    MessageFamily(
        "The schema of a source does not fit",
        START,
        "No schema is declared and none can be inferred, or the declared schema (DDL, Avro, JSON Schema, Protobuf) "
        "cannot be used.",
        "Set `schema` of the source: [sources](sources.md).",
        (
            "no schema is declared",
            "can be read; check its schema",
            "not valid DDL",
            r"[Aa]vro schema",
            "avro_schema_file",
            r"JSON Schema|as Protobuf",
            "schema_registry in the connection, with topics listed by name",
        ),
    ),
    MessageFamily(
        "There is no usable event time",
        START,
        "The column that `event_time_column` names does not exist, has the wrong type, or holds no time in the first "
        "rows. Such a pipeline would drop all of its rows, so it does not start.",
        "Correct `event_time_column` or `event_time_unit`: [event time](semantics.md#event-time).",
        ("usable event time", "event_time_column", "event_time_unit", "expected a timestamp, a date", "_event_ts"),
    ),
    MessageFamily(
        "The SQL or its columns do not fit",
        START,
        "The SQL runs row by row over `source`. Its result must have the columns that keys, aggregations and the join "
        "name.",
        "Correct the column or the expression that the message names. It lists the columns that exist: "
        "[transform](configuration.md#transform).",
        (
            "must be row-wise",
            "^(?!.*(no column|not a known parameter|is not kept)).*; available: ",
            "valid expression",
            "same columns from every source",
            "expected milliseconds, an interval",
            "hidden column",
            'but late_data = "dlq" stores',
            '^aggregation "',
            "which Postgres cannot store exactly",
            "give each column its own name",
        ),
    ),
    MessageFamily(
        "The source resumes only from Spark's checkpoint",
        START,
        "A source that cannot seek (a queue, a connector, a DataFrame) resumes only from Spark's checkpoint. The "
        "checkpoint is lost or was made for other sources. Reading from another offset would count rows twice or not "
        "at all.",
        "Restore the checkpoint, restore the previous sources, or start over under another name: [seek](sources.md).",
        ("cannot seek", "resumes only from Spark's checkpoint, which"),
    ),
    MessageFamily(
        "The target does not fit the output",
        START,
        "The existing table, topic or directory cannot be opened, or its columns or settings differ from those of "
        "the output.",
        "Alter the existing target, or name a target that does not exist: Slackwater then creates it with the right "
        "columns.",
        (
            "does not fit the output",
            "lacks new columns",
            "different columns from",
            'mode "merge" needs',
            "cleanup.policy",
            r"^(Kafka )?topic|Kafka topic",
            "Avro does not allow",
            "cannot be opened",
            "a name of .* bytes",
        ),
    ),
    MessageFamily(
        "The target holds rows of another state",
        START,
        "A state starts over, but its target is append-only and holds rows of an earlier state, or an earlier "
        "version resolved relative paths from another directory. A start would write rows twice, so you have to "
        "choose.",
        "`--put-aside-output` moves the earlier files away, and `--keep-output` adds to them. For relative paths, "
        "the message shows the command.",
        ("would write every row again", "relative paths are now resolved", "could not all be moved to"),
    ),
)
