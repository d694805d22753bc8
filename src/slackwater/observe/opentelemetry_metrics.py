"""OpenTelemetry metrics, with the names and values of the Prometheus metrics, sent by the SDK's OTLP exporter.

The SDK's environment variables configure the endpoint, the interval and the headers: OTEL_EXPORTER_OTLP_ENDPOINT,
OTEL_EXPORTER_OTLP_HEADERS, OTEL_METRIC_EXPORT_INTERVAL, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES and others.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from typing import Any
from urllib.parse import unquote

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from prometheus_client.core import Metric

from slackwater.config.pipeline import Pipeline
from slackwater.core.humanize import mismatch
from slackwater.engine.observer import Observer, PendingPublish, Status
from slackwater.errors import StartError, Topic
from slackwater.metrics import BUCKETS, PREFIX, Metrics
from slackwater.observe.outage_reporter import OutageReporter
from slackwater.secret_masking import mask_secrets, remember_secret, remember_url

LAST_SECONDS = 3.0  # time limit for the last export
AWAY_SECONDS = 0.2  # time limit for the last export if the latest attempt failed
_INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"
_LOGGER = "opentelemetry.exporter.otlp.proto.http.metric_exporter"


class OpenTelemetry(Observer):
    """An observer that exports metrics from a separate thread, periodically and at the end of the run."""

    def __init__(self, notice: Callable[[str, str], None]) -> None:
        seconds = _interval()
        _remember_headers()
        self._exporter = exporter = _Exporter(notice)
        # an infinite interval starts no thread; the reader would start its thread again in every forked process
        self._reader = PeriodicExportingMetricReader(exporter, math.inf)
        resource = Resource.create()
        attributes = {"service.version": version("slackwater")}
        if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
            attributes["service.name"] = "slackwater"
        self._provider = MeterProvider([self._reader], resource.merge(Resource(attributes)), shutdown_on_exit=False)
        self._meter = self._provider.get_meter("slackwater", version("slackwater"))
        self._metrics, self._registered = Metrics(), set[str]()
        self._families: dict[str, Metric] = {}
        self._phases = self._meter.create_histogram(
            f"{PREFIX}epoch_seconds",
            "s",
            "Seconds per phase of an epoch, in this process.",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._export_regularly, args=(seconds,), name="otel", daemon=True)
        notice("info", mask_secrets(f"OpenTelemetry metrics to {exporter.endpoint} every {seconds:g} s"))

    # -- callbacks of the run ---------------------------------------------------------------------------------------

    def on_start(self, pipeline: Pipeline) -> None:
        self._metrics.on_start(pipeline)
        self._create_instruments()
        self._thread.start()

    def on_pending(self, epoch: PendingPublish | None) -> None:
        self._metrics.on_pending(epoch)

    def on_commit(self, status: Status) -> None:
        self._metrics.on_commit(status)
        for phase, seconds in {**status.phases, "total": status.seconds}.items():
            self._phases.record(seconds, {"pipeline": status.pipeline, "phase": phase})
        if status.pipeline not in self._registered:  # all metric families exist after the first status
            self._registered.add(status.pipeline)
            self._create_instruments()

    def on_end(self, error: BaseException | None) -> None:
        self._stop.set()
        self._thread.join(AWAY_SECONDS if self._exporter.outage.is_failing else LAST_SECONDS)
        self._exporter.quit()
        self._thread.join(0.2)
        if not self._thread.is_alive():
            self._provider.shutdown(100)

    # -- export -----------------------------------------------------------------------------------------------------

    def _create_instruments(self) -> None:
        """Create an instrument for each metric family that does not have one yet."""
        for family in self._metrics.collect():
            if family.name in self._families or family.type == "histogram":
                continue
            self._families[family.name] = family
            create: Any = self._meter.create_observable_gauge
            if family.type == "counter":
                create = self._meter.create_observable_counter
            create(family.name, [self._observer(family.name)], _unit(family.name), family.documentation)

    def _observer(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(options: CallbackOptions) -> Iterator[Observation]:
            for sample in self._families[name].samples:
                yield Observation(sample.value, sample.labels)

        return observe

    def _export_regularly(self, seconds: float) -> None:
        last = False
        while not last:
            last = self._stop.wait(seconds)
            self._families |= {f.name: f for f in self._metrics.collect() if f.type != "histogram"}
            self._reader.collect()


class _Exporter(OTLPMetricExporter):
    """An OTLP exporter that reports only the first failure. The SDK's exporter logs several lines for each attempt."""

    def __init__(self, notice: Callable[[str, str], None]) -> None:
        self._why: object = ""
        super().__init__()
        remember_url(self._endpoint)
        self.endpoint = self._endpoint
        self.outage = OutageReporter(
            notice, f"exporting metrics to {self.endpoint}", "the pipeline continues without exported metrics"
        )
        logging.getLogger(_LOGGER).addFilter(_capture_failures)

    def on_log_record(self, record: logging.LogRecord) -> None:
        """Extract the reason for a failure from an SDK log record, and report the failure on the first attempt."""
        arguments = record.args if isinstance(record.args, tuple) else ()
        errors = [a for a in arguments if isinstance(a, BaseException)]
        if errors or record.msg.startswith("Transient"):
            self._why = errors[0] if errors else arguments[0]
        elif "reason:" in record.msg:
            self._why = f"HTTP {arguments[1]} {arguments[2]}"
        elif "due to timeout" in record.msg:
            self._why = self._why or "no answer in time"
        self._why = self._why or record.getMessage()
        self.outage.record_failure(self._why)

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **more: Any
    ) -> MetricExportResult:
        self._why, _exporting.by = "", self
        result = super().export(metrics_data, timeout_millis, **more)
        if result is MetricExportResult.SUCCESS:
            self.outage.record_success()
        else:
            self.outage.record_failure(self._why or "no answer")
        return result

    def quit(self) -> None:
        """Abort an export attempt that is in progress."""
        super().shutdown()

    def shutdown(self, timeout_millis: float = 30_000, **more: Any) -> None:
        """Do nothing, since `quit` has already shut down the exporter."""


_exporting = threading.local()  # `by`: the exporter that is exporting in the current thread


def _capture_failures(record: logging.LogRecord) -> bool:
    """Pass an SDK log record to the exporter of the current thread, and return False to keep the record out of the log.

    Return True if the record does not come from a Slackwater exporter.
    """
    exporter: _Exporter | None = getattr(_exporting, "by", None)
    if exporter is None:
        return True
    exporter.on_log_record(record)
    return False


def _interval() -> float:
    """Return the interval between exports in seconds. Raises StartError if OTEL_METRIC_EXPORT_INTERVAL is invalid."""
    text = os.environ.get(_INTERVAL, "60000")
    try:
        milliseconds = float(text)
    except ValueError:
        milliseconds = 0.0
    if not 0 < milliseconds < math.inf:
        raise StartError(
            f"{_INTERVAL}: " + mismatch(f'"{text}"', "a number of milliseconds above 0, as in 60000"),
            Topic.REPORT_CONFIG,
        )
    return milliseconds / 1000


def _remember_headers() -> None:
    """Register the values of OTLP headers as secrets, because they may be tokens."""
    for name in ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_METRICS_HEADERS"):
        for pair in os.environ.get(name, "").split(","):
            value = pair.partition("=")[2].strip()
            for spelled in (value, unquote(value)):
                remember_secret(spelled)


def _unit(name: str) -> str:
    return "s" if name.endswith("_seconds") else "By" if name.endswith("_bytes") else ""
