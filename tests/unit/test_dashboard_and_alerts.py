"""The dashboard and the alerts in deploy/: queries use existing metrics and labels, and alerts fire only when they should."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.command import GOOD
from tests.support.example_statuses_and_metrics import COUNTERS, JOIN, PAIRS, STATUS, iterate_metric_samples
from tests.support.local_pipeline_script import MicroBatch, run_local_script
from tests.support.markdown_pages import find_heading_anchors
from tests.support.promql_evaluator import (
    ScrapedSeriesStore,
    iterate_grouping_labels,
    iterate_selectors,
    parse_promql_query,
)
from typer.main import get_command

from slackwater.cli.main import app
from slackwater.config import config_warnings
from slackwater.config.toml import loads
from slackwater.config.window import Aggregation, Window
from slackwater.engine.observer import PendingPublish, Status
from slackwater.metrics import PREFIX, Metrics

ROOT = Path(__file__).resolve().parents[2]
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((ROOT / "deploy/prometheus/slackwater-alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy/grafana/slackwater.json").read_text())
PANELS = [p for p in DASHBOARD["panels"] if p["type"] != "row"]
QUERIES = [
    *(pytest.param(r["expr"], id=r["alert"]) for r in RULES),
    *(
        pytest.param(t["expr"], id=f"{p['title']}, {t['refId']}".replace(" ", "_"))
        for p in PANELS
        for t in p["targets"]
    ),
]


@pytest.fixture(scope="module")
def labels_by_metric_name() -> dict[str, set[str]]:
    """Collect every metric and its labels from the statuses of windows, sessions and a join."""
    window = Window(
        kind="tumbling",
        duration_ms=1000,
        event_time_column="ts",
        group_by=["k"],
        max_groups_per_window=100,
        aggregations=[Aggregation(agg="count", as_="n")],
    )
    script = [MicroBatch({"a": [{"ts": t, "k": "x"}]}) for t in (0, 5_000_000, 90_000_000)]
    metrics = Metrics()
    metrics.on_start(loads(GOOD, "p.toml", {}))
    for status in [*run_local_script(window, script, schema={"k": "string"}, sources=("a",)).statuses, STATUS, JOIN]:
        metrics.on_commit(status)
    labels_by_metric: dict[str, set[str]] = {"up": {"job", "instance"}}
    for name, labels, _ in iterate_metric_samples(metrics):
        labels_by_metric.setdefault(name, set()).update(labels)
    return labels_by_metric


@pytest.mark.parametrize("query", QUERIES)
def test_every_query_uses_existing_metrics_and_labels(query: str, labels_by_metric_name: dict[str, set[str]]) -> None:
    tree = parse_promql_query(query)
    used = list(iterate_selectors(tree))
    assert used
    labels = set()
    for selector in used:
        assert selector.name in labels_by_metric_name, f"{selector.name} is not a metric of ours"
        metric_labels = labels_by_metric_name[selector.name]
        labels |= metric_labels
        for matcher in selector.matchers.matchers:
            assert matcher.name in metric_labels, f"{selector.name} has no label {matcher.name}"
    assert set(iterate_grouping_labels(tree)) <= labels


@pytest.mark.parametrize("broken", ["slackwater_streaming_rows", 'slackwater_streaming_epoch{source="a"}', "sum("])
def test_query_with_unknown_metric_or_label_is_rejected(
    broken: str, labels_by_metric_name: dict[str, set[str]]
) -> None:
    with pytest.raises((AssertionError, ValueError)):
        test_every_query_uses_existing_metrics_and_labels(broken, labels_by_metric_name)


def test_promql_labels_cover_aggregations_and_vector_matching() -> None:
    tree = parse_promql_query("sum by (pipeline, le) (rate(a[5m])) / on (source) group_left () sum by (side) (b)")
    assert set(iterate_grouping_labels(tree)) == {"pipeline", "le", "source", "side"}


def test_every_metric_is_on_the_dashboard(labels_by_metric_name: dict[str, set[str]]) -> None:
    shown = {s.name for p in PANELS for t in p["targets"] for s in iterate_selectors(parse_promql_query(t["expr"]))}
    assert set(labels_by_metric_name) - shown == {"up"}


def test_every_metric_is_documented(labels_by_metric_name: dict[str, set[str]]) -> None:
    page = (ROOT / "docs/metrics.md").read_text()
    names = {
        n.removeprefix(PREFIX)
        for n in labels_by_metric_name
        if not n.endswith(("_bucket", "_count", "_sum")) and n != "up"
    }
    assert {n for n in names if not re.search(rf"`{n}[`{{]", page)} == set()


# -- the dashboard -----------------------------------------------------------------------------------------------------


def test_dashboard_is_valid_for_grafana() -> None:
    assert DASHBOARD["id"] is None  # otherwise it would replace another dashboard
    assert DASHBOARD["uid"] == "slackwater"
    ids = [p["id"] for p in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    assert {v["name"] for v in DASHBOARD["templating"]["list"]} == {"datasource", "pipeline"}
    for panel in PANELS:
        assert panel["title"] and panel["description"], panel["id"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        refs = [t["refId"] for t in panel["targets"]]
        assert len(set(refs)) == len(refs)
        for part in (panel, *panel["targets"]):
            assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        for target in panel["targets"]:
            assert '{pipeline=~"$pipeline"' in target["expr"]
            assert "{{pipeline}}" in target["legendFormat"]


def test_dashboard_panels_do_not_overlap() -> None:
    taken: dict[tuple[int, int], int] = {}
    for panel in DASHBOARD["panels"]:
        grid = panel["gridPos"]
        assert grid["x"] + grid["w"] <= 24
        for x in range(grid["x"], grid["x"] + grid["w"]):
            for y in range(grid["y"], grid["y"] + grid["h"]):
                assert taken.setdefault((x, y), panel["id"]) == panel["id"]


# -- the alert rules ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=[r["alert"] for r in RULES])
def test_alert_rule_has_a_description_and_a_runbook_link(rule: dict[str, Any]) -> None:
    assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"\d+[mh]", rule["for"])
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description"}
    page, _, anchor = rule["annotations"]["description"].rpartition("See ")[2].partition("#")
    assert anchor == rule["alert"].lower()
    assert anchor in find_heading_anchors((ROOT / page).read_text())


def test_alert_rules_have_unique_names() -> None:
    assert len({r["alert"] for r in RULES}) == len(RULES)


def test_commands_in_alert_and_panel_descriptions_exist() -> None:
    texts = [r["annotations"]["description"] for r in RULES] + [p["description"] for p in PANELS]
    named = {m for text in texts for m in re.findall(r"slackwater ([a-z]+(?: [a-z-]+)?) FILE", text)}
    assert {"why", "outbox show", "dlq list", "state sizes"} <= named
    for words in named:
        command: Any = get_command(app)
        for word in words.split():
            command = command.commands[word]


def test_large_state_alert_threshold_matches_the_config_warning() -> None:
    rule = next(r for r in RULES if r["alert"] == "SlackwaterStateLarge")
    assert rule["expr"] == f"{PREFIX}state_bytes > {config_warnings.DEFAULT_GIB * config_warnings.GIB}"


MINUTE = 60.0
Change = Callable[[int, dict[str, Any]], None]


class SimulatedPipeline:
    """A pipeline that reads 1,000 rows a minute, 3 minutes behind the clock, scraped every minute."""

    def __init__(self) -> None:
        self.samples, self.counters = ScrapedSeriesStore(), dict[str, Any]()
        self.metrics, self.now = Metrics(clock=lambda: self.now), 1_700_000_000.0

    def run(self, minutes: int, change: Change) -> None:
        for minute in range(minutes):
            self.now += MINUTE
            minute_state: dict[str, Any] = {
                "rows": 1000,
                "behind": 180.0,
                "state_bytes": 1 << 20,
                "seconds": 0.5,
                "up": True,
                "start": minute == 0,
            }
            change(minute, minute_state)
            if minute_state["start"]:
                self.metrics = Metrics(clock=lambda: self.now)
                self.metrics.on_start(loads(GOOD, "p.toml", {}))
            self.metrics.on_pending(minute_state.get("waiting"))
            if not minute_state.get("waiting"):
                self.metrics.on_commit(self.status(minute, minute_state))
            up = ("up", {"job": "slackwater", "instance": "a"}, float(minute_state["up"]))
            shown = iterate_metric_samples(self.metrics) if minute_state["up"] else ()
            target_labels = {"job": "slackwater", "instance": "a"}
            self.samples.scrape(self.now, [up, *((n, {**labels, **target_labels}, v) for n, labels, v in shown)])

    def status(self, minute: int, minute_state: dict[str, Any]) -> Status:
        counts = self.counters
        for name in ("rows_lost", "files_changed", "overflows", "rows_refused", "rows_bad", "late", "evicted"):
            counts[name] = counts.get(name, 0) + minute_state.get(name, 0)
        counts["rows_in"] = counts.get("rows_in", 0) + minute_state["rows"]
        plain = {k: v for k, v in counts.items() if k not in ("late", "evicted")}
        sides = {"left": {"buffered": 10**6, "evicted": counts["evicted"]}, "right": {"buffered": 10**6}}
        return replace(
            JOIN,
            pipeline="user-sessions",
            epoch=minute,
            seconds=minute_state["seconds"],
            watermark_us=int((self.now - minute_state["behind"]) * 1e6),
            state_bytes=minute_state["state_bytes"],
            counters=replace(COUNTERS, **plain, late={"lateness": counts["late"]}, sides=sides),
            stages=(replace(PAIRS, counters=replace(COUNTERS, sides=sides)),),
        )


def fired_alerts(minutes: int, change: Change) -> set[str]:
    """Return the alerts that fire after the first five minutes of a run."""
    run, on = SimulatedPipeline(), set[str]()
    pending: dict[str, float] = {}
    trees = {r["alert"]: parse_promql_query(r["expr"]) for r in RULES}
    hold = {r["alert"]: float(r["for"][:-1]) * (MINUTE if r["for"][-1] == "m" else 60 * MINUTE) for r in RULES}

    def each(minute: int, minute_state: dict[str, Any]) -> None:
        change(minute, minute_state)
        if minute < 5:
            return
        for name, tree in trees.items():
            if any(v == v for v in run.samples.evaluate_query(tree).values()):
                since = pending.setdefault(name, run.samples.last)
                if run.samples.last - since >= hold[name]:
                    on.add(name)
            else:
                pending.pop(name, None)

    run.run(minutes, each)
    return on


def simulate_slow_healthy_pipeline(minute: int, minute_state: dict[str, Any]) -> None:
    """Simulate a healthy pipeline with late rows, bad rows, slow publishing and one restart."""
    minute_state.update(late=5, rows_bad=5, behind=180.0 + 60 * (minute % 3), start=minute in (0, 60))
    minute_state["up"] = minute != 60


def change_simulation_at_minute_40(**more: Any) -> Change:
    return lambda minute, minute_state: minute_state.update(more if minute == 40 else {})


def change_simulation_after_minute_10(**more: Any) -> Change:
    return lambda minute, minute_state: minute_state.update(more if minute > 10 else {})


AWAY = PendingPublish(20, int((1_700_000_000 + 21 * MINUTE) * 1e6), {"base": 7, "files": 7}, ("base",), "base")


def simulate_failed_publishing(minute: int, minute_state: dict[str, Any]) -> None:
    """The target is unavailable from minute 20 on. Each run fails, and a supervisor starts the next one every other minute."""
    if minute >= 20:
        minute_state.update(waiting=AWAY, start=minute % 2 == 0, up=minute % 2 == 0)


def simulate_state_growth(minute: int, minute_state: dict[str, Any]) -> None:
    minute_state["state_bytes"] = int((2 << 30) + minute * (12 << 20))


CASES: dict[str, tuple[int, Change, set[str]]] = {
    "SlackwaterDown": (60, lambda m, g: g.update(up=m < 30), set()),
    "SlackwaterRestarts": (60, lambda m, g: g.update(start=m % 5 == 0), set()),
    "SlackwaterNotPublished": (60, simulate_failed_publishing, {"SlackwaterRestarts", "SlackwaterNoRows"}),
    "SlackwaterLag": (60, lambda m, g: g.update(behind=180 + 60.0 * max(m - 10, 0)), set()),
    "SlackwaterNoRows": (80, lambda m, g: g.update(rows=0 if m > 20 else 1000), set()),
    "SlackwaterSlowEpochs": (60, change_simulation_after_minute_10(seconds=45.0), set()),
    "SlackwaterLateRows": (60, change_simulation_after_minute_10(late=20), set()),
    "SlackwaterBadRows": (60, change_simulation_after_minute_10(rows_bad=20), set()),
    "SlackwaterLostRows": (60, change_simulation_at_minute_40(rows_lost=1), set()),
    "SlackwaterRefusedRows": (60, change_simulation_at_minute_40(rows_refused=1), set()),
    "SlackwaterJoinEvicted": (60, change_simulation_at_minute_40(evicted=1), set()),
    "SlackwaterStateLarge": (60, change_simulation_after_minute_10(state_bytes=17 << 30), {"SlackwaterStateGrows"}),
    "SlackwaterStateGrows": (120, simulate_state_growth, set()),
    "SlackwaterOverflows": (60, change_simulation_at_minute_40(overflows=1), set()),
    "SlackwaterFilesChanged": (60, change_simulation_at_minute_40(files_changed=1), set()),
}


@pytest.mark.parametrize("alert", CASES)
def test_alert_fires_for_its_condition_and_no_other_alert_fires(alert: str) -> None:
    minutes, change, others = CASES[alert]
    assert fired_alerts(minutes, change) - others == {alert}


def test_every_alert_has_a_case() -> None:
    assert set(CASES) == {r["alert"] for r in RULES}


def test_no_alert_fires_for_a_healthy_pipeline() -> None:
    assert fired_alerts(120, simulate_slow_healthy_pipeline) == set()


def test_no_alert_fires_while_a_pipeline_catches_up() -> None:
    """The pipeline starts a day behind and reads four times as fast as the clock."""
    assert fired_alerts(60, lambda m, g: g.update(behind=86_400.0 - 180.0 * m)) == set()


def test_no_alert_fires_after_a_short_publishing_failure() -> None:
    def change(minute: int, minute_state: dict[str, Any]) -> None:
        if 20 <= minute < 22:
            minute_state["waiting"] = AWAY

    assert fired_alerts(60, change) == set()


def test_promql_functions_give_the_results_of_prometheus() -> None:
    """Evaluate functions on series with known results."""
    samples = ScrapedSeriesStore()
    for i, value in enumerate([0.0, 10, 20, 5, 15]):
        samples.scrape(60.0 * i, [("a", {"p": "x"}, value), ("b", {"p": "x"}, 100.0 * i)])
    key = frozenset({("p", "x")})

    def now(expression: str) -> Any:
        return samples.evaluate_query(parse_promql_query(expression))

    assert now("increase(a[10m])") == {key: 35}
    assert now("delta(b[10m])") == {key: 400}
    assert now("changes(a[10m])") == {key: 4}
    assert now("predict_linear(b[10m], 60)")[key] == pytest.approx(500)
    assert now("a / b > 0.03") == {key: 15 / 400}
    assert now("a > 10 and b < 100") == {}
    assert now("time() - a") == {key: 225}
    samples.scrape(300.0, [("b", {"p": "x"}, 1.0)])
    assert now("a") == {}  # the series ended
    assert now("last_over_time(a[10m])") == {key: 15}
    for le, count in (("1.0", 10), ("2.0", 30), ("+Inf", 40)):
        samples.scrape(360.0, [("h", {"le": le}, count)])
    assert now("histogram_quantile(0.5, h)") == {frozenset(): 1.5}
