"""Tables as a run plans them: the files of its versions, in their order, so many at a time.

What cannot be read ends the run once everything before it is committed: a version that rewrites rows, one that is gone.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slackwater.core.humanize import plural
from slackwater.core.offsets import TableOffsets
from slackwater.errors import EpochError, SlackwaterError, StartError
from slackwater.sources.base import SelfPlannedSource, SourceUnavailableError
from slackwater.sources.tables import DataFile, TableFileBatch, TableSource, TableVersion, VersionGoneError
from slackwater.sources.tables_columns import check_columns
from slackwater.state.commit import SourceRecord

log = logging.getLogger("slackwater")


@dataclass(frozen=True)
class _PendingVersions:
    """A file that is to be read, or None: rows that are passed over; and the place behind it."""

    file: DataFile | None
    behind: TableOffsets
    lost: int = 0


class TablePlanner:
    """`record`: where the state stands. Raises SlackwaterError if the table is not the one that was read."""

    def __init__(self, source: TableSource, record: SourceRecord) -> None:
        self._source, self._most = source, source.spec.max_files_per_trigger
        self._at = source.begins(record)  # all of it is waiting or planned
        self._waiting: deque[_PendingVersions] = deque()
        self._within = self._at.files is not None  # of its version some files are still to be found
        self._problem: SlackwaterError | None = None
        self._ended = False

    @property
    def left(self) -> int:
        return len(self._waiting)

    def until_now(self) -> None:
        try:
            self._find()
        except SourceUnavailableError as error:
            raise error.cause from None
        self._ended = True

    def next(self) -> TableFileBatch | None:
        if not self._ended and self._problem is None and len(self._waiting) < (self._most or 1):
            self._find()
        if not self._waiting:
            if self._problem is not None:
                raise self._problem
            return None
        some = [self._waiting.popleft() for _ in range(min(self._most or len(self._waiting), len(self._waiting)))]
        files = [w.file for w in some if w.file is not None]
        return TableFileBatch(self._source, files, some[-1].behind, sum(w.lost for w in some))

    def _find(self) -> None:
        """What came meanwhile waits now; NoAnswerError: the table does not say what it has."""
        source = self._source
        try:
            if self._within:
                self._rest()
            for version in source.log.after(self._at):
                self._take(version)
        except VersionGoneError as error:
            self._problem = source.gone(str(error))
        except SlackwaterError as error:
            self._problem = source.named(error)
        except Exception as error:
            raise SourceUnavailableError(
                EpochError(f"{source.where} does not answer ({source.log.reason(error)}); check that it can be reached")
            ) from None

    def _rest(self) -> None:
        """What is left of the version that was read in part."""
        offsets, done = self._at, self._at.files or 0
        end = offsets.fully_read
        if offsets.content:
            files = self._source.log.content(offsets)
        else:
            version = self._source.log.of(offsets)
            self._check(version)
            files = version.files
        if done > len(files):
            raise VersionGoneError(
                f"{offsets.fully_read} has {plural(len(files), 'file')}, and {done:,} of them were read"
            )
        self._add(files[done:], offsets, done, end)
        self._at, self._within = end, False

    def _take(self, version: TableVersion) -> None:
        if version.rewrites is not None and self._source.spec.on_rewrite == "skip":
            log.warning(
                "%s: %s %s; it is passed over with the %s of its files (on_rewrite)",
                self._source.where,
                version.at,
                version.rewrites,
                plural(version.rows, "row"),
            )
            self._waiting.append(_PendingVersions(None, version.at, version.rows))
        else:
            self._check(version)
            self._add(version.files, version.at, 0, version.at)
        self._at = version.at

    def _check(self, version: TableVersion) -> None:
        source = self._source
        if version.rewrites is not None:
            raise EpochError(
                f"{source.where}: {version.at} {version.rewrites}, and rows that were read cannot be taken back; read a table that is "
                'only appended to, or set on_rewrite = "skip" to pass such versions over'
            )
        if version.columns is not None:
            choice = source.spec.schema_changes
            check_columns(source.where, source.schema, version.columns, choice, str(version.at), running=True)

    def _add(self, files: Sequence[DataFile], offsets: TableOffsets, done: int, end: TableOffsets) -> None:
        for n, file in enumerate(files, done + 1):
            self._waiting.append(_PendingVersions(file, end if n == done + len(files) else replace(offsets, files=n)))
        if not files and self._waiting:  # nothing to read: the next commit is behind it, too
            self._waiting[-1] = replace(self._waiting[-1], behind=end)


class PlannedTableSource(TableSource, SelfPlannedSource):
    """A table, which is planned here."""

    kind = "table"

    def check_connect(self, pipeline: str) -> None:
        raise StartError(
            f'{pipeline}: source "{self.name}" is a table, and tables are not read over Spark Connect yet; run it with a classic '
            "session (SPARK_MASTER)"
        )

    def planner(self, record: SourceRecord, files: Iterable[Any]) -> TablePlanner:
        return TablePlanner(self, record)
