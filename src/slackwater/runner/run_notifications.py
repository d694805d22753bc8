"""Reports of a run: notices, and a status after each commit, for the caller's callbacks and for observers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from slackwater.engine.observer import Observer, ObserverGroup
from slackwater.engine.status import Status
from slackwater.secrets import mask_secrets


class RunNotifier:
    """Sends notices and statuses. `last` is the status after the latest commit of this run; None before the first."""

    def __init__(
        self,
        on_notice: Callable[[str, str], None],
        on_status: Callable[[Status], None] | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.observers = ObserverGroup(observers)
        self.last: Status | None = None
        self._on_notice, self._on_status = on_notice, on_status
        self._files: tuple[int, int] | None = None  # files read by this run, and in total; None if the input has no end

    def notice(self, level: str, line: str) -> None:
        self._on_notice(level, mask_secrets(line))

    def expect_files(self, total: int) -> None:
        """Set the number of files that this run will read, for its progress."""
        self._files = (0, total)

    def files_read(self, count: int) -> None:
        if self._files:
            self._files = (self._files[0] + count, self._files[1])

    def committed(self, status: Status) -> None:
        """Report the status after a commit of this run, with its progress."""
        if self._files:
            status = replace(status, files_done=self._files[0], files_total=max(self._files))
        self.last = status
        self.status(status)

    def status(self, status: Status) -> None:
        if self._on_status:
            self._on_status(status)
        self.observers.on_commit(status)
