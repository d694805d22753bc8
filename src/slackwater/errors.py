"""The errors that Slackwater raises deliberately, and the topics that document them.

    SlackwaterError
    ├── ConfigError          the description of a pipeline is invalid (raised before Spark starts); one line per problem
    ├── StartError           the pipeline cannot start: wrong columns or SQL, a held lock, an incompatible state
    │   ├── LockHeldError    another runner holds the lock of the pipeline
    │   └── StateError       the state cannot be used: it has another fingerprint or version, or is damaged
    ├── BadRowError          bad rows under on_error = "fail"
    ├── LimitExceededError     a limit of the state was reached under on_state_cap = "fail"
    ├── ValueRangeError      a result does not fit its type
    ├── FencedError          another runner committed, so this one must stop
    ├── ResourceExhaustedError       this process cannot open another file; no file is damaged
    ├── PublishError         the target rejected the committed output, which the next start publishes
    ├── SparkEndedError      Spark's process has ended (killed, out of memory)
    └── EpochError           an epoch failed while it ran (user SQL, unreadable input, a missing service)
        └── NewColumnsError  a source has new columns: the pipeline restarts, and then reads these columns

Each message says what failed, the actual and the expected value, and what to do next.

May import: secret_masking.
"""

from __future__ import annotations

import errno
import os
import traceback
from collections.abc import Sequence
from enum import StrEnum
from typing import NoReturn

from slackwater.secret_masking import mask_secrets


class Topic(StrEnum):
    """The section that documents an error: its page in `docs/messages`, and its heading.

    The texts of the pages are in `docgen/error_explanations.py`.
    """

    CONFIG_WRONG = "config.md#the-config-is-wrong"
    TEST_UNUSABLE = "config.md#a-test-cannot-be-run-as-it-is"
    LOCK_HELD = "state.md#another-runner-holds-the-pipeline"
    RUNNER_REPLACED = "state.md#another-runner-took-over"
    NO_STATE = "state.md#there-is-no-state-to-read"
    STATE_OF_OTHER_CONFIG = "state.md#the-state-was-written-for-another-config"
    STATE_OF_OTHER_VERSION = "state.md#the-state-was-written-by-another-version"
    EPOCH_UNPUBLISHED = "state.md#an-epoch-is-committed-but-not-published"
    EPOCH_NOT_KEPT = "state.md#the-epoch-is-no-longer-kept"
    NAME_IN_USE = "state.md#the-name-is-already-in-use"
    TARGET_MISMATCH = "state.md#the-state-and-its-target-do-not-match"
    STATE_MISSING = "state.md#the-state-is-missing-but-its-target-is-not"
    PIPELINE_RENAMED = "state.md#the-pipeline-may-have-been-renamed"
    STATE_DAMAGED = "state.md#the-state-is-damaged"
    OBJECT_STORE = "state.md#the-object-store-cannot-be-used"
    STATE_TABLE_CHANGED = "state.md#a-table-of-the-state-was-changed"
    STATE_STORE = "state.md#the-state-store-cannot-be-used"
    INIT_SAMPLE = "services.md#init-cannot-use-the-sample"
    OFFSETS = "services.md#the-offsets-cannot-be-used"
    SERVICE_UNREACHABLE = "services.md#a-service-cannot-be-reached"
    CLASS_ARCHIVE = "services.md#the-archive-of-sparks-classes-was-not-created"
    PERMISSION = "services.md#permission-is-missing"
    NOT_INSTALLED = "services.md#something-is-not-installed"
    SPARK_CONNECT = "services.md#something-is-not-available-over-spark-connect"
    SPARK_START = "services.md#spark-does-not-start"
    INPUT_MISSING = "data.md#the-input-does-not-exist"
    KAFKA_SETTING = "data.md#a-kafka-setting-is-not-accepted"
    TOPIC_RECREATED = "data.md#a-topic-was-deleted-and-created-again"
    TABLE_HISTORY = "data.md#a-table-cannot-be-read-any-further"
    TABLE_COLUMNS = "data.md#the-columns-of-a-table-changed"
    TABLE_READER = "data.md#a-table-needs-another-reader"
    SOURCE_SCHEMA = "data.md#the-schema-of-a-source-does-not-fit"
    EVENT_TIME = "data.md#there-is-no-usable-event-time"
    SQL = "data.md#the-sql-or-its-columns-do-not-fit"
    CHECKPOINT_ONLY = "data.md#the-source-resumes-only-from-sparks-checkpoint"
    TARGET_UNSUITABLE = "data.md#the-target-does-not-fit-the-output"
    TARGET_OF_OTHER_STATE = "data.md#the-target-holds-rows-of-another-state"
    NO_WINDOWS = "commands.md#a-join-has-no-windows"
    DEAD_LETTERS = "commands.md#dead-letters-cannot-be-replayed"
    BACKFILL = "commands.md#the-backfill-is-not-possible"
    DATAFRAME_NOT_BATCH = "commands.md#the-dataframe-is-not-a-batch"
    CONDITION = "commands.md#the-condition-cannot-be-evaluated"
    FILE_NOT_WRITABLE = "commands.md#a-file-cannot-be-written"
    OUTPUT_UNREADABLE = "commands.md#an-output-cannot-be-read"
    SERVER_START = "commands.md#the-page-or-the-server-cannot-start"
    REPORT_CONFIG = "commands.md#the-report-to-another-system-is-not-configured"
    VALUE = "commands.md#a-value-is-not-valid"
    PIPELINE_START = "commands.md#the-pipeline-cannot-start"
    BAD_ROWS = "run.md#bad-rows-stop-the-pipeline"
    STATE_LIMIT = "run.md#a-limit-of-the-state-was-reached"
    VALUE_RANGE = "run.md#a-result-does-not-fit-its-type"
    OPEN_FILES = "run.md#too-many-open-files"
    TARGET_REFUSED = "run.md#the-target-did-not-accept-an-epoch"
    SPARK_ENDED = "run.md#the-spark-process-has-ended"
    INPUT_CHANGED = "run.md#the-input-changed-between-two-reads"
    RECORDS_DELETED = "run.md#records-were-deleted-before-they-were-read"
    CHECKPOINT_DAMAGED = "run.md#a-file-of-sparks-checkpoint-is-damaged"
    COMMIT_UNKNOWN = "run.md#it-is-unknown-whether-an-epoch-was-committed"
    DEMO_FAILED = "run.md#the-demo-failed"
    EPOCH_FAILED = "run.md#an-epoch-failed"


class SlackwaterError(Exception):
    """The base class of all errors that Slackwater raises deliberately. The command line shows the message without a stack trace.

    Its subclasses, such as StartError, are in `slackwater.errors`. A message shows `${NAME}` or `***` instead of the
    secrets of a config, even within text that it quotes; see docs/write-config.md.

    `topic`: the section of docs/messages.md that explains the error; by default, the topic of the error's class.
    """

    topic: Topic | None = None

    def __init__(self, message: str, topic: Topic | None = None) -> None:
        super().__init__(mask_secrets(message))
        if topic is not None:
            self.topic = topic

    @property
    def documented(self) -> str | None:
        """The page and the heading that document the error, such as `docs/messages/config.md#the-config-is-wrong`."""
        return None if self.topic is None else f"docs/messages/{self.topic}"

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows instead of a stack trace."""
        if os.environ.get("SLACKWATER_DEBUG"):
            return traceback.format_exception(self)
        return [f"{type(self).__name__}: {self}", f"what it means, and what to do: {self.documented}"]


class ConfigError(SlackwaterError):
    """One or more mistakes in a pipeline description.

    `problems` contains one line per mistake, and `str(error)` joins these lines. `further` contains lines that apply to
    all mistakes.
    """

    topic = Topic.CONFIG_WRONG
    further: Sequence[str] = ()

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems: tuple[str, ...] = tuple(map(mask_secrets, problems))
        super().__init__("\n".join(self.problems))


class StartError(SlackwaterError):
    """The pipeline cannot start with its config and the existing data and state."""

    topic = Topic.PIPELINE_START


class LockHeldError(StartError):
    """Another runner holds the lock of the pipeline. The message names this runner."""

    topic = Topic.LOCK_HELD


class StateError(StartError):
    """The stored state cannot be used by this pipeline or this version."""

    topic = Topic.STATE_STORE


class BadRowError(SlackwaterError):
    """Raised when an epoch reads bad rows and `on_error = "fail"`."""

    topic = Topic.BAD_ROWS


class LimitExceededError(SlackwaterError):
    """`max_groups_per_window` or `max_distinct_values_per_group` was exceeded."""

    topic = Topic.STATE_LIMIT


class ValueRangeError(SlackwaterError):
    """A result does not fit the declared type of its column."""

    topic = Topic.VALUE_RANGE


class FencedError(SlackwaterError):
    """The store contains an epoch that this runner did not write: another runner took over."""

    topic = Topic.RUNNER_REPLACED


class ResourceExhaustedError(SlackwaterError):
    """The process or the machine has no file descriptors left. The file that could not be opened is not damaged."""

    topic = Topic.OPEN_FILES

    @staticmethod
    def from_error(error: BaseException) -> ResourceExhaustedError | None:
        """Return an ResourceExhaustedError if `error` means that no file descriptor is left; otherwise None."""
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
            return None
        holder = "this process" if error.errno == errno.EMFILE else "this machine"
        return ResourceExhaustedError(
            f"{holder} has too many open files and connections ({error.strerror or 'none is left'}), but no file "
            "is damaged; close programs with many open files, or raise the limit with ulimit -n, and start again"
        )


def is_forbidden(error: BaseException) -> bool:
    """Return whether the cause of an error is a missing permission or a read-only file system, not damaged data."""
    return isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)


def permission_error(subject: str, error: BaseException) -> StateError | None:
    """Return a StateError if `error` means that the user may not read `subject`, a part of a state; otherwise None."""
    if not is_forbidden(error):
        return None
    return StateError(
        f"{subject} cannot be read (Permission denied); it may be intact; give this user read access, and start again"
    )


class PublishError(SlackwaterError):
    """The target did not accept an epoch that is already committed."""

    topic = Topic.TARGET_REFUSED


class SparkEndedError(SlackwaterError):
    """Spark's process ended while it was needed. No commit is lost: the next start continues from the last one."""

    topic = Topic.SPARK_ENDED


class EpochError(SlackwaterError):
    """An epoch failed before its commit. It has no visible effect, and the next start runs it again."""

    topic = Topic.EPOCH_FAILED


class NeedsSparkError(EpochError):
    """Workers cannot process the files of an epoch as Spark would. The epoch then runs again, and Spark reads the files."""


class NewColumnsError(EpochError):
    """A source has new columns that the config accepts. `run` restarts the pipeline, which then reads these columns."""

    topic = Topic.TABLE_COLUMNS


def raise_unregistered(kind: object, function: str) -> NoReturn:
    """Raise TypeError because a generic function has no implementation for the type of `kind`.

    `function`: the import path of the function, such as "slackwater.operators.window_operators.function".
    """
    raise TypeError(f"{function} is not registered for {type(kind).__qualname__}")
