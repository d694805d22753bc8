"""Warn once about an unreachable system, rather than on every attempt."""

from __future__ import annotations

from collections.abc import Callable

from slackwater.secret_masking import mask_secrets


class OutageReporter:
    """Reports an outage of an external system: a warning on the first failure, and a notice when it works again.

    Args:
        notice: Called with the level and the text of each message.
        activity: A noun phrase for the action that fails. Each message begins with it.
        consequence: A clause for the warning that says what the failure means for the run.
    """

    def __init__(self, notice: Callable[[str, str], None], activity: str, consequence: str) -> None:
        self._notice, self._activity, self._consequence = notice, activity, consequence
        self.is_failing, self._warnings = False, 0

    def record_failure(self, error: object) -> None:
        self.is_failing = True
        if self._warnings == 0:
            self._warnings = 1
            self._notice(
                "warning",
                mask_secrets(
                    f"{self._activity} failed: {error_reason(error)}; {self._consequence}; this is reported only once"
                ),
            )

    def record_success(self) -> None:
        if self.is_failing and self._warnings == 1:
            self._warnings = 2
            self._notice("info", mask_secrets(f"{self._activity} works again"))
        self.is_failing = False


def error_reason(error: object, depth: int = 8) -> str:
    """Return the first line of the innermost error. HTTP libraries wrap a system error several times.

    At most `depth` levels are unwrapped.
    """
    innermost = error
    for _ in range(depth):
        if isinstance(innermost, OSError) and innermost.strerror:
            return innermost.strerror
        inner = [getattr(innermost, "reason", None), *(getattr(innermost, "args", None) or ())]
        inner += [getattr(innermost, "__cause__", None), getattr(innermost, "__context__", None)]
        below = next((e for e in inner if isinstance(e, BaseException)), None)
        if below is None:
            break
        innermost = below
    lines = str(innermost).strip().splitlines()
    return lines[0] if lines else type(innermost).__name__
