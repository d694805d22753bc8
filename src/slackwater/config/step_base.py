"""Base classes of steps, with the keys that steps have in common, and the step of a stage that has only SQL."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

from slackwater.config.key import Milliseconds, Texts, WithUnit, declare_attribute, declare_key, declare_with_unit
from slackwater.config.message_format import format_config_duration
from slackwater.config.spec_base import Problem, Spec, Values
from slackwater.config.value_parsers import (
    InvalidValueError,
    attach_json_schema,
    choice_parser,
    duration_parser,
    parse_text,
    parse_texts,
)
from slackwater.core.humanize import mismatch

MOST_STAGES = 16  # per pipeline


@attach_json_schema(type="string", minLength=1, examples=["UTC", "Europe/Berlin", "America/New_York"])
def _parse_time_zone(value: Any) -> str:
    """Parse the IANA name of a time zone."""
    from zoneinfo import available_timezones

    name = parse_text(value)
    zones = available_timezones()
    if zones and name not in zones:
        # suggest the most similar name; a list of hundreds does not help
        close = next((k for k in zones if k.casefold() == name.casefold()), None) or next(
            iter(difflib.get_close_matches(name, zones, n=1)), None
        )
        hint = f'; did you mean "{close}"?' if close else ""
        raise InvalidValueError(f'the IANA name of a time zone, as in "Europe/Berlin" or "UTC"{hint}')
    return name


class StepSummary(NamedTuple):
    """Short phrases that describe a step, for use within sentences."""

    title: str  # "every 3rd row of 1 key"
    behaviour: str  # what it emits: "each 3rd row of a key, in the epoch that reads it"
    state: str  # what it stores: "one number per key, forever"


class StepBase(Spec):
    """Base class of the step of a stage: a `Window`, a `Join`, a `KeyedStep` or a `StatelessStep`."""

    kind: str
    event_time_column: str = declare_key(
        parse_text,
        "The column that holds the event time, or a SQL expression over the row. Without it, Kafka records use their timestamp (`_event_ts`).",
        default="_event_ts",
        elsewhere=("timestamp_column", "time_column", "event_time", "timestamp"),
    )
    event_time_unit: str | None = declare_key(
        choice_parser("s", "ms", "us", "ns"),
        "The unit of integer event times, counted from 1970: seconds, milliseconds, microseconds or nanoseconds.",
        default=None,
    )
    event_time_zone: str | None = declare_key(
        _parse_time_zone,
        "The time zone (IANA name) of dates, TIMESTAMP_NTZ, and strings without an offset.",
        default=None,
    )
    time_mode: str = declare_key(
        choice_parser("event", "processing"),
        "`event` uses the time in the row, `processing` the clock at the time the row is read.",
        default="event",
    )
    lateness_ms: Milliseconds[int] = declare_key(
        duration_parser(0),
        "How far rows may be out of order: the watermark stays this far behind the newest event time.",
        default=0,
        elsewhere=("watermark", "watermark_ms", "watermark_delay_ms", "watermark_delay"),
    )
    lateness: WithUnit = declare_with_unit(default=None)
    source_idleness_ms: Milliseconds[int] = declare_key(
        duration_parser(1),
        "A source that returns no rows for this long counts as idle and no longer holds the watermark back.",
        default=60_000,
    )
    source_idleness: WithUnit = declare_with_unit(default=None)
    idle_close_ms: Milliseconds[int | None] = declare_key(
        duration_parser(1),
        "Once all sources have been quiet for this long, the watermark advances with the clock; off by default.",
        default=None,
    )
    idle_close: WithUnit = declare_with_unit(default=None)
    max_future_ms: Milliseconds[int] = declare_key(
        duration_parser(0), "Rows more than this far ahead of the clock are bad rows.", default=3_600_000
    )
    max_future: WithUnit = declare_with_unit(default=None)
    max_jump_ms: Milliseconds[int | None] = declare_key(
        duration_parser(1),
        "How far the newest event time of a source may jump before 100 rows confirm it; off by default.",
        default=None,
    )
    max_jump: WithUnit = declare_with_unit(default=None)
    crash_recovery: str | None = declare_key(
        choice_parser("at_least_once", "persisted", "kafka_eos"),
        "The required delivery guarantee. It is checked against the state store and the target.",
        default=None,
    )
    late_data: str = declare_attribute(default="drop")  # steps that have these three keys declare them
    allowed_lateness_ms: Milliseconds[int | None] = declare_attribute(default=None)
    on_state_cap: str = declare_attribute(default="fail")

    CONFIG_PATH: ClassVar[str]  # its path in a config
    STATE_KEYS: ClassVar[tuple[str, ...]] = ()  # keys that a stored state depends on; if they change, it cannot be used

    def summary(self) -> StepSummary:
        """Describe the step for `check` and `explain`."""
        raise NotImplementedError

    @property
    def watermark_delay_ms(self) -> int:
        """How far (ms) behind its watermark the step may still emit."""
        return 0

    @property
    def table(self) -> str:
        """The name of the config table that describes the step, such as "window" or "join"."""
        return self.CONFIG_PATH.rpartition(".")[2]

    @classmethod
    def check(cls, values: Values, wrong: set[str]) -> Iterator[Problem]:
        if "allowed_lateness_ms" in values and values.get("late_data", "drop") != "reopen" and "late_data" not in wrong:
            yield (
                "allowed_lateness_ms",
                'needs late_data = "reopen"; to wait longer for late rows, raise lateness_ms',
            )
        if "max_jump_ms" in values and values.get("time_mode") == "processing":
            yield (
                "max_jump_ms",
                'cannot be combined with time_mode = "processing", where the clock is the event time; remove one of them',
            )
        close, idleness = values.get("idle_close_ms"), values.get("source_idleness_ms", 60_000)
        if close is not None and "source_idleness_ms" not in wrong and close < idleness:
            yield (
                "idle_close_ms",
                mismatch(
                    format_config_duration(close),
                    f"at least source_idleness_ms ({format_config_duration(idleness)}): a source that is silent for a shorter time is not idle",
                ),
            )


def effective_allowed_lateness_ms(step: StepBase) -> int:
    """Return how long (ms) after its close a window can be corrected.

    For a join, this is how far behind the watermark a row may be and still be joined.
    """
    if step.late_data != "reopen":
        return 0
    return step.lateness_ms if step.allowed_lateness_ms is None else step.allowed_lateness_ms


LATE_ROWS = choice_parser("drop", "dlq")  # for steps that refuse rows behind the watermark
LATE_ROWS_TEXT = "What happens to late rows: drop and count them, or write dead letters."


class KeyedStep(StepBase):
    """A step that processes whole rows by key.

    A subclass defines its `kind` (the name of its table in a config), CONFIG_PATH, its own keys and `summary`.
    """

    keys: Texts = declare_key(
        parse_texts,
        "The key columns, from the result of the SQL. Rows with equal values in them belong together.",
        required='name columns, as in ["user"]',
        elsewhere=("key", "key_columns", "group_by", "by"),
    )

    STATE_KEYS: ClassVar[tuple[str, ...]] = ("keys",)
    DOC_LINK: ClassVar[str] = "docs/configuration.md#transform"

    @property
    def added_columns(self) -> Mapping[str, str]:
        """Columns that the step adds to rows, with their types."""
        return {}

    def result_types(self, types: Mapping[str, str | None]) -> dict[str, str | None]:
        """Return the types of the columns of the results, given those of the rows."""
        return {**types, **self.added_columns}

    @classmethod
    def check(cls, values: Values, wrong: set[str]) -> Iterator[Problem]:
        yield from super().check(values, wrong)
        names = values.get("keys", ())
        if "keys" in values and not names:
            yield "keys", 'empty; expected at least one column that groups the rows, as in ["user"]'
        if any(name.casefold() == "_event_ts" for name in names):
            yield "keys", '"_event_ts" is the event time; it cannot be a key'
        for name in dict.fromkeys(n for n in names if names.count(n) > 1):
            yield "keys", f'contains column "{name}" more than once; name each column once'


_FOREVER_MS = 20_000 * 366 * 86_400_000  # longer than the distance between any two times of rows


class StatelessStep(StepBase):
    """A step that emits what the SQL selects for each row, in the epoch that reads the row.

    Nothing waits for the watermark, so no event time is rejected as too far in the future. The event time is
    `_event_ts` if the source provides it, otherwise the time of the epoch. It is used only to advance the watermark.
    """

    kind: str = declare_attribute(default="rows")
    max_future_ms: Milliseconds[int] = declare_attribute(default=_FOREVER_MS)

    CONFIG_PATH: ClassVar[str] = "transform.sql"

    def summary(self) -> StepSummary:
        return StepSummary("SQL", "what the SQL selects, in the epoch that reads it", "none but offsets")


ROWS = StatelessStep()
