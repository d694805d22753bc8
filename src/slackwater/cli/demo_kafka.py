"""`demo-kafka`: Kafka to Postgres on this machine, with a runner that is killed on the way, and nothing lost.

clicks ─▶ Kafka, 4 partitions ─▶ runner ─▶ Postgres: table sessions, and the state beside it
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

from slackwater.cli.format import program
from slackwater.errors import EpochError
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
STALLED_SECONDS = 300  # without any news of the runner, which is a failure on the slowest machine, too
COUNTS = "SELECT count(*), coalesce(sum(clicks), 0) FROM sessions"


class _Producer(threading.Thread):
    """Clicks of visits that come and go, at about `rate` per second, until there are `total`."""

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
    """Start the services, run, kill, run again, compare; `keep`: leave them up until Ctrl-C.

    Raises EpochError if a click was lost or doubled.
    """
    import psycopg

    console, began = Console(), time.monotonic()

    def say(line: str) -> None:
        console.print(f"{time.monotonic() - began:5.0f} s  {line}", highlight=False, soft_wrap=True)

    say("starting Kafka and Postgres on this machine (the first time Kafka's jars are fetched)")
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
        "Kafka, Postgres and the tables are gone; with --keep they stay up, to be looked at.\n\n"
        "Try next: put your own broker and database into the config of the README, then\n"
        f"  {program()} check FILE --connect     what is unreachable, or does not fit\n"
        f"  {program()} explain FILE             stages, state, delivery guarantee",
        highlight=False,
        soft_wrap=True,
    )


def _run_killed(say: Any, url: str, producer: _Producer, home: Path, file: Path, environment: dict[str, str]) -> None:
    """Run the pipeline, kill it twice on the way unless it has read all by then, and run it to the end."""
    rows = producer.total
    again = "kill -9: the runner is dead in the middle of its work; starting it again"
    for until, line in ((rows // 4, again), (rows * 3 // 4, "kill -9 again")):
        runner = _start(file, home, environment)
        try:
            _watch(say, url, runner, producer, home, until)
            if _all_read(url, rows):
                say("the topic has been read to its end, so there is nothing left to kill the runner in")
                _stop(say, runner, home)
                break
            say(line)
        finally:
            runner.kill()  # nothing to a runner that has ended
            runner.wait()
    producer.join()
    say("all clicks are in Kafka; a last run reads the rest and closes what is open: --available-now --flush")
    runner = _start(file, home, environment, "--available-now", "--flush")
    try:
        _ended(say, runner, home)
    finally:
        runner.kill()
        runner.wait()


def _compare(say: Any, console: Console, url: str, rows: int) -> None:
    """Show what is in the table. Raises EpochError if a click was lost or doubled."""
    import psycopg

    sessions, clicks = _counted(url)
    say(f"{clicks:,} of {rows:,} clicks are in {sessions:,} sessions")
    if clicks != rows:
        raise EpochError(f"demo-kafka: {rows:,} clicks were produced and {clicks:,} are in the table; this is a bug")
    with psycopg.connect(url, autocommit=True) as db:
        console.print(_longest(db))
    console.print(
        "Nothing lost, nothing doubled: state, offsets and results are one transaction in Postgres.",
        highlight=False,
        soft_wrap=True,
    )


def _keep_up(console: Console, file: Path, kafka: str, postgres: str) -> None:
    """Leave the services up until somebody stops the demo."""
    console.print(look(file, kafka, postgres), highlight=False, soft_wrap=True, markup=False)
    _until_stopped()
    console.print("Kafka and Postgres are stopped, and what they held is removed.", highlight=False)


def look(file: Path, kafka: str, postgres: str) -> str:
    """How to look at what the demo left up, from another terminal."""
    call = program()
    return (
        "\nKafka and Postgres stay up until Ctrl-C. From another terminal:\n"
        f"  export KAFKA={shlex.quote(kafka)} WAREHOUSE_URL={shlex.quote(postgres)}\n"
        f"  {call} show {file}\n"
        f"  {call} run {file}\n"
        f"  {call} why {file}\n"
        f"  psql {shlex.quote(postgres)} -c 'SELECT * FROM sessions LIMIT 5'"
    )


def _until_stopped() -> None:
    """Wait for Ctrl-C, or for whoever ends this process kindly."""
    stopped = threading.Event()
    former = {s: signal.signal(s, lambda *_: stopped.set()) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        while not stopped.wait(0.5):  # with an end, so that the handler gets its turn
            pass
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _start(file: Path, home: Path, environment: dict[str, str], *flags: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "slackwater.cli.main", "run", str(file), *flags]
    with (home / "log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


def _watch(say: Any, url: str, runner: subprocess.Popen[bytes], producer: _Producer, home: Path, until: int) -> None:
    """Show the table filling until it holds so many clicks, or all that are in the topic were read.

    Any news is progress: a click that was produced or came out, and a line of the runner's log.
    """
    shown, quiet, news, last_progress = -1, _Quiet(say, home), (0, 0, 0), time.monotonic()
    while time.monotonic() - last_progress < STALLED_SECONDS:
        if runner.poll() is not None:
            _ended(say, runner, home)
        sessions, clicks = _counted(url)
        if clicks != shown and clicks:
            say(f"{producer.sent:>7,} clicks produced, {clicks:>7,} in {sessions:>6,} closed sessions")
            shown, quiet = clicks, _Quiet(say, home)
        quiet.look()
        if clicks >= until or (not producer.is_alive() and _all_read(url, producer.total)):
            return
        seen = (producer.sent, clicks, _log_bytes(home))
        if seen != news:
            news, last_progress = seen, time.monotonic()
        time.sleep(0.5)
    raise EpochError(f"demo-kafka: nothing moved for {STALLED_SECONDS} s: {_tail(home)}")


def _counted(url: str) -> tuple[int, int]:
    """How many sessions there are in the table, and how many clicks in them."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as db:
        exists = db.execute("SELECT to_regclass('public.sessions') IS NOT NULL").fetchone()
        row = db.execute(COUNTS).fetchone() if exists and exists[0] else None
    return (0, 0) if row is None else (int(row[0]), int(row[1]))


def _log_bytes(home: Path) -> int:
    return (home / "log").stat().st_size


def _all_read(url: str, rows: int) -> bool:
    """Whether the latest commit holds all clicks: what is left are sessions that no later click can close."""
    from slackwater.query.locate_state import names_at, store_at

    if "demo-kafka" not in names_at(url):
        return False
    with closing(store_at(url, "demo-kafka")) as store, store.peek() as snapshot:
        return snapshot is not None and sum(s.counters.get("rows_in", 0) for s in snapshot.commit.stages) >= rows


class _Quiet:
    """After every ten seconds without news: what the runner said last."""

    def __init__(self, say: Any, home: Path) -> None:
        self._say, self._home, self._since = say, home, time.monotonic()

    def look(self) -> None:
        if time.monotonic() - self._since < QUIET_SECONDS:
            return
        self._since = time.monotonic()
        lines = (self._home / "log").read_text(errors="replace").splitlines()
        last = lines[-1].split(" ", 2)[-1] if lines else "it is being started"
        self._say(f"the runner: {last if len(last) <= 100 else last[:99] + '…'}")


def _ended(say: Any, runner: subprocess.Popen[bytes], home: Path) -> None:
    """Wait for a runner's own end. Raises EpochError if it failed, or says nothing any more."""
    quiet, logged, last_progress = _Quiet(say, home), 0, time.monotonic()
    while runner.poll() is None and time.monotonic() - last_progress < STALLED_SECONDS:
        quiet.look()
        if (size := _log_bytes(home)) != logged:
            logged, last_progress = size, time.monotonic()
        time.sleep(0.2)
    code = runner.poll()
    if code is None:
        raise EpochError(f"demo-kafka: the runner said nothing for {STALLED_SECONDS} s: {_tail(home)}")
    if code != 0:
        how = f"was ended by signal {-code}" if code < 0 else f"failed with exit code {code}"
        raise EpochError(f"demo-kafka: the runner {how}: {_tail(home)}")


def _stop(say: Any, runner: subprocess.Popen[bytes], home: Path) -> None:
    """End a runner as Ctrl-C does: it finishes its epoch."""
    runner.send_signal(signal.SIGINT)
    quiet, end = _Quiet(say, home), time.monotonic() + STALLED_SECONDS
    while runner.poll() is None and time.monotonic() < end:
        quiet.look()
        time.sleep(0.2)


def _tail(home: Path) -> str:
    return " | ".join((home / "log").read_text(errors="replace").splitlines()[-3:])


def _longest(db: Any) -> Table:
    table = Table(
        "user_id", "from", "to", "clicks", "pages", title="SELECT … FROM sessions ORDER BY clicks DESC LIMIT 5"
    )
    rows = db.execute(
        "SELECT user_id, window_start, window_end, clicks, pages FROM sessions ORDER BY clicks DESC, user_id LIMIT 5"
    )
    for user, start, end, clicks, pages in rows:
        table.add_row(user, f"{start:%H:%M:%S.%f}"[:-3], f"{end:%H:%M:%S.%f}"[:-3], str(clicks), str(pages))
    return table
