"""Messages that are logged as warnings."""

from __future__ import annotations

from collections.abc import Sequence

from slackwater.messages.family import WARNING, MessageFamily

FAMILIES: Sequence[MessageFamily] = (
    MessageFamily(
        "A clock in the input may be wrong",
        (WARNING,),
        "A few rows have event times far ahead of the others. Such rows advance the watermark, and all other rows "
        "are then late.",
        "Filter at the source, or set `max_jump`: [far dates](semantics.md#watermarks).",
        ("newest event time", "jumps from", "far from now", "most rows are late"),
    ),
    MessageFamily(
        "Rows came late",
        (WARNING,),
        "Rows came after the watermark had closed their windows. They are counted, and `late_data` decides what "
        "happens to them.",
        "Raise `lateness`, or choose another policy: [late rows](late-data.md), [corrections](corrections.md).",
        (r"\(watermark", r"side \(\"…\"\) …$"),
    ),
    MessageFamily(
        "A commit was checked or could not be marked",
        (WARNING,),
        "The connection to Postgres was lost around a commit. The runner checked whether the commit exists, and "
        "continued.",
        "Nothing. If this happens often, check the network and the database.",
        (
            "connection was lost during",
            "was committed before the connection was lost",
            "the commit is repeated",
            "could not be marked",
            "the target refused epoch",
            "was skipped",
        ),
    ),
    MessageFamily(
        "Rows were left out",
        (WARNING,),
        "Rows were bad, belong to groups beyond a limit, exceed `max_rows_per_key` of a join, or were deleted before "
        "they were read. All such rows are counted.",
        "The message says which rows, how many, and where they were read.",
        ("refused", "wait for partners", "deleted before being read", "were deleted from Kafka", "^… …: …$"),
    ),
    MessageFamily(
        "Results came out as NULL",
        (WARNING,),
        'A result did not fit its type under `on_overflow = "null"`.',
        "Cast the column to a wider type in the SQL: [aggregations](aggregations.md).",
        ("fit the type of the column",),
    ),
    MessageFamily(
        "Delivery is at least once",
        (WARNING,),
        "After a crash, the target may receive an epoch a second time.",
        'For Kafka, set `delivery = "exactly_once"`: [delivery](semantics.md#delivery).',
        ("^delivery to",),
    ),
    MessageFamily(
        "Files were not read",
        (WARNING,),
        "A file was removed after it was listed and before it was read, or Spark cannot read it because its name is "
        "not UTF-8.",
        "Write files elsewhere and rename them into the directory, and remove only files that were read. Rename the "
        "file that the message names.",
        ("removed before it was read", "is not UTF-8"),
    ),
    MessageFamily(
        "A source does not answer",
        (WARNING,),
        "A broker no longer answers. Until it answers, its records are unknown, so no source becomes idle.",
        "Nothing, if the broker answers again within two minutes. Otherwise, the run ends.",
        ("the run retries for two minutes",),
    ),
    MessageFamily(
        "Other warnings",
        (WARNING,),
        "Facts that may need attention. Examples are a file that changed after it was read, a column of the schema "
        "that is not in the data, an unusual limit or size, and a failed report.",
        "Read the message; the pipeline continues.",
    ),
)
