"""All errors that Slackwater raises deliberately, as one class hierarchy.

    SlackwaterError
    ├── ConfigError          the description of a pipeline is invalid (raised before Spark starts); one line per problem
    ├── StartError           the pipeline cannot start: wrong columns or SQL, a held lock, an incompatible state
    │   ├── LockHeldError    another runner holds the lock of the pipeline
    │   └── StateError       the state cannot be used: it has another fingerprint or version, or is damaged
    ├── BadRowError          bad rows under on_error = "fail"
    ├── CapExceededError     a limit of the state was reached under on_state_cap = "fail"
    ├── ValueRangeError      a result does not fit its type
    ├── FencedError          another runner committed, so this one must stop
    ├── ExhaustedError       this process cannot open another file; no file is damaged
    ├── PublishError         the target rejected the committed output, which the next start publishes
    ├── SparkEndedError      Spark's process has ended (killed, out of memory)
    └── EpochError           an epoch failed while it ran (user SQL, unreadable input, a missing service)
        └── NewColumnsError  a source has columns that this run is not bound to: the pipeline restarts with them

Each message says what failed, the actual and the expected value, and what to do next.

May import: messages, secrets.
"""

from __future__ import annotations

import errno
import os
import traceback
from collections.abc import Sequence
from typing import NoReturn

from slackwater import messages
from slackwater.secrets import mask_secrets


class SlackwaterError(Exception):
    """Base class of all errors raised deliberately. The command line shows the message without a stack trace.

    A message never contains a registered secret (see `slackwater.secrets`), whatever text it quotes.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(mask_secrets(a) if isinstance(a, str) else a for a in args))

    @property
    def documented(self) -> str | None:
        """The page and heading that document the error, such as `docs/messages/config.md#the-config-is-wrong`."""
        return messages.find_page([c.__name__ for c in type(self).__mro__], str(self))

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows instead of a stack trace."""
        if os.environ.get("SLACKWATER_DEBUG"):
            return traceback.format_exception(self)
        return [f"{type(self).__name__}: {self}", f"what it means, and what to do: {self.documented}"]


class ConfigError(SlackwaterError):
    """One or more mistakes in the description of a pipeline.

    `problems` holds one line per mistake, and `str(error)` joins them with newlines. `further`: additional lines that
    concern all mistakes.
    """

    further: Sequence[str] = ()

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems: tuple[str, ...] = tuple(map(mask_secrets, problems))
        super().__init__("\n".join(self.problems))


class StartError(SlackwaterError):
    """The pipeline cannot start with its config and the existing data and state."""


class LockHeldError(StartError):
    """Another runner holds the pipeline's lock. The message names that runner."""


class StateError(StartError):
    """The stored state cannot be used by this pipeline or this version."""


class BadRowError(SlackwaterError):
    """Raised when an epoch reads bad rows and `on_error = "fail"`."""


class CapExceededError(SlackwaterError):
    """`max_groups_per_window` or `max_distinct_values_per_group` was exceeded."""


class ValueRangeError(SlackwaterError):
    """An emitted value does not fit the declared type of its column."""


class FencedError(SlackwaterError):
    """The store contains an epoch that this runner did not write: another runner took over."""


class ExhaustedError(SlackwaterError):
    """This process or machine has no file descriptors left. `from_error` distinguishes this from a damaged file."""

    @staticmethod
    def from_error(error: BaseException) -> ExhaustedError | None:
        """Return an ExhaustedError if this error means that no file descriptor is left, else None."""
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
            return None
        holder = "this process" if error.errno == errno.EMFILE else "this machine"
        return ExhaustedError(
            f"{holder} has too many open files and connections ({error.strerror or 'none is left'}), but no file "
            "is damaged; close the programs that hold them, or raise the limit with ulimit -n, and start again"
        )


def is_forbidden(error: BaseException) -> bool:
    """Return whether the error means a missing permission or a read-only file system, rather than damaged data."""
    return isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)


def permission_error(subject: str, error: BaseException) -> StateError | None:
    """Return a StateError if this user has no permission to read part of a state (`subject`); None for any other error."""
    if not is_forbidden(error):
        return None
    return StateError(
        f"{subject} cannot be read (Permission denied); it may be intact; give this user read access, and start again"
    )


class PublishError(SlackwaterError):
    """The target did not accept an epoch that is already committed."""


class SparkEndedError(SlackwaterError):
    """Spark's process ended while it was needed. No commit is lost: the next start continues from the last one."""


class EpochError(SlackwaterError):
    """An epoch failed before its commit. None of it is visible, and the next start repeats it."""


class NewColumnsError(EpochError):
    """A source has new columns that the run accepts but is not bound to; `run` restarts with them."""


def raise_unregistered(kind: object, question: str) -> NoReturn:
    """Raise TypeError because no implementation of a function is registered for this kind.

    `question`: the import path of the function, as in "slackwater.operators.panes.function".
    """
    raise TypeError(f"{question} is not registered for {type(kind).__qualname__}")
