"""`demo-kafka`: writes sessions from Kafka to Postgres on this machine. It kills the runner twice, and loses no click.

clicks ─▶ Kafka, 4 partitions ─▶ runner ─▶ Postgres: table sessions, and the state next to it
                                 ✖ kill -9, started again
"""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from slackwater.cli.output import program_command
from slackwater.errors import EpochError, Topic
from slackwater.testing.services import Kafka, Postgres

CONFIG = """name = "demo-kafka"

[connections.bus]
kind = "kafka"
bootstrap_servers = "${{KAFKA}}"

[connections.warehouse]
kind = "postgres"
url = "${{WAREHOUSE_URL}}"

[[sources]]
name = "clicks"
connection = "bus"
query = "clicks"
payload_format = "json"
schema = "user_id STRING, page STRING"
max_offsets_per_trigger = 20000

[transform.window]
kind = "session"
gap = "3s"
max_session_duration = "10m"
lateness = "1s"
group_by = ["user_id"]

[[transform.window.aggregations]]
agg = "count"
as = "clicks"

[[transform.window.aggregations]]
agg = "count_distinct"
column = "page"
as = "pages"

[target]
connection = "warehouse"
table = "public.sessions"

[state_store]
kind = "postgres"
url = "${{WAREHOUSE_URL}}"
"""
PAGES = ("/", "/search", "/cart", "/checkout", "/help", "/item/17", "/item/23")
QUIET_SECONDS = 10
STALLED_SECONDS = 300  # time without progress after which the demo fails; longer than any pause of a slow machine
COUNTS = "SELECT count(*), coalesce(sum(clicks), 0) FROM sessions"


class _Producer(threading.Thread):
    """A thread that sends Kafka `total` clicks from overlapping visits, at most `rate` per second."""

    def __init__(self, address: str, total: int, rate: int) -> None:
        super().__init__(daemon=True)
        self.address, self.total, self.rate, self.sent = address, total, rate, 0

    def run(self) -> None:
        from confluent_kafka import Producer

        producer = Producer(
            {"bootstrap.servers": self.address, "linger.ms": 20, "enable.idempotence": True, "log_level": 0}
        )
        chance, began = random.Random(3), time.monotonic()
        while self.sent < self.total:
            user = f"u{chance.randrange(40) + self.sent // 1500 * 7 % 400}"
            value = json.dumps({"user_id": user, "page": chance.choice(PAGES)})
            producer.produce("clicks", value, user)
            self.sent += 1
            producer.poll(0)
            ahead = self.sent / self.rate - (time.monotonic() - began)
            if ahead > 0.02:
                time.sleep(ahead)
        producer.flush()


def run_demo(rows: int, keep: bool = False) -> None:
    """Run a pipeline from Kafka to Postgres, kill it twice, and check that each click is counted exactly once.

    `rows`: the number of clicks. `keep`: whether to keep the services running until Ctrl-C.

    Raises EpochError if a click was lost or counted twice, or if the runner fails.
    """
    import psycopg

    console, began = Console(), time.monotonic()

    def say(line: str) -> None:
        console.print(f"{time.monotonic() - began:5.0f} s  {line}", highlight=False, soft_wrap=True)

    say("starting Kafka and Postgres on this machine (the first start downloads Kafka's jars)")
    with Kafka.started() as kafka, Postgres.started() as postgres, tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        kafka.create("clicks", 4)
        file = home / "demo-kafka.toml"
        file.write_text(CONFIG.format())
        environment = {**os.environ, "KAFKA": kafka.address, "WAREHOUSE_URL": postgres.url}
        say(f"producing {rows:,} clicks into topic clicks; the runner: slackwater run demo-kafka.toml")
        producer = _Producer(kafka.address, rows, rate=1000)
        producer.start()
        try:
            _run_killed(say, postgres.url, producer, home, file, environment)
            _compare(say, console, postgres.url, rows)
        except (EpochError, psycopg.Error) as error:
            if keep:
                console.print(f"error: {error}", highlight=False, soft_wrap=True, markup=False)
                _keep_up(console, file, kafka.address, postgres.url)
            raise
        if keep:
            _keep_up(console, file, kafka.address, postgres.url)
            return
    console.print(
        "Kafka, Postgres and the tables are removed; --keep keeps them running for inspection.\n\n"
        "Try next: put your own broker and database into the README's config, then run\n"
        f"  {program_command()} check FILE --connect     find what is unreachable or does not match\n"
        f"  {program_command()} explain FILE             show stages, state and delivery guarantee",
        highlight=False,
        soft_wrap=True,
    )


def _run_killed(say: Any, url: str, producer: _Producer, home: Path, file: Path, environment: dict[str, str]) -> None:
    """Run the pipeline to the end of the topic, killing it twice. Skip a kill once all clicks have been read."""
    rows = producer.total
    again = "kill -9: the runner died in the middle of an epoch; starting it again"
    for until, line in ((rows // 4, again), (rows * 3 // 4, "kill -9 again")):
        runner = _start(file, home, environment)
        try:
            _watch(say, url, runner, producer, home, until)
            if _has_read_all(url, rows):
                say("the runner has read the whole topic, so it is not killed again")
                _stop(say, runner, home)
                break
            say(line)
        finally:
            runner.kill()  # has no effect if the runner has already ended
            runner.wait()
    producer.join()
    say("all clicks are in Kafka; the last run reads the rest and closes all sessions: --available-now --flush")
    runner = _start(file, home, environment, "--available-now", "--flush")
    try:
        _wait_for_end(say, runner, home)
    finally:
        runner.kill()
        runner.wait()


def _compare(say: Any, console: Console, url: str, rows: int) -> None:
    """Compare the result table with the produced clicks. Raises EpochError if a click was lost or counted twice."""
    import psycopg

    sessions, clicks = _count_results(url)
    say(f"{clicks:,} of {rows:,} clicks are in {sessions:,} sessions")
    if clicks != rows:
        raise EpochError(
            f"demo-kafka: {rows:,} clicks were produced, but {clicks:,} are in the table; please report this bug",
            Topic.DEMO_FAILED,
        )
    with psycopg.connect(url, autocommit=True) as db:
        console.print(_longest_sessions(db))
    console.print(
        "No click was lost or counted twice: each commit writes state, offsets and results in one Postgres transaction.",
        highlight=False,
        soft_wrap=True,
    )


def _keep_up(console: Console, file: Path, kafka: str, postgres: str) -> None:
    """Print how to inspect the services, and keep them running until SIGINT or SIGTERM."""
    console.print(inspection_hints(file, kafka, postgres), highlight=False, soft_wrap=True, markup=False)
    _wait_until_stopped()
    console.print("Kafka and Postgres are stopped, and their data is removed.", highlight=False)


def inspection_hints(file: Path, kafka: str, postgres: str) -> str:
    """Return instructions for inspecting the services from another terminal."""
    call = program_command()
    return (
        "\nKafka and Postgres keep running until Ctrl-C. Run in another terminal:\n"
        f"  export KAFKA={shlex.quote(kafka)} WAREHOUSE_URL={shlex.quote(postgres)}\n"
        f"  {call} show {file}\n"
        f"  {call} run {file}\n"
        f"  {call} why {file}\n"
        f"  psql {shlex.quote(postgres)} -c 'SELECT * FROM sessions LIMIT 5'"
    )


def _wait_until_stopped() -> None:
    """Block until SIGINT or SIGTERM arrives."""
    stopped = threading.Event()
    handlers = {s: signal.signal(s, lambda *_: stopped.set()) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        while not stopped.wait(0.5):  # with a timeout, so that the handler can run
            pass
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _start(file: Path, home: Path, environment: dict[str, str], *flags: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "slackwater.cli.main", "run", str(file), *flags]
    with (home / "log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


def _watch(say: Any, url: str, runner: subprocess.Popen[bytes], producer: _Producer, home: Path, until: int) -> None:
    """Report progress until the table contains `until` clicks, or until the runner has read the whole topic.

    Raises EpochError if, for STALLED_SECONDS, no click is produced or emitted and the runner does not log a line.
    """
    reported_clicks, quiet, last_counts, last_progress = -1, _QuietNotice(say, home), (0, 0, 0), time.monotonic()
    while time.monotonic() - last_progress < STALLED_SECONDS:
        if runner.poll() is not None:
            _wait_for_end(say, runner, home)
        sessions, clicks = _count_results(url)
        if clicks != reported_clicks and clicks:
            say(f"{producer.sent:>7,} clicks produced, {clicks:>7,} in {sessions:>6,} closed sessions")
            reported_clicks, quiet = clicks, _QuietNotice(say, home)
        quiet.notify()
        if clicks >= until or (not producer.is_alive() and _has_read_all(url, producer.total)):
            return
        progress = (producer.sent, clicks, _log_bytes(home))
        if progress != last_counts:
            last_counts, last_progress = progress, time.monotonic()
        time.sleep(0.5)
    raise EpochError(
        f"demo-kafka: there was no progress for {STALLED_SECONDS} s; the log ends with: {_log_tail(home)}",
        Topic.DEMO_FAILED,
    )


def _count_results(url: str) -> tuple[int, int]:
    """Return the number of sessions in the table, and the number of clicks in them."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as db:
        exists = db.execute("SELECT to_regclass('public.sessions') IS NOT NULL").fetchone()
        row = db.execute(COUNTS).fetchone() if exists and exists[0] else None
    return (0, 0) if row is None else (int(row[0]), int(row[1]))


def _log_bytes(home: Path) -> int:
    return (home / "log").stat().st_size


def _has_read_all(url: str, rows: int) -> bool:
    """Return whether the latest commit includes all `rows` clicks. If so, no further click can close a session."""
    from slackwater.query.state_locator import list_pipelines, locate_store

    if "demo-kafka" not in list_pipelines(url):
        return False
    with closing(locate_store(url, "demo-kafka")) as store, store.peek() as snapshot:
        return snapshot is not None and sum(s.counters.get("rows_in", 0) for s in snapshot.commit.stages) >= rows


class _QuietNotice:
    """Prints the runner's last log line after every ten seconds without progress."""

    def __init__(self, say: Any, home: Path) -> None:
        self._say, self._home, self._since = say, home, time.monotonic()

    def notify(self) -> None:
        if time.monotonic() - self._since < QUIET_SECONDS:
            return
        self._since = time.monotonic()
        lines = (self._home / "log").read_text(errors="replace").splitlines()
        last = lines[-1].split(" ", 2)[-1] if lines else "starting"
        self._say(f"the runner: {last if len(last) <= 100 else last[:99] + '…'}")


def _wait_for_end(say: Any, runner: subprocess.Popen[bytes], home: Path) -> None:
    """Wait until a runner ends. Raises EpochError if the runner fails, or logs nothing for STALLED_SECONDS."""
    quiet, logged, last_progress = _QuietNotice(say, home), 0, time.monotonic()
    while runner.poll() is None and time.monotonic() - last_progress < STALLED_SECONDS:
        quiet.notify()
        if (size := _log_bytes(home)) != logged:
            logged, last_progress = size, time.monotonic()
        time.sleep(0.2)
    code = runner.poll()
    if code is None:
        raise EpochError(
            f"demo-kafka: the runner printed nothing for {STALLED_SECONDS} s; the log ends with: {_log_tail(home)}",
            Topic.DEMO_FAILED,
        )
    if code != 0:
        how = f"was ended by signal {-code}" if code < 0 else f"failed with exit code {code}"
        raise EpochError(f"demo-kafka: the runner {how}; the log ends with: {_log_tail(home)}", Topic.DEMO_FAILED)


def _stop(say: Any, runner: subprocess.Popen[bytes], home: Path) -> None:
    """Stop a runner with SIGINT, so that it finishes its epoch, and wait until it ends."""
    runner.send_signal(signal.SIGINT)
    quiet, end = _QuietNotice(say, home), time.monotonic() + STALLED_SECONDS
    while runner.poll() is None and time.monotonic() < end:
        quiet.notify()
        time.sleep(0.2)


def _log_tail(home: Path) -> str:
    return " | ".join((home / "log").read_text(errors="replace").splitlines()[-3:])


def _longest_sessions(db: Any) -> Table:
    table = Table(
        "user_id", "from", "to", "clicks", "pages", title="SELECT … FROM sessions ORDER BY clicks DESC LIMIT 5"
    )
    rows = db.execute(
        "SELECT user_id, window_start, window_end, clicks, pages FROM sessions ORDER BY clicks DESC, user_id LIMIT 5"
    )
    for user, start, end, clicks, pages in rows:
        table.add_row(user, f"{start:%H:%M:%S.%f}"[:-3], f"{end:%H:%M:%S.%f}"[:-3], str(clicks), str(pages))
    return table
