"""A pipeline as an Airflow DAG: each run reads what is there now, then says whether the data is fresh.

Airflow 3; put it into the folder of DAGs. Slackwater is asked by its command, so it may be installed elsewhere than Airflow (or be an
image: the same two commands by a KubernetesPodOperator). Windows that are not over stay in the state until the next run.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, task

COMMAND = os.environ.get("SLACKWATER", "slackwater")
FILE = os.environ.get("SLACKWATER_PIPELINE", "/etc/slackwater/pipeline.toml")
BEHIND = timedelta(minutes=30)  # the watermark may be behind the clock

with DAG(
    "slackwater_orders",
    schedule="*/15 * * * *",
    start_date=datetime(2024, 3, 1, tzinfo=UTC),
    catchup=False,  # a run reads all that is there, whatever its interval is
    max_active_runs=1,  # a second one would be refused by the lock of the state
    default_args={"retries": 2, "retry_delay": timedelta(minutes=1)},  # it goes on from the last commit
    tags=["slackwater"],
) as dag:
    # a task that is cleared or times out gets SIGTERM: the run finishes its epoch first
    run = BashOperator(
        task_id="run",
        bash_command=f'exec "{COMMAND}" run "{FILE}" --available-now',
        execution_timeout=timedelta(hours=1),
    )

    @task(retries=0)
    def is_fresh() -> dict[str, float]:
        """The watermark, which says up to when results are complete, is not far behind the clock."""
        import json
        import subprocess
        import time

        told = subprocess.run([COMMAND, "why", FILE, "--json"], capture_output=True, text=True, check=False)
        if told.returncode:
            raise RuntimeError(told.stderr.strip())
        found = json.loads(told.stdout)
        if found["watermark_us"] is None:
            raise RuntimeError(f"{found['pipeline']}: no row has moved the watermark yet")
        behind = time.time() - found["watermark_us"] / 1e6
        if behind > BEHIND.total_seconds():
            raise RuntimeError(f"{found['pipeline']}: the watermark is {behind:.0f} s behind, {BEHIND} is allowed")
        return {"epoch": found["epoch"], "seconds_behind": behind}

    run >> is_fresh()
