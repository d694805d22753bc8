"""A pipeline as a Dagster asset: each run reads the available input, and a check tests whether the data is fresh.

    SLACKWATER_PIPELINE=/etc/slackwater/pipeline.toml dagster dev -f deploy/dagster/orders.py

This file calls the command `slackwater`, which may be installed in another environment than Dagster. The lock of the state refuses
a second run at the same time, and the pool prevents the attempt. Open windows stay in the state until the next run.
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
MAX_LAG = timedelta(minutes=30)  # how far the watermark may be behind the clock


@contextmanager
def start_command(*arguments: str, **streams: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a command. If the run is canceled, stop the command and wait until it has finished its epoch."""
    process = subprocess.Popen([COMMAND, *arguments], text=True, **streams)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()


def read_report() -> dict[str, Any]:
    """Return the report of `slackwater why` on the latest commit."""
    with start_command("why", FILE, "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        output, errors = process.communicate()
    if process.returncode:
        raise dg.Failure(errors.strip() or f"slackwater why ended with exit code {process.returncode}")
    report: dict[str, Any] = json.loads(output)
    return report


@dg.asset(
    group_name="slackwater",
    pool="orders",
    freshness_policy=dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=1)),
)
def orders_per_minute(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
    """Read, commit and publish the available input, exactly once."""
    last = ""
    with start_command("run", FILE, "--available-now", stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        for line in process.stdout or ():
            last = line.rstrip() or last
            context.log.info(line.rstrip())
    if process.returncode:
        raise dg.Failure(last, metadata={"exit code": process.returncode})
    report = read_report()
    metadata: dict[str, Any] = {"epoch": report["epoch"], "open windows": report["open_windows"]}
    if report["watermark_us"] is not None:
        metadata["watermark"] = dg.MetadataValue.timestamp(report["watermark_us"] / 1e6)
    return dg.MaterializeResult(metadata=metadata)


@dg.asset_check(asset=orders_per_minute)
def is_fresh() -> dg.AssetCheckResult:
    """Check that the watermark, up to which results are complete, is not far behind the clock."""
    watermark_us = read_report()["watermark_us"]
    lag_s = None if watermark_us is None else time.time() - watermark_us / 1e6
    return dg.AssetCheckResult(
        passed=lag_s is not None and lag_s <= MAX_LAG.total_seconds(),
        severity=dg.AssetCheckSeverity.WARN,
        metadata={"seconds behind": -1.0 if lag_s is None else lag_s, "allowed": MAX_LAG.total_seconds()},
    )


every_quarter = dg.ScheduleDefinition(
    name="orders_every_quarter",
    job=dg.define_asset_job("orders", selection=[orders_per_minute]),
    cron_schedule="*/15 * * * *",
)
defs = dg.Definitions(assets=[orders_per_minute], asset_checks=[is_fresh], schedules=[every_quarter])
