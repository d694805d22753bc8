"""What the messages of each topic mean, and what to do about them.

The pages in `docs/messages/` are generated from these texts and from the messages in the source code.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from slackwater.errors import Topic


@dataclass(frozen=True)
class ErrorExplanation:
    """Messages with the same meaning.

    Args:
        topic: The topic of the errors; None for warnings.
        title: The heading on the page.
        means: What the messages mean.
        do: What to do about them.
        quotes: Parts of the warnings' texts. A warning belongs to the first topic with a part of its text.
    """

    topic: Topic | None
    title: str
    means: str
    do: str
    quotes: tuple[str, ...] = ()

    @property
    def page(self) -> str:
        """The page below `docs`."""
        return "messages/" + ("warnings.md" if self.topic is None else self.topic.partition("#")[0])

    @property
    def anchor(self) -> str:
        """The anchor of the heading, as code hosts and the documentation site generate it."""
        return re.sub(r"[^\w\- ]", "", self.title.lower()).replace(" ", "-")


ERRORS: Sequence[ErrorExplanation] = (
    ErrorExplanation(
        Topic.CONFIG_WRONG,
        "The config is wrong",
        "The config of a pipeline has mistakes. Each line names the pipeline, the key, the value in the config and the "
        "expected value. Nothing was started. All mistakes are reported at once, except those that another mistake "
        "hides.",
        "Correct the key that the line names. `slackwater check FILE` also prints where the keys are "
        "[documented](configuration.md); [an editor](write-config.md#in-an-editor) marks most mistakes while you type.",
    ),
    ErrorExplanation(
        Topic.TEST_UNUSABLE,
        "A test cannot be run as it is",
        "The rows or records of a test do not fit the pipeline. Examples are a column that is not in the schema, and a "
        "value of the wrong type. Some SQL, event times and records need Spark, but the test has no session.",
        "Correct the rows or the schema of the test. In Python, pass a Spark session as `session=`: "
        "[testing](testing.md).",
    ),
    ErrorExplanation(
        Topic.LOCK_HELD,
        "Another runner holds the pipeline",
        "A pipeline has one runner at a time. The message names the process and the machine that hold the lock. The "
        "lock ends with its process. In an object store, the lock is a lease, which expires at most 35 seconds after "
        "its process has ended.",
        "Stop that process first. Commands that only read (`why`, `show`, `state`, `ui`) need no lock.",
    ),
    ErrorExplanation(
        Topic.RUNNER_REPLACED,
        "Another runner took over",
        "The store holds a commit that this runner did not make, so this runner stops before it writes anything. This "
        "happens when a runner is paused or loses its connection, and another one takes over.",
        "Nothing: the other runner continues, and no rows are lost or duplicated. If there should be no other runner, "
        "find out who started it.",
    ),
    ErrorExplanation(
        Topic.NO_STATE,
        "There is no state to read",
        "The command reads a state, but the location holds no state yet, or no state of this pipeline, or the state is "
        "only in the memory of a runner.",
        "Run the pipeline once, or pass the location that `[state_store]` names. If several pipelines share the "
        "location, also pass `--pipeline`.",
    ),
    ErrorExplanation(
        Topic.STATE_OF_OTHER_CONFIG,
        "The state was written for another config",
        "The config now has another window, other keys or other columns than the state was written for. The state was "
        "not changed.",
        "`slackwater plan FILE` lists the differences. Change the config back, or start over with `--rebuild`, which "
        "moves the state away: [what may change](state/change.md).",
    ),
    ErrorExplanation(
        Topic.STATE_OF_OTHER_VERSION,
        "The state was written by another version",
        "The state has a format or a field that this version does not support.",
        "Install the version that wrote the state, or a newer version: [upgrading](upgrade.md).",
    ),
    ErrorExplanation(
        Topic.EPOCH_UNPUBLISHED,
        "An epoch is committed but not published",
        "The latest epoch is committed but not published. The state cannot change before the epoch is published.",
        "Start the pipeline once. If its target can never accept the epoch: [publish or skip an epoch that its target "
        "refuses](outbox.md).",
    ),
    ErrorExplanation(
        Topic.EPOCH_NOT_KEPT,
        "The epoch is no longer kept",
        "A state in files keeps at least the latest 8 commits. A state in Postgres keeps only the latest commit.",
        "Use one of the epochs that the message lists.",
    ),
    ErrorExplanation(
        Topic.NAME_IN_USE,
        "The name is already in use",
        "A state, a table or a fork with this name already exists. Nothing was changed.",
        "Choose another name, or do what the message says about the existing one.",
    ),
    ErrorExplanation(
        Topic.TARGET_MISMATCH,
        "The state and its target do not match",
        "The target holds another epoch than the state wrote last. The state is a restored copy, a copy of the state "
        "was continued, or the target was emptied or restored. A start would lose or duplicate rows.",
        "Choose one of the options in the message: [back up and restore the state](state/restore.md).",
    ),
    ErrorExplanation(
        Topic.STATE_MISSING,
        "The state is missing, but its target is not",
        "The target holds results of this pipeline, but its state does not exist. The directory, bucket or table of the"
        " state was removed or emptied, or `[state_store]` names another location.",
        "Restore the state, or start over with `--rebuild`. The new results are exact if the sources still hold all "
        "input.",
    ),
    ErrorExplanation(
        Topic.PIPELINE_RENAMED,
        "The pipeline may have been renamed",
        "The pipeline has no state under its name, and another pipeline writes to the same target. Starting over would "
        "write all rows a second time.",
        'Add `formerly = "<old name>"` to continue with its state, or start once with `--keep-output`: [rename a '
        "pipeline](state/rename.md#rename-a-pipeline).",
    ),
    ErrorExplanation(
        Topic.STATE_DAMAGED,
        "The state is damaged",
        "A file, a table or a record of the state is missing, or its content is wrong. Nothing was changed: a runner "
        "does not continue from a damaged state.",
        "Restore the file, table or record that the message names from a backup. `slackwater state verify` checks the "
        "whole state; [a start with an empty state](state/start-over.md) reads the sources again.",
    ),
    ErrorExplanation(
        Topic.OBJECT_STORE,
        "The object store cannot be used",
        "The bucket of the state does not exist, denies access, or could not be reached for a minute. Committed epochs "
        "are safe. If the response to a commit was lost, the next start finds the commit.",
        "Do what the message says, and start again: [keep the state in an object store](state/object-store.md).",
    ),
    ErrorExplanation(
        Topic.STATE_TABLE_CHANGED,
        "A table of the state was changed",
        "A table of a state in Postgres has other rows, columns or values than the commits wrote, so another program "
        "changed the table. A run would give wrong results.",
        "Restore the database from a backup, check what is intact with `slackwater state verify`, or start over with "
        "`--rebuild`.",
    ),
    ErrorExplanation(
        Topic.STATE_STORE,
        "The state store cannot be used",
        "The directory or the database of the state could not be read or written.",
        "The message quotes the cause, such as disk space, permissions or a connection. Fix the cause, and try again. "
        "Committed epochs are safe.",
    ),
    ErrorExplanation(
        Topic.INIT_SAMPLE,
        "`init` cannot use the sample",
        "The file or directory of `--sample` does not exist, holds no rows, or has no column that can be a time or a "
        "key.",
        "Pass another sample, or name the columns with `--time` and `--key`: [what `init` infers from a sample](first-"
        "day.md#what-init-infers-from-a-sample).",
    ),
    ErrorExplanation(
        Topic.OFFSETS,
        "The offsets cannot be used",
        "The offsets for a source do not have the expected form, or name a partition or a position that the source does"
        " not have. Nothing was committed.",
        "See [reset the offsets of a source](state/offsets.md).",
    ),
    ErrorExplanation(
        Topic.SERVICE_UNREACHABLE,
        "A service cannot be reached",
        "A broker, a database or a registry does not answer at the configured address, or refuses the user.",
        "Check the address, name and password, and that the service is running. `slackwater check FILE --connect` "
        "connects to all services. Nothing is lost, and the next start continues.",
    ),
    ErrorExplanation(
        Topic.CLASS_ARCHIVE,
        "The archive of Spark's classes was not created",
        "`slackwater prepare` runs a small pipeline to save Spark's loaded classes, so that later starts are faster. "
        "That run failed.",
        "Fix the problem that the message reports, and run `slackwater prepare` again. Without the archive, pipelines "
        "start more slowly.",
    ),
    ErrorExplanation(
        Topic.PERMISSION,
        "Permission is missing",
        "The service answers, but this role lacks a permission.",
        "Grant the role the permission that the message names.",
    ),
    ErrorExplanation(
        Topic.NOT_INSTALLED,
        "Something is not installed",
        "A package, a jar, Java or a server is not on this machine.",
        "Install what the message names: [what is downloaded, and from where](operations.md#before-the-first-run).",
    ),
    ErrorExplanation(
        Topic.SPARK_CONNECT,
        "Something is not available over Spark Connect",
        "The server in `SPARK_REMOTE` does not exist, or a pipeline needs something that a client cannot use. Examples "
        "are settings of the server, a streaming query, and packages that are not installed.",
        "See what runs over Spark Connect, and which settings it needs: [over Spark Connect](cluster.md#over-spark-"
        "connect).",
    ),
    ErrorExplanation(
        Topic.SPARK_START,
        "Spark does not start",
        "Spark's process ended before it was ready. Nothing was read.",
        "Check that `java -version` reports 17 or later. The lines above the message in the log come from Spark.",
    ),
    ErrorExplanation(
        Topic.INPUT_MISSING,
        "The input does not exist",
        "The topic, queue, directory or file of a source or a lookup does not exist.",
        "Create it, or correct `query`. `slackwater check FILE --connect` checks all of them.",
    ),
    ErrorExplanation(
        Topic.KAFKA_SETTING,
        "A Kafka setting is not accepted",
        "The Kafka client does not accept one of the `options` of the connection. The message names the setting. The "
        "client did not connect to a broker.",
        "Correct or remove the setting. Slackwater's own client (librdkafka) uses `sasl.username`, `sasl.password` and "
        "`ssl.ca.location`, for which Java has other names: [Kafka](sources/kafka.md).",
    ),
    ErrorExplanation(
        Topic.TOPIC_RECREATED,
        "A topic was deleted and created again",
        "The topic has another id than the topic that the state read, so the offsets in the state do not apply to it. "
        "Nothing was read from it.",
        "Start at its first record with `slackwater state reset … --offsets NAME=earliest`, or set `on_data_loss = "
        '"skip"`: [Kafka](sources/kafka.md).',
    ),
    ErrorExplanation(
        Topic.TABLE_HISTORY,
        "A table cannot be read any further",
        "A source table cannot be read from the offsets in the state. A version removes or rewrites rows, the log, the "
        "snapshot or the files of a needed version are gone, or another table has replaced the source table. All "
        "earlier rows are committed.",
        "Restore what is missing, skip such versions with `on_rewrite`, or set other offsets with `slackwater state "
        "reset`: [Delta and Iceberg tables](sources/tables.md).",
    ),
    ErrorExplanation(
        Topic.TABLE_COLUMNS,
        "The columns of a table changed",
        "The columns of a source table changed after the start of the run, or after the state was created. The changed "
        "columns were not read.",
        'For new columns, set `schema_changes`: `"add"` reads them, `"ignore"` leaves them out. Restore columns that '
        "were changed or removed: [Delta and Iceberg tables](sources/new-columns.md).",
    ),
    ErrorExplanation(
        Topic.TABLE_READER,
        "A table needs another reader",
        "Slackwater reads the Parquet files of a table with Spark. This table has delete files, table features or types"
        " that this reader does not support, or files in another format.",
        "Rewrite the files of the table without these features, start after the versions that use them, or read another"
        " table: [what is read](sources/tables.md).",
    ),
    ErrorExplanation(
        Topic.SOURCE_SCHEMA,
        "The schema of a source does not fit",
        "No schema is declared and none can be inferred, or the declared schema (DDL, Avro, JSON Schema, Protobuf) "
        "cannot be used.",
        "Set `schema` of the source: [sources](sources.md).",
    ),
    ErrorExplanation(
        Topic.EVENT_TIME,
        "There is no usable event time",
        "The column that `event_time_column` names does not exist, has the wrong type, or holds no time in the first "
        "rows. Such a pipeline would drop all of its rows, so it does not start.",
        "Correct `event_time_column` or `event_time_unit`: [event time](semantics.md#event-time).",
    ),
    ErrorExplanation(
        Topic.SQL,
        "The SQL or its columns do not fit",
        "The SQL runs row by row over `source`. Its result must have the columns that keys, aggregations and the join "
        "name.",
        "Correct the column or the expression that the message names. It lists the columns that exist: "
        "[transform](configuration.md#transform).",
    ),
    ErrorExplanation(
        Topic.CHECKPOINT_ONLY,
        "The source resumes only from Spark's checkpoint",
        "A source that cannot seek (a queue, a connector, a DataFrame) resumes only from Spark's checkpoint. The "
        "checkpoint is lost or was made for other sources. Reading from another offset would count rows twice or not at"
        " all.",
        "Restore the checkpoint, restore the previous sources, or start over under another name: [seek](sources.md).",
    ),
    ErrorExplanation(
        Topic.TARGET_UNSUITABLE,
        "The target does not fit the output",
        "The existing table, topic or directory cannot be opened, or its columns or settings differ from those of the "
        "output.",
        "Alter the existing target, or name a target that does not exist: Slackwater then creates it with the right "
        "columns.",
    ),
    ErrorExplanation(
        Topic.TARGET_OF_OTHER_STATE,
        "The target holds rows of another state",
        "A state starts over, but its target is append-only and holds rows of an earlier state, or an earlier version "
        "resolved relative paths from another directory. A start would write rows twice, so you have to choose.",
        "`--put-aside-output` moves the earlier files away, and `--keep-output` adds to them. For relative paths, the "
        "message shows the command.",
    ),
    ErrorExplanation(
        Topic.NO_WINDOWS,
        "A join has no windows",
        "The command is about windows, their keys or corrections. The pipeline is a join, whose rows are final, or only"
        " SQL, which has no state.",
        "`slackwater explain FILE` and `slackwater why FILE` show what a join keeps and for how long: "
        "[joins](joins.md).",
    ),
    ErrorExplanation(
        Topic.DEAD_LETTERS,
        "Dead letters cannot be replayed",
        "The chosen dead letters cannot be applied to this target or with this config. Nothing was changed.",
        "Select other dead letters with `--reason` and `--epoch`: [what can be replayed](how-replay.md).",
    ),
    ErrorExplanation(
        Topic.BACKFILL,
        "The backfill is not possible",
        "The range, the source or the target does not allow a backfill. Nothing was written.",
        "See [fill a target from history](backfill.md).",
    ),
    ErrorExplanation(
        Topic.DATAFRAME_NOT_BATCH,
        "The DataFrame is not a batch",
        "`sw.batch` and `sw.batch_join` accept batch DataFrames, not streaming DataFrames.",
        "Run a streaming DataFrame as a pipeline: [compute windows over a batch](batch.md).",
    ),
    ErrorExplanation(
        Topic.CONDITION,
        "The condition cannot be evaluated",
        "The condition in `--where` (`where=`) is not supported on a state, or takes too long.",
        "See [query the state](state/query.md) for the supported conditions.",
    ),
    ErrorExplanation(
        Topic.FILE_NOT_WRITABLE,
        "A file cannot be written",
        "The file or directory that a command writes already exists, its path is not usable, or the system denies "
        "access.",
        "Choose another path. The message quotes the system.",
    ),
    ErrorExplanation(
        Topic.OUTPUT_UNREADABLE,
        "An output cannot be read",
        "`show`, `diff`, `dlq` or `export` read the rows of a target. This target cannot be read, or does not store "
        "rows.",
        "The message names the target and quotes the system.",
    ),
    ErrorExplanation(
        Topic.SERVER_START,
        "The page or the server cannot start",
        "`ui`, `serve` or the metrics server cannot listen at this address, or its options are not accepted.",
        "See [who can see the page](ui.md#who-can-see-it).",
    ),
    ErrorExplanation(
        Topic.REPORT_CONFIG,
        "The report to another system is not configured",
        "`--otel` or `--openlineage` is set, but its configuration names no destination or cannot be read.",
        "See [monitor a pipeline](monitoring.md).",
    ),
    ErrorExplanation(
        Topic.VALUE,
        "A value is not valid",
        "A key, a time, an option or a number of a command does not have the expected form. Nothing was changed.",
        "Correct the value: the message says which form is expected.",
    ),
    ErrorExplanation(
        Topic.PIPELINE_START,
        "The pipeline cannot start",
        "The pipeline does not fit the data, the SQL or the state. There is one line per problem.",
        "Correct what the message names. Nothing was read or changed.",
    ),
    ErrorExplanation(
        Topic.BAD_ROWS,
        "Bad rows stop the pipeline",
        "Rows could not be decoded, have no usable event time or gap, or cannot be stored by the target. The epoch was "
        "not committed.",
        'Correct the input, or set `on_error = "drop"` to count and drop such rows, or `"dlq"` to [keep](late-data.md) '
        "them, so that they can be replayed.",
    ),
    ErrorExplanation(
        Topic.STATE_LIMIT,
        "A limit of the state was reached",
        "`max_groups_per_window`, `max_rows_per_key` or a limit of an aggregation is exceeded. The epoch was not "
        "committed.",
        "Raise the limit if there is enough memory (`slackwater state sizes FILE`), or let `on_state_cap` drop and "
        "count rows: [bounds](semantics.md#bounds). Check whether a key has too many values.",
    ),
    ErrorExplanation(
        Topic.VALUE_RANGE,
        "A result does not fit its type",
        "A sum or an average is too large for the type of its column. The epoch was not committed.",
        'Set `on_overflow = "null"`, or cast the column to a wider type in the SQL: [aggregations](aggregations.md).',
    ),
    ErrorExplanation(
        Topic.OPEN_FILES,
        "Too many open files",
        "This process or this machine has no free file descriptor. No file is damaged.",
        "Close programs that hold many files open, or raise the limit with `ulimit -n`.",
    ),
    ErrorExplanation(
        Topic.TARGET_REFUSED,
        "The target did not accept an epoch",
        "The epoch is committed, but writing it to the target failed. Nothing is lost: the next start publishes it from"
        " the commit. A target that already stores the epoch ignores the second write.",
        "Fix the cause and start again. If it cannot be fixed: [publish or skip an epoch that its target "
        "refuses](outbox.md).",
    ),
    ErrorExplanation(
        Topic.SPARK_ENDED,
        "The Spark process has ended",
        "The process was killed or ran out of memory. Committed epochs are safe.",
        'Start again. To give the process more memory, set `"spark.driver.memory" = "4g"` in `[spark]`. To make epochs '
        "smaller, set `max_files_per_trigger` or `max_offsets_per_trigger`.",
    ),
    ErrorExplanation(
        Topic.INPUT_CHANGED,
        "The input changed between two reads",
        "An epoch with dead letters, or with records of very many partitions, reads its rows twice. The second time, "
        "the source returned other rows. Nothing was committed.",
        "Start again. Late rows of a source that returns other rows the second time cannot be kept as dead letters.",
    ),
    ErrorExplanation(
        Topic.RECORDS_DELETED,
        "Records were deleted before they were read",
        "The pipeline did not run for longer than the source keeps its records, or the messages expired.",
        'Keep the records longer, or set `on_data_loss = "skip"` to count them as lost and continue: '
        "[sources](sources.md).",
    ),
    ErrorExplanation(
        Topic.CHECKPOINT_DAMAGED,
        "A file of Spark's checkpoint is damaged",
        "The checkpoint cannot be read. It holds only the plan of the next epoch.",
        "Delete the directory that the message names, and start again. The state holds the offsets from which the next "
        "epoch continues.",
    ),
    ErrorExplanation(
        Topic.COMMIT_UNKNOWN,
        "It is unknown whether an epoch was committed",
        "The connection to the database was lost during a commit.",
        "Start again: the runner repeats the epoch only if the commit does not exist.",
    ),
    ErrorExplanation(
        Topic.DEMO_FAILED,
        "The demo failed",
        "`slackwater demo-kafka` did not get the expected result.",
        "Read the log that the message names.",
    ),
    ErrorExplanation(
        Topic.EPOCH_FAILED,
        "An epoch failed",
        "The SQL, the input, a service or the machine failed during an epoch. The epoch was not committed, and none of "
        "its results is visible.",
        "Fix the cause, which the message quotes, and start again to repeat the epoch.",
    ),
)
WARNINGS: Sequence[ErrorExplanation] = (
    ErrorExplanation(
        None,
        "A clock in the input may be wrong",
        "A few rows have event times far ahead of the others. Such rows advance the watermark, and all other rows are "
        "then late.",
        "Filter at the source, or set `max_jump`: [far dates](semantics.md#watermarks).",
        ("newest event time", "jumps from", "far from the current time", "most rows are late"),
    ),
    ErrorExplanation(
        None,
        "Rows came late",
        "Rows came after the watermark had closed their windows. They are counted, and `late_data` decides what happens"
        " to them.",
        "Raise `lateness`, or choose another policy: [late rows](late-data.md), [corrections](corrections.md).",
        ("(watermark", 'side ("…") …'),
    ),
    ErrorExplanation(
        None,
        "A commit was checked or could not be marked",
        "The connection to Postgres was lost around a commit. The runner checked whether the commit exists, and "
        "continued.",
        "Nothing. If this happens often, check the network and the database.",
        (
            "connection was lost during",
            "was committed before the connection was lost",
            "retrying the commit",
            "could not be marked",
            "the target refused epoch",
            "was skipped",
        ),
    ),
    ErrorExplanation(
        None,
        "Rows were left out",
        "Rows were bad, belong to groups beyond a limit, exceed `max_rows_per_key` of a join, or were deleted before "
        "they were read. All such rows are counted.",
        "The message says which rows, how many, and where they were read.",
        ("refused", "wait for partners", "deleted before being read", "were deleted from Kafka"),
    ),
    ErrorExplanation(
        None,
        "Results came out as NULL",
        'A result did not fit its type under `on_overflow = "null"`.',
        "Cast the column to a wider type in the SQL: [aggregations](aggregations.md).",
        ("fit the type of the column",),
    ),
    ErrorExplanation(
        None,
        "Delivery is at least once",
        "After a crash, the target may receive an epoch a second time.",
        'For Kafka, set `delivery = "exactly_once"`: [delivery](semantics.md#delivery).',
        ("delivery to",),
    ),
    ErrorExplanation(
        None,
        "Files were not read",
        "A file was removed after it was listed and before it was read, or Spark cannot read it because its name is not"
        " UTF-8.",
        "Write files elsewhere and rename them into the directory, and remove only files that were read. Rename the "
        "file that the message names.",
        ("removed before it was read", "is not UTF-8"),
    ),
    ErrorExplanation(
        None,
        "A source does not answer",
        "A broker no longer answers. Until it answers, its records are unknown, so no source becomes idle.",
        "Nothing, if the broker answers again within two minutes. Otherwise, the run ends.",
        ("the run retries for two minutes",),
    ),
    ErrorExplanation(
        None,
        "Other warnings",
        "Facts that may need attention. Examples are a file that changed after it was read, a column of the schema that"
        " is not in the data, an unusual limit or size, and a failed report.",
        "Read the message; the pipeline continues.",
    ),
)
