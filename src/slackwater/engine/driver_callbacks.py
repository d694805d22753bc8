"""Callbacks of a driver: the reports it makes, and the clock it reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from slackwater.engine.kill_points import FaultInjector, NoFaultInjector
from slackwater.engine.observer import PendingPublish
from slackwater.engine.status import Status


@dataclass
class DriverCallbacks:
    """Functions that a driver calls to read the clock, and to report to its caller.

    `clock_us` returns the time in µs UTC.
    """

    clock_us: Callable[[], int]
    on_status: Callable[[Status], None] = lambda status: None
    on_notice: Callable[[str, str], None] = lambda level, line: None
    on_waiting: Callable[[PendingPublish | None], None] = lambda epoch: None
    faults: FaultInjector = field(default_factory=NoFaultInjector)
