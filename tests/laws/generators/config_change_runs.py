"""Runs that restart with changed configs, compared with a naive oracle.

    python -m tests.laws.generators.config_change_runs --runs 2000                    # prints the seed of a failing run

The oracle processes rows one by one: by the old config before a change, and by the new one after it. An added
aggregation counts only rows after the change. The oracle shares the plain aggregations with `naive_oracle.py`, but no
code with `slackwater`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.laws.generators import seed_runner
from tests.laws.oracles import naive_oracle
from tests.support.local_pipeline_script import DriverCrash, LocalResult, MicroBatch, PipelineRestart, run_local_script

from slackwater.config.window import Aggregation, Window

MS = 1000
SCHEMA = {"u": "string", "id": "bigint", "f": "double"}
DURATION, HOP = 12, 5
Table = dict[tuple[Any, int], dict[str, Any]]

KNOWN: Mapping[str, tuple[str, str | None]] = {
    "n": ("count", None),
    "ids": ("sum", "id"),
    "fs": ("count", "f"),
    "low": ("min", "f"),
    "high": ("max", "f"),
    "first_id": ("first", "id"),
    "kinds": ("count_distinct", "f"),
}


@dataclass(frozen=True)
class RunConfig:
    """Settings of a run. Times are in milliseconds."""

    kind: str
    gap: int = 5
    lateness: int = 0
    allowed: int | None = None  # None: late rows are dropped
    aggs: tuple[str, ...] = ("n", "ids")
    shards: int = 2
    cap: int = 100_000
    emit: str = "on_close"
    sources: tuple[str, ...] = ("a",)
    target: str = ""

    @property
    def watermark_delay(self) -> int:
        """Distance of the watermark from the newest event. `final` also waits for late rows before it emits."""
        return self.lateness + (self.allowed or 0 if self.emit == "final" else 0)

    @property
    def retention(self) -> int:
        """Time for which a window is retained after the watermark has closed it."""
        return 0 if self.emit == "final" else self.allowed or 0

    @property
    def window(self) -> Window:
        shapes: dict[str, dict[str, Any]] = {
            "session": {"gap_ms": self.gap, "max_session_duration_ms": self.cap},
            "tumbling": {"duration_ms": DURATION, "max_groups_per_window": 1000},
            "hopping": {"duration_ms": DURATION, "hop_ms": HOP, "max_groups_per_window": 1000},
        }
        late = {} if self.allowed is None else {"late_data": "reopen", "allowed_lateness_ms": self.allowed}
        settings = {**shapes[self.kind], "lateness_ms": self.lateness, "emit": self.emit, **late}
        return Window(
            kind=self.kind, group_by=["u"], aggregations=[_build_aggregation(n) for n in self.aggs], **settings
        )

    @property
    def oracle_spec(self) -> naive_oracle.WindowSpec:
        hop = HOP * MS if self.kind == "hopping" else 0
        return naive_oracle.WindowSpec(self.kind, ["u"], duration_us=DURATION * MS, hop_us=hop)


def _build_aggregation(name: str) -> Aggregation:
    agg, column = KNOWN[name]
    more = {"mode": "exact", "max_distinct_values_per_group": 1000} if agg == "count_distinct" else {}
    return Aggregation(agg=agg, column=column, as_=name, **more)


@dataclass
class OracleWindow:
    """A window or session. Each row has the number of the config under which it was read."""

    rows: list[tuple[int, naive_oracle.Row]]
    emitted_starts: set[int] = field(default_factory=set)  # window starts of its rows in the target
    same: bool = False  # the target contains its current result

    @property
    def start(self) -> int:
        return min(r["ts"] for _, r in self.rows)

    @property
    def last_event_us(self) -> int:
        return max(r["ts"] for _, r in self.rows)


@dataclass
class ConfigChangeOracle:
    """Oracle of a run with changing configs. Times are in microseconds. Sessions never reach the cap."""

    config: RunConfig
    number: int = 0
    since: dict[str, int] = field(default_factory=dict)  # aggregation -> number of the config that added it
    watermark: int | None = None
    gone: int | None = None  # windows that close at or before it are never opened again
    rows_from: int | None = None
    newest: dict[str, int] = field(default_factory=dict)  # by source
    late: list[naive_oracle.Row] = field(default_factory=list)
    held: dict[str, Table] = field(default_factory=dict)  # by target

    def __post_init__(self) -> None:
        self.since = dict.fromkeys(self.config.aggs, 0)
        self.setup()

    def setup(self) -> None:
        raise NotImplementedError

    @property
    def horizon(self) -> int | None:
        if self.watermark is None:
            return None
        horizon_us = self.watermark - MS * self.config.retention
        return horizon_us if self.gone is None else max(horizon_us, self.gone)

    def apply_config(self, config: RunConfig) -> None:
        horizon, gap = self.horizon, self.config.gap * MS
        if horizon is not None:
            self.gone = horizon
            self.rows_from = max(horizon - gap, horizon - gap if self.rows_from is None else self.rows_from)
        self.number += 1
        self.since = {name: self.since.get(name, self.number) for name in config.aggs}
        self.newest = {s: newest_us for s, newest_us in self.newest.items() if s in config.sources}
        self.config = config

    def advance_watermark(self, rows: Sequence[naive_oracle.Row]) -> None:
        for row in rows:
            self.newest[row["source"]] = max(row["ts"], self.newest.get(row["source"], row["ts"]))
        if len(self.newest) == len(self.config.sources):  # a source without rows holds the watermark
            ahead = min(self.newest.values()) - self.config.watermark_delay * MS
            self.watermark = ahead if self.watermark is None else max(ahead, self.watermark)

    def is_due(self, held: OracleWindow, closed: bool) -> bool:
        """Return whether a window is due for output. `closed`: the watermark has closed it."""
        return not held.same and (closed or self.config.emit == "updates")

    @property
    def target_rows(self) -> Table:
        """Rows in the target of this config."""
        return self.held.setdefault(self.config.target, {})

    def emit_window(self, key: Any, held: OracleWindow, start: int, end: int) -> None:
        for former in held.emitted_starts:
            self.target_rows.pop((key, former), None)
        values = {
            name: naive_oracle.aggregate(*KNOWN[name], [r for n, r in held.rows if n >= since])
            for name, since in self.since.items()
        }
        self.target_rows[key, start] = {"u": key, "window_start": start, "window_end": end, **values}
        held.emitted_starts, held.same = {start}, True


class PaneConfigChangeOracle(ConfigChangeOracle):
    def setup(self) -> None:
        self.windows: dict[tuple[Any, int], OracleWindow] = {}

    def apply_config(self, config: RunConfig) -> None:
        """Emit retained windows again on a change to `updates`, and open ones at their close on a change from it."""
        was, now = self.config.emit == "updates", config.emit == "updates"
        super().apply_config(config)
        for (_, start), window in self.windows.items() if was != now else ():
            is_open = self.watermark is None or start + DURATION * MS > self.watermark
            window.same &= not now and not is_open

    def process_epoch(self, rows: Sequence[naive_oracle.Row]) -> None:
        for row in rows:
            starts = naive_oracle.window_starts(self.config.oracle_spec, row["ts"])
            held = [s for s in starts if self.horizon is None or s + DURATION * MS > self.horizon]
            self.late += [] if held else [row]
            for start in held:
                window = self.windows.setdefault((row["u"], start), OracleWindow([]))
                window.rows.append((self.number, row))
                window.same = False
        self.advance_watermark(rows)
        self.close_windows(self.watermark)

    def close_windows(self, watermark: int | None) -> None:
        for (key, start), window in list(self.windows.items()):
            end = start + DURATION * MS
            if self.is_due(window, watermark is not None and watermark >= end):
                self.emit_window(key, window, start, end)
            if self.horizon is not None and end <= self.horizon:
                del self.windows[key, start]

    def flush(self) -> None:
        self.close_windows(1 << 60)


class SessionConfigChangeOracle(ConfigChangeOracle):
    def setup(self) -> None:
        self.open: dict[Any, list[OracleWindow]] = {}
        self.floor: dict[Any, int] = {}

    @property
    def gap_us(self) -> int:
        return self.config.gap * MS

    def apply_config(self, config: RunConfig) -> None:
        """Another gap moves the end of an open session, so its row in the target is outdated."""
        gap, watermark = self.gap_us, self.watermark
        super().apply_config(config)
        for key, held in self.open.items():
            for session in held:
                session.same &= gap == self.gap_us or (
                    watermark is not None and session.last_event_us + gap < watermark
                )
            sessions = self.merge_sessions(held)
            # drop emitted sessions at once if the new config retains them for less time
            gone = [
                s
                for s in sessions
                if s.same and self.horizon is not None and self.horizon > s.last_event_us + self.gap_us
            ]
            self.open[key] = [s for s in sessions if s not in gone]
            for session in gone:
                reach = session.last_event_us + self.gap_us
                self.floor[key] = max(reach, self.floor.get(key, reach))

    def merge_sessions(self, pieces: Sequence[OracleWindow]) -> list[OracleWindow]:
        merged: list[OracleWindow] = []
        for piece in sorted(pieces, key=lambda p: p.start):
            if merged and piece.start <= merged[-1].last_event_us + self.gap_us:
                merged[-1] = OracleWindow(
                    merged[-1].rows + piece.rows, merged[-1].emitted_starts | piece.emitted_starts
                )
            else:
                merged.append(piece)
        return merged

    def is_recent(self, ts: int) -> bool:
        long_ago = self.rows_from is not None and ts < self.rows_from
        return self.horizon is None or (ts + self.gap_us >= self.horizon and not long_ago)

    def process_epoch(self, rows: Sequence[naive_oracle.Row]) -> None:
        for key in dict.fromkeys(r["u"] for r in rows):
            floor = self.floor.get(key)
            key_rows = [r for r in rows if r["u"] == key]
            below = [r for r in key_rows if floor is not None and r["ts"] <= floor]
            self.late += below
            self.add_rows(key, [r for r in key_rows if r not in below])
        self.advance_watermark(rows)
        self.close_sessions(self.watermark)

    def add_rows(self, key: Any, rows: Sequence[naive_oracle.Row]) -> None:
        held = self.open.get(key, [])
        runs = self.merge_sessions([*held, *(OracleWindow([(self.number, r)]) for r in rows)])
        sessions = []
        for run in runs:
            if run in held:
                sessions.append(run)
                continue
            former = [h for h in held if any(r in run.rows for r in h.rows)]
            new = [r for r in rows if (self.number, r) in run.rows]
            first = min((h.start for h in former), default=None)
            if first is None and not any(self.is_recent(r["ts"]) for r in new):
                self.late += new
                continue
            far = [r for r in new if not self.is_recent(r["ts"]) and (first is None or r["ts"] < first)]
            self.late += far
            rest = [r for r in run.rows if r[1] not in far]
            sessions.append(former[0] if [h.rows for h in former] == [rest] else OracleWindow(rest, run.emitted_starts))
        self.open[key] = sessions

    def close_sessions(self, watermark: int | None) -> None:
        horizon = self.horizon
        for key, held in self.open.items():
            for session in held:
                if self.is_due(session, watermark is not None and watermark > session.last_event_us + self.gap_us):
                    self.emit_window(key, session, session.start, session.last_event_us + self.gap_us)
            ended = [s for s in held if horizon is not None and horizon > s.last_event_us + self.gap_us]
            self.open[key] = [s for s in held if s not in ended]
            for session in ended:
                reach = session.last_event_us + self.gap_us
                self.floor[key] = max(reach, self.floor.get(key, reach))
            if key in self.floor and horizon is not None:
                until = self.floor[key] + self.gap_us
                if horizon > until and not any(s.start <= until for s in self.open[key]):
                    del self.floor[key]

    def flush(self) -> None:
        self.close_sessions(1 << 60)


# -- runs ------------------------------------------------------------------------------------------------------------


KINDS_OF_CHANGE = ("add", "remove", "lateness", "late", "shards", "emit", "target", "sources", "sources")


def change_config(chance: random.Random, config: RunConfig) -> RunConfig:
    """Return the config with one to three random changes."""
    for _ in range(chance.randrange(1, 4)):
        change_kind = chance.choice([*KINDS_OF_CHANGE, *(["gap"] * 3 if config.kind == "session" else [])])
        if change_kind == "add":
            absent = [n for n in KNOWN if n not in config.aggs]
            config = replace(config, aggs=(*config.aggs, *chance.sample(absent, min(2, len(absent)))))
        elif change_kind == "remove" and len(config.aggs) > 2:
            config = replace(config, aggs=tuple(a for a in config.aggs if a != chance.choice(config.aggs[1:])))
        elif change_kind == "lateness":
            config = replace(config, lateness=chance.choice([0, 3, 12, 30]))
        elif change_kind == "late":
            config = replace(config, allowed=chance.choice([None, 0, 6, 25]))
        elif change_kind == "shards":
            config = replace(config, shards=chance.choice([1, 3, 5]))
        elif change_kind == "emit":
            config = replace(config, emit=chance.choice(["on_close", "final", "updates"]))
        elif change_kind == "target":
            config = replace(config, target=chance.choice(["", "second", "third"]))
        elif change_kind == "sources":
            config = replace(config, sources=chance.choice([("a",), ("b",), ("a", "b"), ("b", "a"), ("a", "b", "c")]))
        elif change_kind == "gap":
            config = replace(config, gap=chance.choice([2, 5, 9, 20]))
    return config


def draw_config_change_script(seed: int, kind: str, crashes: bool = False) -> tuple[RunConfig, list[Any]]:
    """Return the first config and a script: rows per epoch, and configs with which the run restarts."""
    chance, now, number = random.Random(seed), 0, 0
    first = config = RunConfig(kind, lateness=chance.choice([0, 3, 12]), allowed=chance.choice([None, None, 6, 25]))
    items: list[Any] = []
    for _ in range(chance.randrange(4, 12)):
        rows = []
        for _ in range(chance.randrange(0, 9)):
            now += chance.choice([0, 1, 2, 4, 5, 6, 9, 21])
            time_ms = now - chance.choice([0, 0, 0, 0, 3, 7, 15, 28])
            value = chance.choice([None, 0.0, 2.5, -1.0])
            rows.append(
                {"ts": time_ms * MS, "u": chance.choice(["a", "b", None]), "id": 1 << (number % 60), "f": value}
            )
            number += 1
        items.append(rows)
        if chance.random() < 0.35:
            config = change_config(chance, config)
            if crashes:
                items.append(
                    chance.choice([f"{p}.{s}" for p in ("read", "stage", "commit") for s in ("before", "after")])
                )
            items.append(config)
    return first, items


def check_config_change_run(seed: int, kind: str, crashes: bool = False, **settings: Any) -> LocalResult:
    """Run a seed and the oracle. Both must have the same tables and the same number of late rows."""
    first, items = draw_config_change_script(seed, kind, crashes)
    oracle: ConfigChangeOracle = (
        SessionConfigChangeOracle(first) if kind == "session" else PaneConfigChangeOracle(first)
    )
    script: list[Any] = []
    for item in items:
        if isinstance(item, str):
            script.append(DriverCrash(item))
        elif isinstance(item, RunConfig):
            oracle.apply_config(item)  # type: ignore[attr-defined]
            script.append(PipelineRestart(item.window, item.shards, item.sources, target=item.target))
        elif item:
            by_source = {
                s: [{**r, "source": s} for r in item if row_source(r, oracle.config) == s]
                for s in oracle.config.sources
            }
            oracle.process_epoch([r for rows in by_source.values() for r in rows])  # type: ignore[attr-defined]
            script.append(MicroBatch(by_source))
    oracle.flush()  # type: ignore[attr-defined]
    result = run_local_script(first.window, script, SCHEMA, shards=first.shards, **settings)
    assert result.counters.rows_late == len(oracle.late), seed
    targets = {**result.former, oracle.config.target: (result.rows, result.gone)}
    for name, (rows, gone) in targets.items():
        columns = ["u", "window_start", "window_end", *(oracle.config.aggs if name == oracle.config.target else ())]
        assert final_table_rows(rows, gone, columns) == comparable_rows(oracle.held.get(name, {}), columns), (
            seed,
            name,
        )
    return result


def row_source(row: naive_oracle.Row, config: RunConfig) -> str:
    """Return the source of a row. All sources have rows, but a source may be silent for long."""
    return config.sources[row["ts"] // MS % 7 % len(config.sources)]


def final_table_rows(
    rows: Sequence[naive_oracle.Row], gone: Sequence[naive_oracle.Row], columns: Sequence[str]
) -> list[Any]:
    """Return these columns of the final rows of a target."""
    rows_by_key: Table = {}
    dead = [{**r, "_gone": True} for r in gone]
    for row in sorted([*dead, *rows], key=lambda r: (r["_epoch"], not r.get("_gone"))):
        key = (row["u"], row["window_start"])
        if row.get("_gone"):
            rows_by_key.pop(key, None)
        else:
            rows_by_key[key] = row
    return comparable_rows(rows_by_key, columns)


def comparable_rows(table: Table, columns: Sequence[str]) -> list[Any]:
    return sorted(([row.get(c) for c in columns] for row in table.values()), key=repr)


def check_config_change_seed(seed: int) -> tuple[int, int]:
    """Check a seed. The kind of window rotates, and every other seed has kills. An error names the seed."""
    seed_runner.hide_warnings()
    kind, crashes = ("session", "tumbling", "hopping")[seed % 3], seed % 2 == 0
    try:
        result = check_config_change_run(seed, kind, crashes)
    except BaseException as error:
        raise AssertionError(f"seed {seed}: {kind}, crashes: {crashes}") from error
    return result.counters.rows_late, len(result.rows) + sum(len(rows) for rows, _ in result.former.values())


if __name__ == "__main__":
    seed_runner.run_seeds(check_config_change_seed, __doc__ or "", ("late rows", "rows out"), 2000)
