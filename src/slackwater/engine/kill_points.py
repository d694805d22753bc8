"""Kill points: named steps of an epoch at which tests kill the process, to prove that a crash does no harm.

The phases that `PhaseTimer` measures begin and end at these steps.

    read ─ ingest ( stage, in a worker ) ─ emit ─ commit ─ write ─ note ─ checkpoint
                                                           target  store

`checkpoint` begins after an epoch has been published, and ends before the next batch is planned.

`SLACKWATER_CRASH_AT="commit.before@3"` makes the process send itself SIGKILL when epoch 3 reaches that step.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

_PHASES = ("read", "ingest", "stage", "emit", "commit", "write", "note", "checkpoint")
KILL_POINTS = tuple(f"{phase}.{side}" for phase in _PHASES for side in ("before", "after"))


class FaultInjector(Protocol):
    """Decides at which kill points a process is killed."""

    def hit(self, step: str, epoch: int) -> None:
        """Called at every step of an epoch. Does not return if the process is to be killed at this step."""
        ...

    def in_worker(self, epoch: int) -> Callable[[str], None] | None:
        """Return a picklable function that a worker calls before and after `stage`; None if no worker is killed."""
        ...


class NoFaultInjector:
    """A fault injector that kills nothing."""

    def hit(self, step: str, epoch: int) -> None:
        return

    def in_worker(self, epoch: int) -> Callable[[str], None] | None:
        return None


@dataclass(frozen=True)
class DriverKilledError:
    """A function that a worker calls at each step, and that kills the worker and the driver at `step`.

    Both must run on the same machine.
    """

    step: str
    driver: int

    def __call__(self, step: str) -> None:
        if step == self.step:
            os.kill(self.driver, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)


class KillAtStep:
    """Kills this process at one step of one epoch, or of any epoch if `spec` names none."""

    def __init__(self, spec: str) -> None:
        self.step, _, epoch = spec.partition("@")
        self.epoch = int(epoch) if epoch else None
        if self.step not in KILL_POINTS:
            raise ValueError(f"SLACKWATER_CRASH_AT names {self.step!r}, expected one of {', '.join(KILL_POINTS)}")

    def hit(self, step: str, epoch: int) -> None:
        if step == self.step and self.epoch in (None, epoch):
            os.kill(os.getpid(), signal.SIGKILL)

    def in_worker(self, epoch: int) -> Callable[[str], None] | None:
        if not self.step.startswith("stage.") or self.epoch not in (None, epoch):
            return None
        return DriverKilledError(self.step, os.getpid())


def fault_injector_from_environment() -> FaultInjector:
    """Return the fault injector that the environment variable SLACKWATER_CRASH_AT describes."""
    spec = os.environ.get("SLACKWATER_CRASH_AT")
    return KillAtStep(spec) if spec else NoFaultInjector()


class PhaseTimer:
    """Measures the duration of each phase in seconds: `with timer.phase("ingest"): …`.

    If several stages go through the same phase, their times are added up.
    """

    def __init__(self, faults: FaultInjector, epoch: int, began: float | None = None) -> None:
        """Start the timer. `began`: when planning of the epoch began, on the monotonic clock; None without planning."""
        now = time.monotonic()
        self.seconds: dict[str, float] = {} if began is None else {"plan": now - began}
        self.began = now if began is None else began
        self._faults, self._epoch = faults, epoch

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure a phase. If the phase fails, the step after it is not reached."""
        self._faults.hit(f"{name}.before", self._epoch)
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - start
        self._faults.hit(f"{name}.after", self._epoch)

    @property
    def total(self) -> float:
        """Return the seconds since the epoch began, including the planning."""
        return time.monotonic() - self.began
