"""Fault matrix: a Kafka pipeline is killed at named steps and at random, and must still produce the batch result.
After the kills, an older copy of the state is restored, and the next start must refuse the copy.

    python -m tests.e2e.matrices.kill_matrix --events 200000 --random 50 --write docs/faults.md        (`make faults`)

Postgres computes the batch result in SQL from the records of the topics, and every row is compared. `join_workload`
defines the joins.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import psycopg
from tests.e2e.matrices import join_workload, window_workload
from tests.e2e.matrices.docs_results_table import DocsResultsTable
from tests.e2e.matrices.window_workload import BROKEN, LATENESS_S
from tests.support.kafka_topics import read_messages

from slackwater.engine.kill_points import KILL_POINTS
from slackwater.testing.services import Kafka, Postgres

PARTITIONS = 4
NEWER = "the newer state"  # recovery option: restore the newer copy of the state
_NUMBERS = itertools.count()


@dataclass
class KafkaAndPostgres:
    """A broker, a Postgres server, and the directory of the run."""

    kafka: Kafka
    postgres: Postgres
    home: Path
    topics: dict[tuple[int, float], str] = field(default_factory=dict)
    joined: dict[int, Mapping[str, str]] = field(default_factory=dict)

    def fill_events_topic(self, events: int, broken: float = 0) -> str:
        """Return a topic with `events` events in four partitions. Disorder stays below the lateness.

        `broken` is the share of events that are not JSON.
        """
        if (events, broken) not in self.topics:
            name = f"events-{events}-{broken}"
            self.kafka.create(name, PARTITIONS)
            with kafka_sender(self.kafka.address) as send:
                for n, (user, value, time_ms) in enumerate(window_workload.generate_user_events(events, broken)):
                    send(name, value, user, n % PARTITIONS, time_ms)
            self.topics[events, broken] = name
        return self.topics[events, broken]

    def fill_join_topics(self, events: int) -> Mapping[str, str]:
        """Return the topics of both sides of a join, with `events` events in total and four partitions each."""
        if events not in self.joined:
            topics = {side: f"{side}-{events}" for side in join_workload.SIDES}
            for name in topics.values():
                self.kafka.create(name, PARTITIONS)
            with kafka_sender(self.kafka.address) as send:
                for n, (side, time_ms, value) in enumerate(join_workload.generate_join_records(events)):
                    send(topics[side], value, None, n % PARTITIONS, time_ms)
            self.joined[events] = topics
        return self.joined[events]


@contextmanager
def kafka_sender(address: str) -> Iterator[Callable[[str, str, str | None, int, int], None]]:
    """Yield a function that sends (topic, value, key, partition, time in ms). All records are flushed at the end."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "linger.ms": 20, "enable.idempotence": True})

    def send(topic: str, value: str, key: str | None, partition: int, at_ms: int) -> None:
        while True:
            try:
                producer.produce(topic, value, key, partition=partition, timestamp=at_ms)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)

    yield send
    assert producer.flush(60) == 0


@dataclass
class KillablePipeline:
    """A store and a target under test, with one kind of window or join.

    `url` is the URL of a separate database. `per_epoch` limits the rows that an epoch reads from all sources together.
    """

    services: KafkaAndPostgres
    store: str
    target: str
    window: str
    events: int
    per_epoch: int
    url: str = ""
    home: Path = field(default_factory=Path)
    starts: int = 0

    def __post_init__(self) -> None:
        self.name = f"{self.window}-{self.store}-{self.target}"
        self.home = self.services.home / f"{self.name}-{next(_NUMBERS)}"
        self.home.mkdir()
        self.url = self.services.postgres.database(self.home.name)
        if self.target == "kafka":
            self.services.kafka.create(self.home.name, 2)
        self.config = self.home / "pipeline.toml"
        self.config.write_text(self._config_toml())

    @property
    def is_join(self) -> bool:
        return self.window in join_workload.TRUTH

    @property
    def output_columns(self) -> Mapping[str, str]:
        """Return the output columns with their Postgres types."""
        return join_workload.COLUMNS if self.is_join else window_workload.COLUMNS

    @property
    def expected_rows_sql(self) -> str:
        """Return the SQL of the batch result."""
        return {**window_workload.TRUTH, **join_workload.TRUTH}[self.window]

    def _fill_topic(self) -> str:
        """Return the topic of the events that a window counts."""
        return self.services.fill_events_topic(self.events)

    def _config_toml(self) -> str:
        connection, target = self._target_toml()
        return f"""name = "{self.name}"
{self._extra_toml()}
[connections.bus]
kind = "kafka"
bootstrap_servers = "{self.services.kafka.address}"

[connections.out]
{connection}

{self._sources_and_step_toml()}
[target]
connection = "out"
{target}

[state_store]
{self._store_toml()}
"""

    def _extra_toml(self) -> str:
        """Return additional TOML tables."""
        return ""

    def _store_toml(self) -> str:
        if self.store == "postgres":
            return f'kind = "postgres"\nurl = "{self.url}"'
        return f'kind = "files"\npath = "{self.home}/state"'

    def _target_toml(self) -> tuple[str, str]:
        """Return the TOML of the target connection and of the target."""
        address = self.services.kafka.address
        return {
            "postgres": (f'kind = "postgres"\nurl = "{self.url}"', 'table = "public.out"'),
            "delta": ('kind = "delta"', f'path = "{self.home}/out"'),
            "files": ('kind = "files"', f'path = "{self.home}/out"'),
            "kafka": (
                f'kind = "kafka"\nbootstrap_servers = "{address}"',
                f'topic = "{self.home.name}"\ndelivery = "exactly_once"',
            ),
        }[self.target]

    def _sources_and_step_toml(self) -> str:
        if self.is_join:
            topics, schema = self.services.fill_join_topics(self.events), "id BIGINT, amount BIGINT"
            step = join_workload.join_toml(self.window, LATENESS_S)
        else:
            topics, schema = {"events": self._fill_topic()}, "`user` STRING, amount BIGINT"
            step = window_workload.format_window_steps_toml(self.window)
        sources = [
            f"""[[sources]]
name = "{name}"
connection = "bus"
query = "{topic}"
schema = '{schema}'
max_offsets_per_trigger = {self.per_epoch // len(topics)}
"""
            for name, topic in topics.items()
        ]
        return "\n".join([*sources, step])

    # -- running -------------------------------------------------------------------------------------------------

    def start_run(self, *flags: str, crash_at: str | None = None) -> subprocess.Popen[bytes]:
        self.starts += 1
        # a JVM that runs for seconds does not need the second compiler, and starts twice as fast without it
        environment = {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1", **os.environ, "SPARK_MASTER": "local[2]"}
        if crash_at:
            environment["SLACKWATER_CRASH_AT"] = crash_at
        command = [sys.executable, "-m", "slackwater.cli.main", "run", str(self.config), "--available-now", *flags]
        with (self.home / "log").open("ab") as log:
            return subprocess.Popen(command, stderr=log, stdout=log, env=environment, start_new_session=True)

    def read_log(self) -> str:
        return (self.home / "log").read_text()

    def run_until_kill_point(self, step: str) -> None:
        """Run until the process kills itself at a named step."""
        process = self.start_run(crash_at=step)
        code = process.wait(timeout=240)
        assert code == -signal.SIGKILL, f"{self.name}: {step} ended with {code}: {self.read_log()[-3000:]}"
        kill_process_group(process)

    def kill_randomly(self, chance: random.Random) -> None:
        """Kill the process at a random moment after some of its epochs."""
        before, process = len(self.read_log()) if (self.home / "log").exists() else 0, self.start_run()
        until = time.monotonic() + 180
        epochs = chance.randrange(4)
        while self.read_log()[before:].count("epoch=") < epochs and process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 1.5))
        assert process.poll() is None, f"{self.name} ended before it was killed: {self.read_log()[-3000:]}"
        process.send_signal(signal.SIGKILL)
        process.wait()
        kill_process_group(process)

    def run_to_completion(self) -> None:
        process = self.start_run("--flush")
        assert process.wait(timeout=600) == 0, f"{self.name}: {self.read_log()[-3000:]}"

    def read_late_result_count(self) -> str:
        """Return the number of results that were late for the next stage, from the last report in the log."""
        counts = re.findall(r"([\d,]+) results? late between stages", self.read_log())
        return counts[-1] if counts else "–"

    # -- a restored copy -----------------------------------------------------------------------------------------

    def restore_older_state_copy(self) -> str:
        """Copy the state, continue, and restore the copy. The next start must refuse it. Return the recovery option."""
        way = self._recovery_option()
        self._copy_state("older")
        self._run_and_kill(epochs=3)
        self._copy_state("newer")
        self._restore_state("older")
        before = len(self.read_log())
        assert self.start_run().wait(timeout=240) == 1, f"{self.name}: a restored copy was not refused"
        assert "the state is an older copy" in self.read_log()[before:], f"{self.name}: {self.read_log()[before:]}"
        if way == NEWER:
            self._restore_state("newer")
        else:
            self._run_and_kill(way, epochs=2)
        return f"refused; {way}"

    def _recovery_option(self) -> str:
        """Return the exact recovery option. Other options would write rows to topics and joined tables twice."""
        if self.target == "files":
            return "--put-aside-output"
        return NEWER if self.target == "kafka" or self.is_join else "--keep-output"

    def _run_and_kill(self, *flags: str, epochs: int) -> None:
        """Run for some epochs, then kill the process."""
        before, process, until = len(self.read_log()), self.start_run(*flags), time.monotonic() + 240
        while self.read_log()[before:].count("epoch=") < epochs and process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        assert process.poll() is None, f"{self.name} ended before it was killed: {self.read_log()[-3000:]}"
        process.send_signal(signal.SIGKILL)
        process.wait()
        kill_process_group(process)

    def _copy_state(self, name: str) -> None:
        if self.store == "files":
            shutil.copytree(self.home / "state", self.home / name)
            return
        with psycopg.connect(self.url) as db:
            db.execute(f"CREATE SCHEMA {name}")
            for table in self._state_tables(db):
                db.execute(f'CREATE TABLE {name}."{table}" AS TABLE public."{table}"')

    def _restore_state(self, name: str) -> None:
        if self.store == "files":
            shutil.rmtree(self.home / "state")
            shutil.copytree(self.home / name, self.home / "state")
            return
        with psycopg.connect(self.url) as db:
            for table in self._state_tables(db):
                db.execute(f'TRUNCATE public."{table}"')
                db.execute(f'INSERT INTO public."{table}" SELECT * FROM {name}."{table}"')

    @staticmethod
    def _state_tables(db: psycopg.Connection[Any]) -> list[str]:
        """Return the tables of the state, without the markers of targets."""
        rows = db.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename LIKE 'slackwater\\_%'"
            " AND tablename <> 'slackwater_targets'"
        )
        return [row[0] for row in rows]

    # -- the result ----------------------------------------------------------------------------------------------

    def compare_with_batch_result(self) -> tuple[int, int, int]:
        """Return the numbers of expected, lost, and duplicated or wrong rows. Equal rows count separately."""
        with psycopg.connect(self.url, options="-c timezone=UTC") as db:
            self._load_topics_into_tables(db)
            if self.target != "postgres":
                typed = ", ".join(f'"{name}" {kind}' for name, kind in self.output_columns.items())
                db.execute(f"CREATE TABLE out ({typed})")
                with db.cursor().copy("COPY out FROM STDIN") as copy:
                    for row in self._read_target_rows():
                        copy.write_row(row)
            names = ", ".join(f'"{name}"' for name in self.output_columns)
            db.execute(f"CREATE TABLE expected ({names}) AS {self.expected_rows_sql}")

            def count(query: str) -> int:
                row = db.execute(f"SELECT count(*) FROM ({query}) q").fetchone()
                return int(row[0]) if row else 0

            got = f"SELECT {names} FROM out"
            return (
                count("SELECT * FROM expected"),
                count(f"SELECT * FROM expected EXCEPT ALL {got}"),
                count(f"{got} EXCEPT ALL SELECT * FROM expected"),
            )

    def _load_topics_into_tables(self, db: psycopg.Connection[Any]) -> None:
        """Load the records of the topics into tables."""
        address = self.services.kafka.address
        if self.is_join:
            for side, topic in self.services.fill_join_topics(self.events).items():
                db.execute(f"CREATE TABLE {side} ({join_workload.SIDE})")
                with db.cursor().copy(f"COPY {side} FROM STDIN") as copy:
                    for message in read_messages(address, topic):
                        id_, amount, time_ms = join_workload.parse_record(message)
                        copy.write_row((id_, amount, _iso_time(time_ms)))
                db.execute(f"CREATE INDEX ON {side} (id)")
            return
        db.execute('CREATE TABLE truth (seq bigserial, "user" text, ts timestamptz, amount bigint)')
        with db.cursor().copy('COPY truth ("user", ts, amount) FROM STDIN') as copy:
            for message in read_messages(address, self._fill_topic()):
                if message.value() != BROKEN.encode():
                    row = json.loads(message.value())
                    copy.write_row((row["user"], _iso_time(message.timestamp()[1]), row["amount"]))
        db.execute('CREATE INDEX ON truth ("user", ts)')

    def _output_directory(self) -> Path:
        """Return the directory of the target files."""
        return self.home / "out"

    def _read_target_rows(self) -> Iterator[Sequence[Any]]:
        columns = list(self.output_columns)
        if self.target == "kafka":
            for message in read_messages(self.services.kafka.address, self.home.name):
                row = json.loads(message.value())
                yield [row[c] for c in columns]
            return
        if self.target == "delta":
            from deltalake import DeltaTable

            table = DeltaTable(str(self.home / "out")).to_pyarrow_table(columns=columns)
        else:
            import pyarrow.dataset as ds

            table = ds.dataset([str(p) for p in self._output_directory().glob("*.parquet")]).to_table(columns=columns)
        for row in table.to_pylist():
            yield [row[c] for c in columns]


def kill_process_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the process group of a killed driver. The Java process would end by itself, but later."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _iso_time(ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(ms // 1000)) + f".{ms % 1000:03}Z"


PAIRS = (("postgres", "postgres"), ("files", "postgres"), ("files", "delta"), ("postgres", "kafka"), ("files", "files"))


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--events", type=int, default=200_000)
    options.add_argument("--random", type=int, default=50)
    options.add_argument("--only", default="", help="store-target pairs, with commas")
    options.add_argument("--windows", default="session,tumbling,next-stage,join,full-join")
    options.add_argument("--write", type=Path)
    options.add_argument("--missing", action="store_true", help="what the page does not have yet")
    arguments = options.parse_args()
    head = [
        "kind",
        "state",
        "target",
        "events",
        "kills at named steps",
        "random kills",
        "restored copy",
        "late for the next stage",
        "rows",
        "lost",
        "duplicated or wrong",
    ]
    table = DocsResultsTable("kills", [*head, "when"], 3, arguments.write)
    failed = False
    with Kafka.started() as kafka, Postgres.started() as postgres, tempfile.TemporaryDirectory() as home:
        services = KafkaAndPostgres(kafka, postgres, Path(home))
        for window in arguments.windows.split(","):
            for store, target in PAIRS:
                if arguments.only and f"{store}-{target}" not in arguments.only.split(","):
                    continue
                if arguments.missing and table.has_row(window, store, target):
                    continue
                per_epoch = arguments.events // (2 * (len(KILL_POINTS) + arguments.random) + 18)
                pair = KillablePipeline(services, store, target, window, arguments.events, per_epoch)
                seed = random.randrange(10**6)
                chance = random.Random(seed)
                for step in KILL_POINTS:
                    pair.run_until_kill_point(step)
                for _ in range(arguments.random):
                    pair.kill_randomly(chance)
                restored = pair.restore_older_state_copy()
                pair.run_to_completion()
                expected, lost, wrong = pair.compare_with_batch_result()
                between = pair.read_late_result_count()
                failed |= bool(lost or wrong or (window == "next-stage" and between != "0"))
                killed = (len(KILL_POINTS), f"{arguments.random} (seed {seed})")
                cells = (f"{arguments.events:,}", *killed, restored, between, expected, lost, wrong)
                table.add_row(window, store, target, *cells, date.today().isoformat())
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
