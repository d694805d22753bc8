"""Content of the target after each epoch, in plain loops over plain rows: the oracle for windows that are updated.

The module shares no code with `slackwater`. Times are int microseconds. A row is a dict with `ts`, an `id` that is a
power of two, and `gap_us` if rows have individual gaps. There is one source, so the watermark is the newest event time
minus the lateness.

    model = SessionOracle(spec, lateness_us=0, updates=True)
    model.process_epoch(rows); model.target             # (start, key) -> EmittedRow

A row of the target is the result of its window at the commit that last wrote the row. Rows of windows that no longer
exist are deleted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.laws.oracles.naive_oracle import Row, WindowSpec, aggregate, hashable_value, window_starts

BEFORE_ALL, AFTER_ALL = -(1 << 61), 1 << 61
Key = tuple[Any, ...]
Groups = list[list[Row]]


@dataclass(frozen=True)
class EmittedRow:
    """A row of the target, as last written."""

    start: int
    end: int
    final: int
    ids: int
    values: Mapping[str, Any]
    revision: int
    reason: str

    def is_same_result(self, other: EmittedRow) -> bool:
        return (self.start, self.end, self.final, self.ids) == (other.start, other.end, other.final, other.ids)


@dataclass
class EpochOracle:
    """The common part of sessions and panes.

    `retained_us` is how long a closed window may be corrected. `allowed_us` is the part of `_final_at` after the end.
    """

    spec: WindowSpec
    lateness_us: int
    retained_us: int = 0
    allowed_us: int = 0
    updates: bool = False
    interval_us: int = 0
    watermark: int = BEFORE_ALL
    now_us: int = 1 << 60
    emitted_us: int = 0
    waiting: bool = False
    target: dict[tuple[int, Key], EmittedRow] = field(default_factory=dict)
    late: list[Row] = field(default_factory=list)

    def process_epoch(self, rows: Sequence[Row]) -> None:
        late = len(self.late)
        self.add_rows(rows)
        self.waiting = self.waiting or len(self.late) - late < len(rows)
        newest = max((r["ts"] for r in rows), default=BEFORE_ALL)
        self.advance_watermark(max(self.watermark, newest - self.lateness_us))

    def advance_clock(self, us: int) -> None:
        """Advance the clock without rows, and emit waiting updates if the interval has passed."""
        self.now_us += us
        if self.waiting and self.now_us - self.emitted_us >= self.interval_us:
            self.advance_watermark(self.watermark)

    def flush(self) -> None:
        self.advance_watermark(AFTER_ALL, flush=True)

    def advance_watermark(self, watermark: int, flush: bool = False) -> None:
        early = self.updates and (flush or self.now_us - self.emitted_us >= self.interval_us)
        self.watermark = watermark
        self.emit_results(early)
        if early:
            self.emitted_us, self.waiting = self.now_us, False

    def add_rows(self, rows: Sequence[Row]) -> None:
        raise NotImplementedError

    def emit_results(self, early: bool) -> None:
        raise NotImplementedError

    def row_key(self, row: Row) -> Key:
        return tuple(hashable_value(row[k]) for k in self.spec.group_by)

    def build_emitted_row(
        self, rows: Sequence[Row], start: int, end: int, final: int, before: int, reason: str
    ) -> EmittedRow:
        values = {n: aggregate(a, c, rows) for n, a, c in self.spec.aggregations}
        keys = {k: rows[0][k] for k in self.spec.group_by}
        return EmittedRow(start, end, final, sum(r["id"] for r in rows), keys | values, before + 1, reason)


@dataclass
class PaneOracle(EpochOracle):
    """Tumbling and hopping windows."""

    windows: dict[tuple[int, Key], list[Row]] = field(default_factory=dict)

    def add_rows(self, rows: Sequence[Row]) -> None:
        for row in rows:
            used = [
                s for s in window_starts(self.spec, row["ts"]) if self.pane_end(s) + self.retained_us > self.watermark
            ]
            for start in used:
                self.windows.setdefault((start, self.row_key(row)), []).append(row)
            if not used:
                self.late.append(row)

    def emit_results(self, early: bool) -> None:
        for name, rows in self.windows.items():
            end, before = self.pane_end(name[0]), self.target.get(name)
            if not early and end > self.watermark:
                continue
            reason = "update" if end > self.watermark else "close"
            now = self.build_emitted_row(
                rows, name[0], end, end + self.allowed_us, before.revision if before else 0, reason
            )
            if before is None or not now.is_same_result(before):
                self.target[name] = now

    def pane_end(self, start: int) -> int:
        return start + self.spec.duration_us


@dataclass(frozen=True)
class Session:
    """Rows of a session in groups that stay together. `cut`: the next session begins within the reach of the rows."""

    groups: Groups
    end: int
    cut: bool

    @property
    def rows(self) -> list[Row]:
        return [r for group in self.groups for r in group]


@dataclass
class SessionOracle(EpochOracle):
    """Sessions with a cap. `held` contains the groups of rows per key that always stay in one session."""

    held: dict[Key, Groups] = field(default_factory=dict)
    floor: dict[Key, int] = field(default_factory=dict)
    revision: dict[int, int] = field(default_factory=dict)  # by row id, of the target row that last contained the row

    # -- sessions of a set of rows

    def row_gap(self, row: Row) -> int:
        return int(row.get("gap_us", self.spec.gap_us))

    def group_reach(self, group: Sequence[Row]) -> int:
        return max(r["ts"] + self.row_gap(r) for r in group)

    def split_sessions(self, groups: Groups) -> list[Session]:
        """Split groups into sessions in event-time order. A gap or a group that would exceed the cap ends a session."""
        clusters: list[tuple[Groups, bool]] = []
        for group in sorted(groups, key=first_event_time):
            if clusters:
                rows = [r for g in clusters[-1][0] for r in g]
                touches = first_event_time(group) <= self.group_reach(rows)
                if touches and last_event_time(group) - first_event_time(rows) < self.spec.cap_us:
                    clusters[-1][0].append(group)
                    continue
                clusters[-1] = (clusters[-1][0], touches)
            clusters.append(([group], False))
        sessions = []
        for index, (members, cut) in enumerate(clusters):
            rows = [r for g in members for r in g]
            end = self.group_reach(rows)
            if cut:
                end = min(end, first_event_time(rows) + self.spec.cap_us, first_event_time(clusters[index + 1][0][0]))
            sessions.append(Session(members, end, cut))
        return sessions

    # -- input rows

    def add_rows(self, rows: Sequence[Row]) -> None:
        for key in {self.row_key(r) for r in rows}:
            floor = self.floor.get(key, BEFORE_ALL)
            key_rows = [r for r in rows if self.row_key(r) == key]
            self.late += [r for r in key_rows if r["ts"] <= floor]
            groups: Groups = []
            for run in self.touching_runs([*self.held.get(key, []), *([r] for r in key_rows if r["ts"] > floor)]):
                groups += self.add_rows_to_run(run, key_rows)
            self.held[key] = groups

    def touching_runs(self, groups: Groups) -> list[Groups]:
        """Return the runs of groups that touch each other."""
        runs: list[Groups] = []
        for group in sorted(groups, key=first_event_time):
            if runs and first_event_time(group) <= self.group_reach([r for g in runs[-1] for r in g]):
                runs[-1].append(group)
            else:
                runs.append([group])
        return runs

    def add_rows_to_run(self, run: Groups, new: Sequence[Row]) -> Groups:
        """Return the groups of a run after the new rows are added."""
        is_new = {r["id"] for r in new}
        held = [g for g in run if g[0]["id"] not in is_new]
        rows = [g[0] for g in run if g[0]["id"] in is_new]
        recent = [r for r in rows if r["ts"] + self.row_gap(r) >= self.watermark - self.retained_us]
        opened = min(map(first_event_time, held), default=AFTER_ALL)
        used = [r for r in rows if (held or recent) and (r in recent or r["ts"] >= opened)]
        self.late += [r for r in rows if r not in used]
        everything = [*held, *([r] for r in used)]
        behind = [r for r in used if r["ts"] < self.watermark]
        if (
            not everything
            or max(map(last_event_time, everything)) - min(map(first_event_time, everything)) < self.spec.cap_us
            or not behind
        ):
            return absorb_groups(everything)
        ahead = absorb_groups([*held, *([r] for r in used if r not in behind)])
        sessions = [s.groups for s in self.split_sessions(ahead)]
        for row in sorted(behind, key=lambda r: (r["ts"], self.row_gap(r))):
            self.add_late_row(sessions, row)
        return [g for s in sessions for g in s]

    def add_late_row(self, sessions: list[Groups], row: Row) -> None:
        """Add a row behind the watermark to the sessions of a run. The joined session and the next one stay whole."""
        ts, cap = row["ts"], self.spec.cap_us
        before = [s for s in sessions if first_event_time(flatten_groups(s)) <= ts]
        earlier = before[-1] if before and ts <= self.group_reach(flatten_groups(before[-1])) else None
        after = sessions[len(before)] if len(before) < len(sessions) else None
        later = (
            after if after is not None and first_event_time(flatten_groups(after)) <= ts + self.row_gap(row) else None
        )
        if (
            earlier is not None
            and later is not None
            and last_event_time(flatten_groups(later)) - first_event_time(flatten_groups(earlier)) < cap
        ):
            earlier[:] = [[*flatten_groups(earlier), row, *flatten_groups(later)]]
            sessions.remove(later)
        elif (
            earlier is not None
            and max(ts, last_event_time(flatten_groups(earlier))) - first_event_time(flatten_groups(earlier)) < cap
        ):
            earlier[:] = [[*flatten_groups(earlier), row]]
            if later is not None:
                later[:] = [flatten_groups(later)]
        elif later is not None and last_event_time(flatten_groups(later)) - ts < cap:
            later[:] = [[row, *flatten_groups(later)]]
        elif earlier is None and later is None:
            sessions.insert(len(before), [[row]])
        else:
            self.late.append(row)

    # -- emitted sessions

    def emit_results(self, early: bool) -> None:
        horizon = self.watermark - self.retained_us
        for key, groups in self.held.items():
            sessions = self.split_sessions(groups)
            emitted, stay = [], []
            for session in sessions:
                start, reach = first_event_time(session.rows), self.group_reach(session.rows)
                at_cap = start + self.spec.cap_us
                over = self.watermark >= at_cap if session.cut else self.watermark > reach
                if over or early:
                    emitted.append((session, over))
                if (over and session.cut) or (not session.cut and horizon > reach):
                    self.floor[key] = max(self.floor.get(key, BEFORE_ALL), at_cap - 1 if session.cut else reach)
                else:
                    stay.append(session)
            self.write_sessions(key, emitted)
            self.held[key] = [g for s in stay for g in s.groups]
            upto = self.floor.get(key, BEFORE_ALL) + (self.spec.gap_us or self.spec.cap_us)
            if horizon > upto and all(first_event_time(g) > upto for g in self.held[key]):
                self.floor.pop(key, None)

    def write_sessions(self, key: Key, emitted: Sequence[tuple[Session, bool]]) -> None:
        for session, over in emitted:
            rows = session.rows
            name = (first_event_time(rows), key)
            reason = ("cap" if session.cut else "close") if over else "update"
            before = max(self.revision.get(r["id"], 0) for r in rows)
            final = session.end + (0 if session.cut else self.allowed_us)
            now = self.build_emitted_row(rows, name[0], session.end, final, before, reason)
            if name in self.target and now.is_same_result(self.target[name]):
                continue
            for old in [n for n, t in self.target.items() if n[1] == key and t.ids & now.ids and n != name]:
                del self.target[old]
            self.target[name] = now
            self.revision.update({r["id"]: now.revision for r in rows})


def first_event_time(group: Sequence[Row]) -> int:
    return min(int(r["ts"]) for r in group)


def last_event_time(group: Sequence[Row]) -> int:
    return max(int(r["ts"]) for r in group)


def flatten_groups(groups: Groups) -> list[Row]:
    return [r for g in groups for r in g]


def absorb_groups(groups: Groups) -> Groups:
    """Merge every group that starts within the time of another group."""
    merged: Groups = []
    for group in sorted(groups, key=lambda g: (first_event_time(g), -last_event_time(g))):
        if merged and first_event_time(group) <= last_event_time(merged[-1]):
            merged[-1] = [*merged[-1], *group]
        else:
            merged.append(list(group))
    return merged
