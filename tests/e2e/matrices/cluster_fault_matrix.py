"""The fault matrix of a cluster: a master, two workers on loopback, and a pipeline from Kafka, each with faults.

    python -m tests.e2e.matrices.cluster_fault_matrix --kills 5 --write docs/faults.md     (`make faults`)
    python -m tests.e2e.matrices.cluster_fault_matrix --bucket-only --kills 50 --faults 200 --write docs/faults.md

fault         executor, worker  killed by SIGKILL, the worker with its executors
              driver            killed by SIGKILL and started again in an empty directory
              speculation       an executor stalls, its tasks also run elsewhere, and then it continues
              storage           some requests to the S3 server are refused, cut off, executed with a lost response,
                                slow, or without a response

The state and the target of a cell are both in shared files, in one database, or in one bucket. `--bucket-only` is one
long run with sessions, results and dead letters in the bucket. Executors and drivers are killed under all storage
faults at once. Then the requests of the run are counted. Tables are compared as in `tests.e2e.matrices.kill_matrix`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
from tests.e2e.matrices.docs_results_table import DocsResultsTable
from tests.e2e.matrices.kill_matrix import KafkaAndPostgres, KillablePipeline
from tests.e2e.matrices.window_workload import BROKEN
from tests.support import cluster as clusters
from tests.support import cluster_faults, spark_jvm
from tests.support.cluster import SparkCluster
from tests.support.cluster_faults import PipelineUnderTest, inject_faults, kill_driver
from tests.support.kafka_topics import read_messages
from tests.support.servers.object_store import Fault, FaultyProxy, S3Server

from slackwater.connectors.files.output_directory import open_directory
from slackwater.state.files.store import FilesStore
from slackwater.testing.services import Kafka, Postgres

KINDS = ("session", "tumbling", "join", "chained")
STORES = {"files": "a shared directory", "postgres": "Postgres", "s3": "a bucket"}
FAULTS = ("executor", "worker", "driver", "speculation", "storage")
OF_STORAGE: tuple[Fault, ...] = ("503", "dropped", "lost", "slow", "hangs")
FAULT_NAMES = {"503": "refused", "dropped": "cut off", "hangs": "no response", "lost": "response lost"}  # on the page
SHARDS = 2
ANSWER_S = "5s"  # timeout of a request, which also ends a request that hangs
OF_EPOCH = {
    "shard": ("segments", "outputs"),
    "commit": ("manifests", "published", "reached", "offsets", "list", "forking"),
    "results": ("out",),
    "letters": ("letters",),
}
APART = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")  # as on another machine; needs root
SPECULATION = """"spark.speculation" = "true"
"spark.speculation.interval" = "50ms"
"spark.speculation.multiplier" = "1.1"
"spark.speculation.quantile" = "0.5"
"spark.speculation.minTaskRuntime" = "50ms"
"spark.eventLog.enabled" = "true"
"spark.eventLog.compress" = "false"
"spark.eventLog.rolling.enabled" = "false"
"""


@dataclass
class FaultyStorage:
    """An S3 server, and the proxy through which pipelines reach it."""

    s3: S3Server
    door: FaultyProxy
    rng: random.Random = field(default_factory=random.Random)

    @classmethod
    @contextmanager
    def started(cls) -> Iterator[FaultyStorage]:
        with S3Server.started() as s3, FaultyProxy.start_proxy(s3.port) as door:
            yield cls(s3, door)

    @contextmanager
    def inject_request_faults(self, rate: float) -> Iterator[None]:
        """Disturb this share of the requests, with each kind of fault equally often."""
        kinds = itertools.cycle(OF_STORAGE)
        self.door.judge = lambda method, path: next(kinds) if self.rng.random() < rate else ""
        try:
            yield
        finally:
            self.door.judge = lambda method, path: ""


@dataclass
class ClusterPipeline(KillablePipeline):
    """A pipeline whose driver always starts in an empty directory. `storage` is set if the store is a bucket."""

    cluster: SparkCluster | None = None
    storage: FaultyStorage | None = None
    speculates: bool = False
    elsewhere: bool = False  # drivers cannot see each other's processes, so only the lease shows which driver runs
    broken: float = 0  # the share of events that are not JSON and become dead letters
    bucket: str = ""

    def __post_init__(self) -> None:
        if self.storage is not None:
            self.bucket = self.storage.s3.create_bucket(f"cell{time.time_ns()}").rpartition("/")[0]
        super().__post_init__()

    # -- the config ----------------------------------------------------------------------------------------------

    def _extra_toml(self) -> str:
        spark = clusters.SPARK
        if self.speculates:
            (self.home / "events").mkdir()
            spark += f'{SPECULATION}"spark.eventLog.dir" = "file://{self.home}/events"\n'
        if not self.broken:
            return spark
        letters = f'[dead_letter]\nconnection = "out"\npath = "{self.bucket}/letters"\n'
        return f'{spark}\n[transform]\non_error = "dlq"\n\n{letters}'

    def _store_toml(self) -> str:
        if self.store == "s3":
            return f'kind = "files"\npath = "{self.bucket}/state"\noptions = {self._options_toml()}\nshards = {SHARDS}'
        return f"{super()._store_toml()}\nshards = {SHARDS}"

    def _target_toml(self) -> tuple[str, str]:
        if self.target == "s3":
            return f'kind = "files"\noptions = {self._options_toml()}', f'path = "{self.bucket}/out"'
        return super()._target_toml()

    def _options_toml(self) -> str:
        assert self.storage is not None
        s3_options = self.storage.s3.connection_options(self.storage.door.port) | {
            "timeout": ANSWER_S,
            "connect_timeout": ANSWER_S,
        }
        return "{ " + ", ".join(f'{k} = "{v}"' for k, v in s3_options.items()) + " }"

    def _fill_topic(self) -> str:
        return self.services.fill_events_topic(self.events, self.broken)

    # -- running -------------------------------------------------------------------------------------------------

    def start_driver(self) -> subprocess.Popen[bytes]:
        """Start a driver in new working, temporary and cache directories. Delete those of the previous driver."""
        assert self.cluster is not None
        shutil.rmtree(self.home / f"driver{self.starts}", ignore_errors=True)
        self.starts += 1
        here = self.home / f"driver{self.starts}"
        (here / "tmp").mkdir(parents=True)
        shutil.copy(self.config, here)
        environment = {
            "SLACKWATER_CACHE_DIR": f"{here}/cache",
            "TMPDIR": f"{here}/tmp",
            **self.cluster.driver_environment,
        }
        command = [*(APART if self.elsewhere else ()), sys.executable, "-m", "slackwater.cli.main"]
        command += ["run", self.config.name, "--available-now", "--flush"]
        with (self.home / "log").open("ab") as log:
            return subprocess.Popen(
                command,
                stderr=log,
                stdout=log,
                cwd=here,
                env={"SPARK_SUBMIT_OPTS": spark_jvm.QUICK, **os.environ, **environment},
                start_new_session=True,
            )

    def read_committed_epoch(self) -> int:
        """Return the latest epoch."""
        if self.store == "postgres":
            with psycopg.connect(self.url) as db:
                if db.execute("SELECT to_regclass('slackwater_pipelines')").fetchone() == (None,):
                    return -1
                row = db.execute("SELECT max(epoch) FROM slackwater_pipelines").fetchone()
            return -1 if row is None or row[0] is None else int(row[0])
        return max(self.open_store().epochs(), default=-1)

    def open_store(self) -> FilesStore:
        """Open the store without the proxy."""
        if self.storage is None:
            return FilesStore(str(self.home / "state"), self.name)
        return FilesStore(f"{self.bucket}/state", self.name, self.storage.s3.connection_options())

    def run_through_faults(
        self, faults: Sequence[str], rng: random.Random
    ) -> tuple[Counter[str], subprocess.Popen[bytes]]:
        """Inject all of these faults. Return how many took effect, and the driver that is still running."""
        assert self.cluster is not None
        driven = PipelineUnderTest(
            self.start_driver, self.read_committed_epoch, self.read_log, 0.05 if self.storage is None else 0.3
        )
        return inject_faults(self.cluster, driven, faults, rng)

    def wait_for_success(self, process: subprocess.Popen[bytes]) -> None:
        try:
            assert process.wait(timeout=1200) == 0, f"{self.name}: {self.read_log()[-3000:]}"
        finally:
            kill_driver(process)

    def count_speculative_tasks(self) -> int:
        """Count the tasks that ran a second time during the first attempt, according to Spark's event log."""
        return sum(
            '"Speculative":true' in line and line.startswith('{"Event":"SparkListenerTaskStart"')
            for log in (self.home / "events").iterdir()
            for line in log.read_text().splitlines()
        )

    # -- the verdict ----------------------------------------------------------------------------------------------

    def _output_directory(self) -> Path:
        return self._fetch_directory("out") if self.target == "s3" else super()._output_directory()

    def _fetch_directory(self, name: str) -> Path:
        assert self.storage is not None
        return open_directory(f"{self.bucket}/{name}", self.storage.s3.connection_options()).local_copy()

    def compare_dead_letters(self) -> tuple[int, int, int]:
        """Count the expected, lost, and duplicated or wrong dead letters, by the offsets of the non-JSON records."""
        sent = Counter(
            (m.partition(), m.offset())
            for m in read_messages(self.services.kafka.address, self._fill_topic())
            if m.value() == BROKEN.encode()
        )
        files = list(self._fetch_directory("letters").glob("*.parquet"))
        stored = Counter(pl.concat([pl.read_parquet(f) for f in files]).select("partition", "offset").rows())
        return sent.total(), (sent - stored).total(), (stored - sent).total()


def run_matrix_cell(
    services: KafkaAndPostgres, cluster: SparkCluster, kind: str, store: str, fault: str, arguments: argparse.Namespace
) -> tuple[Any, ...]:
    """Run one cell of the matrix. Return its description and the expected, lost, and duplicated or wrong rows."""
    seed = random.randrange(10**6)
    with ExitStack() as stack:
        storage = stack.enter_context(FaultyStorage.started()) if store == "s3" else None
        per_epoch = arguments.events // (2 * arguments.kills + 6)
        pipeline = ClusterPipeline(
            services,
            store,
            store,
            kind,
            arguments.events,
            per_epoch,
            cluster=cluster,
            storage=storage,
            speculates=fault == "speculation",
            elsewhere=fault == "driver" and store == "s3" and os.geteuid() == 0,
        )
        faults = {"storage": [], "speculation": ["stall"] * arguments.kills}.get(fault, [fault] * arguments.kills)
        if storage is not None and fault == "storage":
            storage.rng.seed(seed)
            stack.enter_context(storage.inject_request_faults(arguments.rate))
        done, process = pipeline.run_through_faults(faults, random.Random(seed))
        pipeline.wait_for_success(process)
        assert done.total() == len(faults), f"{pipeline.name} ended before all faults (seed {seed}): {done}"
        summary = f"{done[fault]}"
        if fault == "speculation":
            summary = f"{done['stall']} stalled, {pipeline.count_speculative_tasks()} tasks tried twice"
        elif storage is not None and fault == "storage":
            kinds = Counter(f for _, _, f in storage.door.faults)
            assert kinds, "no request met a fault"
            summary = format_fault_counts(kinds)
        return (
            kind,
            STORES[store],
            fault,
            f"{summary} (seed {seed})",
            pipeline.read_committed_epoch() + 1,
            *pipeline.compare_with_batch_result(),
        )


def format_fault_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{FAULT_NAMES.get(name, name)}: {n}" for name, n in sorted(counts.items()))


def interleave_cells_by_store(
    kinds: Sequence[str], stores: Sequence[str], faults: Sequence[str]
) -> Iterator[tuple[str, str, str]]:
    """Yield all cells in an order that alternates stores. A run that ends early then covers many combinations."""
    for turn in range(len(stores)):
        for (n, fault), (m, kind) in itertools.product(enumerate(faults), enumerate(kinds)):
            store = stores[(n + m + turn) % len(stores)]
            if fault == "storage":
                if turn == 0 and "s3" in stores:
                    yield kind, "s3", fault
            else:
                yield kind, store, fault


def run_pipeline_in_bucket(
    services: KafkaAndPostgres, cluster: SparkCluster, arguments: argparse.Namespace, page: Path | None
) -> bool:
    """Run with sessions, state, results and dead letters in one bucket. Return whether the run succeeded."""
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    faults = ["driver" if n % 10 < 3 else "executor" for n in range(arguments.kills)]
    rng.shuffle(faults)
    table = DocsResultsTable(
        "bucket",
        ["what", "events", "epochs", "killed", "storage faults", "rows", "lost", "duplicated or wrong"],
        1,
        page,
    )
    with FaultyStorage.started() as storage:
        per_epoch = arguments.events // (arguments.kills * 3 // 2 + arguments.epochs)
        pipeline = ClusterPipeline(
            services,
            "s3",
            "s3",
            "session",
            arguments.events,
            per_epoch,
            cluster=cluster,
            storage=storage,
            broken=arguments.broken,
        )
        began = time.monotonic()
        storage.rng.seed(seed)
        with storage.inject_request_faults(arguments.rate):
            done, process = pipeline.run_through_faults(faults, rng)
            while len(storage.door.faults) < arguments.faults and process.poll() is None:
                time.sleep(0.2)
        print(f"{dict(done)} after {time.monotonic() - began:.0f} s, {len(storage.door.faults)} faults", flush=True)
        # the rest of the run has no faults, and its requests are counted
        first, seen = pipeline.read_committed_epoch(), len(storage.door.seen)
        pipeline.wait_for_success(process)
        last = pipeline.read_committed_epoch()
        requests = count_requests_by_folder(storage.door.seen[seen:])
        met = Counter(f for _, _, f in storage.door.faults)
        cells = (
            f"{arguments.events:,}",
            last + 1,
            f"{done['executor']} executors, {done['driver']} drivers (seed {seed})",
            format_fault_counts(met),
        )
        rows, letters = pipeline.compare_with_batch_result(), pipeline.compare_dead_letters()
        table.add_row("sessions", *cells, *rows)
        table.add_row("dead letters", "", "", "", "", *letters)
        epochs = last - first
        print(f"requests of {epochs} epochs: {json.dumps(requests, sort_keys=True)}")
        shares = {part: requests_per_epoch(requests, folders, epochs) for part, folders in OF_EPOCH.items()}
        shares["shard"] = round(shares["shard"] / SHARDS, 2)
        print(f"per epoch: {json.dumps(shares)}, the lease apart, which is renewed every 10 s")
        enough = done.total() == arguments.kills and met.total() >= arguments.faults
        if not enough:
            print(f"too few: {done}, {met.total()} faults, wanted {arguments.kills} and {arguments.faults}")
        return enough and not any((*rows[1:], *letters[1:]))


def count_requests_by_folder(seen: Sequence[tuple[str, str]]) -> Mapping[str, int]:
    """Count how often each method was used on each folder of the state, the results and the dead letters."""
    kinds: Counter[str] = Counter()
    for method, path in seen:
        parts = path.split("?")[0].strip("/").split("/")[1:]
        where = parts[2] if parts[:1] == ["state"] and len(parts) > 2 else (parts[0] if parts else "list")
        kinds[f"{method} {where}"] += 1
    return kinds


def requests_per_epoch(requests: Mapping[str, int], folders: Sequence[str], epochs: int) -> float:
    return round(sum(n for kind, n in requests.items() if kind.split()[1] in folders) / max(epochs, 1), 2)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--events", type=int, default=20_000)
    options.add_argument("--kills", type=int, default=3, help="of each cell")
    options.add_argument("--faults", type=int, default=200, help="of storage, at least, with --bucket-only")
    options.add_argument("--epochs", type=int, default=20, help="without a kill, at least, with --bucket-only")
    options.add_argument("--rate", type=float, default=0.2, help="which part of the requests meets a fault")
    options.add_argument(
        "--broken", type=float, default=0.0005, help="which part of the records is no JSON, with --bucket-only"
    )
    options.add_argument("--kinds", default=",".join(KINDS))
    options.add_argument("--stores", default=",".join(STORES))
    options.add_argument("--only", default=",".join(FAULTS), help="faults, with commas")
    options.add_argument("--bucket-only", action="store_true")
    options.add_argument("--write", type=Path)
    options.add_argument("--missing", action="store_true", help="cells that the page does not have yet")
    arguments = options.parse_args()
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    logging.getLogger(cluster_faults.__name__).setLevel(logging.INFO)  # log the progress
    head = ["kind", "state and target", "fault", "how often", "epochs", "rows", "lost", "duplicated or wrong"]
    table, failed = DocsResultsTable("cluster", head, 3, arguments.write), False
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slackwater-cluster-")))
        services = KafkaAndPostgres(
            stack.enter_context(Kafka.started()), stack.enter_context(Postgres.started()), home / "pipelines"
        )
        services.home.mkdir()
        cluster = stack.enter_context(clusters.run_cluster(home / "spark"))
        if arguments.bucket_only:
            return int(not run_pipeline_in_bucket(services, cluster, arguments, arguments.write))
        for kind, store, fault in interleave_cells_by_store(
            arguments.kinds.split(","), arguments.stores.split(","), arguments.only.split(",")
        ):
            if arguments.missing and table.has_row(kind, STORES[store], fault):
                continue
            row = run_matrix_cell(services, cluster, kind, store, fault, arguments)
            failed |= bool(row[-2] or row[-1])
            table.add_row(*row)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
