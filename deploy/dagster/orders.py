"""A pipeline as a Dagster asset: each run reads what is there now, and a check says whether the data is fresh.

    SLACKWATER_PIPELINE=/etc/slackwater/pipeline.toml dagster dev -f deploy/dagster/orders.py

Slackwater is asked by its command, so it may be installed elsewhere than Dagster. Two runs at a time do no harm, since the second is
refused by the lock of the state; the pool keeps it from being tried. Windows that are not over stay in the state until the next run.
"""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import dagster as dg

COMMAND = os.environ.get("SLACKWATER", "slackwater")
FILE = os.environ.get("SLACKWATER_PIPELINE", "/etc/slackwater/pipeline.toml")
BEHIND = timedelta(minutes=30)  # the watermark may be behind the clock


@contextmanager
def started(*arguments: str, **streams: Any) -> Iterator[subprocess.Popen[str]]:
    """A command that is told to stop, and waited for, where the run is cancelled: it finishes its epoch first."""
    process = subprocess.Popen([COMMAND, *arguments], text=True, **streams)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()


def why() -> dict[str, Any]:
    """What the last commit says."""
    with started("why", FILE, "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        told, problem = process.communicate()
    if process.returncode:
        raise dg.Failure(problem.strip() or f"slackwater why ended with {process.returncode}")
    found: dict[str, Any] = json.loads(told)
    return found


@dg.asset(
    group_name="slackwater",
    pool="orders",
    freshness_policy=dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=1)),  # of the runs
)
def orders_per_minute(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
    """All that is there now: read, committed and published, exactly once."""
    last = ""
    with started("run", FILE, "--available-now", stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        for line in process.stdout or ():
            last = line.rstrip() or last
            context.log.info(line.rstrip())
    if process.returncode:
        raise dg.Failure(last, metadata={"exit code": process.returncode})
    found = why()
    metadata: dict[str, Any] = {"epoch": found["epoch"], "open windows": found["open_windows"]}
    if found["watermark_us"] is not None:
        metadata["watermark"] = dg.MetadataValue.timestamp(found["watermark_us"] / 1e6)
    return dg.MaterializeResult(metadata=metadata)


@dg.asset_check(asset=orders_per_minute)
def is_fresh() -> dg.AssetCheckResult:
    """The watermark, which says up to when results are complete, is not far behind the clock."""
    mark = why()["watermark_us"]
    behind = None if mark is None else time.time() - mark / 1e6
    return dg.AssetCheckResult(
        passed=behind is not None and behind <= BEHIND.total_seconds(),
        severity=dg.AssetCheckSeverity.WARN,
        metadata={"seconds behind": -1.0 if behind is None else behind, "allowed": BEHIND.total_seconds()},
    )


every_quarter = dg.ScheduleDefinition(
    name="orders_every_quarter",
    job=dg.define_asset_job("orders", selection=[orders_per_minute]),
    cron_schedule="*/15 * * * *",
)
defs = dg.Definitions(assets=[orders_per_minute], asset_checks=[is_fresh], schedules=[every_quarter])
