"""Prometheus metrics, built from the latest status of each pipeline.

Counters are cumulative and come from the commit, so they continue across restarts. The histogram of epoch phases and
the number of target failures cover only this process. Pending output is known from the start of a run, before the first
status. Every metric has the label `pipeline`; metrics of one stage or target also have `stage` or `target`.

May import: config, core, engine, health_probes, web.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, make_asgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from slackwater.config.pipeline import Pipeline
from slackwater.core.lateness_histogram import EDGES
from slackwater.engine.observer import Counters, Observer, PendingPublish, StageStatus, Status
from slackwater.health_probes import HealthProbes

if TYPE_CHECKING:
    from slackwater.web.request_guard import Receive, Scope, Send
    from slackwater.web.server import HttpServer

CONNECTIONS = 16  # the maximum at a time, because each connection uses a file descriptor of the runner
PREFIX = "slackwater_streaming_"
LATE_BUCKETS = 21  # up to 36 hours
BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics(Collector, Observer):
    """The metrics of pipelines. Use an instance as an observer, or call `update` with each status.

    The registry is separate and does not include the default process metrics. `clock` returns the Unix time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._pipeline = ""  # the pipeline whose run is being observed
        self._started: dict[str, float] = {}
        self._waiting: dict[str, PendingPublish | None] = {}  # an epoch that is not published
        self._failures: Counter[tuple[str, str]] = Counter()  # by pipeline and target
        self.registry = CollectorRegistry(auto_describe=False)
        self._latest: dict[str, Status] = {}
        self._lag: dict[str, float] = {}
        self._phases: dict[tuple[str, str], tuple[list[int], float]] = {}
        self._lock = threading.Lock()
        self.registry.register(self)

    def on_start(self, pipeline: Pipeline) -> None:
        with self._lock:
            self._pipeline = pipeline.name
            self._started[pipeline.name] = self._clock()
            self._waiting[pipeline.name] = None

    def on_pending(self, epoch: PendingPublish | None) -> None:
        with self._lock:
            self._waiting[self._pipeline] = epoch
            if epoch is not None and epoch.failed is not None:
                self._failures[self._pipeline, epoch.failed] += 1

    def on_commit(self, status: Status) -> None:
        self.update(status)

    def update(self, status: Status) -> None:
        with self._lock:
            self._latest[status.pipeline] = status
            if status.emit_lag_seconds is not None:
                self._lag[status.pipeline] = status.emit_lag_seconds
            for phase, seconds in {**status.phases, "total": status.seconds}.items():
                counts, total = self._phases.setdefault((status.pipeline, phase), ([0] * (len(BUCKETS) + 1), 0.0))
                counts[bisect_left(BUCKETS, seconds)] += 1
                self._phases[status.pipeline, phase] = (counts, total + seconds)

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            statuses = list(self._latest.values())
            yield from self._run_metrics()
            yield from _gauges(statuses, self._lag)
            yield from _counters(statuses)
            yield from _stages(statuses)
            yield from _joins(statuses)
            yield from self._target_metrics(statuses)
            yield _lateness(statuses)
            yield self._histogram()

    def _run_metrics(self) -> Iterator[Metric]:
        """Yield the metrics that are known before the first status."""
        started = GaugeMetricFamily(
            f"{PREFIX}started_seconds",
            "Unix time at which this process began to run the pipeline.",
            labels=["pipeline"],
        )
        for pipeline, started_s in self._started.items():
            started.add_metric([pipeline], started_s)
        unpublished = GaugeMetricFamily(
            f"{PREFIX}unpublished_seconds",
            "Age of the commit whose output is not fully published yet; 0 if all output is published.",
            labels=["pipeline"],
        )
        for pipeline, epoch in self._waiting.items():
            unpublished.add_metric([pipeline], self._age(epoch))
        yield from (started, unpublished)

    def _age(self, epoch: PendingPublish | None) -> float:
        return 0.0 if epoch is None else max(self._clock() - epoch.committed_us / 1e6, 0.0)

    def _target_metrics(self, latest: Iterable[Status]) -> Iterator[Metric]:
        """Yield the committed, published and pending rows of each target, including dead letters."""
        statuses = {s.pipeline: s for s in latest}
        labels = ["pipeline", "target"]
        emitted = CounterMetricFamily(f"{PREFIX}target_emitted_rows", "Rows committed for a target.", labels=labels)
        published = CounterMetricFamily(
            f"{PREFIX}target_published_rows", "Committed rows that are in the target.", labels=labels
        )
        failures = CounterMetricFamily(
            f"{PREFIX}target_failures", "Failed writes to a target, in this process.", labels=labels
        )
        pending = GaugeMetricFamily(
            f"{PREFIX}target_waiting_rows", "Committed rows that are not in the target yet.", labels=labels
        )
        age = GaugeMetricFamily(
            f"{PREFIX}target_unpublished_seconds",
            "Age of the commit whose rows are not in the target yet; 0 if there is none.",
            labels=labels,
        )
        for pipeline in dict.fromkeys([*statuses, *self._waiting]):
            status, epoch = statuses.get(pipeline), self._waiting.get(pipeline)
            totals = {} if status is None else status.counters.targets
            # a status describes the latest epoch that all targets have; pending rows belong to a later epoch
            later = {} if epoch is None or (status is not None and epoch.epoch <= status.epoch) else epoch.rows
            missing = {} if epoch is None else {n: epoch.rows[n] for n in epoch.missing if n in epoch.rows}
            for name in dict.fromkeys([*totals, *later, *missing]):
                if name in totals:
                    committed = totals[name] + later.get(name, 0)
                    emitted.add_metric([pipeline, name], committed)
                    published.add_metric([pipeline, name], committed - missing.get(name, 0))
                failures.add_metric([pipeline, name], self._failures[pipeline, name])
                pending.add_metric([pipeline, name], missing.get(name, 0))
                age.add_metric([pipeline, name], self._age(epoch if name in missing else None))
        yield from (emitted, published, failures, pending, age)

    def _histogram(self) -> Metric:
        family = HistogramMetricFamily(
            f"{PREFIX}epoch_seconds", "Seconds per phase of an epoch, in this process.", labels=["pipeline", "phase"]
        )
        for (pipeline, phase), (counts, total) in self._phases.items():
            cumulative, running = [], 0
            for edge, count in zip((*map(str, BUCKETS), "+Inf"), counts, strict=True):
                running += count
                cumulative.append((edge, running))
            family.add_metric([pipeline, phase], cumulative, sum_value=total)
        return family


def _gauges(statuses: Iterable[Status], lag: dict[str, float]) -> Iterator[Metric]:
    for name, about, value in (
        ("epoch", "Number of the epoch of the latest commit.", lambda s: s.epoch),
        ("windows_active", "Open windows.", lambda s: s.windows_active),
        (
            "state_groups_total",
            "Groups in the state: keys with open sessions, or pairs of a key and a pane.",
            lambda s: s.groups,
        ),
        ("state_bytes", "Size of the state's files.", lambda s: s.state_bytes),
        (
            "emit_lag_seconds",
            "How far the window end of the newest emitted row is behind the clock.",
            lambda s: lag.get(s.pipeline),
        ),
    ):
        family = GaugeMetricFamily(PREFIX + name, about, labels=["pipeline"])
        for status in statuses:
            number = value(status)
            if number is not None:
                family.add_metric([status.pipeline], number)
        yield family
    marks = GaugeMetricFamily(
        f"{PREFIX}watermark_seconds",
        "Watermark as Unix time, by source; `_global` is the watermark of the pipeline.",
        labels=["pipeline", "source"],
    )
    for status in statuses:
        watermarks = {"_global": status.watermark_us, **{s.name: s.watermark_us for s in status.sources}}
        for source, us in watermarks.items():
            if us is not None:
                marks.add_metric([status.pipeline, source], us / 1e6)
    yield marks


def _stages(statuses: Sequence[Status]) -> Iterator[Metric]:
    """Yield the metrics of each stage. A pipeline without `stages` has one stage."""
    labels = ["pipeline", "stage"]
    gauges: tuple[tuple[str, str, Callable[[StageStatus], float | None]], ...] = (
        ("watermark_seconds", "Watermark of a stage as Unix time.", lambda s: _seconds(s.watermark_us)),
        ("open_windows", "Open windows of a stage.", lambda s: s.open),
        ("state_rows", "Rows in the state of a stage; for a join, rows that wait for partners.", lambda s: s.rows),
        ("state_bytes", "Size of the files of a stage's state.", lambda s: s.bytes),
    )
    for name, about, value in gauges:
        gauge = GaugeMetricFamily(f"{PREFIX}stage_{name}", about, labels=labels)
        for status in statuses:
            for stage in status.stages:
                if (now := value(stage)) is not None:
                    gauge.add_metric([status.pipeline, stage.name], now)
        yield gauge
    counters: tuple[tuple[str, str, Callable[[Counters], int]], ...] = (
        ("rows_in", "Rows that a stage read from sources or stages.", lambda c: c.rows_in),
        (
            "rows_used",
            "Rows returned by the SQL of a stage that were not late, bad or refused; for a join, this excludes rows whose NULL key rules out any result.",
            lambda c: c.rows_used,
        ),
        ("late_rows", "Rows that were late for a stage.", lambda c: c.rows_late),
        ("bad_rows", "Rows that a stage could not use.", lambda c: c.rows_bad),
        ("refused_rows", "Rows that a stage refused because of `max_groups_per_window`.", lambda c: c.rows_refused),
        ("duplicate_rows", "Rows that a stage dropped as duplicates.", lambda c: c.rows_duplicate),
        ("rows_emitted", "Rows that a stage emitted.", lambda c: c.rows_emitted),
    )
    for name, about, count in counters:
        counter = CounterMetricFamily(f"{PREFIX}stage_{name}", about, labels=labels)
        for status in statuses:
            for stage in status.stages:
                counter.add_metric([status.pipeline, stage.name], count(stage.counters))
        yield counter


def _seconds(us: int | None) -> float | None:
    return None if us is None else us / 1e6


def _joins(statuses: Iterable[Status]) -> Iterator[Metric]:
    """Yield the metrics of joins, by stage and side."""
    joins = [(status.pipeline, stage) for status in statuses for stage in status.stages if stage.buffered]
    if not joins:
        return
    labels = ["pipeline", "stage", "side"]
    rows = GaugeMetricFamily(f"{PREFIX}join_buffered_rows", "Rows of a join in the state, by side.", labels=labels)
    largest = GaugeMetricFamily(
        f"{PREFIX}join_largest_key_rows",
        "Rows of the largest key that the latest epoch updated; reported as 0 until it exceeds half of `max_rows_per_key`.",
        labels=labels,
    )
    for pipeline, stage in joins:
        for side, buffer in stage.buffered.items():
            rows.add_metric([pipeline, stage.name, side], buffer.rows)
            largest.add_metric([pipeline, stage.name, side], buffer.hot_key[0] if buffer.hot_key else 0)
    yield from (rows, largest)
    for name, about in (
        ("late", "Late rows of a join, by side."),
        ("null_keys", "Rows of a join with a NULL key, by side."),
        ("matched", "Rows of a join that found their first partner, by side."),
        ("unmatched", "Rows of the outer sides of a join that were emitted without a partner, by side."),
        ("evicted", "Rows of a join that were dropped early (`on_state_cap`), by side."),
        ("expired", "Rows of a join that expired and left the state, by side."),
    ):
        family = CounterMetricFamily(f"{PREFIX}join_{name}_rows", about, labels=labels)
        for pipeline, stage in joins:
            for side, buffer in stage.buffered.items():
                counts = stage.counters.sides.get(side, {})
                gone = counts.get("buffered", 0) - counts.get("evicted", 0) - buffer.rows
                family.add_metric([pipeline, stage.name, side], gone if name == "expired" else counts.get(name, 0))
        yield family


def _counters(statuses: Iterable[Status]) -> Iterator[Metric]:
    simple: tuple[tuple[str, str, Any], ...] = (
        (
            "late_windows",
            "Closed windows that rows missed; a row that misses several windows counts several times.",
            lambda c: c.late_windows,
        ),
        (
            "bad_rows",
            "Rows that cannot be decoded, have no usable event time, or cannot be stored.",
            lambda c: c.rows_bad,
        ),
        ("refused_rows", "Rows that were refused because of `max_groups_per_window`.", lambda c: c.rows_refused),
        (
            "duplicate_rows",
            "Rows that were dropped as duplicates; they also count as used.",
            lambda c: c.rows_duplicate,
        ),
        (
            "lost_rows",
            "Records that were deleted before they were read (`on_data_loss`), or were skipped (`on_rewrite`).",
            lambda c: c.rows_lost,
        ),
        (
            "files_changed",
            "Files that changed after they were read. They are not read again.",
            lambda c: c.files_changed,
        ),
        ("replayed_letters", "Dead letters that were replayed.", lambda c: c.replayed),
        ("overflows", "Results that did not fit their type and became NULL (`on_overflow`).", lambda c: c.overflows),
        (
            "late_between_stages",
            "Results that were late for the stage that reads them. It is 0 unless the config was changed.",
            lambda c: c.late_between_stages,
        ),
        ("rows_in", "Rows read.", lambda c: c.rows_in),
        ("rows_used", "Rows returned by the SQL that were not late, bad or refused.", lambda c: c.rows_used),
        ("rows_emitted", "Rows emitted.", lambda c: c.rows_emitted),
    )
    for name, about, value in simple:
        family = CounterMetricFamily(PREFIX + name, about, labels=["pipeline"])
        for status in statuses:
            family.add_metric([status.pipeline], value(status.counters))
        yield family
    emitted = CounterMetricFamily(
        f"{PREFIX}windows_emitted", "Windows emitted, by window kind and reason.", labels=["pipeline", "kind", "reason"]
    )
    late = CounterMetricFamily(f"{PREFIX}late_rows", "Late rows.", labels=["pipeline", "policy", "cause"])
    letters = CounterMetricFamily(f"{PREFIX}letters", "Dead letters, by reason.", labels=["pipeline", "reason"])
    for status in statuses:
        for reason, count in {**dict.fromkeys(status.reasons, 0), **status.counters.emitted}.items():
            emitted.add_metric([status.pipeline, status.window_kind, reason], count)
        for cause in ("lateness", "idle", "flush"):
            late.add_metric([status.pipeline, status.late_policy, cause], status.counters.late.get(cause, 0))
        for reason, count in status.counters.letters.items():
            letters.add_metric([status.pipeline, reason], count)
    yield emitted
    yield late
    yield letters


def _lateness(statuses: Iterable[Status]) -> Metric:
    """Return cumulative counts of late rows by the additional lateness that they needed, as in a histogram.

    These are counters, because OpenTelemetry does not accept a precomputed histogram.
    """
    family = CounterMetricFamily(
        f"{PREFIX}late_by_rows",
        "Late rows that would not be late with `le` more seconds of lateness, counted since the lateness last changed.",
        labels=["pipeline", "le"],
    )
    for status in statuses:
        counts, running = status.counters.lateness.get("late", {}), 0
        for step, edge in enumerate(EDGES[:LATE_BUCKETS].tolist()):
            running += counts.get(str(step), 0)
            family.add_metric([status.pipeline, str(edge / 1e6)], running)
        family.add_metric([status.pipeline, "+Inf"], sum(counts.values()))
    return family


def serve_metrics(
    metrics: Metrics, port: int, host: str = "127.0.0.1", names: Sequence[str] = (), health: HealthProbes | None = None
) -> HttpServer:
    """Serve `/metrics` and the health probes, until `stop` is called on the returned server.

    Args:
        metrics: The metrics.
        port: The port; 0 selects a free port.
        host: The address to listen on.
        names: Additional host names by which clients may address this server; see `web.request_guard`.
        health: The health probes, if any.

    Raises:
        StartError: The port cannot be used.
    """
    from slackwater.web.server import start_server

    exposed = make_asgi_app(metrics.registry)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        health_answer = None if health is None else health.answer(scope["path"])
        if health_answer is None:
            await exposed(scope, receive, send)
            return
        status, body = health_answer
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    return start_server(
        app, port, host, service="metrics", option="--metrics-port", names=names, max_connections=CONNECTIONS
    )
