"""Start `slackwater run` in a separate process, which a test can kill."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def start_run_command(config: Path, *flags: str, **environment: str) -> subprocess.Popen[bytes]:
    """Start a run that leads a process group with its JVM and workers. Append stderr to `log` next to the config."""
    command = [sys.executable, "-m", "slackwater.cli.main", "run", str(config), "--available-now", *flags]
    with (config.parent / "log").open("ab") as log:
        return subprocess.Popen(
            command,
            stderr=log,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "SPARK_MASTER": "local[2]", **environment},
            start_new_session=True,
        )


def read_run_log(config: Path) -> str:
    return (config.parent / "log").read_text()
