"""What the engine tells the outside after each epoch: one frozen value, read by the live view, the logs and the metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from slackwater.errors import StartError

if TYPE_CHECKING:
    import polars as pl

    from slackwater.config.pipeline import Pipeline


@dataclass(frozen=True)
class SourceStatus:
    """One source at the end of an epoch; times in microseconds UTC, None before the first event."""

    name: str
    rows: int
    max_event_us: int | None
    watermark_us: int | None
    idle: bool
    quiet_us: int


@dataclass(frozen=True)
class Counters:
    """Cumulative over the life of the pipeline, part of every commit, continued after a restart.

    Conservation: `rows_sql + rows_bad == rows_used + rows_late + rows_refused + rows_bad`, where `rows_sql` are the
    rows that came out of the SQL. `emitted` is by reason (`close`, `cap`, `flush`), `late` by cause (`lateness`, `idle`, `flush`), `letters`
    (dead letters) by reason (`late`, `undecodable`, `future`, `no event time`): `late` ones are `rows_late + rows_partly_late`.

    Of a join `emitted` is `match` and `unmatched`. `sides` is for "left" and "right": `buffered` (rows put into the state),
    `late`, `null_keys`, `keyless` (those of them that come out nowhere, and are not used), `matched` (rows that found their
    first partner), `unmatched` (that came out without one), `evicted` (by on_state_cap).
    """

    rows_in: int = 0
    rows_sql: int = 0
    rows_used: int = 0
    rows_bad: int = 0
    rows_refused: int = 0
    rows_lost: int = 0  # gone from the source before they were read (on_data_loss = "skip")
    files_changed: int = 0  # after they were read, which happens once
    late_windows: int = 0
    replayed: int = 0  # dead letters that were applied after all; their rows stay counted as what they were
    replayed_late: int = 0  # those of them that are late rows
    overflows: int = 0  # results that did not fit their type and came out as NULL (on_overflow = "null")
    # results that lay behind the watermark of the stage that reads them: they count there, at that watermark
    late_between_stages: int = 0
    rows_partly_late: int = 0  # late for some of their windows, and not for all: these rows are used
    late: Mapping[str, int] = field(default_factory=dict)
    emitted: Mapping[str, int] = field(default_factory=dict)
    letters: Mapping[str, int] = field(default_factory=dict)
    sides: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # joins: see below
    # how late the late rows are, see `core.lateness`: a bound that a state spread over other shards no longer knows of all rows
    lateness: Mapping[str, Any] = field(default_factory=dict, compare=False)
    # rows that were committed for each: of a state that is older than this counter, since it is there
    targets: Mapping[str, int] = field(default_factory=dict, compare=False)
    spent_us: Mapping[str, int] = field(
        default_factory=dict, compare=False
    )  # by phase of an epoch, see `next_commit.with_phase_times`

    @property
    def rows_late(self) -> int:
        return sum(self.late.values())

    @property
    def rows_emitted(self) -> int:
        return sum(self.emitted.values())


@dataclass(frozen=True)
class BufferCounts:
    """One side of a join: the rows that are in the state, and a key with very many of them: how many, its values."""

    rows: int
    hot_key: tuple[int, str] | None = None


@dataclass(frozen=True)
class StageStatus:
    """One stage after an epoch: `open` windows of so many `groups`; `rows` and `bytes` of its state. `counters` are its own.

    `buffered`: of a join, "left" and "right".
    """

    name: str
    kind: str
    watermark_us: int | None
    open: int
    groups: int
    rows: int
    bytes: int
    counters: Counters
    buffered: Mapping[str, BufferCounts] = field(default_factory=dict)


@dataclass(frozen=True)
class Status:
    """The state of a pipeline after an epoch (or an idle tick that committed nothing: then `rows` is 0)."""

    pipeline: str
    window_kind: str
    late_policy: str
    epoch: int
    rows: int
    emitted: int
    late: int
    seconds: float
    phases: Mapping[str, float]  # seconds per phase: plan, read, ingest, emit, commit, write, note
    clock_us: int
    watermark_us: int | None
    sources: tuple[SourceStatus, ...]
    windows_active: int
    groups: int
    state_bytes: int
    counters: Counters
    reasons: tuple[str, ...] = ()  # why rows come out; of those that did, see `counters`
    written: Mapping[str, int] = field(default_factory=dict)  # by target: the rows of this epoch that it gets
    emit_lag_seconds: float | None = None  # clock - window_end of the newest row emitted in this epoch
    buffered: Mapping[str, BufferCounts] = field(default_factory=dict)  # joins: "left", "right"
    stages: tuple[StageStatus, ...] = ()
    files_done: int | None = None
    files_total: int | None = None  # known with --available-now over files: the progress bar
    of: Pipeline | None = field(default=None, repr=False, compare=False)  # of the status that a run returns

    def results(self, target: str | None = None) -> pl.DataFrame:
        """What the target of the run holds now, read when this is called; of several targets the one that is named.

        Only of the status that `run` returns. Raises StartError for a target that gives nothing back, as the console.
        """
        if self.of is None:
            raise StartError(f"{self.pipeline}: found the status of an epoch, expected that which a run returns")
        frame: pl.DataFrame = import_module("slackwater.query.result_readers").read_all(self.of, target)
        return frame

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds if self.seconds > 0 else 0.0
