"""`python -m benchmarks.postgres_layouts`: ways to keep rows by key in Postgres, alone, without Spark: what an epoch costs the server.

Each way holds KEYS rows and takes EPOCHS epochs of TOUCHED random keys: two processes, a shard each, read the touched rows and
write new versions of them, then one commit makes the epoch visible. All ways end with the same rows, which is checked.

    upsert      workers COPY into an unlogged table; the commit upserts it on one connection; index on the time a row is due
    hot         the same with an index that an update seldom changes: on the time rounded up, so that most updates stay on their page
    slots       workers upsert in parallel into the older of two rows per key; the commit is one row
    versions    workers COPY new versions beside the old ones; the commit is one row; old versions are deleted beside the next epoch
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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

FOLD, SHARDS, BASE_US, STEP_US, GAP_US = 8, 2, 1_700_000_000_000_000, 10_000_000, 30_000_000
TYPES = {
    "unit": "bigint NOT NULL", "key_hash": "bigint NOT NULL", "kind": "smallint NOT NULL", "window_start": "timestamptz",
    "last_event": "timestamptz", "closes_at": "timestamptz", "looked_at": "timestamptz", "k": "bigint", "n": "bigint", "total": "bigint", "biggest": "bigint",
}  # fmt: skip
COLUMNS = list(TYPES)
DECLARED = ", ".join(f"{c} {t}" for c, t in TYPES.items())
LISTED = ", ".join(COLUMNS)
OWN = (
    "pipeline_name text NOT NULL DEFAULT 'bench', {columns}, ordinal integer NOT NULL, state_version integer NOT NULL DEFAULT 3,"
    " epoch bigint NOT NULL, updated_at timestamptz NOT NULL DEFAULT now()"
).format(columns=DECLARED)
ROUND_US = 300_000_000  # of `hot` and `slots`: to what the time in the index is rounded
SCHEMA = {
    c: pl.Int16() if c == "kind" else pl.Datetime("us", "UTC") if "timestamptz" in t else pl.Int64()
    for c, t in TYPES.items()
}


def hashed(keys: np.ndarray) -> np.ndarray:
    return (keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).astype(np.int64)


def fresh(keys: np.ndarray, epoch: int) -> pl.DataFrame:
    """Rows of new keys, sorted by hash."""
    h, n = hashed(keys), len(keys)
    at = np.full(n, BASE_US + epoch * STEP_US)
    frame = pl.DataFrame({"unit": h, "key_hash": h, "kind": np.zeros(n, np.int16), "window_start": at, "last_event": at, "closes_at": at + GAP_US, "looked_at": (at + GAP_US) // ROUND_US * ROUND_US,
                          "k": keys, "n": np.ones(n, np.int64), "total": keys % 100, "biggest": keys % 100})  # fmt: skip
    return frame.cast(SCHEMA).sort("unit")


def stepped(rows: pl.DataFrame, epoch: int) -> pl.DataFrame:
    """What an epoch makes of rows that were there."""
    at = pl.lit(BASE_US + epoch * STEP_US, pl.Int64)
    more = rows.with_columns(
        at.alias("last_event"),
        (at + GAP_US).alias("closes_at"),
        ((at + GAP_US) // ROUND_US * ROUND_US).alias("looked_at"),
        pl.col("n") + 1,
        pl.col("total") + 3,
    )
    return more.cast(SCHEMA).sort("unit")


def listed(hashes: np.ndarray) -> str:
    return "'{" + ",".join(np.char.mod("%d", hashes)) + "}'::bigint[]"


@dataclass(frozen=True)
class Upsert:
    url: str
    due: str = "(closes_at)"
    options: str = " WITH (fillfactor = 80)"

    def create(self, db: Any) -> None:
        db.execute(f"CREATE TABLE s ({OWN}, PRIMARY KEY (unit, ordinal)){self.options}")
        db.execute(f"CREATE INDEX s_due ON s {self.due}")
        db.execute(f"CREATE UNLOGGED TABLE staged (token text NOT NULL, {DECLARED}, ordinal integer NOT NULL)")

    def read(self, hashes: np.ndarray, committed: int) -> pl.DataFrame:
        with client.arrow_cursor(self.url) as cursor:
            return client.fetch(cursor, f"SELECT {LISTED} FROM s WHERE unit = ANY({listed(hashes)})", SCHEMA)

    def write(self, rows: pl.DataFrame, epoch: int, before: pl.DataFrame | None) -> list[Any]:
        token = uuid.uuid4().hex
        with client.arrow_cursor(self.url) as cursor:
            client.append(
                cursor,
                "public",
                "staged",
                rows.with_columns(pl.lit(token).alias("token"), pl.lit(0, pl.Int32).alias("ordinal")),
            )
        return [token]

    def commit(self, db: Any, epoch: int, told: list[Any]) -> None:
        columns = [*COLUMNS, "ordinal"]
        values = ", ".join(f"{c} = excluded.{c}" for c in columns if c not in ("unit", "ordinal"))
        with db.transaction():
            db.execute("UPDATE p SET epoch = %s", (epoch,))
            db.execute("SELECT count(*) FROM staged WHERE token = ANY(%s)", (told,)).fetchone()
            db.execute(
                "DELETE FROM s USING staged t WHERE t.token = ANY(%s) AND t.kind = 3 AND s.unit = t.unit AND s.ordinal = t.ordinal",
                (told,),
            )
            db.execute(
                f"INSERT INTO s ({', '.join(columns)}, epoch) SELECT {', '.join(columns)}, {epoch} FROM staged WHERE token = ANY(%s)"
                f" AND kind <> 3 ON CONFLICT (unit, ordinal) DO UPDATE SET {values}, epoch = excluded.epoch, updated_at = now()", (told,),
            )  # fmt: skip
            db.execute("TRUNCATE staged")

    def sweep(self, db: Any, epoch: int, told: list[Any]) -> None:
        """Nothing is left over."""

    newest = "SELECT {what} FROM s"


@dataclass(frozen=True)
class Slots(Upsert):
    """`written`: what the committed epoch says; of two slots of a key the newest one that is not beyond it counts."""

    def create(self, db: Any) -> None:
        db.execute(f"CREATE TABLE s ({OWN}, slot smallint NOT NULL, PRIMARY KEY (unit, ordinal, slot)){self.options}")
        db.execute(f"CREATE INDEX s_due ON s {self.due}")

    def read(self, hashes: np.ndarray, committed: int) -> pl.DataFrame:
        with client.arrow_cursor(self.url) as cursor:
            rows = client.fetch(
                cursor, f"SELECT {LISTED}, epoch, slot FROM s WHERE unit = ANY({listed(hashes)}) AND epoch <= {committed}",
                {**SCHEMA, "epoch": pl.Int64(), "slot": pl.Int16()},
            )  # fmt: skip
        return rows.sort("unit", "epoch").unique("unit", keep="last", maintain_order=True)

    def write(self, rows: pl.DataFrame, epoch: int, before: pl.DataFrame | None) -> list[Any]:
        # a key's row goes where its newest version is not
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

    def commit(self, db: Any, epoch: int, told: list[Any]) -> None:
        db.execute("UPDATE p SET epoch = %s", (epoch,))

    newest = "SELECT DISTINCT ON (unit) {what} FROM s, p WHERE s.epoch <= p.epoch ORDER BY unit, s.epoch DESC"


@dataclass(frozen=True)
class Versions(Upsert):
    """Old versions are told by where they lie (`ctid`), which who read them knows."""

    options: str = ""
    index: str = "(unit)"

    def create(self, db: Any) -> None:
        db.execute(f"CREATE TABLE s ({OWN})")
        db.execute(f"CREATE INDEX s_unit ON s {self.index}")
        if self.due:
            db.execute(f"CREATE INDEX s_due ON s {self.due}")

    def read(self, hashes: np.ndarray, committed: int) -> pl.DataFrame:
        with client.arrow_cursor(self.url) as cursor:
            rows = client.fetch(
                cursor, f"SELECT {LISTED}, epoch, (ctid::text::point)[0]::bigint AS page, (ctid::text::point)[1]::int AS line FROM s WHERE unit = ANY({listed(hashes)})"
                f" AND epoch <= {committed}", {**SCHEMA, "epoch": pl.Int64(), "page": pl.Int64(), "line": pl.Int32()},
            )  # fmt: skip
        return rows.sort("unit", "epoch").unique("unit", keep="last", maintain_order=True)

    def write(self, rows: pl.DataFrame, epoch: int, before: pl.DataFrame | None) -> list[Any]:
        frame = rows.select(*COLUMNS, pl.lit(0, pl.Int32).alias("ordinal"), pl.lit(epoch, pl.Int64).alias("epoch"))
        with client.arrow_cursor(self.url) as cursor:
            cursor.execute("SET synchronous_commit = off")
            client.append(cursor, "public", "s", frame)
        if before is None:
            return []
        return [np.char.add(np.char.add(np.char.mod("(%d", before["page"]), ","), np.char.mod("%d)", before["line"]))]

    def commit(self, db: Any, epoch: int, told: list[Any]) -> None:
        db.execute("UPDATE p SET epoch = %s", (epoch,))

    def sweep(self, db: Any, epoch: int, told: list[Any]) -> None:
        for tids in told:
            for part in np.array_split(tids, max(1, len(tids) // 20_000)):
                db.execute(
                    f"DELETE FROM s WHERE ctid = ANY('{{{','.join(chr(34) + t + chr(34) for t in part)}}}'::tid[]) AND epoch < {epoch}"
                )

    newest = "SELECT DISTINCT ON (unit) {what} FROM s, p WHERE s.epoch <= p.epoch ORDER BY unit, s.epoch DESC"


@dataclass(frozen=True)
class Log(Upsert):
    """Versions since the last fold, newest last, as whoever wrote them keeps them."""

    mine: list[Any] = field(default_factory=list)
    parts: list[int] = field(default_factory=list)

    def create(self, db: Any) -> None:
        super().create(db)
        db.execute(
            f"CREATE TABLE log (part bigint NOT NULL, {DECLARED}, ordinal integer NOT NULL, epoch bigint NOT NULL, updated_at timestamptz NOT NULL DEFAULT now())"
        )
        db.execute("CREATE INDEX log_part ON log (part)")

    def read(self, hashes: np.ndarray, committed: int) -> pl.DataFrame:
        if committed % FOLD == FOLD // 2:
            self.mine.clear()
        found, rest = [], hashes
        for frame in reversed(self.mine):
            h = frame["unit"].to_numpy()
            at = np.minimum(np.searchsorted(h, rest), len(h) - 1)
            hit = h[at] == rest
            found.append(frame[at[hit]])
            rest = rest[~hit]
        if len(rest):
            found.append(super().read(rest, committed))
        return pl.concat(found)

    def write(self, rows: pl.DataFrame, epoch: int, before: pl.DataFrame | None) -> list[Any]:
        part = int(uuid.uuid4().int >> 66)
        with client.arrow_cursor(self.url) as cursor:
            client.append(
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
        self.mine.append(rows)
        return [part]

    def commit(self, db: Any, epoch: int, told: list[Any]) -> None:
        self.parts.extend(told)
        columns = [*COLUMNS, "ordinal"]
        values = ", ".join(f"{c} = excluded.{c}" for c in columns if c not in ("unit", "ordinal"))
        with db.transaction():
            db.execute("UPDATE p SET epoch = %s", (epoch,))
            db.execute("SELECT count(*) FROM log WHERE part = ANY(%s)", (told,)).fetchone()
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
    "upsert": Upsert,
    "hot": lambda url: Upsert(url, HOT, " WITH (fillfactor = 70)"),
    "log": Log,
    "upsert-no-due": lambda url: Upsert(url, "(pipeline_name) WHERE false", " WITH (fillfactor = 70)"),
    "slots": lambda url: Slots(url, HOT, " WITH (fillfactor = 70)"),
    "versions": Versions,
    "versions-no-due": lambda url: Versions(url, ""),
}


def work(way: Any, keys: np.ndarray, epoch: int, first: bool) -> tuple[list[Any], float, float]:
    """A shard's part of an epoch; seconds of reading and of writing."""
    began = time.perf_counter()
    before = None
    if first:
        rows, read = fresh(keys, epoch), began
    else:
        before = way.read(np.sort(hashed(keys)), epoch - 1)
        assert before.height == len(keys), (before.height, len(keys), epoch)
        rows, read = stepped(before, epoch), time.perf_counter()
    told = way.write(rows, epoch, before)
    return told, read - began, time.perf_counter() - read


def _serve(name: str, url: str, pipe: Any) -> None:
    way = WAYS[name](url)
    while (given := pipe.recv()) is not None:
        pipe.send(work(way, *given))


@contextmanager
def served(name: str, url: str) -> Iterator[Any]:
    context = multiprocessing.get_context("spawn")
    pipes, children = [], []
    for _ in range(SHARDS):
        mine, theirs = context.Pipe()
        child = context.Process(target=_serve, args=(name, url, theirs), daemon=True)
        child.start()
        pipes.append(mine)
        children.append(child)
    yield pipes
    for pipe, child in zip(pipes, children, strict=True):
        pipe.send(None)
        child.join(20)


def cpu(postgres: Postgres) -> float:
    """Processor seconds of the server and all that it started, ended ones too."""
    assert postgres.process.child is not None
    server = psutil.Process(postgres.process.child.pid)
    found = 0.0
    for process in [server, *server.children(recursive=True)]:
        try:
            times = process.cpu_times()
            found += (
                times.user + times.system + (times.children_user + times.children_system if process == server else 0)
            )
        except psutil.NoSuchProcess:
            pass
    return found


def measure(postgres: Postgres, name: str, keys: int, touched: int, epochs: int) -> dict[str, Any]:
    chance = np.random.default_rng(1)
    if True:
        url = postgres.database(name)
        way = WAYS[name](url)
        with psycopg.connect(url, autocommit=True) as db, psycopg.connect(url, autocommit=True) as beside:
            db.execute("CREATE TABLE p (epoch bigint)")
            db.execute("INSERT INTO p VALUES (-1)")
            way.create(db)
            with served(name, url) as pipes, ThreadPoolExecutor(1) as sweeping:

                def epoch(number: int, chosen: np.ndarray, first: bool) -> tuple[float, float, float, float]:
                    began, cost = time.perf_counter(), cpu(postgres)
                    for shard, pipe in enumerate(pipes):
                        pipe.send((chosen[chosen % SHARDS == shard], number, first))
                    done = [pipe.recv() for pipe in pipes]
                    told = [t for d in done for t in d[0]]
                    ready = time.perf_counter()
                    way.commit(db, number, told)
                    committed = time.perf_counter()
                    if not first:
                        waiting.append(sweeping.submit(way.sweep, beside, number, told))
                    return committed - began, max(d[1] for d in done), max(d[2] for d in done), committed - ready

                waiting: list[Any] = []
                for number, part in enumerate(np.array_split(np.arange(keys), 5)):
                    epoch(number, part, True)
                db.execute("VACUUM ANALYZE s")
                db.execute("CHECKPOINT")
                start, cost, wal = (
                    time.perf_counter(),
                    cpu(postgres),
                    db.execute("SELECT pg_current_wal_lsn()").fetchone()[0],
                )
                parts = []
                for number in range(5, 5 + epochs):
                    parts.append(epoch(number, chance.choice(keys, touched, replace=False), False))
                lag = time.perf_counter()
                for future in waiting:
                    future.result()
                seconds, lag = time.perf_counter() - start, time.perf_counter() - lag
            cost = cpu(postgres) - cost
            written = db.execute("SELECT pg_current_wal_lsn() - %s::pg_lsn", (wal,)).fetchone()[0]
            size = db.execute("SELECT pg_table_size('s'), pg_indexes_size('s')").fetchone()
            answer = db.execute(
                f"SELECT count(*), sum(n), sum(total), max(closes_at)::text FROM ({way.newest.format(what='*' if name in ('upsert', 'hot', 'upsert-no-due', 'log') else 's.*')}) x"
            ).fetchone()
            db.execute("SELECT pg_stat_force_next_flush()")
            hot = db.execute(
                "SELECT n_tup_upd, n_tup_hot_upd, n_dead_tup, autovacuum_count FROM pg_stat_user_tables WHERE relname = 's'"
            ).fetchone()
    return {
        "way": name,
        "keys_per_s": round(touched * epochs / seconds),
        "epoch_s": round(median(p[0] for p in parts), 2),
        "read_s": round(median(p[1] for p in parts), 2),
        "write_s": round(median(p[2] for p in parts), 2),
        "commit_s": round(median(p[3] for p in parts), 2),
        "sweep_lag_s": round(lag, 2),
        "server_us_per_key": round(cost / touched / epochs * 1e6, 1),
        "wal_bytes_per_key": round(float(written) / touched / epochs),
        "table_mib": size[0] >> 20,
        "indexes_mib": size[1] >> 20,
        "updates, hot, dead, vacuums": hot,
        "answer": [str(a) for a in answer],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--touched", type=int, default=200_000)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    with Postgres.started() as postgres:
        for name in options.ways.split(","):
            print(json.dumps(measure(postgres, name, options.keys, options.touched, options.epochs)), flush=True)


if __name__ == "__main__":
    main()
