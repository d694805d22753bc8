"""Messages of a running pipeline."""

from __future__ import annotations

from collections.abc import Sequence

from slackwater.messages.family import MessageFamily

FAMILIES: Sequence[MessageFamily] = (
    MessageFamily(
        "Bad rows stop the pipeline",
        ("BadRowError",),
        "Rows could not be decoded, have no usable event time or gap, or cannot be stored by the target. The epoch "
        "was not committed.",
        'Correct the input, or set `on_error = "drop"` to count and drop such rows, or `"dlq"` to '
        "[keep](late-data.md) them, so that they can be replayed.",
    ),
    MessageFamily(
        "A limit of the state was reached",
        ("CapExceededError",),
        "`max_groups_per_window`, `max_rows_per_key` or a limit of an aggregation is exceeded. The epoch was not "
        "committed.",
        "Raise the limit if there is enough memory (`slackwater state sizes FILE`), or let `on_state_cap` drop and "
        "count rows: [bounds](semantics.md#bounds). Check whether a key has too many values.",
    ),
    MessageFamily(
        "A result does not fit its type",
        ("ValueRangeError",),
        "A sum or an average is too large for the type of its column. The epoch was not committed.",
        'Set `on_overflow = "null"`, or cast the column to a wider type in the SQL: [aggregations](aggregations.md).',
    ),
    MessageFamily(
        "Too many open files",
        ("ExhaustedError",),
        "This process or this machine has no free file descriptor. No file is damaged.",
        "Close programs that hold many files open, or raise the limit with `ulimit -n`.",
    ),
    MessageFamily(
        "The target did not accept an epoch",
        ("PublishError",),
        "The epoch is committed, but writing it to the target failed. Nothing is lost: the next start publishes it "
        "from the commit. A target that already stores the epoch ignores the second write.",
        "Fix the cause and start again. If it cannot be fixed: [publish or skip an epoch that its target "
        "refuses](outbox.md).",
    ),
    MessageFamily(
        "Spark's process is gone",
        ("SparkEndedError",),
        "The process was killed or ran out of memory. Committed epochs are safe.",
        'Start again. To give the process more memory, set `"spark.driver.memory" = "4g"` in `[spark]`. To make '
        "epochs smaller, set `max_files_per_trigger` or `max_offsets_per_trigger`.",
    ),
    MessageFamily(
        "The input changed between two reads",
        ("EpochError",),
        "An epoch with dead letters, or with records of very many partitions, reads its rows twice. The second time, "
        "the source returned other rows. Nothing was committed.",
        "Start again. Late rows of a source that returns other rows the second time cannot be kept as dead letters.",
        ("the input changed between",),
    ),
    MessageFamily(
        "Records were deleted before they were read",
        ("EpochError",),
        "The pipeline did not run for longer than the source keeps its records, or the messages expired.",
        'Keep the records longer, or set `on_data_loss = "skip"` to count them as lost and continue: '
        "[sources](sources.md).",
        ("on_data_loss",),
    ),
    MessageFamily(
        "A file of Spark's checkpoint is damaged",
        ("EpochError",),
        "The checkpoint cannot be read. It holds only the plan of the next epoch.",
        "Delete the directory that the message names, and start again. The state holds the offsets from which the "
        "next epoch continues.",
        ("checkpoint (file|directory)",),
    ),
    MessageFamily(
        "It is unknown whether an epoch was committed",
        ("EpochError",),
        "The connection to the database was lost during a commit.",
        "Start again: the runner repeats the epoch only if the commit does not exist.",
        ("it is unknown whether", "checks whether the epoch was committed"),
    ),
    MessageFamily(
        "The demo failed",
        ("EpochError",),
        "`slackwater demo-kafka` did not get the expected result.",
        "Read the log that the message names.",
        ("^demo-kafka",),
    ),
    MessageFamily(
        "An epoch failed",
        ("EpochError",),
        "The SQL, the input, a service or the machine failed during an epoch. The epoch was not committed, and none "
        "of its results is visible.",
        "Fix the cause, which the message quotes, and start again to repeat the epoch.",
    ),
)
