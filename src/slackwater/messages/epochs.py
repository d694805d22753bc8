"""Messages of a running pipeline."""

from __future__ import annotations

from collections.abc import Sequence

from slackwater.messages.family import MessageFamily

FAMILIES: Sequence[MessageFamily] = (
    MessageFamily(
        "Bad rows stop the pipeline",
        ("BadRowError",),
        "Rows could not be decoded, have no usable event time or gap, or cannot be held by the target. Nothing of the epoch was committed.",
        'Correct the input, or set `on_error = "drop"` (they are counted) or `"dlq"` (they are [kept](late-data.md), and can be applied later).',
    ),
    MessageFamily(
        "A bound of the state was reached",
        ("CapExceededError",),
        "`max_groups_per_window`, `max_rows_per_key` or a bound of an aggregation's values is exceeded. Nothing of the epoch was committed.",
        "Raise the bound if there is room (`slackwater state sizes FILE`), or let `on_state_cap` drop and count: [bounds](semantics.md#bounds). "
        "Find out whether a key has become too fine.",
    ),
    MessageFamily(
        "A result does not fit its type",
        ("ValueRangeError",),
        "A sum or an average outgrew the type of its column. Nothing of the epoch was committed.",
        'Set `on_overflow = "null"`, or cast the column to a wider type in the SQL: [aggregations](aggregations.md).',
    ),
    MessageFamily(
        "Too many open files",
        ("ExhaustedError",),
        "This process or this machine has no descriptor left. No file is damaged.",
        "Close what holds them, or allow more with `ulimit -n`.",
    ),
    MessageFamily(
        "The target did not take an epoch",
        ("PublishError",),
        "The epoch is committed, and writing it failed. The next start publishes it from the commit; nothing is lost, and a target that "
        "has it already ignores it.",
        "Remove the cause and start again. Where it cannot be removed: "
        "[publish or skip an epoch that its target refuses](outbox.md).",
    ),
    MessageFamily(
        "Spark's process is gone",
        ("SparkEndedError",),
        "It was killed, or ran out of memory. Nothing committed is lost.",
        'Start again. `[spark]` `"spark.driver.memory" = "4g"` gives it more memory, `max_files_per_trigger` and '
        "`max_offsets_per_trigger` make epochs smaller.",
    ),
    MessageFamily(
        "The input was not the same when it was read again",
        ("EpochError",),
        "An epoch that has letters, or records of very many partitions, reads its rows a second time, and the source gave others. Nothing was "
        "committed.",
        "Start again. A source that reads differently the second time cannot keep late rows as letters.",
        ("input was not the same",),
    ),
    MessageFamily(
        "Records are gone before they were read",
        ("EpochError",),
        "The source's retention was shorter than the pause, or the messages have expired.",
        'Keep them longer, or set `on_data_loss = "skip"` to count them as lost and go on: [sources](sources.md).',
        ("on_data_loss",),
    ),
    MessageFamily(
        "A file of Spark's checkpoint is damaged",
        ("EpochError",),
        "The checkpoint is only the plan of the next epoch, and that cannot be read.",
        "Delete the directory that the line names and start again; the state knows where to go on.",
        ("checkpoint (file|directory)",),
    ),
    MessageFamily(
        "Whether an epoch was committed is not known yet",
        ("EpochError",),
        "The connection to the database went away while it committed.",
        "Start again: the commit's id is looked up, and the epoch is repeated only if it does not exist.",
        ("is unknown", "finds out whether"),
    ),
    MessageFamily(
        "The demo failed",
        ("EpochError",),
        "`slackwater demo-kafka` did not get the result that it knows.",
        "Look into the log that the line names.",
        ("^demo-kafka",),
    ),
    MessageFamily(
        "An epoch failed",
        ("EpochError",),
        "While an epoch ran, the SQL, the input, a service or the machine failed. Nothing of that epoch was committed, and nothing "
        "of it is visible.",
        "The line has the cause in its own words. Mend that and start again: the epoch is repeated.",
    ),
)
