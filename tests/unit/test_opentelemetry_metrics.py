"""Metrics over OpenTelemetry: a receiver on loopback decodes the requests of the SDK's exporter."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from tests.support.command import GOOD
from tests.support.example_statuses_and_metrics import COUNTERS, JOIN, STATUS, iterate_metric_samples
from tests.support.http_post_recorder import HttpPostRecorder

from slackwater import observe, secret_masking
from slackwater.config.toml import loads
from slackwater.engine.observer import PendingPublish
from slackwater.errors import StartError
from slackwater.metrics import BUCKETS, Metrics

Series = dict[tuple[str, frozenset[tuple[str, str]]], Any]


class MetricsReceiver(HttpPostRecorder):
    """A collector that stores the requests it accepts."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = list[ExportMetricsServiceRequest]()
        self.headers = list[dict[str, str]]()

    def record_request(self, path: str, headers: Mapping[str, str], body: bytes) -> None:
        self.headers.append({"path": path, **headers})
        if self.status == 200:
            request = ExportMetricsServiceRequest()
            request.ParseFromString(body)
            self.requests.append(request)

    def latest_series(self) -> Series:
        series: Series = {}
        for scope in self.requests[-1].resource_metrics[0].scope_metrics:
            for metric in scope.metrics:
                kind = metric.WhichOneof("data")
                for point in getattr(metric, kind).data_points:
                    labels = frozenset((a.key, a.value.string_value) for a in point.attributes)
                    value = point if kind == "histogram" else point.as_double or float(point.as_int)
                    series[metric.name, labels] = value
        return series

    @property
    def resource_attributes(self) -> dict[str, str]:
        attributes = self.requests[-1].resource_metrics[0].resource.attributes
        return {a.key: a.value.string_value for a in attributes}


@pytest.fixture
def metrics_receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetricsReceiver]:
    server = MetricsReceiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
    with server.serve_in_background():
        yield server


@pytest.fixture(autouse=True)
def extend_export_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow long timeouts, because a slow machine is not an unreachable collector."""
    monkeypatch.setattr("slackwater.observe.opentelemetry_metrics.LAST_SECONDS", 60.0)


@pytest.fixture
def log_lines() -> list[str]:
    return []


def start_metrics_observer(log_lines: list[str]) -> Any:
    observer = observe.open_telemetry(lambda level, line: log_lines.append(f"{level}: {line}"))
    observer.on_start(loads(GOOD, "p.toml", {}))
    return observer


def test_exported_metrics_equal_those_of_prometheus(metrics_receiver: MetricsReceiver, log_lines: list[str]) -> None:
    metrics = Metrics()
    metrics.on_start(loads(GOOD, "p.toml", {}))
    observer = start_metrics_observer(log_lines)
    for status in (
        STATUS,
        replace(JOIN, emit_lag_seconds=1.25),
        replace(STATUS, counters=replace(COUNTERS, rows_in=1100)),
    ):
        metrics.on_commit(status)
        observer.on_commit(status)
    observer.on_end(None)
    exported = metrics_receiver.latest_series()
    expected = {
        (name.removesuffix("_total") if (name.removesuffix("_total"), labels) in exported else name, labels): value
        for name, labels, value in ((n, frozenset(pairs.items()), v) for n, pairs, v in iterate_metric_samples(metrics))
        if "_epoch_seconds_" not in name and "_started_" not in name
    }
    plain = {k: v for k, v in exported.items() if "epoch_seconds" not in k[0] and "_started_" not in k[0]}
    assert plain == expected
    assert plain["slackwater_streaming_rows_in", frozenset({("pipeline", "clicks")})] == 1100
    histogram = exported["slackwater_streaming_epoch_seconds", frozenset({("pipeline", "clicks"), ("phase", "total")})]
    assert (histogram.count, histogram.sum, tuple(histogram.explicit_bounds)) == (2, 1.0, BUCKETS)
    assert histogram.bucket_counts[BUCKETS.index(0.5)] == 2
    assert metrics_receiver.resource_attributes["service.name"] == "slackwater"
    assert [line.split(" to ")[0] for line in log_lines] == ["info: OpenTelemetry metrics"]


def test_counters_and_gauges_have_the_right_kind(metrics_receiver: MetricsReceiver, log_lines: list[str]) -> None:
    observer = start_metrics_observer(log_lines)
    observer.on_commit(STATUS)
    observer.on_end(None)
    kinds = {m.name: m for s in metrics_receiver.requests[-1].resource_metrics[0].scope_metrics for m in s.metrics}
    rows = kinds["slackwater_streaming_rows_in"]
    assert rows.sum.is_monotonic
    assert rows.sum.aggregation_temporality == 2  # cumulative, like the counters of a commit
    assert kinds["slackwater_streaming_state_bytes"].WhichOneof("data") == "gauge"
    assert kinds["slackwater_streaming_state_bytes"].unit == "By"


def test_a_pending_epoch_is_exported_before_the_first_status(
    metrics_receiver: MetricsReceiver, log_lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "20")
    observer = start_metrics_observer(log_lines)
    observer.on_pending(PendingPublish(3, 0))
    metrics_receiver.wait_for_requests(2)
    name = "slackwater_streaming_unpublished_seconds", frozenset({("pipeline", "user-sessions")})
    waits = metrics_receiver.latest_series()[name]
    assert waits == pytest.approx(time.time(), abs=3600)
    observer.on_pending(None)
    observer.on_end(None)
    assert metrics_receiver.latest_series()[name] == 0


def test_the_environment_variables_of_opentelemetry_are_used(
    metrics_receiver: MetricsReceiver, log_lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = f"http://127.0.0.1:{metrics_receiver.server_port}/elsewhere"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", endpoint)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-token=open%20sesame-42")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=staging")
    observer = start_metrics_observer(log_lines)
    observer.on_end(None)
    assert metrics_receiver.headers[-1]["path"] == "/elsewhere"
    assert metrics_receiver.headers[-1]["x-token"] == "open sesame-42"
    assert metrics_receiver.resource_attributes["service.name"] == "shop"
    assert metrics_receiver.resource_attributes["deployment.environment"] == "staging"
    assert log_lines == [f"info: OpenTelemetry metrics to {endpoint} every 60 s"]
    assert "sesame" not in secret_masking.mask_secrets("a line with open sesame-42 and open%20sesame-42")


def test_an_unreachable_collector_does_not_stop_a_run(
    log_lines: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://user:hunter-22@127.0.0.1:9")  # a port without a server
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "10")
    caplog.set_level(logging.DEBUG, "opentelemetry")
    observer = start_metrics_observer(log_lines)
    failed, report_failure = threading.Event(), observer._exporter.outage.record_failure

    def noted(error: object) -> None:
        report_failure(error)
        failed.set()

    observer._exporter.outage.record_failure = noted
    observer.on_commit(STATUS)
    assert failed.wait(60)
    observer.on_commit(STATUS)
    observer.on_end(None)
    assert log_lines[1:] == [
        "warning: exporting metrics to http://user:***@127.0.0.1:9/v1/metrics failed: Connection refused; "
        "the pipeline continues without exported metrics; this is reported only once"
    ]
    assert not caplog.records


def test_the_end_of_a_run_does_not_wait_for_a_hanging_collector(
    log_lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector accepts the connection but never responds, and the run ends anyway."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as deaf:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{deaf.getsockname()[1]}")
        monkeypatch.setattr("slackwater.observe.opentelemetry_metrics.LAST_SECONDS", 0.1)
        observer = start_metrics_observer(log_lines)
        observer.on_commit(STATUS)
        observer.on_end(None)
        assert observer._thread.daemon  # a thread that still runs ends with the process


def test_collector_failure_and_recovery_are_reported_once_each(
    metrics_receiver: MetricsReceiver, log_lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "20")
    metrics_receiver.status = 400
    observer = start_metrics_observer(log_lines)
    metrics_receiver.wait_for_requests(5)  # each request failed
    metrics_receiver.status = 200
    metrics_receiver.wait_for_requests(2)
    observer.on_end(None)
    action = f"exporting metrics to http://127.0.0.1:{metrics_receiver.server_port}/v1/metrics"
    assert log_lines[1:] == [
        f"warning: {action} failed: HTTP 400 Bad Request; the pipeline continues without exported metrics; this is reported only once",
        f"info: {action} works again",
    ]


@pytest.mark.parametrize("interval", ["soon", "0", "-5", "inf", "nan"])
def test_invalid_export_interval_is_reported_with_a_one_line_error(
    interval: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", interval)
    with pytest.raises(
        StartError,
        match=rf'^OTEL_METRIC_EXPORT_INTERVAL: found "{interval}", expected a number of milliseconds above 0',
    ):
        observe.open_telemetry()


@pytest.mark.parametrize(
    ("make", "module", "option", "extra"),
    [
        (observe.open_telemetry, "opentelemetry", "--otel", "otel"),
        (observe.open_lineage, "openlineage", "--openlineage", "openlineage"),
    ],
)
def test_missing_extra_is_reported_with_its_install_command(
    make: Any, module: str, option: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [m for m in sys.modules if m == module or m.startswith((f"{module}.", f"slackwater.observe.{module}"))]:
        monkeypatch.delitem(sys.modules, name)

    class Absent:
        def find_spec(self, name: str, *args: Any) -> None:
            if name.partition(".")[0] == module:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    with pytest.raises(StartError, match=rf"^{option} needs .*; install it: pip install 'slackwater\[{extra}\]'$"):
        make()
