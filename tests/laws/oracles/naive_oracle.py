"""The contract in plain loops over plain values: windows, aggregations and late rows, epoch by epoch.

The oracle shares no code with `slackwater`. Times are int microseconds. A row is a dict with `ts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

Row = Mapping[str, Any]
EXACT = Context(prec=100, rounding=ROUND_HALF_UP)


@dataclass(frozen=True)
class WindowSpec:
    """A window as plain values. `aggregations` are tuples (as, agg, column or None)."""

    kind: str
    group_by: Sequence[str] = ()
    aggregations: Sequence[tuple[str, str, str | None]] = ()
    duration_us: int = 0
    hop_us: int = 0
    offset_us: int = 0
    gap_us: int = 0
    cap_us: int = 0


def hashable_value(value: Any) -> Any:
    """Map equal values to one hashable value: NaN equals NaN, and -0.0 equals 0.0."""
    if isinstance(value, float):
        return "NaN" if value != value else value + 0.0
    return value


def sort_rank(value: Any) -> Any:
    """Return the rank of a value in Spark's order: NULL, then the values, then NaN."""
    if value is None:
        return (0, 0)
    return (2, 0) if value != value else (1, value)


def window_starts(spec: WindowSpec, ts: int) -> list[int]:
    """Return every window start with `start <= ts < start + duration`, ascending."""
    hop = spec.hop_us or spec.duration_us
    newest = (ts - spec.offset_us) // hop * hop + spec.offset_us
    return [s for s in range(newest - spec.duration_us // hop * hop, newest + 1, hop) if s <= ts < s + spec.duration_us]


def compute_windows_over_all_rows(spec: WindowSpec, rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Compute the batch answer: all rows at once, none of them late."""
    if spec.kind == "session":
        return session_windows(spec, rows)
    return pane_windows(spec, [(row, start) for row in rows for start in window_starts(spec, row["ts"])])


def pane_windows(spec: WindowSpec, pairs: Iterable[tuple[Row, int]]) -> list[dict[str, Any]]:
    groups: dict[Any, list[Row]] = {}
    for row, start in pairs:
        groups.setdefault((start, *(hashable_value(row[k]) for k in spec.group_by)), []).append(row)
    return [_window_row(spec, members, start, start + spec.duration_us) for (start, *_), members in groups.items()]


def session_windows(spec: WindowSpec, rows: Iterable[Row]) -> list[dict[str, Any]]:
    per_key: dict[Any, list[Row]] = {}
    for row in sorted(rows, key=lambda r: r["ts"]):
        per_key.setdefault(tuple(hashable_value(row[k]) for k in spec.group_by), []).append(row)
    output_rows = []
    for members in per_key.values():
        current = [members[0]]
        for row in members[1:]:
            start, last = current[0]["ts"], current[-1]["ts"]
            if row["ts"] - last > spec.gap_us:
                output_rows.append(_window_row(spec, current, start, last + spec.gap_us))
                current = []
            elif row["ts"] - start >= spec.cap_us:
                output_rows.append(_window_row(spec, current, start, min(last + spec.gap_us, start + spec.cap_us)))
                current = []
            current.append(row)
        output_rows.append(_window_row(spec, current, current[0]["ts"], current[-1]["ts"] + spec.gap_us))
    return output_rows


def _window_row(spec: WindowSpec, rows: list[Row], start: int, end: int) -> dict[str, Any]:
    keys = {k: rows[0][k] for k in spec.group_by}
    return (
        {"window_start": start, "window_end": end} | keys | {n: aggregate(a, c, rows) for n, a, c in spec.aggregations}
    )


def aggregate(agg: str, column: str | None, rows: Sequence[Row]) -> Any:
    """Compute one aggregation over one group. All but `count(*)` skip NULLs."""
    if column is None:
        return len(rows)
    pairs = [(r["ts"], r[column]) for r in rows if r[column] is not None]
    values = [v for _, v in pairs]
    if agg == "count":
        return len(values)
    if agg == "count_distinct":
        return len({hashable_value(v) for v in values})
    if not values:
        return None
    if agg == "min":
        return min(values, key=sort_rank)
    if agg == "max":
        return max(values, key=sort_rank)
    if agg == "first":
        return min(pairs, key=lambda p: (p[0], sort_rank(p[1])))[1]
    if agg == "last":
        return max(pairs, key=lambda p: (p[0], sort_rank(p[1])))[1]
    total = values[0]
    for value in values[1:]:
        total = EXACT.add(total, value) if isinstance(total, Decimal) else total + value
    if agg == "sum":
        return total
    if not isinstance(total, Decimal):
        return total / len(values)
    unit = Decimal(1).scaleb(int(values[0].as_tuple().exponent) - 4)
    return EXACT.quantize(EXACT.divide(total, Decimal(len(values))), unit)


@dataclass
class PaneEpochOracle:
    """Follow the contract row by row over epochs, with a clock per source and one watermark.

    Rows are late against the watermark of the previous epoch.

        oracle = PaneEpochOracle(spec, {"a": 5_000, "b": 0})
        oracle.add_epoch({"a": rows, "b": rows}); oracle.pass_quiet_time(60_000_000); oracle.window_rows()

    `late`: rows late for all of their windows. `missed`: number of (row, window) pairs whose window was closed.
    `late_idle`: late rows of a source that was idle while the watermark advanced and that has not caught up.

    With `idle_close_us`, the watermark advances while all sources are silent. It advances when a window closes or
    `checkpoint_us` after the last commit.
    """

    spec: WindowSpec
    lateness_us: Mapping[str, int]
    idleness_us: int = 60_000_000
    idle_close_us: int | None = None
    checkpoint_us: int = 60_000_000
    allowed_us: int = 0  # how long closed windows can be corrected
    watermark: int | None = None
    newest: dict[str, int] = field(default_factory=dict)
    quiet_us: dict[str, int] = field(default_factory=dict)
    pairs: list[tuple[Row, int]] = field(default_factory=list)
    late: list[Row] = field(default_factory=list)
    late_idle: list[Row] = field(default_factory=list)
    missed: int = 0
    lost: set[str] = field(default_factory=set)
    committed_quiet: dict[str, int] = field(default_factory=dict)
    uncommitted_us: int = 0

    def add_epoch(self, rows: Mapping[str, Sequence[Row]]) -> None:
        for source, source_rows in rows.items():
            for row in source_rows:
                held = window_starts(self.spec, row["ts"])
                end = self.spec.duration_us + self.allowed_us
                still = [s for s in held if self.watermark is None or s + end > self.watermark]
                self.pairs += [(row, start) for start in still]
                self.missed += len(held) - len(still)
                if not still:
                    self.late.append(row)
                    self.late_idle += [row] if source in self.lost else []
            if source_rows:
                newest = max(row["ts"] for row in source_rows)
                self.newest[source] = max(newest, self.newest.get(source, newest))
                self.quiet_us[source] = 0
        self._advance_watermark()
        ahead = self._watermark_after_silence()
        self.watermark = self.watermark if ahead is None else ahead
        self._commit()

    def pass_quiet_time(self, us: int) -> None:
        for source in self.lateness_us:
            self.quiet_us[source] = self.quiet_us.get(source, 0) + us
        self.uncommitted_us += us
        before = self.watermark
        self._advance_watermark()
        moved, due = self.watermark != before, self.uncommitted_us >= self.checkpoint_us
        idle_before = [s for s, q in self.committed_quiet.items() if q == self.idleness_us]
        turned = any(s not in idle_before for s in self._idle_sources())
        changed = any(self._capped_quiet_us(s) != self.committed_quiet.get(s, 0) for s in self.lateness_us)
        ahead = self._watermark_after_silence()
        if ahead is not None and (moved or turned or due or self._closes_any_window(ahead)):
            self.watermark, moved = ahead, True
        if moved or turned or (changed and due):
            self._commit()

    def _idle_sources(self) -> list[str]:
        return [s for s in self.lateness_us if self.quiet_us.get(s, 0) >= self.idleness_us]

    def _capped_quiet_us(self, source: str) -> int:
        return min(self.quiet_us.get(source, 0), self.idleness_us)

    def _commit(self) -> None:
        self.uncommitted_us = 0
        self.committed_quiet = {s: self._capped_quiet_us(s) for s in self.lateness_us}
        for source in self.lateness_us:
            if source not in self.newest:
                behind = source in self._idle_sources()
            else:
                behind = self.watermark is not None and self.newest[source] - self.lateness_us[source] < self.watermark
            (self.lost.add if behind else self.lost.discard)(source)

    def _watermark_after_silence(self) -> int | None:
        """Return the watermark after the silence of all sources, or None if it does not advance."""
        quiet = min(self.quiet_us.get(s, 0) for s in self.lateness_us)
        if self.idle_close_us is None or quiet < self.idle_close_us or not self.newest:
            return None
        ahead = max(self.newest[s] - self.lateness_us[s] for s in self.newest) + quiet
        return ahead if self.watermark is None or ahead > self.watermark else None

    def _closes_any_window(self, ahead: int) -> bool:
        ends = {start + self.spec.duration_us for _, start in self.pairs}
        return any((self.watermark is None or end > self.watermark) and end <= ahead for end in ends)

    def _advance_watermark(self) -> None:
        awake = [s for s in self.lateness_us if self.quiet_us.get(s, 0) < self.idleness_us]
        if not awake or any(s not in self.newest for s in awake):
            return  # all idle, or a source without rows yet: the watermark stays
        lowest = min(self.newest[s] - self.lateness_us[s] for s in awake)
        self.watermark = lowest if self.watermark is None else max(self.watermark, lowest)

    def window_rows(self) -> list[dict[str, Any]]:
        return pane_windows(self.spec, self.pairs)


@dataclass
class SessionEpochOracle:
    """Follow the contract row by row for uncapped sessions of one source: runs, floors and closing.

    With `forget`, drop a key's floor once `wm > floor + gap` and no open session starts at or before `floor + gap`.
    """

    spec: WindowSpec
    lateness_us: int
    allowed_us: int = 0  # how long closed sessions can be corrected
    forget: bool = True
    watermark: int | None = None
    newest: int | None = None
    open: dict[Any, list[list[Row]]] = field(default_factory=dict)
    floor: dict[Any, int] = field(default_factory=dict)
    done: list[list[Row]] = field(default_factory=list)
    late: list[Row] = field(default_factory=list)

    def add_epoch(self, rows: Sequence[Row]) -> None:
        for key in {tuple(hashable_value(r[k]) for k in self.spec.group_by) for r in rows}:
            key_rows = [r for r in rows if tuple(hashable_value(r[k]) for k in self.spec.group_by) == key]
            floor = self.floor.get(key)
            below = [r for r in key_rows if floor is not None and r["ts"] <= floor]
            self.late += below
            self._merge_into_sessions(key, [r for r in key_rows if r not in below])
        if rows:
            newest = max(r["ts"] for r in rows)
            self.newest = newest if self.newest is None else max(self.newest, newest)
            self.watermark = max(self.newest - self.lateness_us, self.watermark or self.newest - self.lateness_us)
            self._close_sessions(self.watermark - self.allowed_us)

    def _merge_into_sessions(self, key: Any, rows: list[Row]) -> None:
        gap = self.spec.gap_us
        pieces = [(s, True) for s in self.open.get(key, [])] + [([r], False) for r in rows]
        pieces.sort(key=lambda p: min(r["ts"] for r in p[0]))
        runs: list[tuple[list[Row], bool]] = []
        for members, was_open in pieces:
            start = min(r["ts"] for r in members)
            good = was_open or self._is_on_time(start)
            if runs and start <= max(r["ts"] for r in runs[-1][0]) + gap:
                runs[-1] = (runs[-1][0] + members, runs[-1][1] or good)
            else:
                runs.append((list(members), good))
        self.late += [r for members, good in runs if not good for r in members]
        opened = [min(r["ts"] for r in s) for s in self.open.get(key, [])]
        self.open[key] = []
        for members in (members for members, good in runs if good):
            # rows before the open session of the run must be recent, or they would reach behind a dropped floor
            first = min((t for t in opened if any(r["ts"] == t for r in members)), default=None)
            remaining = [r for r in members if self._is_on_time(r["ts"]) or (first is not None and r["ts"] >= first)]
            self.late += [r for r in members if r not in remaining]
            self.open[key].append(remaining)

    def _is_on_time(self, ts: int) -> bool:
        return self.watermark is None or ts + self.spec.gap_us + self.allowed_us >= self.watermark

    def _close_sessions(self, watermark: int) -> None:
        gap = self.spec.gap_us
        for key, held in self.open.items():
            ended = [s for s in held if watermark > max(r["ts"] for r in s) + gap]
            self.open[key] = [s for s in held if s not in ended]
            self.done += ended
            for session in ended:
                reach = max(r["ts"] for r in session) + gap
                self.floor[key] = max(reach, self.floor.get(key, reach))
            horizon = self.floor.get(key, watermark) + gap
            near = any(min(r["ts"] for r in s) <= horizon for s in self.open[key])
            if self.forget and watermark > horizon and not near:
                self.floor.pop(key, None)

    def window_rows(self) -> list[dict[str, Any]]:
        output_rows = []
        for rows in self.done + [s for held in self.open.values() for s in held]:
            times = [r["ts"] for r in rows]
            output_rows.append(_window_row(self.spec, rows, min(times), max(times) + self.spec.gap_us))
        return output_rows
