"""The keys that all steps have in common: event time, watermarks, late rows."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

from slackwater.config.key import Milliseconds, WithUnit, declare_attribute, declare_key, declare_with_unit
from slackwater.config.message_format import format_config_duration
from slackwater.config.spec_base import Problem, Spec, Values
from slackwater.config.value_parsers import (
    InvalidValueError,
    attach_json_schema,
    choice_parser,
    duration_parser,
    parse_text,
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
