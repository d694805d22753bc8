"""The columns of a dead letter: a row that could not be used, with its original bytes where the source has them."""

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
    Field("value", "binary"),  # as it came; of a file's row that was decoded: the row as JSON
    Field("headers", "string"),  # a JSON list of {"key": …, "value": base64}
    Field("event_time", "timestamp"),
    Field("file", "string"),
    # of late rows only
    Field("cause", "string"),  # lateness | idle: its source or partition was counted idle
    Field("watermark", "timestamp"),  # that it was judged against
    Field("watermark_source", "string"),  # which held that watermark back; NULL if all were idle
    Field("late_us", "bigint"),  # microseconds from the event time to the watermark
    Field("windows_missed", "int"),
    Field("windows", "string"),  # starts of the windows missed, a JSON list (the first 100); sessions: NULL
    Field("group_key", "string"),  # the values of group_by as a JSON object; joins: NULL
)
ADDED = ("group_key",)  # columns that letters of earlier versions lack: a target adds them to its table
