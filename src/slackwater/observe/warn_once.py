"""A system that may be away: said once, not at every attempt."""

from __future__ import annotations

from collections.abc import Callable

from slackwater.secrets import mask_secrets


class WarnOnce:
    """`what` cannot be reached: the first time in one line, and once more when it is back."""

    def __init__(self, notice: Callable[[str, str], None], what: str, then: str) -> None:
        self._notice, self._what, self._then = notice, what, then
        self.now, self._told = False, 0

    def failed(self, error: object) -> None:
        self.now = True
        if self._told == 0:
            self._told = 1
            self._notice(
                "warning", mask_secrets(f"{self._what} failed: {error_reason(error)}; {self._then}; told only once")
            )

    def worked(self) -> None:
        if self.now and self._told == 1:
            self._told = 2
            self._notice("info", mask_secrets(f"{self._what} works again"))
        self.now = False


def error_reason(error: object, depth: int = 8) -> str:
    """The one line at the bottom of an error: libraries of HTTP wrap the system's own words many times."""
    found = error
    for _ in range(depth):
        if isinstance(found, OSError) and found.strerror:
            return found.strerror
        inner = [getattr(found, "reason", None), *(getattr(found, "args", None) or ())]
        inner += [getattr(found, "__cause__", None), getattr(found, "__context__", None)]
        below = next((e for e in inner if isinstance(e, BaseException)), None)
        if below is None:
            break
        found = below
    lines = str(found).strip().splitlines()
    return lines[0] if lines else type(found).__name__
