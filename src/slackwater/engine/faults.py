"""Named steps of an epoch, and a way to die at any of them: for the tests that prove that dying does no harm.

`SLACKWATER_CRASH_AT="commit.before@3"` kills the process (SIGKILL to itself) when epoch 3 reaches that step.
"""

from __future__ import annotations

import os
import signal
from typing import Protocol

PHASES = ("read", "ingest", "emit", "commit", "publish", "note")
STEPS = tuple(f"{phase}.{side}" for phase in PHASES for side in ("before", "after"))


class Faults(Protocol):
    def hit(self, step: str, epoch: int) -> None:
        """Called at every step; does not come back if the process is to die there."""
        ...


class NoFaults:
    def hit(self, step: str, epoch: int) -> None:
        return


class KillAt:
    """Kill this process at one step of one epoch (any epoch if none is named)."""

    def __init__(self, spec: str) -> None:
        self.step, _, epoch = spec.partition("@")
        self.epoch = int(epoch) if epoch else None
        if self.step not in STEPS:
            raise ValueError(f"SLACKWATER_CRASH_AT names {self.step!r}, expected one of {', '.join(STEPS)}")

    def hit(self, step: str, epoch: int) -> None:
        if step == self.step and self.epoch in (None, epoch):
            os.kill(os.getpid(), signal.SIGKILL)


def from_environment() -> Faults:
    spec = os.environ.get("SLACKWATER_CRASH_AT")
    return KillAt(spec) if spec else NoFaults()
