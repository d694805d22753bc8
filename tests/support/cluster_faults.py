"""Inject faults into a pipeline on a cluster at random moments: processes are killed with SIGKILL or stalled."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil
from tests.support.cluster import SparkCluster

from slackwater.testing.services import SECONDS

log = logging.getLogger(__name__)
STALLED_S = 6  # an upper limit, because other processes may wait for the stalled process


@dataclass(frozen=True)
class PipelineUnderTest:
    """Pipeline under test: functions that start the driver, return the latest committed epoch and return the log."""

    start: Callable[[], subprocess.Popen[bytes]]
    committed: Callable[[], int]
    said: Callable[[], str]
    look_s: float = 0.05


def inject_faults(
    cluster: SparkCluster, driven: PipelineUnderTest, faults: Sequence[str], rng: random.Random
) -> tuple[Counter[str], subprocess.Popen[bytes]]:
    """Inject the faults "executor", "worker", "driver" and "stall" in the given order, up to two epochs apart.

    Return the number of injected faults of each kind and the last driver. Stop early when the pipeline ends.
    """
    done, process = Counter[str](), driven.start()
    try:
        for fault in faults:
            goal = driven.committed() + rng.randrange(3)  # sometimes before the first commit of this driver
            if not wait_for_epoch(driven, process, goal):
                break
            time.sleep(rng.uniform(0, 1))  # at any moment of an epoch
            if fault == "driver":
                kill_driver(process)
                process = driven.start()
            else:
                _inject_fault(cluster, driven, process, fault, rng)
            done[fault] += 1
            log.info("%s, epoch %s: %s", fault, driven.committed(), dict(done))
    except BaseException:
        kill_driver(process)
        raise
    return done, process


def _inject_fault(
    cluster: SparkCluster, driven: PipelineUnderTest, process: subprocess.Popen[bytes], fault: str, rng: random.Random
) -> None:
    if fault == "executor":
        rng.choice(_wait_for_executors(cluster, driven)).kill()
    elif fault == "worker":
        cluster.kill_worker(number := rng.choice(sorted(cluster.workers)))
        cluster.start_worker(number)
    else:
        with cluster.stall_executor(rng.choice(_wait_for_executors(cluster, driven))):
            wait_for_epoch(driven, process, driven.committed() + 1, STALLED_S)


def wait_for_epoch(
    driven: PipelineUnderTest, process: subprocess.Popen[bytes], goal: int, seconds: float = SECONDS
) -> bool:
    """Wait for the commit of epoch `goal`, the end of the driver or the timeout. Return whether the driver runs."""
    until = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < until and driven.committed() < goal:
        time.sleep(driven.look_s)
    return process.poll() is None


def _wait_for_executors(cluster: SparkCluster, driven: PipelineUnderTest) -> list[psutil.Process]:
    until = time.monotonic() + SECONDS
    while not (executors := cluster.list_executors()):  # a killed executor is started again
        assert time.monotonic() < until, driven.said()
        time.sleep(0.05)
    return executors


def kill_driver(process: subprocess.Popen[bytes]) -> None:
    """Kill a driver, its JVM and its Python workers."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
