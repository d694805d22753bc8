"""Example statuses of a runner after an epoch, as passed to metrics and traces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from slackwater.engine.observer import BufferCounts, Counters, SourceStatus, StageStatus, Status
from slackwater.metrics import Metrics

COUNTERS = Counters(
    rows_in=1000,
    rows_sql=990,
    rows_used=950,
    rows_bad=10,
    rows_refused=15,
    late_windows=31,
    late={"lateness": 20, "idle": 5},
    emitted={"close": 40, "cap": 2},
    letters={"late": 25, "no event time": 3},
    targets={"transform": 42},
)
STAGE = StageStatus("transform", "session", 1_699_999_000_500_000, 12, 11, 14, 4096, COUNTERS)
STATUS = Status(
    pipeline="clicks",
    window_kind="session",
    late_policy="drop",
    epoch=7,
    rows=100,
    emitted=4,
    late=1,
    seconds=0.5,
    phases={"ingest": 0.3, "commit": 0.01},
    clock_us=1_700_000_000_000_000,
    watermark_us=1_699_999_000_500_000,
    sources=(
        SourceStatus("web", 80, 1_699_999_001_500_000, 1_699_999_000_500_000, False, 0),
        SourceStatus("app", 20, None, None, True, 60_000_000),
    ),
    windows_active=12,
    groups=11,
    state_bytes=4096,
    counters=COUNTERS,
    reasons=("close", "flush", "cap"),
    emit_lag_seconds=3.5,
    stages=(STAGE,),
)


SIDES = {
    s: dict.fromkeys(("buffered", "late", "null_keys", "matched", "unmatched", "evicted"), 1) for s in ("left", "right")
}
BUFFERED = {"left": BufferCounts(2), "right": BufferCounts(3, (50_000, "k=1"))}
PAIRS = replace(STAGE, name="transform", kind="join", buffered=BUFFERED, counters=Counters(sides=SIDES))
JOIN = replace(
    STATUS,
    pipeline="pairs",
    window_kind="join",
    reasons=("match", "unmatched"),
    buffered=BUFFERED,
    counters=Counters(sides=SIDES, targets={"transform": 42}),
    stages=(PAIRS,),
)


def iterate_metric_samples(metrics: Metrics) -> Iterator[tuple[str, dict[str, str], float]]:
    for family in metrics.collect():
        for sample in family.samples:
            yield sample.name, dict(sample.labels), sample.value
