"""The columns of a dead letter, which records a row that could not be used and, if possible, its original bytes."""

from __future__ import annotations

from slackwater.core.schema import Field

LETTER = (
    Field("reason", "string"),  # undecodable | no event time | future | late
    Field("pipeline", "string"),
    Field("source", "string"),
    Field("epoch", "bigint"),
    Field("topic", "string"),
    Field("partition", "int"),
    Field("offset", "bigint"),
    Field("key", "binary"),
    Field("value", "binary"),  # the original bytes; for a decoded row of a file, the row as JSON
    Field("headers", "string"),  # a JSON list of {"key": …, "value": base64}
    Field("event_time", "timestamp"),
    Field("file", "string"),
    # late rows only
    Field("cause", "string"),  # lateness | idle (its source or partition was idle)
    Field("watermark", "timestamp"),  # the watermark that the row was compared with
    Field("watermark_source", "string"),  # the source that held this watermark back; NULL if all were idle
    Field("late_us", "bigint"),  # microseconds from the event time to the watermark
    Field("windows_missed", "int"),
    Field("windows", "string"),  # starts of the windows missed, as a JSON list (the first 100); sessions: NULL
    Field("group_key", "string"),  # the values of group_by as a JSON object; joins: NULL
)
ADDED = ("group_key",)  # columns that earlier versions did not write; a target adds them to its table
