"""Base classes of the steps (window, join, keyed step), and the step of a stage that has only SQL."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

from slackwater.config.config_key import (
    Milliseconds,
    Texts,
    WithUnit,
    declare_attribute,
    declare_key,
    declare_with_unit,
)
from slackwater.config.error_text import format_config_duration
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

MOST_STAGES = 16  # the limit per pipeline


@attach_json_schema(type="string", minLength=1, examples=["UTC", "Europe/Berlin", "America/New_York"])
def _parse_time_zone(value: Any) -> str:
    """Parse the IANA name of a time zone."""
    from zoneinfo import available_timezones

    name = parse_text(value)
    zones = available_timezones()
    if zones and name not in zones:
        # a list of several hundred names would not help
        close = next((k for k in zones if k.casefold() == name.casefold()), None) or next(
            iter(difflib.get_close_matches(name, zones, n=1)), None
        )
        hint = f'; did you mean "{close}"?' if close else ""
        raise InvalidValueError(f'the IANA name of a time zone, as in "Europe/Berlin" or "UTC"{hint}')
    return name


class StepSummary(NamedTuple):
    """Short phrases that describe a step in the output of `check` and `explain`."""

    title: str  # as in "every 3rd row of 1 key"
    behaviour: str  # what the step emits, as in "each 3rd row of a key, in the epoch that reads it"
    state: str  # what the step stores, as in "one number per key, forever"


class StepBase(Spec):
    """Base class of the steps that a stage can have: `Window`, `Join`, `KeyedStep` and `StatelessStep`."""

    kind: str
    event_time_column: str = declare_key(
        parse_text,
        "The column with the event time, or a SQL expression over the row. The default, `_event_ts`, is the timestamp of a Kafka record.",
        default="_event_ts",
        elsewhere=("timestamp_column", "time_column", "event_time", "timestamp"),
    )
    event_time_unit: str | None = declare_key(
        choice_parser("s", "ms", "us", "ns"),
        "The unit of integer event times, which count from 1970: seconds, milliseconds, microseconds or nanoseconds.",
        default=None,
    )
    event_time_zone: str | None = declare_key(
        _parse_time_zone,
        "The time zone (IANA name) of event times that are dates, TIMESTAMP_NTZ, or strings without an offset.",
        default=None,
    )
    time_mode: str = declare_key(
        choice_parser("event", "processing"),
        "`event` takes the event time from the row. `processing` uses the time at which the row is read.",
        default="event",
    )
    lateness_ms: Milliseconds[int] = declare_key(
        duration_parser(0),
        "How far rows may be out of order. The watermark stays this far behind the newest event time of a source.",
        default=0,
        elsewhere=("watermark", "watermark_ms", "watermark_delay_ms", "watermark_delay"),
    )
    lateness: WithUnit = declare_with_unit(default=None)
    source_idleness_ms: Milliseconds[int] = declare_key(
        duration_parser(1),
        "A source that returns no rows for this long is idle, and no longer holds back the watermark.",
        default=60_000,
    )
    source_idleness: WithUnit = declare_with_unit(default=None)
    idle_close_ms: Milliseconds[int | None] = declare_key(
        duration_parser(1),
        "If no source returns rows for this long, the watermark advances with the clock. Off by default.",
        default=None,
    )
    idle_close: WithUnit = declare_with_unit(default=None)
    max_future_ms: Milliseconds[int] = declare_key(
        duration_parser(0),
        "A row whose event time is further ahead of the clock than this is a bad row.",
        default=3_600_000,
    )
    max_future: WithUnit = declare_with_unit(default=None)
    max_jump_ms: Milliseconds[int | None] = declare_key(
        duration_parser(1),
        "If a source's newest event time jumps ahead by more than this, it takes effect once 100 rows confirm it. Off by default.",
        default=None,
    )
    max_jump: WithUnit = declare_with_unit(default=None)
    crash_recovery: str | None = declare_key(
        choice_parser("at_least_once", "persisted", "kafka_eos"),
        "The delivery guarantee that the state store and the target must support. If either does not, Slackwater refuses to start.",
        default=None,
    )
    late_data: str = declare_attribute(default="drop")  # subclasses that support these three keys declare them
    allowed_lateness_ms: Milliseconds[int | None] = declare_attribute(default=None)
    on_state_cap: str = declare_attribute(default="fail")

    CONFIG_PATH: ClassVar[str]  # path of the step in a config, such as "transform.window"
    STATE_KEYS: ClassVar[tuple[str, ...]] = ()  # if one of these keys changes, a stored state cannot be used

    def summary(self) -> StepSummary:
        """Return phrases that describe the step."""
        raise NotImplementedError

    @property
    def watermark_delay_ms(self) -> int:
        """The maximum time (ms) by which the event time of a result may be behind the watermark."""
        return 0

    @property
    def table(self) -> str:
        """The name of the step's config table, such as "window" or "join"."""
        return self.CONFIG_PATH.rpartition(".")[2]

    @classmethod
    def check(cls, values: Values, wrong: set[str]) -> Iterator[Problem]:
        if "allowed_lateness_ms" in values and values.get("late_data", "drop") != "reopen" and "late_data" not in wrong:
            yield (
                "allowed_lateness_ms",
                'needs late_data = "reopen"; set it, or raise lateness_ms to wait longer for late rows',
            )
        if "max_jump_ms" in values and values.get("time_mode") == "processing":
            yield (
                "max_jump_ms",
                'cannot be combined with time_mode = "processing", which uses the clock as the event time; remove one of them',
            )
        close, idleness = values.get("idle_close_ms"), values.get("source_idleness_ms", 60_000)
        if close is not None and "source_idleness_ms" not in wrong and close < idleness:
            yield (
                "idle_close_ms",
                mismatch(
                    format_config_duration(close),
                    f"at least source_idleness_ms ({format_config_duration(idleness)}), because a source is idle only "
                    "after that time",
                ),
            )


def effective_allowed_lateness_ms(step: StepBase) -> int:
    """Return how long (ms) a window can still be corrected after it closes.

    For a join, return how far (ms) a row may be behind the watermark and still be joined.
    """
    if step.late_data != "reopen":
        return 0
    return step.lateness_ms if step.allowed_lateness_ms is None else step.allowed_lateness_ms


LATE_ROWS = choice_parser("drop", "dlq")  # for steps that cannot process rows behind the watermark
LATE_ROWS_TEXT = "What to do with late rows: drop and count them, or write them as dead letters."


class KeyedStep(StepBase):
    """Base class for steps that process whole rows by key.

    A subclass defines `kind` (the name of its config table), CONFIG_PATH, any additional config keys, and `summary`.
    """

    keys: Texts = declare_key(
        parse_texts,
        "The key columns, which the SQL must select.",
        required='name the key columns, as in ["user"]',
        elsewhere=("key", "key_columns", "group_by", "by"),
    )

    STATE_KEYS: ClassVar[tuple[str, ...]] = ("keys",)
    DOC_LINK: ClassVar[str] = "docs/configuration.md#transform"

    @property
    def added_columns(self) -> Mapping[str, str]:
        """The columns that the step adds to each row, with their types."""
        return {}

    def result_types(self, types: Mapping[str, str | None]) -> dict[str, str | None]:
        """Return the column types of the results. `types`: the column types of the input; None for an unknown type."""
        return {**types, **self.added_columns}

    @classmethod
    def check(cls, values: Values, wrong: set[str]) -> Iterator[Problem]:
        yield from super().check(values, wrong)
        names = values.get("keys", ())
        if "keys" in values and not names:
            yield "keys", 'empty; expected at least one key column, as in ["user"]'
        if any(name.casefold() == "_event_ts" for name in names):
            yield "keys", '"_event_ts" is the event time, which cannot be a key; remove it'
        for name in dict.fromkeys(n for n in names if names.count(n) > 1):
            yield "keys", f'contains column "{name}" more than once; list it once'


_FOREVER_MS = 20_000 * 366 * 86_400_000  # longer than the difference between any two event times


class StatelessStep(StepBase):
    """Step of a stage that has only SQL. It emits the result of a row in the epoch that reads the row.

    The event time only advances the watermark, and may be arbitrarily far in the future. It is `_event_ts` if the
    source provides this column, otherwise the time of the epoch.
    """

    kind: str = declare_attribute(default="rows")
    max_future_ms: Milliseconds[int] = declare_attribute(default=_FOREVER_MS)

    CONFIG_PATH: ClassVar[str] = "transform.sql"

    def summary(self) -> StepSummary:
        return StepSummary("SQL", "the result of the SQL, in the epoch that reads the row", "none but offsets")


ROWS = StatelessStep()
