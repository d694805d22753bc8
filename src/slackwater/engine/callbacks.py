"""What a driver tells the outside, and what it asks of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from slackwater.engine.kill_points import FaultInjector, NoFaultInjector
from slackwater.engine.observer import PendingPublish
from slackwater.engine.status import Status


@dataclass
class Callbacks:
    """What the driver tells the outside, and what it asks of it. `clock_us`: wall clock, microseconds UTC."""

    clock_us: Callable[[], int]
    on_status: Callable[[Status], None] = lambda status: None
    on_notice: Callable[[str, str], None] = lambda level, line: None
    on_waiting: Callable[[PendingPublish | None], None] = lambda epoch: None
    faults: FaultInjector = field(default_factory=NoFaultInjector)
