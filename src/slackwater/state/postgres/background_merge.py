"""Merge many staged rows into the state table while epochs continue.

    commit 16   [state] [t1] … [t16]         a merge of t1 to t16 begins, in a separate transaction
    commit 17   [state] [t1] … [t16] [t17]
                [state] [t17]                the merge ends: its transaction also updates the stored commit
    commit 18   [state] [t17] [t18]          the rows of t1 to t16 are deleted, because no task reads them any more

Staged rows hide the rows of the same units in the state table. Tasks that still read t1 to t16 therefore see the same rows
before and after the end of the merge.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any, NamedTuple

import psycopg

from slackwater.errors import StateError
from slackwater.state.commit import Commit
from slackwater.state.postgres import client, pipeline_lock, staged_row_merge
from slackwater.state.postgres.pipeline_tables import PipelineTables
from slackwater.state.protocol import StateLayout
from slackwater.windows.state_layout import KeyedStateLayout

log = logging.getLogger("slackwater")

_STOP_S = 10.0  # seconds that `stop` waits for the end of a merge
_CANCEL_S = 2.0  # seconds within which the server must accept a request to cancel a statement


class MergedStage(NamedTuple):
    """The tokens of a stage whose rows are now in its state table, the rows that the table gained, and its size in bytes."""

    tokens: frozenset[str]
    gained: int
    size: int


MergedStages = Mapping[int, MergedStage]  # by the number of the stage


def apply_merge(commit: Commit, merged: MergedStages) -> Commit:
    """Return a commit without the merged tokens. Stages that do not reference all of these tokens stay unchanged."""
    for number, stage in merged.items():
        state = commit.stages[number]
        if stage.tokens <= {m.file for m in staged_row_merge.list_staged_segments(state.segments)}:
            segments = tuple(
                (
                    *staged_row_merge.list_merged_segments(
                        [m for m in metas if not m.file or m.file in stage.tokens], stage.size // state.shards
                    ),
                    *(m for m in metas if m.file and m.file not in stage.tokens),
                )
                for metas in state.segments
            )
            stages = list(commit.stages)
            stages[number] = state.model_copy(update={"segments": segments})
            commit = commit.model_copy(update={"stages": tuple(stages)})
            commit = staged_row_merge.add_merged_row_count(commit, number, stage.gained)
    return commit


class _MergeStoppedError(Exception):
    """Raised in the thread of a merge after `stop`."""


class _Merge:
    """One merge and its thread.

    `recorded` is set when the merge has ended or failed, and `unread` when a commit without the merged tokens exists.
    """

    def __init__(self) -> None:
        self.stopped, self.recorded, self.unread = threading.Event(), threading.Event(), threading.Event()
        self.connection: psycopg.Connection[Any] | None = None
        self.thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    def check_not_stopped(self) -> None:
        if self.stopped.is_set():
            raise _MergeStoppedError


class BackgroundMerges:
    """The background merges of one pipeline. At most one runs at a time.

    Args:
        url: The URL of the database.
        tables: The tables of the pipeline.
    """

    def __init__(self, url: str, tables: PipelineTables) -> None:
        self._url, self._tables = url, tables
        self._lock = threading.Lock()  # held while a commit or a merge changes the stored commit
        self._stored: Commit | None = None
        self._commit_id = uuid.UUID(int=0)  # of the stored commit
        self._merge = _Merge()
        self._merged: list[MergedStages] = []  # since the latest commit
        self._uncertain: tuple[uuid.UUID, MergedStages] | None = None  # a merge whose COMMIT may have taken effect

    @property
    def commit_id(self) -> uuid.UUID:
        """Return the id of the stored commit, which each commit and each merge replaces."""
        return self._commit_id

    @property
    def is_running(self) -> bool:
        """Return whether a merge has not ended, or has not deleted its staged rows yet."""
        return self._merge.is_running

    def continue_from(self, commit_id: uuid.UUID) -> None:
        """Continue from the commit with this id, which has just been read. No merge may be running."""
        self._stored, self._commit_id, self._merged, self._uncertain = None, commit_id, [], None

    @contextmanager
    def apply_before_commit(
        self, commit: Commit, waits: bool, read_commit_id: Callable[[], uuid.UUID | None]
    ) -> Iterator[Commit]:
        """Yield the commit without the tokens that have been merged since the previous one. No merge ends within the block.

        Args:
            commit: The next commit.
            waits: Whether to wait for a running merge. This also happens if too many rows are staged.
            read_commit_id: A function that returns the id of the stored commit, after the end of a concurrent transaction.
        """
        if self._merge.is_running and (waits or any(staged_row_merge.must_merge(s.segments) for s in commit.stages)):
            self._merge.recorded.wait()
        with self._lock:
            self._resolve_uncertain_merge(read_commit_id)
            for merged in self._merged:
                commit = apply_merge(commit, merged)
            yield commit

    def record_commit(self, stored: Commit, commit_id: uuid.UUID) -> None:
        """Remember the stored commit. Call this within the block of `apply_before_commit`."""
        self._stored, self._commit_id = stored, commit_id
        if self._merged:
            self._merged = []
            self._merge.unread.set()

    def start_if_due(self, layouts: Mapping[int, StateLayout]) -> None:
        """Start a merge of the stages that have reached a limit, unless a merge is running. `layouts`: by stage."""
        commit = self._stored
        if commit is None or self._merge.is_running:
            return
        due = {
            number: logic
            for number, logic in layouts.items()
            if isinstance(logic, KeyedStateLayout) and staged_row_merge.is_merge_due(commit.stages[number].segments)
        }
        if due:
            self._merge = merge = _Merge()
            merge.thread = threading.Thread(
                target=self._run, args=(merge, commit, due), name="slackwater-merge", daemon=True
            )
            try:
                merge.thread.start()
            except RuntimeError as error:  # the system allows no more threads
                self._merge = _Merge()
                log.warning(
                    "%s: the background merge of staged rows did not start (%s); a later commit starts it",
                    self._tables.pipeline,
                    error,
                )

    def stop(self) -> None:
        """Stop a running merge. Its transaction has no effect, unless it has already ended."""
        merge, end = self._merge, time.monotonic() + _STOP_S
        merge.stopped.set()
        merge.unread.set()
        while merge.thread is not None and time.monotonic() < end:
            merge.thread.join(0.1)
            if not merge.is_running:
                break
            with suppress(psycopg.Error):
                if merge.connection is not None:
                    merge.connection.cancel_safe(timeout=_CANCEL_S)
        self._merge = _Merge()

    def _run(self, merge: _Merge, commit: Commit, layouts: Mapping[int, KeyedStateLayout]) -> None:
        is_merged = False
        try:
            with closing(client.open_connection(self._url, "state store")) as db:
                merge.connection = db
                db.execute("BEGIN")  # without an end, closing the connection undoes the merge
                merge.check_not_stopped()
                pipeline_lock.lock_merges(db, self._tables)
                merge.check_not_stopped()
                merged = {number: self._merge_stage(db, commit, number, logic) for number, logic in layouts.items()}
                self._record_merge(db, merge, merged)
            is_merged = True
            merge.recorded.set()
            merge.unread.wait()
            merge.check_not_stopped()
            self._delete_staged_rows(commit, layouts)
        except Exception as error:
            if merge.stopped.is_set():
                return
            pipeline, reason = self._tables.pipeline, client.error_reason(error)
            if is_merged:
                log.warning(
                    "%s: the rows that a merge moved to the state table could not be deleted from the staged table (%s); a "
                    "later merge deletes them",
                    pipeline,
                    reason,
                )
            else:
                log.warning(
                    "%s: the background merge of staged rows failed (%s); a later commit repeats it", pipeline, reason
                )
        finally:
            merge.recorded.set()

    def _merge_stage(
        self, db: psycopg.Connection[Any], commit: Commit, number: int, logic: KeyedStateLayout
    ) -> MergedStage:
        tables, state = self._tables.for_stage(number), commit.stages[number]
        gained = staged_row_merge.merge_staged_rows(db, tables.staged, tables.state, state.segments)
        gained -= staged_row_merge.delete_expired_rows(db, tables.state, logic, state.watermark_us)
        tokens = frozenset(m.file for m in staged_row_merge.list_staged_segments(state.segments))
        return MergedStage(tokens, gained, staged_row_merge.table_size(db, tables.state))

    def _record_merge(self, db: psycopg.Connection[Any], merge: _Merge, merged: MergedStages) -> None:
        """Update the stored commit in the transaction of the merge, and end the transaction.

        Raises StateError if another runner has changed the stored commit.
        """
        with self._lock:
            merge.check_not_stopped()
            assert self._stored is not None
            stored, commit_id = apply_merge(self._stored, merged), uuid.uuid4()
            self._uncertain = (commit_id, merged)
            changed = db.execute(
                f"UPDATE {self._tables.pipelines} SET record = record || jsonb_build_object('stages', %s::jsonb -> 'stages'),"
                " commit_id = %s WHERE pipeline_name = %s AND commit_id = %s",
                (stored.model_dump_json(), commit_id, self._tables.pipeline, self._commit_id),
            ).rowcount
            if changed != 1:
                self._uncertain = None
                raise StateError("the stored commit was changed by another runner")
            db.execute("COMMIT")
            self._uncertain = None
            self._commit_id = commit_id
            self._stored = stored
            self._merged.append(merged)

    def _resolve_uncertain_merge(self, read_commit_id: Callable[[], uuid.UUID | None]) -> None:
        """Find out whether the COMMIT of a merge took effect, if its connection was lost."""
        if self._uncertain is None:
            return
        commit_id, merged = self._uncertain
        if read_commit_id() == commit_id:
            self._commit_id = commit_id
            self._merged.append(merged)
        self._uncertain = None

    def _delete_staged_rows(self, commit: Commit, layouts: Mapping[int, KeyedStateLayout]) -> None:
        """Delete the merged rows, and rows of failed epochs before them. Then vacuum the staged tables."""
        with closing(client.open_connection(self._url, "state store")) as db:
            for number in layouts:
                staged = self._tables.for_stage(number).staged
                db.execute(f"DELETE FROM {staged} WHERE epoch <= {commit.epoch}")
                db.execute(f"VACUUM {staged}")
