"""`slackwater state sizes`: the size of a state in total and by shard or table, its largest keys, and its writes.

The largest keys are the keys with the most rows, and the keys whose windows counted the most events. Writes are
reported only for an object store. They are counted from the objects that exist:

per shard and epoch   segments and outputs whose names begin with the epoch's number, including unreferenced ones
per commit            lists of offsets or dead letters, the manifest, and `published` if the epoch had output
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any

import polars as pl
import psycopg

from slackwater.errors import StartError, StateError, Topic, raise_unregistered
from slackwater.evolution.pipeline_from_state import restore_operator
from slackwater.operators.base import Operator
from slackwater.operators.interval_join import IntervalJoinOperator
from slackwater.operators.keyed_operator_base import KeyedOperator
from slackwater.operators.stateless import StatelessOperator
from slackwater.operators.window_operator_base import WindowOperator
from slackwater.query.state_inspection import to_plain_key
from slackwater.state.commit import Commit
from slackwater.state.files.store import FilesStore, files_of
from slackwater.state.postgres import client, table_ownership
from slackwater.state.postgres.join_buffers import shard_number
from slackwater.state.postgres.store import PostgresStore
from slackwater.state.protocol import Snapshot, StateStore
from slackwater.storage.base import NAMED
from slackwater.windows.state_layout import OPEN

HOT = 2  # a hot shard has at least this many times the mean number of rows
ENOUGH_ROWS = 100  # a stage with fewer rows per shard has no hot shards


@dataclass(frozen=True)
class ShardSize:
    """The size of one shard of a stage. Stages and shards are numbered from 0.

    In a database, `segments` is 0 and `bytes` is None, because only the sizes of entire tables are known.
    """

    stage: int
    shard: int
    segments: int
    rows: int
    bytes: int | None


@dataclass(frozen=True)
class TableSize:
    """The size of a table with its indexes. `dead`: the estimated number of rows that VACUUM would remove."""

    table: str
    rows: int
    bytes: int
    dead: int


@dataclass
class StateSizes:
    """The sizes of a state. A pair is a number of files and their total size in bytes.

    Args:
        pipeline: The name of the pipeline.
        epoch: The epoch of the latest commit.
        state_bytes: The size of the state rows in the latest commit.
        shards: The size of each shard of each stage.
        tables: The size of each table; empty for files.
        kept: The epochs of the stored commits.
        only_kept: Segments that only earlier commits reference.
        outputs: All stored outputs.
        waiting: Outputs that are not published yet.
        lists: Lists of offsets and of replayed dead letters.
        garbage: Unreferenced files, except the files of an epoch in progress.
        requests: Counts of writes; None unless the state is in an object store.
        hot: The largest keys, if requested.
        hot_shards: See `find_hot_shards`.
    """

    pipeline: str
    epoch: int
    state_bytes: int = 0
    shards: list[ShardSize] = field(default_factory=list)
    tables: list[TableSize] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    only_kept: tuple[int, int] = (0, 0)
    outputs: tuple[int, int] = (0, 0)
    waiting: tuple[int, int] = (0, 0)
    lists: tuple[int, int] = (0, 0)
    garbage: tuple[int, int] = (0, 0)
    requests: WriteCounts | None = None
    hot: list[HotKey] = field(default_factory=list)
    hot_shards: list[ShardSize] = field(default_factory=list)


def measure_state_sizes(store: StateStore, hot: int = 0) -> StateSizes:
    """Measure a state without taking its lock.

    `hot`: how many keys to report in each of two rankings, by number of rows and by number of events; 0 for none.

    Raises StartError if there is no state, and StateError if the state cannot be read.
    """
    with store.peek() as snapshot:
        if snapshot is None:
            raise StartError("there is no state yet; start the pipeline to create it: slackwater run", Topic.NO_STATE)
        sizes = StateSizes(snapshot.commit.pipeline, snapshot.commit.epoch)
        if hot:
            sizes.hot = find_hot_keys(store, snapshot, hot)
        if isinstance(store, FilesStore):
            _measure_files(store, snapshot.commit, sizes)
        elif isinstance(store, PostgresStore):
            _measure_tables(store, snapshot.commit, sizes)
    sizes.hot_shards = find_hot_shards(sizes.shards)
    return sizes


def find_hot_shards(shards: Sequence[ShardSize]) -> list[ShardSize]:
    """Return the shards with at least twice the mean number of rows per shard of their stage, largest first.

    Each epoch waits for these shards. Because hashes distribute keys evenly, a hot shard contains a few keys with very
    many rows. A stage with fewer than ENOUGH_ROWS rows per shard has no hot shards.
    """
    hot: list[ShardSize] = []
    for stage in {s.stage for s in shards}:
        in_stage = [s for s in shards if s.stage == stage]
        total = sum(s.rows for s in in_stage)
        if total >= ENOUGH_ROWS * len(in_stage):
            hot += [s for s in in_stage if s.rows * len(in_stage) >= HOT * total]
    return sorted(hot, key=lambda s: (-s.rows, s.stage, s.shard))


# -- files -------------------------------------------------------------------------------------------------------------


def _measure_files(store: FilesStore, latest: Commit, sizes: StateSizes) -> None:
    commits = list_kept_commits(store)
    sizes.state_bytes, sizes.kept = latest.state_bytes, [m.epoch for m in commits]
    sizes.shards = [
        ShardSize(number, shard, len(metas), sum(m.rows for m in metas), sum(m.bytes for m in metas))
        for number, stage in enumerate(latest.stages)
        for shard, metas in enumerate(stage.segments)
    ]
    now = _segments(latest)
    before = {name: size for m in commits for name, size in _segments(m).items() if name not in now}
    sizes.only_kept = len(before), sum(before.values())
    on_disk = {f"{folder}/{name}": weight for folder in NAMED for name, weight in store.storage.sizes(folder).items()}
    sizes.outputs = _sum(on_disk, "outputs/")
    sizes.lists = _sum(on_disk, "offsets/")
    if latest.staged and store.published_epoch() < latest.epoch:
        waiting = {o.file: on_disk.get(o.file, 0) for o in (*latest.output, *latest.letters)}
        sizes.waiting = _sum(waiting, "")
    referenced = {name for m in commits for name in files_of(m)}
    last = max(sizes.kept, default=latest.epoch)
    garbage = {n: b for n, b in on_disk.items() if n not in referenced and _epoch(n) <= last}
    sizes.garbage = _sum(garbage, "")
    if store.storage.is_remote:
        sizes.requests = count_writes(commits, on_disk)


def list_kept_commits(store: StateStore) -> list[Commit]:
    """Return the stored commits, oldest first. Damaged commits, and commits deleted in the meantime, are omitted."""
    commits = []
    for epoch in store.epochs():
        try:
            if isinstance(store, FilesStore):
                commits.append(store.manifest(epoch))
                continue
            with store.peek(epoch) as snapshot:
                commits += [] if snapshot is None else [snapshot.commit]
        except StateError:
            continue
    return commits


def _segments(commit: Commit) -> dict[str, int]:
    return {m.file: m.bytes for m in commit.metas}


def _sum(files: dict[str, int], prefix: str) -> tuple[int, int]:
    chosen = [size for name, size in files.items() if name.startswith(prefix)]
    return len(chosen), sum(chosen)


def _epoch(name: str) -> int:
    number = name.partition("/")[2][:9]
    return int(number) if number.isdigit() else -1


# -- tables ------------------------------------------------------------------------------------------------------------


def _measure_tables(store: PostgresStore, latest: Commit, sizes: StateSizes) -> None:
    with client.report_errors(store.location), closing(client.open_connection(store.url, "state store")) as db:
        t, sizes.kept = table_ownership.current_names(db, store.tables, len(latest.stages)), [latest.epoch]
        stages = [t.for_stage(n) for n in range(len(latest.stages))]
        for number, stage in enumerate(stages):
            staged = any(m.file for m in latest.stages[number].metas)
            rows = f"({stage.newest('key_hash')})" if staged else stage.state
            query = (
                f"SELECT s, count(r.key_hash) FROM generate_series(0, {latest.shards - 1}) s LEFT JOIN {rows} r"
                f" ON {shard_number('r.key_hash', latest.shards)} = s GROUP BY s"
            )
            rows_by_shard = dict(db.execute(query).fetchall())
            sizes.shards += [ShardSize(number, s, 0, rows_by_shard[s], None) for s in sorted(rows_by_shard)]
        names = [name for s in stages for name in (s.state, s.staged)]
        sizes.tables = [_table(db, name) for name in (*names, t.outputs, t.lists, t.offsets, t.pipelines)]
        sizes.state_bytes = sum(x.bytes for x in sizes.tables if x.table in names)
        query = "SELECT count(*), coalesce(sum({}), 0)::bigint FROM {} WHERE pipeline_name = %s"
        sizes.outputs = _count_and_bytes(db, query.format("length(data)", t.outputs), t.pipeline)
        sizes.lists = _count_and_bytes(db, query.format("length(lines)", t.lists), t.pipeline)
        sizes.waiting = sizes.outputs if latest.staged else (0, 0)


def _count_and_bytes(db: psycopg.Connection[Any], query: str, pipeline: str) -> tuple[int, int]:
    row = db.execute(query, (pipeline,)).fetchone()
    return (0, 0) if row is None else (int(row[0]), int(row[1]))


def _table(db: psycopg.Connection[Any], name: str) -> TableSize:
    row = db.execute(
        f"SELECT (SELECT count(*) FROM {name}), pg_total_relation_size(%s), coalesce((SELECT n_dead_tup FROM"
        " pg_stat_user_tables WHERE relid = %s::regclass), 0)",
        (name, name),
    ).fetchone()
    assert row is not None
    return TableSize(name, *map(int, row))


@dataclass(frozen=True)
class WriteCounts:
    """Counts of writes to an object store by the epochs whose commits are stored.

    Args:
        epochs: The number of these epochs.
        per_shard: The mean number of writes for one shard in an epoch.
        per_commit: The mean number of writes by the driver in an epoch.
        seconds: The mean time between two commits (s); None if there are fewer than two.
    """

    epochs: int
    per_shard: float
    per_commit: float
    seconds: float | None


def count_writes(commits: Sequence[Commit], files: Collection[str]) -> WriteCounts | None:
    """Count the writes of the epochs whose commits are stored. Return None if there are no commits.

    Args:
        commits: The stored commits, oldest first.
        files: The names of the existing objects, such as "segments/000000012-003-….arrow".
    """
    if not commits:
        return None
    first, last = commits[0].epoch, commits[-1].epoch
    epochs = len({m.epoch for m in commits})
    written = [f for f in files if (n := f.partition("/")[2][:9]).isdigit() and first <= int(n) <= last]
    lists = sum(f.startswith("offsets/") for f in written)
    published = sum(m.staged for m in commits)
    span = (commits[-1].committed_us - commits[0].committed_us) / 1e6
    return WriteCounts(
        epochs,
        per_shard=(len(written) - lists) / epochs / max(commits[-1].shards, 1),
        per_commit=(lists + published) / epochs + 1,
        seconds=span / (epochs - 1) if epochs > 1 and span > 0 else None,
    )


# -- keys -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HotKey:
    """A key in the state of a stage.

    Args:
        stage: The index of the stage, from 0.
        side: "left" or "right" for a join, otherwise empty.
        key: The key columns.
        rows: The number of state rows with this key.
        events: The number of events in its open and retained windows; None if no aggregation counts rows.
    """

    stage: int
    side: str
    key: dict[str, Any]
    rows: int
    events: int | None


def find_hot_keys(store: StateStore, snapshot: Snapshot, count: int) -> list[HotKey]:
    """Return the `count` keys with the most rows, then the `count` keys with the most events, without duplicates.

    Raises StateError if the state does not describe the operator of a stage.
    """
    candidates = list[HotKey]()
    for number in range(len(snapshot.commit.stages)):
        step = restore_operator(snapshot.commit, number)
        for shard in range(snapshot.commit.shards):  # a key belongs to exactly one shard
            for key in _shard_keys(step, store, snapshot, number, shard, count):
                candidates += [] if key in candidates else [key]
    by_rows = sorted(candidates, key=lambda k: -k.rows)[:count]
    by_events = sorted((k for k in candidates if k.events), key=lambda k: -(k.events or 0))[:count]
    return by_rows + [k for k in by_events if k not in by_rows]


@singledispatch
def _shard_keys(
    operator: Operator, store: StateStore, snapshot: Snapshot, number: int, shard: int, count: int
) -> Iterator[HotKey]:
    raise_unregistered(operator, "slackwater.maintenance.state_sizes")


@_shard_keys.register(WindowOperator)
def _(
    logic: WindowOperator, store: StateStore, snapshot: Snapshot, number: int, shard: int, count: int
) -> Iterator[HotKey]:
    rows = snapshot.reader(shard, logic, number).scan()
    counter = next((a for a in logic.aggs if a.spec.agg == "count" and not a.columns), None)
    events = pl.lit(None, pl.Int64)
    if counter is not None:
        events = pl.col(counter.part("n")).filter(pl.col("__kind").is_in(OPEN)).sum()
    grouped = rows.group_by(logic.key_names or ["__kh"]).agg(pl.len().alias("__rows"), events.alias("__events"))
    for by in ("__rows", *(["__events"] if counter is not None else [])):
        for row in grouped.top_k(count, by=by).iter_rows(named=True):
            yield HotKey(number, "", to_plain_key(row, logic.key_names), row["__rows"], row["__events"])


@_shard_keys.register
def _(
    logic: IntervalJoinOperator, store: StateStore, snapshot: Snapshot, number: int, shard: int, count: int
) -> Iterator[HotKey]:
    state, epoch = snapshot.commit.stages[number], snapshot.commit.epoch
    buffers = store.shard(shard, state.shards, epoch, state.segments[shard], number).buffers(logic)
    for side in logic.sides:
        names = [k.name for k in side.keys]
        rows = buffers.scan(side.which, state.watermark_us)
        for row in rows.group_by(names).agg(pl.len().alias("__rows")).top_k(count, by="__rows").iter_rows(named=True):
            yield HotKey(number, side.name, to_plain_key(row, names), row["__rows"], None)


@_shard_keys.register
def _(
    logic: KeyedOperator, store: StateStore, snapshot: Snapshot, number: int, shard: int, count: int
) -> Iterator[HotKey]:
    """Yield the keys with the most state rows. If two have equally many rows, the one with later events comes first."""
    rows = logic.drop_expired(snapshot.reader(shard, logic, number).scan(), snapshot.commit.stages[number].watermark_us)
    grouped = rows.group_by(logic.key_names).agg(pl.len().alias("__rows"), pl.col("__last").max())
    for row in grouped.top_k(count, by=["__rows", "__last"]).iter_rows(named=True):
        yield HotKey(number, "", to_plain_key(row, logic.key_names), row["__rows"], None)


@_shard_keys.register
def _(
    logic: StatelessOperator, store: StateStore, snapshot: Snapshot, number: int, shard: int, count: int
) -> Iterator[HotKey]:
    yield from ()
