"""Metrics: the text for Prometheus, counters after a restart, and the address of the server."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from dataclasses import replace
from urllib.request import urlopen

import pytest
from prometheus_client import generate_latest
from tests.laws.generators.fixed_stage_graph_runs import counting_stage
from tests.support.command import GOOD
from tests.support.example_statuses_and_metrics import COUNTERS, STATUS

import slackwater as sw
from slackwater.config.toml import loads
from slackwater.engine.observer import Counters, PendingPublish, Status
from slackwater.errors import StartError
from slackwater.metrics import Metrics, serve_metrics
from slackwater.testing.local_pipeline import LocalPipeline
from slackwater.web.server import HttpServer


def parse_samples(metrics: Metrics) -> dict[str, float]:
    """Map each exposed `name{labels}` to its value."""
    lines = generate_latest(metrics.registry).decode().splitlines()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}


def exposed_samples(*statuses: Status) -> dict[str, float]:
    metrics = Metrics()
    for status in statuses:
        metrics.update(status)
    return parse_samples(metrics)


@pytest.mark.parametrize(
    ("series", "value"),
    [
        ('windows_active{pipeline="clicks"}', 12),
        ('windows_emitted_total{kind="session",pipeline="clicks",reason="close"}', 40),
        ('windows_emitted_total{kind="session",pipeline="clicks",reason="cap"}', 2),
        ('windows_emitted_total{kind="session",pipeline="clicks",reason="flush"}', 0),
        ('late_rows_total{cause="lateness",pipeline="clicks",policy="drop"}', 20),
        ('late_rows_total{cause="idle",pipeline="clicks",policy="drop"}', 5),
        ('late_windows_total{pipeline="clicks"}', 31),
        ('letters_total{pipeline="clicks",reason="late"}', 25),
        ('letters_total{pipeline="clicks",reason="no event time"}', 3),
        ('bad_rows_total{pipeline="clicks"}', 10),
        ('refused_rows_total{pipeline="clicks"}', 15),
        ('state_groups_total{pipeline="clicks"}', 11),
        ('state_bytes{pipeline="clicks"}', 4096),
        ('watermark_seconds{pipeline="clicks",source="web"}', 1_699_999_000.5),
        ('watermark_seconds{pipeline="clicks",source="_global"}', 1_699_999_000.5),
        ('emit_lag_seconds{pipeline="clicks"}', 3.5),
        ('rows_in_total{pipeline="clicks"}', 1000),
        ('rows_used_total{pipeline="clicks"}', 950),
        ('rows_emitted_total{pipeline="clicks"}', 42),
    ],
)
def test_every_number_of_a_status_is_exposed_as_a_series(series: str, value: float) -> None:
    assert exposed_samples(STATUS)["slackwater_streaming_" + series] == value


def test_source_without_a_watermark_has_no_series() -> None:
    assert not [s for s in exposed_samples(STATUS) if 'source="app"' in s]


def test_tumbling_windows_have_no_emitted_series_with_reason_cap() -> None:
    series = exposed_samples(replace(STATUS, window_kind="tumbling", reasons=("close", "flush"), counters=Counters()))
    assert not [s for s in series if 'reason="cap"' in s]
    assert series['slackwater_streaming_windows_emitted_total{kind="tumbling",pipeline="clicks",reason="close"}'] == 0


def test_only_series_of_slackwater_are_exposed() -> None:
    assert all(s.startswith("slackwater_streaming_") for s in exposed_samples(STATUS))


def test_epoch_histogram_is_cumulative_per_phase() -> None:
    series = exposed_samples(STATUS, replace(STATUS, phases={"ingest": 0.7, "commit": 0.01}))
    metric = "slackwater_streaming_epoch_seconds"
    assert series[f'{metric}_bucket{{le="0.25",phase="ingest",pipeline="clicks"}}'] == 0
    assert series[f'{metric}_bucket{{le="0.5",phase="ingest",pipeline="clicks"}}'] == 1
    assert series[f'{metric}_bucket{{le="1.0",phase="ingest",pipeline="clicks"}}'] == 2
    assert series[f'{metric}_bucket{{le="+Inf",phase="ingest",pipeline="clicks"}}'] == 2
    assert series[f'{metric}_count{{phase="ingest",pipeline="clicks"}}'] == 2
    assert series[f'{metric}_sum{{phase="ingest",pipeline="clicks"}}'] == pytest.approx(1.0)
    assert (
        series[f'{metric}_bucket{{le="0.01",phase="commit",pipeline="clicks"}}'] == 2
    )  # an edge belongs to its bucket
    assert series[f'{metric}_sum{{phase="total",pipeline="clicks"}}'] == pytest.approx(1.0)


def test_counters_continue_after_a_restart() -> None:
    later = replace(STATUS, counters=replace(COUNTERS, rows_in=1100, emitted={"close": 41, "cap": 2}))
    before, after = exposed_samples(STATUS), exposed_samples(later)  # two processes share only the status
    name = 'slackwater_streaming_rows_in_total{pipeline="clicks"}'
    assert (before[name], after[name]) == (1000, 1100)
    totals = [s for s in before if s.split("{")[0].endswith("_total") and "state_groups" not in s]
    assert (
        len(totals) == 20 + 10 + 22
    )  # 10 series of stages and targets, and 22 buckets of the lateness that late rows needed
    assert all(after[s] >= before[s] for s in totals)


def test_emit_lag_does_not_change_while_nothing_is_emitted() -> None:
    series = exposed_samples(STATUS, replace(STATUS, emit_lag_seconds=None))
    assert series['slackwater_streaming_emit_lag_seconds{pipeline="clicks"}'] == 3.5


def test_pending_epoch_is_exposed_before_the_first_status() -> None:
    """A start may take long to publish the epoch or may fail again, because Spark has to start first."""
    now = 1000.0
    metrics = Metrics(clock=lambda: now)
    name = 'slackwater_streaming_unpublished_seconds{pipeline="user-sessions"}'
    metrics.on_start(loads(GOOD, "p.toml", {}))
    assert parse_samples(metrics)[name] == 0
    assert parse_samples(metrics)['slackwater_streaming_started_seconds{pipeline="user-sessions"}'] == 1000
    metrics.on_pending(PendingPublish(7, 900_000_000))
    assert parse_samples(metrics)[name] == 100
    now = 1060.0
    assert parse_samples(metrics)[name] == 160
    metrics.on_pending(None)
    assert parse_samples(metrics)[name] == 0


def test_series_of_two_pipelines_are_separate() -> None:
    series = exposed_samples(STATUS, replace(STATUS, pipeline="other", windows_active=1))
    assert series['slackwater_streaming_windows_active{pipeline="clicks"}'] == 12
    assert series['slackwater_streaming_windows_active{pipeline="other"}'] == 1


@pytest.fixture
def metrics_server() -> Iterator[HttpServer]:
    metrics = Metrics()
    metrics.update(STATUS)
    server = serve_metrics(metrics, 0)
    yield server
    server.stop()


def test_metrics_server_listens_on_loopback_by_default(metrics_server: HttpServer) -> None:
    assert metrics_server.address == "127.0.0.1"
    with urlopen(f"http://127.0.0.1:{metrics_server.port}/metrics") as answer:
        assert 'slackwater_streaming_rows_in_total{pipeline="clicks"} 1000.0' in answer.read().decode()


def test_metrics_server_listens_on_the_configured_address() -> None:
    server = serve_metrics(Metrics(), 0, "0.0.0.0")
    assert server.address == "0.0.0.0"
    server.stop()


def test_port_in_use_is_reported_in_one_line(metrics_server: HttpServer) -> None:
    with pytest.raises(
        StartError,
        match=rf"^metrics cannot be served on 127\.0\.0\.1:{metrics_server.port} \(Address already in use\); choose another --metrics-port$",
    ):
        serve_metrics(Metrics(), metrics_server.port)


def test_stop_closes_the_metrics_port() -> None:
    server = serve_metrics(Metrics(), 0)
    server.stop()
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(("127.0.0.1", server.port))


def test_late_rows_are_counted_by_the_lateness_they_needed() -> None:
    counters = replace(COUNTERS, lateness={"rows": 975, "late": {"0": 3, "3": 17, "never": 5}, "of_us": {"web": 0}})
    shown_series = exposed_samples(replace(STATUS, counters=counters))
    name = "slackwater_streaming_late_by_rows_total"
    series = {
        edge: shown_series[f'{name}{{le="{edge}",pipeline="clicks"}}']
        for edge in ("0.125", "0.5", "1.0", "131072.0", "+Inf")
    }
    assert series == {"0.125": 3, "0.5": 3, "1.0": 20, "131072.0": 20, "+Inf": 25}


def two_target_pipeline() -> sw.Pipeline:
    """Build the pipeline a ─▶ w ─▶ target "w" with the branch w ─▶ x ─▶ target "x"."""
    return sw.pipeline(
        name="law",
        sources=[sw.Source(name="a", dataframe=object())],
        connections={"tables": sw.DeltaConnection()},
        stages=[counting_stage("w", "a"), counting_stage("x", "w", "total")],
        targets=[sw.Target(name=n, from_=n, connection="tables", path=n, mode="merge") for n in ("w", "x")],
        state_store=sw.StateStore(kind="files", path="state"),
    )


def test_each_stage_and_target_has_metrics_during_a_target_outage() -> None:
    """While one target is unavailable, the metrics show published rows, waiting rows and failures of each target."""
    now = 0.0
    metrics = Metrics(clock=lambda: now)
    metrics.on_start(two_target_pipeline())

    def values_by_label(name: str, label: str) -> dict[str, float]:
        values = {}
        for series, value in parse_samples(metrics).items():
            if series.startswith(f"slackwater_streaming_{name}{{"):
                values[re.search(f'{label}="([^"]*)"', series)[1]] = value  # type: ignore[index]
        return values

    with LocalPipeline(two_target_pipeline(), {"k": "string", "v": "bigint"}, capture_losses=False) as test:

        def pipe(first: int) -> None:
            hooks = test._driver.hooks
            hooks.on_status, hooks.on_waiting = metrics.update, metrics.on_pending
            test.pipe([{"k": "x", "v": 1, "ts": (first + 7 * n) * 1000} for n in range(30)])

        pipe(0)
        pipe(1000)
        w, x = test._driver.state.stages
        assert values_by_label("stage_rows_in_total", "stage") == {"w": 60, "x": w.counters["emitted"]["close"]}
        assert values_by_label("stage_rows_emitted_total", "stage") == {
            s.name: s.counters["emitted"]["close"] for s in (w, x)
        }
        assert values_by_label("stage_watermark_seconds", "stage") == {s.name: s.watermark_us / 1e6 for s in (w, x)}
        for name in ("bytes", "rows"):
            assert values_by_label(f"stage_state_{name}", "stage") == {
                s.name: sum(getattr(m, name) for m in s.metas) for s in (w, x)
            }
        had = {n: test.target(n).held.height for n in ("w", "x")}
        assert (
            values_by_label("target_published_rows_total", "target")
            == values_by_label("target_emitted_rows_total", "target")
            == had
        )
        assert (
            values_by_label("target_failures_total", "target")
            == values_by_label("target_waiting_rows", "target")
            == {"w": 0, "x": 0}
        )
        test.target("w").down = True
        for failures in (1, 2):
            with pytest.raises(sw.SlackwaterError, match='target "w"'):
                pipe(2000)
            now = test._driver.state.committed_us / 1e6 + 90
            assert values_by_label("target_failures_total", "target") == {"w": failures, "x": 0}
        lacks = test._driver.state.rows_of("w")
        assert lacks > 0
        assert values_by_label("target_waiting_rows", "target") == {"w": lacks, "x": 0}
        assert values_by_label("target_unpublished_seconds", "target") == {"w": pytest.approx(90), "x": 0}
        assert values_by_label("target_published_rows_total", "target") == {
            "w": had["w"],
            "x": test.target("x").held.height,
        }
        assert values_by_label("target_emitted_rows_total", "target")["w"] == had["w"] + lacks
        test.target("w").down = False
        pipe(3000)
        assert values_by_label("target_published_rows_total", "target") == {
            n: test.target(n).held.height for n in ("w", "x")
        }
        assert set(values_by_label("target_waiting_rows", "target").values()) == {0}
        test.restart(shards=3)
        pipe(4000)
        assert values_by_label("target_published_rows_total", "target") == {
            n: test.target(n).held.height for n in ("w", "x")
        }


def test_downstream_join_exposes_buffered_rows_per_side() -> None:
    """w ─┐
    a ────┴▶ join"""
    stages = [
        counting_stage("w", "a"),
        sw.Stage(
            name="j",
            join=sw.Join(
                kind="inner",
                left_source="w",
                right_source="a",
                left_keys=["k"],
                right_keys=["k"],
                time_window_ms=50,
                lateness_ms=1000,
            ),
        ),
    ]
    one = two_target_pipeline()
    pipeline = sw.pipeline(
        name="law",
        sources=one.sources,
        connections=one.connections,
        stages=stages,
        target=sw.Target(connection="tables", path="out", mode="append"),
        state_store=one.state_store,
    )
    with LocalPipeline(pipeline, {"k": "string", "v": "bigint"}, capture_losses=False) as test:
        test.pipe([{"k": "x", "v": 1, "ts": n * 7000} for n in range(300)])
        series = exposed_samples(*test.result().statuses)
        held = {s: sum(m.rows for m in test._driver.state.stages[1].metas if m.kind == s) for s in ("left", "right")}
    for side, rows in held.items():
        assert series[f'slackwater_streaming_join_buffered_rows{{pipeline="law",side="{side}",stage="j"}}'] == rows
    assert held["right"] > 0
