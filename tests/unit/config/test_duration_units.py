"""Durations with units, in keys without the suffix `_ms`, and default values of variables and limits."""

from __future__ import annotations

import pytest
from tests.support.user_sessions_config import ISSUE

import slackwater as sw
from slackwater.config.config_warnings import find_durations_without_unit
from slackwater.config.join import Join
from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Lookup, Source
from slackwater.config.spec_base import Spec, find_duration_keys
from slackwater.config.target import StateStore
from slackwater.config.window import Window
from slackwater.explain import find_plan_warnings

GAP = "gap_ms                   = 30000"


@pytest.mark.parametrize("spec", [Pipeline, Source, Lookup, Window, Join, StateStore])
def test_every_duration_key_has_a_variant_with_units(spec: type[Spec]) -> None:
    in_ms = {key for key, declared in spec.KEYS.items() if "duration" in declared.shape}
    assert set(find_duration_keys(spec).values()) == in_ms
    assert all(key == f"{name}_ms" for name, key in find_duration_keys(spec).items())


def test_duration_keys_with_and_without_ms_are_equivalent() -> None:
    old = ISSUE
    new = old.replace(GAP, 'gap = "30s"')
    assert new != old
    assert sw.loads(new) == sw.loads(old)
    assert sw.loads(sw.to_toml(sw.loads(old))) == sw.loads(old)
    count = [sw.Aggregation(agg="count", as_="n")]
    window = sw.Window(kind="session", gap="30m", max_session_duration="1d", group_by=["u"], aggregations=count)
    assert (window.gap_ms, window.max_session_duration_ms) == (1_800_000, 86_400_000)


@pytest.mark.parametrize(
    ("gap", "line"),
    [
        ('gap = "30s"\ngap_ms = 1', "gap: gap_ms is also set; remove one of them"),
        ("gap = 30", 'gap: found 30, expected a duration with its unit ("30s", "5m", "2h"); gap_ms takes milliseconds'),
        ('gap = "30"', 'gap: found "30", expected a duration greater than 0 ("30s", "5m", "2h")'),
    ],
)
def test_invalid_duration_is_refused_with_a_one_line_error(gap: str, line: str) -> None:
    with pytest.raises(sw.ConfigError) as raised:
        sw.loads(ISSUE.replace(GAP, gap), "p.toml")
    assert f"p.toml: transform.window.{line}" in raised.value.problems


def test_duration_below_a_second_without_a_unit_gets_a_hint() -> None:
    def lines(gap: str) -> list[str]:
        pipeline = sw.loads(ISSUE.replace(GAP, gap))
        assert len(list(find_durations_without_unit(pipeline))) == (gap == "gap_ms = 30")
        return [line for line in find_plan_warnings(pipeline) if "did you mean" in line]

    assert lines("gap_ms = 30") == [
        'transform.window.gap_ms: 30 is 30 ms: did you mean gap = "30m"? If you meant milliseconds, write gap = "30ms"'
    ]
    assert lines('gap = "30ms"') == lines('gap_ms = "30ms"') == lines("gap_ms = 30000") == []


def test_environment_variable_in_config_falls_back_to_its_default() -> None:
    content = ISSUE.replace(GAP, 'gap = "${GAP:-30s}"')
    for env, ms in (({}, 30_000), ({"GAP": ""}, 30_000), ({"GAP": "2m"}, 120_000)):
        pipeline = sw.loads(content, env=env)
        assert pipeline.transform.window is not None
        assert pipeline.transform.window.gap_ms == ms
        assert 'gap = "${GAP:-30s}"' in sw.to_toml(pipeline)


def test_max_groups_per_window_has_a_default() -> None:
    count = [sw.Aggregation(agg="count", as_="n")]
    assert sw.Window(kind="tumbling", duration="1m", aggregations=count).max_groups_per_window == 1_000_000
