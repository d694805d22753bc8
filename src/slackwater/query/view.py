"""The read-only view of a state (KIP-94's read-only session store): open and retained windows with their values.

    open_state("state/user-sessions")          the latest commit, looked for again at each question
        .fetch({"user_id": "u7"})              windows of one key
        .find_sessions(…, earliest_end=…)      sessions of one key within times
        .scan(where="events > 100")            windows of all keys
        .as_of(41)                             the same questions, to an earlier commit

Each answer is one commit's: nothing of a later epoch is in it, whatever a runner does meanwhile, and no runner waits.
"""

from __future__ import annotations

import datetime as dt
import operator
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import singledispatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from slackwater.config.pipeline import Pipeline
from slackwater.core.dispatch import unregistered
from slackwater.core.notebook_repr import NotebookRepr
from slackwater.errors import StartError, StateError
from slackwater.evolution.operator_from_state import logic_in
from slackwater.operators.base import Operator
from slackwater.operators.panes import PaneOperator
from slackwater.operators.sessions import SessionOperator
from slackwater.operators.window_base import WindowOperator
from slackwater.query import inspect
from slackwater.query.condition import filter_frame, parse_condition
from slackwater.query.locate_state import store_at
from slackwater.query.windows import current_windows, own_names
from slackwater.state.commit import Commit
from slackwater.state.files.store import FilesStore
from slackwater.state.protocol import Snapshot, StateStore

if TYPE_CHECKING:
    import pyarrow as pa

Time = dt.datetime | str | int


def open_state(state: str | Path | Pipeline, pipeline: str | None = None, *, schema: str = "public") -> StateView:
    """Look into the windows of a pipeline, running or not. Takes no lock and changes nothing.

    `state`: a state directory, the URL of a database (with the `schema` of its tables), the TOML file of the pipeline, or
    the pipeline. `pipeline`: its name, where several have their state there. Raises StartError, StateError, ConfigError.
    """
    return StateView(store_at(state, pipeline, schema))


class StateView(NotebookRepr):
    """Open and retained windows as Polars frames (`frame.to_arrow()` makes Arrow of them); made by `open_state`.

    The columns are those of the target, with the values as they would come out if no row came any more, and
    `_status` (open | retained), `_closes_at` (TIMESTAMP, the watermark that closes it), `_last_event` (sessions: TIMESTAMP)
    and `_epoch` (BIGINT, the commit), with one more `_` where a column of the target has that name. Windows that are gone
    from the state are in the target alone. Threads may ask at once.
    """

    def __init__(self, store: StateStore, epoch: int | None = None) -> None:
        self._store, self._epoch = store, epoch
        self._held: tuple[Snapshot, ExitStack, WindowOperator] | None = None
        self._opening = threading.Lock()

    # -- questions -----------------------------------------------------------------------------------------------

    def fetch(self, key: Any = None) -> pl.DataFrame:
        """The windows of one key, in order of their start.

        `key`: a mapping of the group_by columns to values; the value alone where there is one column; nothing where there
        is none. Raises StartError for a wrong key.
        """
        with self._looking() as (snapshot, logic):
            return self._of_key(snapshot, logic, key)

    def find_sessions(
        self, key: Any, earliest_end: Time | None = None, latest_start: Time | None = None
    ) -> pl.DataFrame:
        """The sessions of one key whose last event is at or after `earliest_end`, and that start at or before `latest_start`.

        As KIP-94 has it: both bounds are inclusive, and ends are those of the events, without the gap. Times are datetimes
        (UTC where they have no offset), ISO 8601 texts, or whole microseconds since 1970, of which 0 and 2**63 - 1 are no limit.
        Raises StartError, also if the windows are no sessions.
        """
        low = None if earliest_end is None else _time(earliest_end, "earliest_end")
        high = None if latest_start is None else _time(latest_start, "latest_start")
        with self._looking() as (snapshot, logic):
            _check_sessions(logic)
            sessions = self._of_key(snapshot, logic, key)
            if low is not None:
                sessions = sessions.filter(pl.col(own_names(logic)["_last_event"]).dt.timestamp("us") >= low)
            if high is not None:
                sessions = sessions.filter(pl.col(logic.window.window_start_column).dt.timestamp("us") <= high)
            return sessions

    def scan(
        self, where: str | pl.Expr | None = None, limit: int | None = None, *, timeout_s: float | None = None
    ) -> pl.DataFrame:
        """The windows of all keys, in order of (start, key).

        `where`: a condition over the columns, a Polars expression or SQL, as in "events > 100 AND _status = 'open'" (see
        `slackwater.query.condition` for what it may hold); `limit`: at most so many. The state is read shard by shard, and kept
        as far as the condition holds. Raises StartError, also if that takes longer than `timeout_s`.
        """
        limit = None if limit is None else _whole(limit, "limit", 0)
        if where is not None and not isinstance(where, str | pl.Expr):
            raise StartError(f"where: found the {type(where).__name__} {where!r}, expected SQL or a Polars expression")
        ends = None if timeout_s is None else time.monotonic() + timeout_s
        with self._looking() as (snapshot, logic):
            nothing = _answer(snapshot, logic, logic.empty_state())
            condition = parse_condition(where, nothing.columns) if isinstance(where, str) else where
            selected = [nothing]
            for rows in _shards(snapshot, logic, self.stage):
                windows = _answer(snapshot, logic, rows)
                for part in [windows] if condition is None else filter_frame(windows, condition):
                    selected.append(part)
                    if ends is not None and time.monotonic() > ends:
                        raise StartError(
                            f"where: the answer takes longer than {timeout_s:g} seconds; ask for the windows of one key"
                        )
                if limit is not None:
                    selected = [logic.sorted_output(pl.concat(selected)).head(limit)]
            return logic.sorted_output(pl.concat(selected))

    def as_of(self, epoch: int) -> StateView:
        """The view of an earlier commit, while the store keeps it (see `epochs`). Raises StateError otherwise."""
        if _whole(epoch, "epoch", -1) not in (epochs := self.epochs()):
            available = f"epochs {epochs[0]} to {epochs[-1]}" if epochs else "no state"
            raise StateError(f"epoch {epoch} is not kept; there is: {available}")
        return StateView(self._store, epoch)

    def epochs(self) -> list[int]:
        """The commits that can be asked, ascending; the Postgres store keeps the latest only."""
        return self._store.epochs()

    def manifest(self) -> Commit:
        """The record of the commit that is asked. Raises StateError if there is none."""
        with self._store.peek(self._epoch) as snapshot:
            return _there(snapshot).commit

    def key_of(self, texts: Sequence[str]) -> dict[str, Any]:
        """A key from texts `name=value`, as people write it (see `query.inspect.key_of`), for `fetch` and `find_sessions`."""
        logic = logic_in(self.manifest(), self.stage)
        if not texts and not logic.key_names:
            return {}
        return inspect.key_of(logic, texts).row(0, named=True)

    @property
    def columns(self) -> dict[str, pl.DataType]:
        """The columns of the answers."""
        with self._looking() as (snapshot, logic):
            return dict(_answer(snapshot, logic, logic.empty_state()).schema)

    stage = -1  # of a pipeline in stages: the last one's windows

    # -- how it looks --------------------------------------------------------------------------------------------

    @contextmanager
    def _looking(self) -> Iterator[tuple[Snapshot, WindowOperator]]:
        """One commit, readable within the block. Files stay open until there is a later commit; a database is asked anew."""
        if not isinstance(self._store, FilesStore):
            with self._store.peek(self._epoch) as peeked:
                snapshot = _there(peeked)
                yield snapshot, logic_in(snapshot.commit, self.stage)
            return
        with self._opening:
            held = self._held
            if held is None or (self._epoch is None and self._store.epochs()[-1:] != [held[0].commit.epoch]):
                held = self._opened()
        yield (
            held[0],
            held[2],
        )  # also if another thread puts a later commit in its place: files stay while they are used

    def _opened(self) -> tuple[Snapshot, ExitStack, WindowOperator]:
        with ExitStack() as stack:
            snapshot = _there(stack.enter_context(self._store.peek(self._epoch)))
            logic = logic_in(snapshot.commit, self.stage)
            self.close()
            self._held = snapshot, stack.pop_all(), logic
        return self._held

    def _of_key(self, snapshot: Snapshot, logic: WindowOperator, key: Any) -> pl.DataFrame:
        rows = inspect.rows_of(snapshot, logic, _key(logic, key), self.stage)
        return logic.sorted_output(_answer(snapshot, logic, rows))

    def close(self) -> None:
        """Let go of the files that are open; the view can still be used."""
        if self._held is not None:
            self._held[1].close()
            self._held = None

    def __enter__(self) -> StateView:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@singledispatch
def _check_sessions(operator: Operator) -> None:
    """Raise StartError if the windows are no sessions."""
    unregistered(operator, "slackwater.query.view._check_sessions")


@_check_sessions.register
def _(operator: PaneOperator) -> None:
    raise StartError(f"{operator.pipeline}: find_sessions: the windows are {operator.window.kind}, not sessions")


@_check_sessions.register
def _(operator: SessionOperator) -> None:
    return


def _there(snapshot: Snapshot | None) -> Snapshot:
    if snapshot is None:
        raise StateError("there is no state yet; it begins with the first epoch of: slackwater run")
    return snapshot


def _shards(snapshot: Snapshot, logic: WindowOperator, stage: int) -> Iterator[pl.DataFrame]:
    count = len(snapshot.commit.stages)
    for shard in range(snapshot.commit.shards):
        yield snapshot.reader(shard, logic, stage % count).scan()


def _answer(snapshot: Snapshot, logic: WindowOperator, rows: pl.DataFrame) -> pl.DataFrame:
    watermark = snapshot.commit.stages[-1].watermark_us
    return current_windows(logic, rows, watermark, snapshot.commit.epoch)


def _key(logic: WindowOperator, key: Any) -> pl.DataFrame:
    """One row with the key columns."""
    names = logic.key_names
    if not isinstance(key, Mapping):
        if len(names) != 1 and (names or key is not None):
            expected = "{" + ", ".join(f'"{n}": …' for n in names) + "}" if names else "none, as there is no group_by"
            raise StartError(f"{logic.pipeline}: key: found {key!r}, expected {expected}")
        key = {names[0]: key} if names else {}
    if set(key) != set(names):
        raise StartError(
            f"{logic.pipeline}: key: found the columns {', '.join(map(str, key)) or 'none'}, expected {', '.join(names) or 'none'}"
        )
    return inspect.key_frame(logic, key)


def _time(value: Time, name: str) -> int:
    """A time in microseconds UTC; numbers beyond int64 are its ends."""
    if isinstance(value, str):
        try:
            value = dt.datetime.fromisoformat(value)
        except ValueError:
            raise StartError(f'{name}: found "{value}", expected a time such as 2026-03-01T12:00:00Z') from None
    if isinstance(value, dt.datetime):
        time = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
        return (time - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
    try:
        if isinstance(value, bool):
            raise TypeError
        us = operator.index(value)  # NumPy's integers, too
    except TypeError:
        expected = "a datetime, a text such as 2026-03-01T12:00:00Z, or whole microseconds since 1970"
        raise StartError(f"{name}: found the {type(value).__name__} {value!r}, expected {expected}") from None
    return max(-(1 << 63), min(us, (1 << 63) - 1))


def _whole(value: int, name: str, least: int) -> int:
    """A whole number as it was given, within int64."""
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise StartError(f"{name}: found {value!r}, expected a whole number of at least {max(least, 0)}")
    return min(number, (1 << 63) - 1)


def to_arrow(frame: pl.DataFrame) -> pa.Table:
    """An answer as an Arrow table with plain types."""
    return frame.to_arrow(compat_level=pl.CompatLevel.oldest())


__all__ = ["StateView", "Time", "open_state", "to_arrow"]
