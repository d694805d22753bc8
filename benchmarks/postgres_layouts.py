"""`python -m benchmarks.postgres_layouts`: compare the server's cost of table layouts for rows by key, without Spark.

Each layout stores --keys rows and runs --epochs epochs that update --touched random keys. Two processes with a shard each read these
rows and write new versions. Then one commit makes the epoch visible. All layouts must end with the same rows.

    upsert      workers COPY into an unlogged table; the commit upserts it on one connection
    hot         like upsert, with rounded due times in the index, so that most updates do not change the indexes
    no-due      like upsert, without an index on due times
    slots       workers upsert in parallel into the older of two rows per key; the commit is one row
    versions    workers COPY new versions into the same table; the commit is one row; old versions are deleted during the next epoch
    log         like versions, in a separate table that is merged into the state table every eighth epoch; read from copies
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
import polars as pl
import psutil
import psycopg

from slackwater.state.postgres import client
from slackwater.testing.services import Postgres

LOADS, FOLD, SHARDS, BASE_US, STEP_US, GAP_US = 5, 8, 2, 1_700_000_000_000_000, 10_000_000, 30_000_000
TYPES = {
    "unit": "bigint NOT NULL", "key_hash": "bigint NOT NULL", "kind": "smallint NOT NULL", "window_start": "timestamptz",
    "last_event": "timestamptz", "closes_at": "timestamptz", "looked_at": "timestamptz", "k": "bigint", "n": "bigint", "total": "bigint", "biggest": "bigint",
}  # fmt: skip
COLUMNS = list(TYPES)
DECLARED = ", ".join(f"{c} {t}" for c, t in TYPES.items())
LISTED = ", ".join(COLUMNS)
OWN = (
    f"pipeline_name text NOT NULL DEFAULT 'bench', {DECLARED}, ordinal integer NOT NULL, state_version integer NOT NULL DEFAULT 3,"
    " epoch bigint NOT NULL, updated_at timestamptz NOT NULL DEFAULT now()"
)
ROUND_US = 300_000_000  # `hot` and `slots` round the time in the index to this
SCHEMA = {
    c: pl.Int16() if c == "kind" else pl.Datetime("us", "UTC") if "timestamptz" in t else pl.Int64()
    for c, t in TYPES.items()
}


def hash_keys(keys: Any) -> Any:
    return (keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).astype(np.int64)


def new_key_rows(keys: Any, epoch: int) -> pl.DataFrame:
    """Return the rows of new keys, sorted by hash."""
    h, n = hash_keys(keys), len(keys)
    event_us = np.full(n, BASE_US + epoch * STEP_US)
    frame = pl.DataFrame({"unit": h, "key_hash": h, "kind": np.zeros(n, np.int16), "window_start": event_us, "last_event": event_us, "closes_at": event_us + GAP_US, "looked_at": (event_us + GAP_US) // ROUND_US * ROUND_US,
                          "k": keys, "n": np.ones(n, np.int64), "total": keys % 100, "biggest": keys % 100})  # fmt: skip
    return frame.cast(SCHEMA).sort("unit")


def updated_rows(rows: pl.DataFrame, epoch: int) -> pl.DataFrame:
    """Return the new versions of existing rows."""
    event_us = pl.lit(BASE_US + epoch * STEP_US, pl.Int64)
    more = rows.with_columns(
        event_us.alias("last_event"),
        (event_us + GAP_US).alias("closes_at"),
        ((event_us + GAP_US) // ROUND_US * ROUND_US).alias("looked_at"),
        pl.col("n") + 1,
        pl.col("total") + 3,
    )
    return more.cast(SCHEMA).sort("unit")


def bigint_array_sql(hashes: Any) -> str:
    return "'{" + ",".join(np.char.mod("%d", hashes)) + "}'::bigint[]"


@dataclass(frozen=True)
class UpsertLayout:
    url: str
    due: str = "(closes_at)"
    options: str = " WITH (fillfactor = 80)"

    def create(self, db: Any) -> None:
        db.execute(f"CREATE TABLE s ({OWN}, PRIMARY KEY (unit, ordinal)){self.options}")
        db.execute(f"CREATE INDEX s_due ON s {self.due}")
        db.execute(f"CREATE UNLOGGED TABLE staged (token text NOT NULL, {DECLARED}, ordinal integer NOT NULL)")

    def read(self, hashes: Any, committed: int) -> pl.DataFrame:
        with client.arrow_cursor(self.url) as cursor:
            return client.fetch_frame(
                cursor, f"SELECT {LISTED} FROM s WHERE unit = ANY({bigint_array_sql(hashes)})", SCHEMA
            )

    def write(self, rows: pl.DataFrame, epoch: int, before: pl.DataFrame | None) -> list[Any]:
        token = uuid.uuid4().hex
        with client.arrow_cursor(self.url) as cursor:
            client.append_frame(
                cursor,
                "public",
                "staged",
                rows.with_columns(pl.lit(token).alias("token"), pl.lit(0, pl.Int32).alias("ordinal")),
            )
        return [token]

    def commit(self, db: Any, epoch: int, tokens: list[Any]) -> None:
        columns = [*COLUMNS, "ordinal"]
        values = ", ".join(f"{c} = excluded.{c}" for c in columns if c not in ("unit", "ordinal"))
        with db.transaction():
            db.execute("UPDATE p SET epoch = %s", (epoch,))
            db.execute("SELECT count(*) FROM staged WHERE token = ANY(%s)", (tokens,)).fetchone()
            db.execute(
                "DELETE FROM s USING staged t WHERE t.token = ANY(%s) AND t.kind = 3 AND s.unit = t.unit AND s.ordinal = t.ordinal",
                (tokens,),
            )
            db.execute(
                f"INSERT INTO s ({', '.join(columns)}, epoch) SELECT {', '.join(columns)}, {epoch} FROM staged WHERE token = ANY(%s)"
                f" AND kind <> 3 ON CONFLICT (unit, ordinal) DO UPDATE SET {values}, epoch = excluded.epoch, updated_at = now()", (tokens,),
            )  # fmt: skip
            db.execute("TRUNCATE staged")

    def delete_old_versions(self, db: Any, epoch: int, tokens: list[Any]) -> None:
        """Do nothing: this layout leaves no old versions."""

    newest = "SELECT {what} FROM s"


@dataclass(frozen=True)
class TwoSlotLayout(UpsertLayout):
    """Layout with two slots per key: the newest slot that is not newer than the committed epoch counts."""

    def create(self, db: Any) -> None:
        db.execute(f"CREATE TABLE s ({OWN}, slot smallint NOT NULL, PRIMARY KEY (unit, ordinal, slot)){self.options}")
        db.execute(f"CREATE INDEX s_due ON s {self.due}")

    def read(self, hashes: Any, committed: int) -> pl.DataFrame:
        with client.arrow_cursor(self.url) as cursor:
            rows = client.fetch_frame(
                cursor, f"SELECT {LISTED}, epoch, slot FROM s WHERE unit = ANY({bigint_array_sql(hashes)}) AND epoch <= {committed}",
                {**SCHEMA, "epoch": pl.Int64(), "slot": pl.Int16()},
            )  # fmt: skip
        return rows.sort("unit", "epoch").unique("unit", keep="last", maintain_order=True)

    def write(self, rows: pl.DataFrame, epoch: int, before: pl.DataFrame | None) -> list[Any]:
        # the new row of a key replaces its older version
        rows = (
            rows.with_columns((1 - pl.col("slot")).cast(pl.Int16))
            if "slot" in rows.columns
            else rows.with_columns(pl.lit(0, pl.Int16).alias("slot"))
        )
        frame = rows.select(*COLUMNS, "slot", pl.lit(0, pl.Int32).alias("ordinal"))
        columns = [*COLUMNS, "slot", "ordinal"]
        values = ", ".join(f"{c} = excluded.{c}" for c in columns if c not in ("unit", "ordinal", "slot"))
        with client.arrow_cursor(self.url) as cursor:
            cursor.execute("SET synchronous_commit = off")
            cursor.execute(f"CREATE TEMP TABLE IF NOT EXISTS mine ({DECLARED}, slot smallint, ordinal integer)")
            cursor.adbc_ingest(
                "mine", frame.to_arrow(compat_level=pl.CompatLevel.oldest()), mode="append", temporary=True
            )
            cursor.execute(
                f"INSERT INTO s ({', '.join(columns)}, epoch) SELECT {', '.join(columns)}, {epoch} FROM mine"
                f" ON CONFLICT (unit, ordinal, slot) DO UPDATE SET {values}, epoch = excluded.epoch, updated_at = now()"
            )
            cursor.execute("TRUNCATE mine")
        return []

    def commit(self, db: Any, epoch: int, tokens: list[Any]) -> None:
        db.execute("UPDATE p SET epoch = %s", (epoch,))

    newest = "SELECT DISTINCT ON (unit) {what} FROM s, p WHERE s.epoch <= p.epoch ORDER BY unit, s.epoch DESC"


@dataclass(frozen=True)
class VersionsLayout(UpsertLayout):
    """Layout with several versions per key. The reader of an old version identifies it by its location (`ctid`)."""

    options: str = ""
    index: str = "(unit)"

    def create(self, db: Any) -> None:
        db.execute(f"CREATE TABLE s ({OWN})")
        db.execute(f"CREATE INDEX s_unit ON s {self.index}")
        if self.due:
            db.execute(f"CREATE INDEX s_due ON s {self.due}")

    def read(self, hashes: Any, committed: int) -> pl.DataFrame:
        with client.arrow_cursor(self.url) as cursor:
            rows = client.fetch_frame(
                cursor, f"SELECT {LISTED}, epoch, (ctid::text::point)[0]::bigint AS page, (ctid::text::point)[1]::int AS line FROM s WHERE unit = ANY({bigint_array_sql(hashes)})"
                f" AND epoch <= {committed}", {**SCHEMA, "epoch": pl.Int64(), "page": pl.Int64(), "line": pl.Int32()},
            )  # fmt: skip
        return rows.sort("unit", "epoch").unique("unit", keep="last", maintain_order=True)

    def write(self, rows: pl.DataFrame, epoch: int, before: pl.DataFrame | None) -> list[Any]:
        frame = rows.select(*COLUMNS, pl.lit(0, pl.Int32).alias("ordinal"), pl.lit(epoch, pl.Int64).alias("epoch"))
        with client.arrow_cursor(self.url) as cursor:
            cursor.execute("SET synchronous_commit = off")
            client.append_frame(cursor, "public", "s", frame)
        if before is None:
            return []
        return [np.char.add(np.char.add(np.char.mod("(%d", before["page"]), ","), np.char.mod("%d)", before["line"]))]

    def commit(self, db: Any, epoch: int, replaced_tids: list[Any]) -> None:
        db.execute("UPDATE p SET epoch = %s", (epoch,))

    def delete_old_versions(self, db: Any, epoch: int, replaced_tids: list[Any]) -> None:
        for tids in replaced_tids:
            for part in np.array_split(tids, max(1, len(tids) // 20_000)):
                db.execute(
                    f"DELETE FROM s WHERE ctid = ANY('{{{','.join(chr(34) + t + chr(34) for t in part)}}}'::tid[]) AND epoch < {epoch}"
                )

    newest = "SELECT DISTINCT ON (unit) {what} FROM s, p WHERE s.epoch <= p.epoch ORDER BY unit, s.epoch DESC"


@dataclass(frozen=True)
class LogLayout(UpsertLayout):
    """Layout with a log of versions since the last merge, newest last. The process that wrote them keeps a copy."""

    written_frames: list[Any] = field(default_factory=list)
    parts: list[int] = field(default_factory=list)

    def create(self, db: Any) -> None:
        super().create(db)
        db.execute(
            f"CREATE TABLE log (part bigint NOT NULL, {DECLARED}, ordinal integer NOT NULL, epoch bigint NOT NULL, updated_at timestamptz NOT NULL DEFAULT now())"
        )
        db.execute("CREATE INDEX log_part ON log (part)")

    def read(self, hashes: Any, committed: int) -> pl.DataFrame:
        if committed % FOLD == FOLD // 2:
            self.written_frames.clear()
        frames, rest = [], hashes
        for frame in reversed(self.written_frames):
            h = frame["unit"].to_numpy()
            positions = np.minimum(np.searchsorted(h, rest), len(h) - 1)
            hit = h[positions] == rest
            frames.append(frame[positions[hit]])
            rest = rest[~hit]
        if len(rest):
            frames.append(super().read(rest, committed))
        return pl.concat(frames)

    def write(self, rows: pl.DataFrame, epoch: int, before: pl.DataFrame | None) -> list[Any]:
        part = int(uuid.uuid4().int >> 66)
        with client.arrow_cursor(self.url) as cursor:
            client.append_frame(
                cursor,
                "public",
                "log",
                rows.select(
                    pl.lit(part).alias("part"),
                    *COLUMNS,
                    pl.lit(0, pl.Int32).alias("ordinal"),
                    pl.lit(epoch, pl.Int64).alias("epoch"),
                ),
            )
        self.written_frames.append(rows)
        return [part]

    def commit(self, db: Any, epoch: int, new_parts: list[Any]) -> None:
        self.parts.extend(new_parts)
        columns = [*COLUMNS, "ordinal"]
        values = ", ".join(f"{c} = excluded.{c}" for c in columns if c not in ("unit", "ordinal"))
        with db.transaction():
            db.execute("UPDATE p SET epoch = %s", (epoch,))
            db.execute("SELECT count(*) FROM log WHERE part = ANY(%s)", (new_parts,)).fetchone()
            if epoch % FOLD != FOLD // 2:
                return
            db.execute("SET LOCAL work_mem = '64MB'")
            parts = (self.parts, list(range(len(self.parts))))
            db.execute(
                "WITH picked AS MATERIALIZED (SELECT l.*, p.at FROM log l JOIN unnest(%s::bigint[], %s::int[]) AS p (part, at) USING (part)),"
                f" newest AS (SELECT unit, max(at) AS at FROM picked GROUP BY unit) INSERT INTO s ({', '.join(columns)}, epoch)"
                f" SELECT {', '.join(columns)}, epoch FROM picked JOIN newest USING (unit, at) WHERE kind <> 3"
                f" ON CONFLICT (unit, ordinal) DO UPDATE SET {values}, epoch = excluded.epoch, updated_at = now()", parts,
            )  # fmt: skip
            db.execute(f"DELETE FROM log WHERE epoch <= {epoch}")
        self.parts.clear()
        db.execute("VACUUM log")


HOT = "(looked_at)"
WAYS = {
    "upsert": UpsertLayout,
    "hot": lambda url: UpsertLayout(url, HOT, " WITH (fillfactor = 70)"),
    "log": LogLayout,
    "no-due": lambda url: UpsertLayout(url, "(pipeline_name) WHERE false", " WITH (fillfactor = 70)"),
    "slots": lambda url: TwoSlotLayout(url, HOT, " WITH (fillfactor = 70)"),
    "versions": VersionsLayout,
}


def run_shard_epoch(way: Any, keys: Any, epoch: int, first: bool) -> tuple[list[Any], float, float]:
    """Run the part of one shard in an epoch. Return the seconds of reading and of writing."""
    began = time.perf_counter()
    before = None
    if first:
        rows, read = new_key_rows(keys, epoch), began
    else:
        before = way.read(np.sort(hash_keys(keys)), epoch - 1)
        assert before.height == len(keys), (before.height, len(keys), epoch)
        rows, read = updated_rows(before, epoch), time.perf_counter()
    commit_arguments = way.write(rows, epoch, before)
    return commit_arguments, read - began, time.perf_counter() - read


def _serve_shard_epochs(name: str, url: str, pipe: Any) -> None:
    way = WAYS[name](url)
    while (arguments := pipe.recv()) is not None:
        pipe.send(run_shard_epoch(way, *arguments))


@contextmanager
def start_shard_processes(name: str, url: str) -> Iterator[Any]:
    context = multiprocessing.get_context("spawn")
    pipes, children = [], []
    for _ in range(SHARDS):
        parent_end, worker_end = context.Pipe()
        child = context.Process(target=_serve_shard_epochs, args=(name, url, worker_end), daemon=True)
        child.start()
        pipes.append(parent_end)
        children.append(child)
    yield pipes
    for pipe, child in zip(pipes, children, strict=True):
        pipe.send(None)
        child.join(20)


def server_cpu_seconds(postgres: Postgres) -> float:
    """Return the CPU seconds of the server and its descendants, including processes that have ended."""
    assert postgres.process.child is not None
    server = psutil.Process(postgres.process.child.pid)
    seconds = 0.0
    for process in [server, *server.children(recursive=True)]:
        try:
            times = process.cpu_times()
            seconds += (
                times.user + times.system + (times.children_user + times.children_system if process == server else 0)
            )
        except psutil.NoSuchProcess:
            pass
    return seconds


class EpochRunner:
    """Epochs of one layout, one after the other, and their durations."""

    def __init__(self, way: Any, pipes: list[Any], db: Any, beside: Any, sweeping: ThreadPoolExecutor) -> None:
        self._way, self._pipes, self._db, self._beside, self._sweeping = way, pipes, db, beside, sweeping
        self.took: list[dict[str, float]] = []
        self.waiting: list[Future[None]] = []

    def run_epoch(self, number: int, chosen: Any, first: bool = False) -> None:
        began = time.perf_counter()
        for shard, pipe in enumerate(self._pipes):
            pipe.send((chosen[chosen % SHARDS == shard], number, first))
        done = [pipe.recv() for pipe in self._pipes]
        commit_arguments = [t for written, _, _ in done for t in written]
        ready = time.perf_counter()
        self._way.commit(self._db, number, commit_arguments)
        committed = time.perf_counter()
        if not first:
            self.waiting.append(
                self._sweeping.submit(self._way.delete_old_versions, self._beside, number, commit_arguments)
            )
            parts = {"read_s": max(d[1] for d in done), "write_s": max(d[2] for d in done)}
            self.took.append({"epoch_s": committed - began, **parts, "commit_s": committed - ready})


def measure_layout(postgres: Postgres, name: str, keys: int, touched: int, epochs: int) -> dict[str, Any]:
    chance, url = np.random.default_rng(1), postgres.database(name)
    way = WAYS[name](url)
    with (
        psycopg.connect(url, autocommit=True) as db,
        psycopg.connect(url, autocommit=True) as beside,
        start_shard_processes(name, url) as pipes,
        ThreadPoolExecutor(1) as sweeping,
    ):
        db.execute("CREATE TABLE p (epoch bigint)")
        db.execute("INSERT INTO p VALUES (-1)")
        way.create(db)
        run = EpochRunner(way, pipes, db, beside, sweeping)
        for number, part in enumerate(np.array_split(np.arange(keys), LOADS)):
            run.run_epoch(number, part, True)
        db.execute("VACUUM ANALYZE s")
        db.execute("CHECKPOINT")
        start, cost, log = (
            time.perf_counter(),
            server_cpu_seconds(postgres),
            fetch_row(db, "SELECT pg_current_wal_lsn()")[0],
        )
        for number in range(LOADS, LOADS + epochs):
            run.run_epoch(number, chance.choice(keys, touched, replace=False))
        stepped_s = time.perf_counter() - start
        for future in run.waiting:
            future.result()
        seconds, cost = time.perf_counter() - start, server_cpu_seconds(postgres) - cost
        written = fetch_row(db, f"SELECT pg_current_wal_lsn() - '{log}'::pg_lsn")[0]
        table, indexes = fetch_row(db, "SELECT pg_table_size('s'), pg_indexes_size('s')")
        newest_query = way.newest.format(what="s.*" if "DISTINCT" in way.newest else "*")
        answer = fetch_row(db, f"SELECT count(*), sum(n), sum(total), max(closes_at)::text FROM ({newest_query}) x")
    return {
        "way": name,
        "keys_per_s": round(touched * epochs / seconds),
        **{part: round(median(t[part] for t in run.took), 2) for part in run.took[0]},
        "slowest_s": round(max(t["epoch_s"] for t in run.took), 2),
        "sweeping_after_s": round(seconds - stepped_s, 2),
        "server_us_per_key": round(cost / touched / epochs * 1e6, 1),
        "log_bytes_per_key": round(float(written) / touched / epochs),
        "table_mib": table >> 20,
        "indexes_mib": indexes >> 20,
        "answer": [str(a) for a in answer],
    }


def fetch_row(db: Any, query: str) -> Any:
    return db.execute(query).fetchone()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--touched", type=int, default=200_000)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    answers = set()
    with Postgres.started() as postgres:
        for name in options.ways.split(","):
            figures = measure_layout(postgres, name, options.keys, options.touched, options.epochs)
            answers.add(tuple(figures.pop("answer")))
            print(json.dumps(figures), flush=True)
    if len(answers) > 1:
        raise SystemExit(f"the layouts end with different rows: {sorted(answers)}")


if __name__ == "__main__":
    main()
