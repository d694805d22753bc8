"""Read-only view of a state: open and retained windows with their values, like a Kafka Streams session store.

    open_state("state/user-sessions")          the latest commit at the time of each query
        .fetch({"user_id": "u7"})              windows of one key
        .find_sessions(…, earliest_end=…)      sessions of one key within a time range
        .scan(where="events > 100")            windows of all keys
        .as_of(41)                             a view of an earlier commit

Each query reads exactly one commit, even while a runner commits new ones. A query never blocks a runner.
"""

from __future__ import annotations

import datetime as dt
import operator
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from slackwater.config.pipeline import Pipeline
from slackwater.core.humanize import mismatch
from slackwater.core.notebook_repr import NotebookRepr
from slackwater.errors import StartError, StateError, Topic
from slackwater.evolution.pipeline_from_state import restore_operator, restore_window
from slackwater.operators.keyed_operator_base import KeyedOperator
from slackwater.operators.window_operator_base import WindowOperator
from slackwater.query import state_inspection
from slackwater.query.open_windows import compute_current_windows, compute_rows_of_state, state_column_names
from slackwater.query.state_locator import locate_store
from slackwater.query.where_condition import filter_frame, parse_condition
from slackwater.state.commit import Commit
from slackwater.state.files.store import FilesStore
from slackwater.state.protocol import Snapshot, StateStore

if TYPE_CHECKING:
    import pyarrow as pa

Time = dt.datetime | str | int
Viewed = WindowOperator | KeyedOperator


def open_state(state: str | Path | Pipeline, pipeline: str | None = None, *, schema: str = "public") -> StateView:
    """Open a read-only view of the windows of a pipeline.

    The view takes no lock, so the pipeline may be running.

    Args:
        state: A state directory, a URL in an object store, a database URL, the pipeline, or its TOML file.
        pipeline: The name of the pipeline. It is required if `state` contains the states of several pipelines.
        schema: The database schema that contains the tables, if the state is in Postgres.

    Raises StartError if the state cannot be located, and ConfigError if the TOML file is invalid.
    """
    return StateView(locate_store(state, pipeline, schema))


class StateView(NotebookRepr):
    """A read-only view of the windows in a state, as Polars frames. `open_state` returns one.

    The view contains the open windows. It also contains the *retained* ones, which are closed but stay in the state for
    corrections. Windows that have left the state exist only in the target. If the pipeline has several stages, the view
    shows the last one.

    The frames have the columns of the target (without those that `emit_metadata` adds), with the values that would be
    emitted if no more rows arrived. To convert a frame to Arrow, call `frame.to_arrow()`. The view adds these columns:

    - `_status`: `open` or `retained`.
    - `_closes_at`: the watermark that closes the window.
    - `_last_event`: the time of the last event, for sessions.
    - `_epoch`: the epoch of the commit.

    If the target already has a column with one of these names, another `_` is prepended.

    If the last stage is a keyed or dedup stage, the frames contain the state rows that are not due yet: their keys, their
    state columns, and these columns:

    - `_due_at`: the watermark at which the row is due; NULL if it is never due.
    - `_last_event`: the newest event time of the key in the epoch that wrote the row.
    - `_epoch`: the epoch of the commit.

    A view may be used from several threads. Methods that read the state raise StateError if there is no commit yet.
    """

    def __init__(self, store: StateStore, epoch: int | None = None) -> None:
        self._store, self._epoch = store, epoch
        self._cached: tuple[Snapshot, ExitStack, Viewed] | None = None
        self._opening = threading.Lock()

    # -- queries -----------------------------------------------------------------------------------------------

    def fetch(self, key: Any = None) -> pl.DataFrame:
        """Return the windows of one key, ordered by start. Raises StartError if the key is invalid.

        `key` maps the `group_by` columns to values. If there is only one column, it may also be the value itself. Omit
        `key` if the window has no `group_by`.
        """
        with self._open_snapshot() as (snapshot, logic):
            return self._windows_of_key(snapshot, logic, key)

    def find_sessions(
        self, key: Any, earliest_end: Time | None = None, latest_start: Time | None = None
    ) -> pl.DataFrame:
        """Return the sessions of one key within inclusive time limits, as Kafka Streams session stores do.

        Here, a session ends at its last event, without the gap. A time is a datetime or an ISO 8601 string, both in UTC
        by default, or an integer number of microseconds since 1970. To set no limit, omit the argument. As in Kafka
        Streams, you can also pass 0 for `earliest_end` and 2**63 - 1 for `latest_start`.

        Args:
            key: The key; see `fetch`.
            earliest_end: Return only sessions whose last event is at or after this time.
            latest_start: Return only sessions that start at or before this time.

        Raises StartError if an argument is invalid, or if the windows are not sessions.
        """
        low = None if earliest_end is None else _to_micros(earliest_end, "earliest_end")
        high = None if latest_start is None else _to_micros(latest_start, "latest_start")
        with self._open_snapshot() as (snapshot, logic):
            _check_sessions(logic)
            sessions = self._windows_of_key(snapshot, logic, key)
            assert isinstance(logic, WindowOperator)
            if low is not None:
                sessions = sessions.filter(pl.col(state_column_names(logic)["_last_event"]).dt.timestamp("us") >= low)
            if high is not None:
                sessions = sessions.filter(pl.col(logic.window.window_start_column).dt.timestamp("us") <= high)
            return sessions

    def scan(
        self, where: str | pl.Expr | None = None, limit: int | None = None, *, timeout_s: float | None = None
    ) -> pl.DataFrame:
        """Return the windows of all keys, ordered by (start, key). State rows of a keyed stage are ordered by key.

        The state is read shard by shard, and only matching windows stay in memory.

        Args:
            where: A condition over the columns, as a Polars expression or as SQL ("events > 100 AND _status = 'open'").
                For what the SQL may contain, see docs/state/serve.md.
            limit: The maximum number of windows.
            timeout_s: The maximum number of seconds that the scan may take.

        Raises StartError if an argument is invalid, or if the scan takes too long.
        """
        limit = None if limit is None else _whole_number(limit, "limit", 0)
        if where is not None and not isinstance(where, str | pl.Expr):
            problem = mismatch(f"{where!r} ({type(where).__name__})", "SQL or a Polars expression")
            raise StartError(f"where: {problem}", Topic.CONDITION)
        ends = None if timeout_s is None else time.monotonic() + timeout_s
        with self._open_snapshot() as (snapshot, logic):
            empty = _windows(snapshot, logic, logic.empty_state())
            condition = parse_condition(where, empty.columns) if isinstance(where, str) else where
            selected = [empty]
            for rows in _scan_shards(snapshot, logic, self.stage):
                windows = _windows(snapshot, logic, rows)
                for part in [windows] if condition is None else filter_frame(windows, condition):
                    selected.append(part)
                    if ends is not None and time.monotonic() > ends:
                        raise StartError(
                            f"where: the query took longer than {timeout_s:g} seconds; request the windows of one key",
                            Topic.CONDITION,
                        )
                if limit is not None:
                    selected = [_sorted(logic, pl.concat(selected)).head(limit)]
            return _sorted(logic, pl.concat(selected))

    def as_of(self, epoch: int) -> StateView:
        """Return a view of an earlier commit. Raises StateError if the commit no longer exists (see `epochs`)."""
        if _whole_number(epoch, "epoch", -1) not in (epochs := self.epochs()):
            available = f"epochs {epochs[0]} to {epochs[-1]}" if epochs else "no state"
            raise StateError(f"epoch {epoch} is not kept; available: {available}", Topic.EPOCH_NOT_KEPT)
        return StateView(self._store, epoch)

    def epochs(self) -> list[int]:
        """Return the epochs whose commits can still be read, in ascending order.

        The Postgres store keeps only the latest commit.
        """
        return self._store.epochs()

    def manifest(self) -> Commit:
        """Return the commit that the view reads, as a `slackwater.state.commit.Commit`."""
        with self._store.peek(self._epoch) as snapshot:
            return _require_snapshot(snapshot).commit

    def key_of(self, texts: Sequence[str]) -> dict[str, Any]:
        """Parse a key for `fetch` and `find_sessions` from strings such as `user_id=u1` or `user_id=u1,page=/`.

        A name without a value stands for NULL. Raises StartError if a key column is missing, a column is unknown, or a
        value has the wrong type.
        """
        logic = _restore_viewed(self.manifest(), self.stage)
        if not texts and not logic.key_names:
            return {}
        return state_inspection.parse_key(logic, texts).row(0, named=True)

    @property
    def columns(self) -> dict[str, pl.DataType]:
        """Return the columns of the frames and their types."""
        with self._open_snapshot() as (snapshot, logic):
            return dict(_windows(snapshot, logic, logic.empty_state()).schema)

    stage = -1  # the index of the viewed stage: the last one

    # -- access to the state -------------------------------------------------------------------------------------

    @contextmanager
    def _open_snapshot(self) -> Iterator[tuple[Snapshot, Viewed]]:
        """Yield a snapshot that can be read within the `with` block, and the operator of its stage.

        State files stay open between calls until there is a later commit. A database is queried on every call.
        """
        if not isinstance(self._store, FilesStore):
            with self._store.peek(self._epoch) as peeked:
                snapshot = _require_snapshot(peeked)
                yield snapshot, _restore_viewed(snapshot.commit, self.stage)
            return
        with self._opening:
            cached = self._cached
            if cached is None or (self._epoch is None and self._store.epochs()[-1:] != [cached[0].commit.epoch]):
                cached = self._open_latest()
        # stays readable even if another thread caches a later commit, because files in use are not removed
        yield cached[0], cached[2]

    def _open_latest(self) -> tuple[Snapshot, ExitStack, Viewed]:
        with ExitStack() as stack:
            snapshot = _require_snapshot(stack.enter_context(self._store.peek(self._epoch)))
            logic = _restore_viewed(snapshot.commit, self.stage)
            self.close()
            self._cached = snapshot, stack.pop_all(), logic
        return self._cached

    def _windows_of_key(self, snapshot: Snapshot, logic: Viewed, key: Any) -> pl.DataFrame:
        rows = state_inspection.read_key_rows(snapshot, logic, _key_frame(logic, key), self.stage)
        return _sorted(logic, _windows(snapshot, logic, rows))

    def close(self) -> None:
        """Close the open files. You can still use the view, which then opens them again."""
        if self._cached is not None:
            self._cached[1].close()
            self._cached = None

    def __enter__(self) -> StateView:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_sessions(logic: Viewed) -> None:
    """Raise StartError if the windows are not sessions."""
    if isinstance(logic, KeyedOperator):
        raise StartError(
            f"{logic.pipeline}: find_sessions: "
            + mismatch(f"the state of a {logic.kind} stage", "the state of session windows"),
            Topic.NO_WINDOWS,
        )
    window = logic.window
    if window.kind != "session":
        raise StartError(
            f"{logic.pipeline}: find_sessions: " + mismatch(f"{window.kind} windows", "session windows"),
            Topic.NO_WINDOWS,
        )


def _require_snapshot(snapshot: Snapshot | None) -> Snapshot:
    if snapshot is None:
        raise StateError("there is no state yet; start the pipeline to create it: slackwater run", Topic.NO_STATE)
    return snapshot


def _scan_shards(snapshot: Snapshot, logic: Viewed, stage: int) -> Iterator[pl.DataFrame]:
    count = len(snapshot.commit.stages)
    for shard in range(snapshot.commit.shards):
        yield snapshot.reader(shard, logic, stage % count).scan()


def _windows(snapshot: Snapshot, logic: Viewed, rows: pl.DataFrame) -> pl.DataFrame:
    watermark = snapshot.commit.stages[-1].watermark_us
    if isinstance(logic, KeyedOperator):
        return compute_rows_of_state(logic, rows, watermark, snapshot.commit.epoch)
    return compute_current_windows(logic, rows, watermark, snapshot.commit.epoch)


def _sorted(logic: Viewed, frame: pl.DataFrame) -> pl.DataFrame:
    """Sort windows by start and key, or rows of state by key."""
    return frame.sort(logic.key_names) if isinstance(logic, KeyedOperator) else logic.sorted_output(frame)


def _restore_viewed(commit: Commit, stage: int) -> Viewed:
    """Restore the operator of a stage. Raises StateError if the stage is neither a window nor keyed."""
    operator = restore_operator(commit, stage)
    return operator if isinstance(operator, WindowOperator | KeyedOperator) else restore_window(commit, stage)


def _key_frame(logic: Viewed, key: Any) -> pl.DataFrame:
    """Return a key as a one-row frame. Raises StartError if the key does not have exactly the key columns."""
    names = logic.key_names
    if not isinstance(key, Mapping):
        if len(names) != 1 and (names or key is not None):
            expected = "{" + ", ".join(f'"{n}": …' for n in names) + "}" if names else "none, as there is no group_by"
            raise StartError(f"{logic.pipeline}: key: {mismatch(repr(key), expected)}", Topic.VALUE)
        key = {names[0]: key} if names else {}
    if set(key) != set(names):
        problem = mismatch(f"the columns {', '.join(map(str, key)) or 'none'}", ", ".join(names) or "none")
        raise StartError(f"{logic.pipeline}: key: {problem}", Topic.VALUE)
    return state_inspection.key_frame(logic, key)


def _to_micros(value: Time, name: str) -> int:
    """Convert a time to microseconds UTC, clamped to the range of int64. `name`: the parameter, for messages."""
    if isinstance(value, str):
        try:
            value = dt.datetime.fromisoformat(value)
        except ValueError:
            problem = mismatch(f'"{value}"', "a time such as 2026-03-01T12:00:00Z")
            raise StartError(f"{name}: {problem}", Topic.VALUE) from None
    if isinstance(value, dt.datetime):
        time = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
        return (time - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
    try:
        if isinstance(value, bool):
            raise TypeError
        us = operator.index(value)  # also accepts integers of NumPy
    except TypeError:
        expected = "a datetime, a string such as 2026-03-01T12:00:00Z, or whole microseconds since 1970"
        raise StartError(f"{name}: " + mismatch(f"{value!r} ({type(value).__name__})", expected), Topic.VALUE) from None
    return max(-(1 << 63), min(us, (1 << 63) - 1))


def _whole_number(value: int, name: str, least: int) -> int:
    """Return an integer clamped to the range of int64. Raises StartError if it is below `least`."""
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        problem = mismatch(repr(value), f"a whole number of at least {max(least, 0)}")
        raise StartError(f"{name}: {problem}", Topic.VALUE)
    return min(number, (1 << 63) - 1)


def to_arrow(frame: pl.DataFrame) -> pa.Table:
    """Convert a frame to an Arrow table, with the types of Polars' oldest compatibility level."""
    return frame.to_arrow(compat_level=pl.CompatLevel.oldest())


__all__ = ["StateView", "Time", "open_state", "to_arrow"]
