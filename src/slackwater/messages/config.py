"""Messages about the config and its tests."""

from __future__ import annotations

from collections.abc import Sequence

from slackwater.messages.family import START, MessageFamily

FAMILIES: Sequence[MessageFamily] = (
    MessageFamily(
        "The config is wrong",
        ("ConfigError",),
        "The config of a pipeline has mistakes. Each line names the pipeline, the key, the value in the config and "
        "the expected value. Nothing was started. All mistakes are reported at once, except those that another "
        "mistake hides.",
        "Correct the key that the line names. `slackwater check FILE` also prints where the keys are "
        "[documented](configuration.md); [an editor](write-config.md#in-an-editor) marks most mistakes while you type.",
    ),
    MessageFamily(
        "A test cannot be run as it is",
        START,
        "The rows or records of a test do not fit the pipeline. Examples are a column that is not in the schema, and "
        "a value of the wrong type. Some SQL, event times and records need Spark, but the test has no session.",
        "Correct the rows or the schema of the test. In Python, pass a Spark session as `session=`: "
        "[testing](testing.md).",
        (
            "a row of the test has",
            r"declares no schema; pass schema=",
            "session as session=",
            "tests cannot write payload_format",
            "a test cannot create its rows",
            "without a pipeline needs a schema",
        ),
    ),
)
