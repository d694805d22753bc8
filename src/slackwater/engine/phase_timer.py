"""Measure the seconds per phase of an epoch; each phase begins and ends at a kill point."""

from __future__ import annotations

import time

from slackwater.engine.kill_points import FaultInjector


class PhaseTimer:
    """Measures the seconds of each phase: `with timer.phase("ingest"): …`.

    If several stages go through the same phase, their times are added up.
    """

    def __init__(self, faults: FaultInjector, epoch: int, began: float | None = None) -> None:
        """Start the timer. `began` is when planning of the epoch began, on the monotonic clock."""
        now = time.monotonic()
        self.seconds: dict[str, float] = {} if began is None else {"plan": now - began}
        self.began = now if began is None else began
        self._faults, self._epoch, self._name, self._from = faults, epoch, "", 0.0

    def phase(self, name: str) -> PhaseTimer:
        """Set the name of the phase that is measured next."""
        self._name = name
        return self

    @property
    def total(self) -> float:
        """Return the seconds since the epoch began, including its planning."""
        return time.monotonic() - self.began

    def __enter__(self) -> None:
        self._faults.hit(f"{self._name}.before", self._epoch)
        self._from = time.monotonic()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        took = time.monotonic() - self._from
        self.seconds[self._name] = self.seconds.get(self._name, 0.0) + took
        if kind is None:
            self._faults.hit(f"{self._name}.after", self._epoch)
