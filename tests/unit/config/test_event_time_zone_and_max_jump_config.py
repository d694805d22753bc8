"""Checks of `event_time_zone` and `max_jump_ms`."""

from __future__ import annotations

from typing import Any

import pytest

import slackwater as sw
from slackwater.errors import ConfigError


def build_tumbling_window(**more: Any) -> sw.Window:
    shape: dict[str, Any] = {"kind": "tumbling", "duration_ms": "1m", "max_groups_per_window": 1}
    return sw.Window(**shape, aggregations=[sw.Aggregation(agg="count", as_="n")], **more)


@pytest.mark.parametrize(
    ("zone", "hint"),
    [
        ("Europe/Berln", '; did you mean "Europe/Berlin"?'),
        ("europe/berlin", '; did you mean "Europe/Berlin"?'),
        ("+02:00", '"UTC"'),
    ],
)
def test_unknown_time_zone_is_refused_with_a_hint(zone: str, hint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        build_tumbling_window(event_time_zone=zone)
    (line,) = raised.value.problems
    assert line.startswith(f'Window: event_time_zone: found "{zone}", expected the IANA name of a time zone')
    assert hint in line


def test_event_time_zone_and_max_jump_are_parsed() -> None:
    spec = build_tumbling_window(event_time_zone="America/New_York", max_jump_ms="2h")
    assert (spec.event_time_zone, spec.max_jump_ms) == ("America/New_York", 7_200_000)
    assert (
        build_tumbling_window().event_time_zone,
        build_tumbling_window().max_jump_ms,
        build_tumbling_window().max_future_ms,
    ) == (
        None,
        None,
        3_600_000,
    )


def test_max_jump_is_refused_with_processing_time() -> None:
    with pytest.raises(ConfigError, match='max_jump_ms: cannot be combined with time_mode = "processing"'):
        build_tumbling_window(max_jump_ms="1h", time_mode="processing")
