"""Messages about the config and its tests."""

from __future__ import annotations

from collections.abc import Sequence

from slackwater.messages.family import START, MessageFamily

FAMILIES: Sequence[MessageFamily] = (
    MessageFamily(
        "The config is wrong",
        ("ConfigError",),
        "The description of a pipeline has mistakes, one line each: the pipeline, the key, what was found, what was expected. "
        "Nothing was started. All mistakes are reported at once, but for those that others hide.",
        "Correct the key that the line names. `slackwater check FILE` says below its lines where the keys are "
        "[documented](configuration.md); [an editor](write-config.md#in-an-editor) marks most mistakes while you type.",
    ),
    MessageFamily(
        "A test cannot be run as it is",
        START,
        "What a test of a pipeline gives does not fit the pipeline: a column that no schema has, a value of another type, or SQL, an "
        "event time or records that only Spark can read while the test has no session.",
        "Correct the rows or the schema of the test; in Python give `session=`, a Spark session: [testing](testing.md).",
        (
            "a given row has",
            r"declares no schema; give schema=",
            "give session=",
            "tests cannot write it yet",
            "a test cannot make its rows",
            "alone needs schema=",
        ),
    ),
)
