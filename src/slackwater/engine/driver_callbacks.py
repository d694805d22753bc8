"""Callbacks of a driver: the reports it makes, and the clock it reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from slackwater.engine.kill_points import FaultInjector, NoFaultInjector
from slackwater.engine.observer import PendingPublish
from slackwater.engine.status import Status


@dataclass
class DriverCallbacks:
    """What a driver reports to its caller, and what it needs from it. `clock_us` returns the wall clock in µs UTC."""

    clock_us: Callable[[], int]
    on_status: Callable[[Status], None] = lambda status: None
    on_notice: Callable[[str, str], None] = lambda level, line: None
    on_waiting: Callable[[PendingPublish | None], None] = lambda epoch: None
    faults: FaultInjector = field(default_factory=NoFaultInjector)
