"""Log lines that are not errors."""

from __future__ import annotations

from collections.abc import Sequence

from slackwater.messages.family import WARNING, MessageFamily

FAMILIES: Sequence[MessageFamily] = (
    MessageFamily(
        "A clock in the input may be wrong",
        (WARNING,),
        "A few rows are far ahead of the others. What such a row moves is the watermark, and all others are late behind it.",
        "Filter at the source, or set `max_jump`: [far dates](semantics.md#watermarks).",
        ("newest event time", "jumps from", "far from now", "most rows come late"),
    ),
    MessageFamily(
        "Rows came late",
        (WARNING,),
        "Rows came after the watermark had closed their windows. They are counted, and `late_data` decides what becomes of them.",
        "Raise `lateness`, or choose another policy: [late rows](late-data.md), [corrections](corrections.md).",
        (r"\(watermark", r"side \(\"…\"\) …$"),
    ),
    MessageFamily(
        "A commit was looked up or could not be noted",
        (WARNING,),
        "The connection to Postgres was lost around a commit; the runner found out what became of it and went on.",
        "Nothing, unless it comes often: look at the network and the database.",
        (
            "connection lost",
            "had (not )?been committed",
            "could not be noted",
            "the target refused epoch",
            "was set aside",
        ),
    ),
    MessageFamily(
        "Rows were left out",
        (WARNING,),
        "Bad rows, groups beyond a bound, rows of a join beyond `max_rows_per_key`, or records that were gone. Each is counted.",
        "The line says which, how many and where they were read.",
        ("refused", "wait for partners", "gone before", "are gone from Kafka", "^… …: …$"),
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
        "After a crash the target may get an epoch a second time.",
        'For Kafka set `delivery = "exactly_once"`: [delivery](semantics.md#delivery).',
        ("^delivery to",),
    ),
    MessageFamily(
        "Files were not read",
        (WARNING,),
        "A file was removed between the listing and the reading, or Spark cannot be told of it because its name is not UTF-8.",
        "Write elsewhere and rename, and remove only what was read; rename what the line names.",
        ("removed before it was read", "is not UTF-8"),
    ),
    MessageFamily(
        "A source does not answer",
        (WARNING,),
        "A broker that answered before does not now. What it holds is not known meanwhile, so nothing counts as silent.",
        "Nothing, if it comes back: it is asked again for two minutes, and the run ends after that.",
        ("is asked again for two minutes",),
    ),
    MessageFamily(
        "Other warnings",
        (WARNING,),
        "What the start or a run wants somebody to know: a file that changed after it was read, a name of the schema that is not in the "
        "data, a bound or a size that is unusual, a sender that failed.",
        "The line says what it is about; the pipeline goes on.",
    ),
)
