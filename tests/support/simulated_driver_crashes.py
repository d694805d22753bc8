"""Scripted crashes of a driver that leave its Spark session alive."""

from __future__ import annotations


class CrashError(Exception):
    """A scripted crash that leaves the Spark session alive."""


class CrashOnce:
    def __init__(self, step: str, epoch: int) -> None:
        self.step, self.epoch, self.died = step, epoch, False

    def hit(self, step: str, epoch: int) -> None:
        if (step, epoch) == (self.step, self.epoch) and not self.died:
            self.died = True
            raise CrashError(step)

    def in_worker(self, epoch: int) -> None:
        """Do nothing, because workers are other processes: tests/e2e/test_kill_matrix_sample.py covers their crashes."""


class CrashAtSteps:
    """Crash once at each of the given steps, in this order."""

    def __init__(self, *steps: str) -> None:
        self.left, self.crashes = list(steps), 0

    def hit(self, step: str, epoch: int) -> None:
        if self.left and step == self.left[0]:
            self.left.pop(0)
            self.crashes += 1
            raise CrashError(step)

    def in_worker(self, epoch: int) -> None:
        return None
