"""A pipeline as an Airflow DAG: each run reads the available input and then checks whether the data is fresh.

Put this file into the DAG folder of Airflow 3. It calls the command `slackwater`, which may be installed in another environment than
Airflow. To use an image, run the same two commands with a KubernetesPodOperator. Open windows stay in the state until the next run.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, task

COMMAND = os.environ.get("SLACKWATER", "slackwater")
FILE = os.environ.get("SLACKWATER_PIPELINE", "/etc/slackwater/pipeline.toml")
MAX_LAG = timedelta(minutes=30)  # how far the watermark may be behind the clock

with DAG(
    "slackwater_orders",
    schedule="*/15 * * * *",
    start_date=datetime(2024, 3, 1, tzinfo=UTC),
    catchup=False,  # each run reads all available input, regardless of its interval
    max_active_runs=1,  # the lock of the state would refuse a second run
    default_args={"retries": 2, "retry_delay": timedelta(minutes=1)},  # a retry continues from the last commit
    tags=["slackwater"],
) as dag:
    # A task that is cleared or times out gets SIGTERM, and the run then finishes its epoch.
    run = BashOperator(
        task_id="run",
        bash_command=f'exec "{COMMAND}" run "{FILE}" --available-now',
        execution_timeout=timedelta(hours=1),
    )

    @task(retries=0)
    def is_fresh() -> dict[str, float]:
        """Check that the watermark, up to which results are complete, is not far behind the clock."""
        import json
        import subprocess
        import time

        process = subprocess.run([COMMAND, "why", FILE, "--json"], capture_output=True, text=True, check=False)
        if process.returncode:
            raise RuntimeError(process.stderr.strip())
        report = json.loads(process.stdout)
        if report["watermark_us"] is None:
            raise RuntimeError(f"{report['pipeline']}: there is no watermark yet")
        lag_s = time.time() - report["watermark_us"] / 1e6
        if lag_s > MAX_LAG.total_seconds():
            raise RuntimeError(
                f"{report['pipeline']}: the watermark is {lag_s:.0f} s behind the clock; the limit is {MAX_LAG}"
            )
        return {"epoch": report["epoch"], "seconds_behind": lag_s}

    run >> is_fresh()
