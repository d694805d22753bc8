"""Plan table sources without Spark: the files of the versions, in order, up to a limit per epoch.

A version that cannot be read, because it rewrites rows or no longer exists, ends the run once everything before it is
committed.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slackwater.connectors.source import SelfPlannedSource, SourceUnavailableError
from slackwater.connectors.tables.source import (
    DataFile,
    TableFileBatch,
    TableSource,
    TableVersion,
    VersionGoneError,
    check_column_changes,
)
from slackwater.core.humanize import plural
from slackwater.core.offsets import TableOffsets
from slackwater.errors import EpochError, SlackwaterError, StartError, Topic
from slackwater.state.commit import SourceRecord

log = logging.getLogger("slackwater")


@dataclass(frozen=True)
class _PendingFile:
    """A file to read and the offsets after it. For a skipped version, `file` is None and `lost` is its number of rows."""

    file: DataFile | None
    offsets_after: TableOffsets
    lost: int = 0


class TablePlanner:
    """Plans the epochs of a table. `record`: the offsets in the state.

    Raises SlackwaterError if this is not the table that was read before.
    """

    def __init__(self, source: TableSource, record: SourceRecord) -> None:
        self._source, self._max_files = source, source.spec.max_files_per_trigger
        self._position = source.start_offsets(record)  # everything up to here is pending or planned
        self._pending: deque[_PendingFile] = deque()
        self._is_inside_version = self._position.files is not None  # the version at this position was read in part
        self._problem: SlackwaterError | None = None
        self._ended = False

    @property
    def unplanned_files(self) -> int:
        return len(self._pending)

    def stop_at_current_end(self) -> None:
        try:
            self._find_versions()
        except SourceUnavailableError as error:
            raise error.cause from None
        self._ended = True

    def next(self) -> TableFileBatch | None:
        if not self._ended and self._problem is None and len(self._pending) < (self._max_files or 1):
            self._find_versions()
        if not self._pending:
            if self._problem is not None:
                raise self._problem
            return None
        selected = [
            self._pending.popleft() for _ in range(min(self._max_files or len(self._pending), len(self._pending)))
        ]
        files = [w.file for w in selected if w.file is not None]
        return TableFileBatch(self._source, files, selected[-1].offsets_after, sum(w.lost for w in selected))

    def _find_versions(self) -> None:
        """Append the files of new table versions to the pending files.

        Raises SourceUnavailableError if the table does not respond.
        """
        source = self._source
        try:
            if self._is_inside_version:
                self._add_remaining_files()
            for version in source.log.versions_after(self._position):
                self._add_version(version)
        except VersionGoneError as error:
            self._problem = source.version_gone_error(str(error))
        except SlackwaterError as error:
            self._problem = source.with_source_name(error)
        except Exception as error:
            raise SourceUnavailableError(
                EpochError(
                    f"{source.where} does not answer ({source.log.error_reason(error)}); check that it can be reached"
                )
            ) from None

    def _add_remaining_files(self) -> None:
        """Append the unread files of a version that was read only in part."""
        offsets, done = self._position, self._position.files or 0
        end = offsets.fully_read
        if offsets.content:
            files = self._source.log.list_files(offsets)
        else:
            version = self._source.log.read_version(offsets)
            self._check(version)
            files = version.files
        if done > len(files):
            raise VersionGoneError(
                f"{offsets.fully_read} has {plural(len(files), 'file')}, but {done:,} of them were read"
            )
        self._add_files(files[done:], offsets, done, end)
        self._position, self._is_inside_version = end, False

    def _add_version(self, version: TableVersion) -> None:
        if version.rewrites is not None and self._source.spec.on_rewrite == "skip":
            log.warning(
                "%s: %s %s; it is skipped with the %s of its files (on_rewrite)",
                self._source.where,
                version.offsets,
                version.rewrites,
                plural(version.rows, "row"),
            )
            self._pending.append(_PendingFile(None, version.offsets, version.rows))
        else:
            self._check(version)
            self._add_files(version.files, version.offsets, 0, version.offsets)
        self._position = version.offsets

    def _check(self, version: TableVersion) -> None:
        source = self._source
        if version.rewrites is not None:
            raise EpochError(
                f"{source.where}: {version.offsets} {version.rewrites}, but rows that were read cannot be taken back; "
                'read an append-only table, or set on_rewrite = "skip" to skip such versions',
                Topic.TABLE_HISTORY,
            )
        if version.columns is not None:
            choice = source.spec.schema_changes
            check_column_changes(
                source.where, source.schema, version.columns, choice, str(version.offsets), running=True
            )

    def _add_files(self, files: Sequence[DataFile], offsets: TableOffsets, done: int, end: TableOffsets) -> None:
        for n, file in enumerate(files, done + 1):
            self._pending.append(_PendingFile(file, end if n == done + len(files) else replace(offsets, files=n)))
        if not files and self._pending:  # an empty version: the commit of the previous file covers it
            self._pending[-1] = replace(self._pending[-1], offsets_after=end)


class PlannedTableSource(TableSource, SelfPlannedSource):
    """A table source that the run plans itself."""

    kind = "table"

    def check_connect(self, pipeline: str) -> None:
        raise StartError(
            f'{pipeline}: source "{self.name}" is a table, which Slackwater does not read over Spark Connect yet; run '
            "it with a classic session (SPARK_MASTER)",
            Topic.SPARK_CONNECT,
        )

    def planner(self, record: SourceRecord, files: Iterable[Any]) -> TablePlanner:
        return TablePlanner(self, record)
