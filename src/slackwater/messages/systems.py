"""Messages about sources, targets and services."""

from __future__ import annotations

from collections.abc import Sequence

from slackwater.messages.family import START, MessageFamily

SERVICES: Sequence[MessageFamily] = (
    MessageFamily(
        "`init` cannot use the sample",
        START,
        "The file or directory of `--sample` does not exist, holds no rows, or has nothing that can be a time or a key.",
        "Name another sample, or the columns with `--time` and `--key`: [what `init` takes from a sample](first-day.md#what-it-takes-from-a-sample).",
        ("--sample", "--time: ", "--key: .* is not a column", "found no valid config"),
    ),
    MessageFamily(
        "Offsets that cannot be gone on at",
        START,
        "Offsets that were given for a source are not of a form, a partition or a place that it has. Nothing was committed.",
        "See [reset the offsets of a source](state/offsets.md).",
        (
            "--offsets",
            "expected an offset",
            "expected partitions",
            "has no partition",
            "does not read a topic",
            "found the partition",
            "the sources already continue there",
            "which have no order to go on at",
            "a broker is to be asked",
            "it was never read",
        ),
    ),
    MessageFamily(
        "A service cannot be reached",
        START,
        "A broker, a database or a registry does not answer at the address of the config, or refuses who asks.",
        "Check address, name and password, and that it runs: `slackwater check FILE --connect` asks all of them. Nothing is lost, the next start goes on.",
        (
            "cannot be reached",
            "do(es)? not answer",
            "did not answer",
            "gave nothing for",
            "refused the",
            r"cannot be used \(.*brokers",
            "is not an address of a broker",
            "the url is not valid",
            "url holds a setting",
            "ended at once",
        ),
    ),
    MessageFamily(
        "Starts are not made shorter",
        START,
        "`slackwater prepare` ran a small pipeline to keep what Java makes of Spark's classes, and that run or its end failed.",
        "Fix what the line reports and run `slackwater prepare` again. Pipelines start without it, only slower.",
        ("the archive of Spark's classes was not made",),
    ),
    MessageFamily(
        "The rights do not suffice",
        START,
        "The service is there, and does not let this role do what is needed.",
        "Grant the role what the line names.",
        ("check the role's rights", "check who may read", "does not give queue"),
    ),
    MessageFamily(
        "Something is not installed",
        START,
        "A package, a jar, Java or a server is not on this machine.",
        "Install what the line names; [what is fetched and from where](operations.md#before-the-first-run).",
        (
            "pip install",
            "needs? the package",
            "needs Java",
            "apt-get install",
            "cannot be fetched from Maven",
            "has no Kafka connector",
        ),
    ),
    MessageFamily(
        "Spark Connect has what its server has",
        START,
        "The server that `SPARK_REMOTE` names does not exist, or a pipeline asks for what a client cannot have: the server's own settings, a "
        "streaming query, packages that are not installed.",
        "What runs over it, and what to set: [over Spark Connect](cluster.md#over-spark-connect).",
        ("Spark Connect", "nobody answers there", "over Connect"),
    ),
    MessageFamily(
        "Spark does not start",
        START,
        "Spark's process ended before it was up. Nothing was read.",
        "`java -version` must say 17 or later; the lines above it in the log are Spark's.",
        ("Spark did not start",),
    ),
)
SOURCES_AND_TARGETS: Sequence[MessageFamily] = (
    MessageFamily(
        "There is nothing to read",
        START,
        "The topic, the queue, the directory or the file that a source or a lookup names does not exist.",
        "Create it, or correct `query`. `slackwater check FILE --connect` looks for all of them.",
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
        "A setting of Kafka is refused",
        START,
        "The Kafka client does not accept one of the `options` of the connection. The line names the setting. No broker was asked.",
        "Correct or remove the setting. Slackwater's own client (librdkafka) knows `sasl.username`, `sasl.password` and `ssl.ca.location` "
        "where Java has other names: [Kafka](sources/kafka.md).",
        ("a setting is refused",),
    ),
    MessageFamily(
        "A topic was deleted and created again",
        ("EpochError",),
        "The topic has another id than the one that the state read, so the offsets of the state mean nothing in it. Nothing of it was read.",
        'Begin with its first record by `slackwater state reset … --offsets NAME=earliest`, or set `on_data_loss = "skip"`: '
        "[Kafka](sources/kafka.md).",
        ("are of the deleted one",),
    ),
    MessageFamily(
        "A table cannot be read on",
        (*START, "EpochError"),
        "A table that is a source cannot be read from where the state stands: a version takes rows away or rewrites them, one that is "
        "needed is gone with its log, its snapshot or its files, or another table is in its place. Everything before it is committed.",
        "Restore what is gone, pass such versions over by `on_rewrite`, or say where to go on with `slackwater state reset`: "
        "[Delta and Iceberg tables](sources/tables.md).",
        (
            "that were read cannot be removed again",
            "rows would be lost",
            "is another table",
            "created again while it was read",
            "became another table",
            "does not lead back",
            "its log was changed",
            "on its way to the current one",
            "expected one of its versions",
            "it reads a table; expected",
            "the table is to be asked",
        ),
    ),
    MessageFamily(
        "The columns of a table changed",
        (*START, "EpochError"),
        "A table that is a source has other columns than the run began with, or the state was first read with. Nothing of them was read.",
        'For new columns set `schema_changes`: `"add"` takes them, `"ignore"` goes on without; restore others: '
        "[Delta and Iceberg tables](sources/new-columns.md).",
        ("its columns changed with", "columns are new with", "did not find columns that came"),
    ),
    MessageFamily(
        "A table needs another reader",
        START,
        "Spark reads the Parquet files of a table, and this table cannot be read like that: files of deletes next to its data, features or types "
        "that such a reader does not know, files of another format.",
        "Rewrite its files without them, begin behind them, or read another table: [what is read](sources/tables.md).",
        ("needs readers that know", "reader of Parquet", "holds files of the format", "which is binary"),
    ),
    MessageFamily(
        "The schema of a source does not fit",
        START,
        "No schema is declared and none can be inferred, or the declared one (DDL, Avro, JSON Schema, Protobuf) cannot be used.",
        "Declare `schema` of the source: [sources](sources.md).",
        (
            "no schema is declared",
            "can be read; check its schema",
            "not valid DDL",
            r"[Aa]vro schema",
            "avro_schema_file",
            r"JSON Schema|as Protobuf",
            "schema_registry in the connection and topics by name",
        ),
    ),
    MessageFamily(
        "There is no usable event time",
        START,
        "The column that `event_time_column` names does not exist, has an unfit type, or the first rows hold no time in it. Such a "
        "pipeline would drop all of its rows, so it does not start.",
        "Correct `event_time_column` or `event_time_unit`: [event time](semantics.md#event-time).",
        ("usable event time", "event_time_column", "event_time_unit", "expected a timestamp, a date", "_event_ts"),
    ),
    MessageFamily(
        "The SQL or its columns do not fit",
        START,
        "The SQL runs row by row over `source`, and what comes out of it must have the columns that keys, aggregations and the join name.",
        "The line names the column or the expression, and those that there are: [transform](configuration.md#transform).",
        (
            "must be row-wise",
            "^(?!.*(no column|not known here)).*; there are: ",
            "valid expression",
            "same columns from every source",
            "expected milliseconds, an interval",
            "hidden column",
            "under which late_data",
            '^aggregation "',
            "which Postgres does not give back",
            "give each column its own name",
        ),
    ),
    MessageFamily(
        "Only Spark's checkpoint knows where to go on",
        START,
        "A source that cannot seek (a queue, a connector, a DataFrame) goes on by Spark's checkpoint alone, and that is lost, or was "
        "made for other sources. Reading from anywhere else would count rows twice or not at all.",
        "Restore the checkpoint, keep the sources as they were, or start over under another name: [seek](sources.md).",
        ("cannot seek", "Spark's checkpoint only"),
    ),
    MessageFamily(
        "The target does not fit the output",
        START,
        "The table, topic or directory that is there has other columns or settings than what would be written, or cannot be opened.",
        "Alter it, or name one that is absent: it is made with the right columns.",
        (
            "does not fit the output",
            "lacks columns that are new",
            "other columns than",
            'mode "merge" needs',
            "cleanup.policy",
            r"^(Kafka )?topic|Kafka topic",
            "Avro does not take",
            "cannot be opened",
            "a name of .* bytes",
        ),
    ),
    MessageFamily(
        "The target holds what another state wrote",
        START,
        "A state starts over, and its target, which only adds rows, holds those of a former state; or paths of an earlier version "
        "began elsewhere. Going on would write rows twice, so somebody has to choose.",
        "`--put-aside-output` moves the former files away, `--keep-output` adds to them; the line names the command for paths.",
        ("the state that wrote", "relative paths begin", "could not be put aside"),
    ),
)
