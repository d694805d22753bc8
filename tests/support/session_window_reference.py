"""A reference implementation of the session window step with whole-array operations.

Tests compare it with the current implementation, the walk. From `slackwater.windows` it uses only the schema and the
merging of a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from slackwater.core.sorted_arrays import Int64s, distinct_values, is_in_sorted
from slackwater.watermark import NO_WATERMARK
from slackwater.windows.compiled_session_window import CompiledSessionWindow
from slackwater.windows.compiled_window import IngestResult, ResultCounts
from slackwater.windows.state_layout import FAR

Bools = NDArray[np.bool_]
SETTLED, LOOSE, FLOOR, TOLD, LOOSE_TOLD, ROW = 0, 1, 2, 4, 5, 9
OPEN = (SETTLED, LOOSE, TOLD, LOOSE_TOLD)


def ingest_rows(
    logic: CompiledSessionWindow, rows: pl.DataFrame, state: pl.DataFrame, watermark: int, room: int | None = None
) -> IngestResult:
    """Fold lifted rows (`__kh`, `__ts`, keys, accumulators) into the touched units.

    `watermark` is the committed watermark of the previous epoch. `room`: the number of keys that may still open a
    session in this shard (`drop_new_groups`), or None for no limit.

                    floor          wm_prev
        closed ......│               │
        row  ●       │  at or below the floor: late
        row          │ ●   ○─────○   its run has an open session: used
        row          │ ●             alone, and ts + gap < wm_prev: late
    """
    horizon = logic.horizon(watermark)
    fields = list(logic.state_schema)
    extra = [c for c in ("__idle", "__row") if c in rows.columns]
    fresh = (
        logic.add_revision_columns(rows)
        .with_columns(
            pl.col("__kh").alias("__h"),
            pl.lit(ROW, pl.Int8).alias("__kind"),
            pl.col("__ts").alias("__start"),
            pl.col("__ts").alias("__last"),
            pl.lit(NO_WATERMARK, pl.Int64).alias("__due"),
        )
        .select(*fields, *extra)
    )
    acknowledged_state = mark_emitted_sessions(logic, state.select(fields), watermark)
    whole = SessionIntervals.from_frame(
        logic, pl.concat([acknowledged_state, fresh], how="diagonal" if extra else "vertical")
    )
    floors = whole.compute_floors(logic.reach_us, horizon)
    is_row = whole.kind == ROW
    held = ~is_row & ~whole.mask_expired(horizon)
    had_open = fold_by_key(np.logical_or, held, whole.key).astype(bool)
    below = is_row & (whole.start <= floors[whole.key])
    open_ = (is_row & ~below) | held
    late, refused = below.copy(), np.zeros(len(below), dtype=bool)

    unit = select_intervals(whole, open_)
    position = np.flatnonzero(open_)
    run, reach = number_runs(logic, unit)
    accepted = _mask_accepted_rows(logic, unit, run, horizon)
    late[position[~accepted]] = True
    if room is not None:
        shut = _mask_refused_rows(logic, unit, accepted, had_open, room)
        refused[position[shut]] = True
        accepted &= ~shut

    unit, run, position = select_intervals(unit, accepted), renumber_groups(run[accepted]), position[accepted]
    if len(position) < len(reach):  # a rejected row may have the time of an accepted row, so compute the reach again
        reach = compute_reach_of_earlier_intervals(unit.key, unit.start, unit.last)
    if len(position):
        first = np.full(whole.key_count, FAR)
        np.minimum.at(first, unit.key, unit.start)
        limit = np.minimum(first, watermark)[unit.key] + logic.cap_us
        piece = number_session_pieces(logic, unit, reach, run, limit)
        piece, too_late = assign_rows_behind_watermark(logic, unit, run, piece, watermark)
        if too_late.any():
            late[position[too_late]] = True
            keep = ~too_late
            unit, run, piece = select_intervals(unit, keep), renumber_groups(run[keep]), renumber_groups(piece[keep])
        touched = np.zeros(whole.key_count, dtype=bool)
        touched[unit.key[unit.kind == ROW]] = True
        # keys that share a hash share a unit, which is replaced as a whole
        unit_of_key = whole.frame["__h"].to_numpy()[find_group_starts(whole.key)]
        touched = is_in_sorted(unit_of_key, distinct_values(unit_of_key[touched]))
        touched_rows = touched[unit.key]
        unit, run, piece = (
            select_intervals(unit, touched_rows),
            renumber_groups(run[touched_rows]),
            renumber_groups(piece[touched_rows]),
        )
        unit = update_published_marks(logic, unit, piece) if logic.revises else unit
    new_state = logic.empty_state()
    if len(unit.key):
        new_state = build_state_rows(logic, unit, run, piece, floors, watermark)
        touched[unit.key] = False
        alone = np.flatnonzero(touched & (floors != NO_WATERMARK))
        if len(alone):
            positions = find_group_starts(whole.key)[alone]
            new_state = pl.concat([new_state, build_floor_rows(logic, whole.frame[positions], alone, floors)])
    has_open = np.zeros(whole.key_count, dtype=bool)
    has_open[unit.key] = True
    lost = whole.frame.filter(pl.Series(late)) if late.any() else whole.frame.clear()
    old_windows = int((held & has_open[whole.key]).sum())
    return IngestResult(
        state=new_state.sort("__h", maintain_order=True),
        counts=ResultCounts(
            used=int((is_row & ~late & ~refused).sum()),
            late=lost.height,
            late_idle=int(lost["__idle"].sum()) if "__idle" in extra else 0,
            late_windows=lost.height,
            refused=int(refused.sum()),
            groups=int((has_open & ~had_open).sum()),
            windows=int(new_state["__kind"].is_in(OPEN).sum()) - old_windows,
        ),
        late=lost,
        new_groups={},
    )


def _mask_accepted_rows(logic: CompiledSessionWindow, unit: SessionIntervals, run: Int64s, horizon: int) -> Bools:
    """Accept a run with an open or retained session or a row with horizon <= ts + gap. Other runs are late.

    In an accepted run, rows before its open session that are further back than that stay late. They could chain back to
    a session that was closed and dropped, and overlap it.
    """
    if not len(run):
        return np.zeros(0, dtype=bool)
    recent = (unit.end >= horizon) & (unit.start >= logic.rows_from_us)
    is_open = unit.kind != ROW
    first_open = np.minimum.reduceat(np.where(is_open, unit.start, FAR), find_group_starts(run))[run]
    taken = np.logical_or.reduceat(is_open | recent, find_group_starts(run))[run]
    result: Bools = taken & (recent | (unit.start >= first_open))
    return result


def _mask_refused_rows(
    logic: CompiledSessionWindow, unit: SessionIntervals, accepted: Bools, had_open: Bools, room: int
) -> Bools:
    """Return the rows of new keys beyond `room`. Keys are admitted in order of (first event time, key)."""
    new = accepted & ~had_open[unit.key]
    heads = np.flatnonzero(new)
    heads = heads[find_group_starts(renumber_groups(unit.key[heads]))] if len(heads) else heads
    if len(heads) <= room:
        return np.zeros(len(new), dtype=bool)
    order = (
        unit.frame.select("__start", *logic.key_names)[heads]
        .with_columns(pl.Series("__key", unit.key[heads]))
        .sort(["__start", *logic.key_names], nulls_last=False)
    )
    shut = np.zeros(len(had_open), dtype=bool)
    shut[order["__key"].to_numpy()[room:]] = True
    result: Bools = new & shut[unit.key]
    return result


def number_session_pieces(
    logic: CompiledSessionWindow, unit: SessionIntervals, reach: Int64s, run: Int64s, limit: Int64s
) -> Int64s:
    """Number the pieces: one per run below `limit`, and one per group of overlapping intervals above.

    An interval that crosses the limit counts as above it. It has sessions that a larger gap has merged.
    """
    alone = unit.start > reach
    heads = np.flatnonzero(alone)
    furthest = np.maximum.reduceat(unit.last, heads)[np.cumsum(alone) - 1]  # of the overlapping intervals
    new = np.diff(run, prepend=-1) != 0
    new |= (furthest >= limit) & alone
    return np.cumsum(new) - 1


def build_state_rows(
    logic: CompiledSessionWindow, unit: SessionIntervals, run: Int64s, piece: Int64s, floors: Int64s, watermark: int
) -> pl.DataFrame:
    """Return the new state rows of all keys in `unit` (open and retained intervals) and the floors of these keys.

    A session of a late row that the watermark has already passed stays LOOSE, so it is visited and emitted.
    """
    frame = unit.frame
    heads, run_heads = find_group_starts(piece), find_group_starts(run)
    start = unit.start[heads]
    last, end = np.maximum.reduceat(unit.last, heads), np.maximum.reduceat(unit.end, heads)
    piece_run = run[heads]
    run_start = unit.start[run_heads][piece_run]
    first_end = np.minimum.reduceat(end, np.flatnonzero(np.diff(piece_run, prepend=-1))) + 1
    pieces_of_run = np.bincount(piece_run, minlength=len(run_heads))
    close = end + 1
    published = np.logical_and.reduceat(unit.published_mask, heads)
    alone = (pieces_of_run[piece_run] == 1) & ((close > watermark) | published)
    due = np.where(alone, close, np.minimum(run_start + logic.cap_us, first_end[piece_run]))
    kind = np.where(published, np.where(alone, TOLD, LOOSE_TOLD), np.where(alone, SETTLED, LOOSE))
    merged = merge_groups(
        logic,
        frame.select("__h", "__kh", *logic.revisions, *logic.key_names, *logic.accumulators),
        piece,
        [pl.col("__h").first(), pl.col("__kh").first()],
    )
    rows = merged.with_columns(
        pl.Series("__kind", kind, dtype=pl.Int8),
        pl.Series("__start", start),
        pl.Series("__last", last),
        pl.Series("__due", due),
        *([pl.Series("__end", end)] if logic.dynamic else []),
    ).select(logic.state_schema.keys())
    return pl.concat([rows, build_floor_rows(logic, frame, unit.key, floors)])


def build_floor_rows(logic: CompiledSessionWindow, frame: pl.DataFrame, key: Int64s, floors: Int64s) -> pl.DataFrame:
    """Return one FLOOR row per key with a floor. `floors` is indexed by key."""
    heads = find_group_starts(key)
    values = floors[key[heads]]
    has_floor = values != NO_WATERMARK
    if not has_floor.any():
        return logic.empty_state()
    rows = frame.select("__h", "__kh", *logic.key_names)[heads[has_floor]]
    rows = rows.with_columns(
        pl.lit(FLOOR, pl.Int8).alias("__kind"),
        pl.Series("__start", values[has_floor] - logic.gap_us),
        pl.Series("__last", values[has_floor] - logic.gap_us),
        pl.Series("__due", values[has_floor] + logic.reach_us + 1),
        *([pl.Series("__end", values[has_floor])] if logic.dynamic else []),
        *(pl.lit(None, dtype).alias(name) for name, dtype in logic.accumulators.items()),
    )
    return logic.add_revision_columns(rows).select(logic.state_schema.keys())


@dataclass(frozen=True)
class SessionIntervals:
    """State rows and new rows of the touched keys, sorted by (key, start), as arrays."""

    frame: pl.DataFrame
    key: Int64s  # 0, 1, … per distinct key
    kind: NDArray[np.int8]
    start: Int64s
    last: Int64s
    due: Int64s
    end: Int64s  # the reach of its rows: last + gap, or the largest end by the gap of a row

    @classmethod
    def from_frame(cls, logic: CompiledSessionWindow, frame: pl.DataFrame) -> SessionIntervals:
        frame, key = sort_by_key(frame, logic.key_names, "__start", "__last")
        kind, start, last, due = (frame[c].to_numpy() for c in ("__kind", "__start", "__last", "__due"))
        end = frame["__end"].to_numpy() if logic.dynamic else last + logic.gap_us
        return cls(frame, key, kind, start, last, due, end)

    @property
    def key_count(self) -> int:
        return int(self.key[-1]) + 1 if len(self.key) else 0

    @property
    def published_mask(self) -> Bools:
        """Return, for each interval, whether the target has it in its present form."""
        return (self.kind == TOLD) | (self.kind == LOOSE_TOLD)

    def mask_expired(self, horizon: int) -> Bools:
        """Mark floors, and whole sessions whose close is at or before the horizon (see `CompiledWindow.horizon`)."""
        whole = (self.kind == SETTLED) | (self.kind == TOLD)
        return (self.kind == FLOOR) | (whole & (self.due <= horizon))

    def compute_floors(self, reach: int, horizon: int) -> Int64s:
        """Return per key the floor that is valid at the horizon, or NO_WATERMARK.

        `reach`: see `CompiledSessionWindow.reach_us`.
        """
        gone = self.mask_expired(horizon)
        is_open = ~gone & (self.kind != ROW)
        floor = fold_by_key(np.maximum, np.where(gone, self.end, NO_WATERMARK), self.key)
        first = fold_by_key(np.minimum, np.where(is_open, self.start, FAR), self.key)
        return np.where((horizon <= floor + reach) | (first <= floor + reach), floor, NO_WATERMARK)


def mark_emitted_sessions(logic: CompiledSessionWindow, state: pl.DataFrame, watermark: int) -> pl.DataFrame:
    """Mark the state rows that closed without a new write as emitted in their present form."""
    if not logic.revises:
        return state
    emitted = (pl.col("__kind") == SETTLED) & (pl.col("__due") <= watermark)
    return state.with_columns(
        pl.when(emitted).then(pl.col("__rev") + 1).otherwise(pl.col("__rev")).alias("__rev"),
        pl.when(emitted).then(pl.concat_list("__start")).otherwise(pl.col("__out")).alias("__out"),
        pl.when(emitted).then(pl.lit(TOLD, pl.Int8)).otherwise(pl.col("__kind")).alias("__kind"),
    )


def find_group_starts(key: Int64s) -> Int64s:
    return np.flatnonzero(np.diff(key, prepend=-1))


def fold_by_key(fold: np.ufunc, values: Int64s | Bools, key: Int64s) -> Int64s:
    """Fold `values` per key. `key` is sorted and dense."""
    result: Int64s = fold.reduceat(values, find_group_starts(key)) if len(key) else values  # type: ignore[assignment]
    return result


def compute_reach_of_earlier_intervals(key: Int64s, start: Int64s, last: Int64s) -> Int64s:
    """Return, for each interval, the reach of the earlier intervals of its key. The first has NO_WATERMARK.

    Intervals that are longer than a point are from the state and do not overlap, so the latest earlier one reaches
    furthest.
    """
    reach = np.full(len(key), NO_WATERMARK)
    if len(key) < 2:
        return reach
    wide = np.where(last > start, np.arange(len(key)), -1)
    latest = np.maximum.accumulate(wide)[:-1]
    before = np.where((latest >= 0) & (key[latest] == key[1:]), last[latest], NO_WATERMARK)
    reach[1:] = np.where(key[1:] == key[:-1], np.maximum(start[:-1], before), NO_WATERMARK)
    return reach


def renumber_groups(values: Int64s) -> Int64s:
    return np.cumsum(np.diff(values, prepend=values[0] - 1 if len(values) else 0) != 0) - 1


def select_intervals(unit: SessionIntervals, mask: Bools) -> SessionIntervals:
    """Return the rows selected by `mask`. Keys retain their numbers."""
    if mask.all():
        return unit
    index = np.flatnonzero(mask)
    return SessionIntervals(
        unit.frame[index],
        unit.key[index],
        unit.kind[index],
        unit.start[index],
        unit.last[index],
        unit.due[index],
        unit.end[index],
    )


def number_runs(logic: CompiledSessionWindow, unit: SessionIntervals) -> tuple[Int64s, Int64s]:
    """Number the runs of intervals that touch (inclusive). Also return the reach before each interval."""
    reach = compute_reach_of_earlier_intervals(unit.key, unit.start, unit.last)
    if not logic.dynamic:
        return np.cumsum(unit.start > reach + logic.gap_us) - 1, reach
    held = compute_cumulative_reach(unit.key, unit.end)
    joined = np.append(False, (unit.key[1:] == unit.key[:-1]) & (unit.start[1:] <= held[:-1]))[: len(held)]
    return np.cumsum(~joined) - 1, reach


def compute_cumulative_reach(key: Int64s, end: Int64s) -> Int64s:
    """Return, for each interval, the reach of it and of the earlier intervals of its key."""
    order = np.argsort(end, kind="stable")
    rank = np.empty(len(end), dtype=np.int64)
    rank[order] = np.arange(len(end))
    best = np.maximum.accumulate(key * len(end) + rank) - key * len(end)
    return end[order][best]


def _find_long_runs(start: Int64s, last: Int64s, run: Int64s, cap: int) -> tuple[Int64s, Int64s]:
    """Return the (begin, stop) positions of the runs that span at least the cap."""
    heads = np.flatnonzero(np.diff(run, prepend=-1))
    ends = np.append(heads[1:], len(run))
    span = np.maximum.reduceat(last, heads) - start[heads] if len(heads) else heads
    long = span >= cap
    return heads[long], ends[long]


def find_session_heads(start: Int64s, last: Int64s, end: Int64s, run: Int64s, cap: int) -> Bools:
    """Mark the start of each session: at each run, and in a long run at the first piece that reaches the cap.

    The rest after a cut is a separate run. With a gap per row, the rest may split again.

    cap 10   start 0 ......... 10 .. 13 ........ 20
             [──●──●──●──●──●─)[●─────●──●────────)
    """
    heads = np.diff(run, prepend=-1) != 0
    for begin, stop in zip(*_find_long_runs(start, last, run, cap), strict=True):
        position = int(begin)
        while True:
            limit = start[position] + cap
            nearest = min(
                int(np.searchsorted(start[position:stop], limit)), int(np.searchsorted(last[position:stop], limit))
            )
            nearest = max(nearest, 1)
            apart = (
                start[position + 1 : position + nearest]
                > np.maximum.accumulate(end[position : position + nearest])[:-1]
            )
            position += int(np.argmax(apart)) + 1 if apart.any() else nearest
            if position >= stop:
                break
            heads[position] = True
    return heads


def assign_rows_behind_watermark(
    logic: CompiledSessionWindow, unit: SessionIntervals, run: Int64s, piece: Int64s, watermark: int
) -> tuple[Int64s, Bools]:
    """Place each row behind the watermark separately in a run that reaches the cap, so that it never moves a cut.

    If merging the sessions on both sides would reach the cap, the row joins the earlier session. If joining either
    session would reach the cap, the row is late. The joined session becomes one piece and stays whole. The next session
    does so, too, if the row touches it.

        gap 20, cap 22    0        10         21   30
        sessions          [)20                [────)50     21 − 0 < 22, but not one session: they do not touch
        a row behind               ● joins the earlier     otherwise 21 would follow it and 30 would be cut off

    Return the renumbered pieces and a mask of the intervals that are too late. Other runs are unchanged.
    """
    too_late = np.zeros(len(run), dtype=bool)
    behind = (unit.kind == ROW) & (unit.start < watermark)
    if not behind.any():
        return piece, too_late
    label = piece.copy()
    for begin, stop in zip(*_find_long_runs(unit.start, unit.last, run, logic.cap_us), strict=True):
        if behind[begin:stop].any():
            here = slice(begin, stop)
            _assign_run_sessions(
                unit.start[here], unit.last[here], unit.end[here], behind[here], logic.cap_us, label[here]
            )
            too_late[here] = label[here] == _LATE
    last_placed = np.maximum.accumulate(np.where(too_late, 0, np.arange(len(run))))
    label = label[last_placed]  # a late row does not split a piece
    changed = (np.diff(label, prepend=-1) != 0) | (np.diff(run, prepend=-1) != 0)
    return np.cumsum(changed) - 1, too_late


_LATE = -1


def _assign_run_sessions(start: Int64s, last: Int64s, end: Int64s, behind: Bools, cap: int, label: Int64s) -> None:
    """Give each row behind the watermark of one run a session. `label` numbers the pieces and is changed in place.

    The label is _LATE for late rows, and a number below _LATE for the intervals of a session that must stay whole.
    """
    ahead = np.flatnonzero(~behind)
    sessions: list[_Session] = []
    if len(ahead):
        s, e, reach = start[ahead], last[ahead], end[ahead]
        apart = np.append(True, s[1:] > np.maximum.accumulate(e)[:-1])  # a row may lie within an interval
        heads = np.flatnonzero(apart)
        s, e, reach = s[heads], np.maximum.reduceat(e, heads), np.maximum.reduceat(reach, heads)
        joined = np.append(False, s[1:] <= np.maximum.accumulate(reach)[:-1])
        begins = find_session_heads(s, e, reach, np.cumsum(~joined) - 1, cap)
        for index, members in enumerate(np.split(ahead, heads[1:])):
            here = _Session(int(s[index]), int(e[index]), int(reach[index]), members.tolist())
            if begins[index]:
                sessions.append(here)
            else:
                sessions[-1].join(here)
    rows = np.flatnonzero(behind)
    label[rows] = _LATE
    for row in rows[np.lexsort((end[rows], start[rows]))]:
        _insert_row(sessions, _Session(int(start[row]), int(start[row]), int(end[row]), [int(row)], stays=True), cap)
    for name, session in enumerate(sessions):
        if session.stays:
            label[session.members] = _LATE - 1 - name


@dataclass
class _Session:
    """A session during the placement of late rows: first and last event, reach and intervals.

    `stays`: whether the session must stay whole.
    """

    start: int
    last: int
    end: int
    members: list[int]
    stays: bool = False

    def join(self, other: _Session) -> None:
        self.start, self.last = min(self.start, other.start), max(self.last, other.last)
        self.end = max(self.end, other.end)
        self.members.extend(other.members)
        self.stays = self.stays or other.stays


def _insert_row(sessions: list[_Session], row: _Session, cap: int) -> None:
    """Put one row behind the watermark into the sessions of its run, in place. Omit a late row."""
    ts = row.start
    after = next((i for i, s in enumerate(sessions) if s.start > ts), len(sessions))
    earlier = sessions[after - 1] if after and ts <= sessions[after - 1].end else None
    later = sessions[after] if after < len(sessions) and sessions[after].start <= row.end else None
    if earlier is not None and later is not None and later.last - earlier.start < cap:
        earlier.join(row)
        earlier.join(later)
        del sessions[after]
    elif earlier is not None and max(ts, earlier.last) - earlier.start < cap:
        earlier.join(row)
        if later is not None:
            later.stays = True
    elif later is not None and later.last - ts < cap:
        later.join(row)
    elif earlier is None and later is None:
        sessions.insert(after, row)


@dataclass(frozen=True)
class SessionArrangement:
    """The sessions that intervals form without further rows. Times are in µs.

    `session` has the session number of each interval. The other arrays have one entry per session.
    `reach`: the reach of the rows. `is_cut`: whether the next session begins within the reach. The `end` of the window
    of a cut session is at the cap or at the start of the next session.
    """

    session: Int64s
    heads: Int64s
    start: Int64s
    reach: Int64s
    is_cut: Bools
    end: Int64s


def arrange_sessions(logic: CompiledSessionWindow, unit: SessionIntervals) -> SessionArrangement:
    """Arrange the intervals of a nonempty unit into sessions. Only the keys and times matter."""
    cap = logic.cap_us
    run, _ = number_runs(logic, unit)
    session = np.cumsum(find_session_heads(unit.start, unit.last, unit.end, run, cap)) - 1
    heads = find_group_starts(session)
    start, reach = unit.start[heads], np.maximum.reduceat(unit.end, heads)
    is_cut = np.append((run[heads][1:] == run[heads][:-1]) & (start[1:] <= reach[:-1]), False)
    following = np.append(start[1:], FAR)  # a late row may have put the next session before start + cap
    end = np.where(is_cut, np.minimum(np.minimum(reach, start + cap), following), reach)
    return SessionArrangement(session, heads, start, reach, is_cut, end)


def update_published_marks(logic: CompiledSessionWindow, unit: SessionIntervals, piece: Int64s) -> SessionIntervals:
    """Return new rows and state intervals. An interval stays marked TOLD if the target still has its session.

    `piece`: the new piece of each row or interval. The target still has a session with the intervals, the end and the
    finality that it had before the new rows.
    """
    if not unit.published_mask.any():
        return unit
    positions = np.flatnonzero(unit.kind != ROW)
    heads = find_group_starts(piece)
    pieces = replace(
        unit,
        key=unit.key[heads],
        start=unit.start[heads],
        last=np.maximum.reduceat(unit.last, heads),
        end=np.maximum.reduceat(unit.end, heads),
    )
    key, start, last, end = unit.key[positions], unit.start[positions], unit.last[positions], unit.end[positions]
    before, after = (
        arrange_sessions(logic, replace(unit, key=key, start=start, last=last, end=end)),
        arrange_sessions(logic, pieces),
    )
    return clear_changed_marks(logic, unit, positions, before, after, after.session[piece[positions]])


def clear_changed_marks(
    logic: CompiledSessionWindow,
    unit: SessionIntervals,
    positions: Int64s,
    before: SessionArrangement,
    after: SessionArrangement,
    now: Int64s,
) -> SessionIntervals:
    """Clear the TOLD mark of the intervals whose sessions have changed in intervals or end.

    `positions`: positions of the intervals in `before`. `now`: the session of each of these intervals in `after`.
    """
    first, last = now[before.heads], np.maximum.reduceat(now, before.heads)
    same = (first == last) & (np.bincount(now, minlength=len(after.start))[first] == np.bincount(before.session))
    same &= before.end == after.end[first]
    if logic.allowed_us:  # a cut session is final at its end
        same &= before.is_cut == after.is_cut[first]
    moved = np.zeros(len(unit.key), dtype=bool)
    moved[positions] = ~same[before.session]
    if not moved.any():
        return unit
    kind = np.where(moved & (unit.kind == TOLD), SETTLED, unit.kind)
    return replace(unit, kind=np.where(moved & (kind == LOOSE_TOLD), LOOSE, kind).astype(np.int8))


def sort_by_key(frame: pl.DataFrame, keys: list[str], *then: str) -> tuple[pl.DataFrame, Int64s]:
    """Sort by (`__kh`, key, then…) and number the keys 0, 1, … in that order.

    Hashes of different keys may collide. The slower sort by the keys distinguishes them. It runs only if two neighbours
    with one hash differ in their keys.
    """
    frame = frame.sort(["__kh", *then], maintain_order=True)
    hashes = frame["__kh"].to_numpy()
    changed = np.ones(frame.height, dtype=bool)
    changed[1:] = hashes[1:] != hashes[:-1]
    if keys and not bool(changed.all()):
        differs = frame.select(pl.any_horizontal(pl.col(k).ne_missing(pl.col(k).shift(1)) for k in keys)).to_series()
        if bool((differs.to_numpy() & ~changed).any()):
            frame = frame.sort(["__kh", *keys, *then], maintain_order=True)
            hashes = frame["__kh"].to_numpy()
            changed[1:] = hashes[1:] != hashes[:-1]
            differs = frame.select(
                pl.any_horizontal(pl.col(k).ne_missing(pl.col(k).shift(1)) for k in keys)
            ).to_series()
            changed |= differs.to_numpy()
            changed[0] = True
    return frame, np.cumsum(changed) - 1


def merge_groups(
    logic: CompiledSessionWindow, frame: pl.DataFrame, group: Int64s, carried: Sequence[pl.Expr]
) -> pl.DataFrame:
    """Merge rows with equal `group`, by expressions for each group. The groups must be in ascending order.

    A merged row has the keys of the group's first row, the `carried` expressions and the merged accumulators.
    Raises LimitExceededError if a group exceeds a limit of its aggregation, and ValueRangeError if a result does not
    fit its type.
    """
    if frame.is_empty():
        return frame
    heads = np.flatnonzero(np.diff(group, prepend=group[0] - 1))
    merged = frame
    if len(heads) < frame.height:
        columns = {c.name: c for a in logic.aggs for c in a.merge_adjacent(frame, heads)}
        remaining = [a for a in logic.aggs if not set(a.accumulators) <= set(columns)]
        merged = (
            frame.with_columns(pl.Series("__g", group).set_sorted())
            .group_by("__g", maintain_order=True)
            .agg(*carried, *logic._merged_revisions(frame), *(e for a in remaining for e in a.merge()))
            .drop("__g")
        )
        merged = merged.with_columns(**columns)
        merged = merged.with_columns(frame[k][heads] for k in logic.key_names)
        merged = merged.select(c for c in frame.columns if c in merged.columns)
        for agg in logic.aggs:
            merged = agg.to_stored_form(merged)
    for agg in logic.aggs:
        agg.check_limit(merged, logic.pipeline)
    return merged
