"""The keys that all steps have in common: event time, watermarks, late rows."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

from slackwater.config.message_format import format_config_duration
from slackwater.config.spec_base import Problem, Spec, Values
from slackwater.config.value_parsers import (
    InvalidValueError,
    ValueParser,
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


TIMES: Mapping[str, ValueParser] = {
    "event_time_column": parse_text,
    "event_time_unit": choice_parser("s", "ms", "us", "ns"),
    "event_time_zone": _parse_time_zone,
    "time_mode": choice_parser("event", "processing"),
    "lateness_ms": duration_parser(0),
    "source_idleness_ms": duration_parser(1),
    "idle_close_ms": duration_parser(1),
    "max_future_ms": duration_parser(0),
    "max_jump_ms": duration_parser(1),
}
RECOVERY = choice_parser("at_least_once", "persisted", "kafka_eos")


class StepSummary(NamedTuple):
    """Short phrases that describe a step, for use within sentences."""

    title: str  # "every 3rd row of 1 key"
    behaviour: str  # what it emits: "each 3rd row of a key, in the epoch that reads it"
    state: str  # what it stores: "one number per key, forever"


class StepBase(Spec):
    """Base class of the step of a stage: a `Window`, a `Join`, a `KeyedStep` or a `StatelessStep`."""

    kind: str
    event_time_column: str = "_event_ts"
    event_time_unit: str | None = None
    event_time_zone: str | None = None
    time_mode: str = "event"
    lateness_ms: int = 0
    source_idleness_ms: int = 60_000
    idle_close_ms: int | None = None
    max_future_ms: int = 3_600_000
    max_jump_ms: int | None = None
    late_data: str = "drop"
    allowed_lateness_ms: int | None = None
    on_state_cap: str = "fail"
    crash_recovery: str | None = None

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
