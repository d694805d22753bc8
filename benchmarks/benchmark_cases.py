"""Cases of the benchmarks: streams, windows and goals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

S = TypeVar("S", "EventStream", "OrderStream")

SLACKWATER, HDFS, ROCKSDB = "slackwater", "native-hdfs", "native-rocksdb"
FLOOR = "floor"  # the same epochs with a step that does nothing: `no_op_step_baseline.py`
POSTGRES = "slackwater-postgres"  # Slackwater with its state in Postgres
SYSTEMS = (HDFS, ROCKSDB, SLACKWATER)
NATIVE = (HDFS, ROCKSDB)
MEASURED = (*SYSTEMS, FLOOR)  # the systems of every case
EPOCHS = 25  # enough for the compilers of all systems to finish
FEW_EPOCHS = 15  # for cases without a goal, whose native epochs are so long that compilers finish after a few


@dataclass(frozen=True)
class EventStream:
    """Stream of epochs with `rows` rows over `keys` keys and `step_s` seconds of event time each.

    Before these, `load_epochs` epochs put `idle_keys` other keys into the state, which do not occur again. A share `late` of
    the rows arrives up to a minute late.
    """

    keys: int
    rows: int
    step_s: int = 10
    epochs: int = EPOCHS
    idle_keys: int = 0
    load_epochs: int = 0
    late: float = 0.0


@dataclass(frozen=True)
class Window:
    """Window, in seconds: `length` is the gap of sessions or the duration of other windows. `reopen` is the allowed lateness."""

    kind: str
    length: int
    hop: int | None = None
    reopen: int | None = None


@dataclass(frozen=True)
class OrderStream:
    """Stream of epochs with `rows` orders and `rows` payments and `step_s` seconds of event time each.

    A payment follows its order within 1.1 times `within_s`. A share `hot` of the orders and payments has the same key. Every
    other order has a separate key.
    """

    rows: int
    step_s: int
    within_s: float
    epochs: int = EPOCHS
    hot: float = 0.0


@dataclass(frozen=True)
class Join:
    """Join of orders with the payments that follow within `within_s` seconds. `lateness_s` applies to both sides.

    With `kind = "left"`, unpaid orders are also emitted.
    """

    within_s: float
    lateness_s: int = 5
    kind: str = "inner"


@dataclass(frozen=True)
class BenchmarkCase:
    """One case of the benchmark, with its goals. A goal of None does not exist.

    `goal` is the speedup over the faster native store. `floor` is the largest ratio to the floor. `seconds` is the longest epoch.
    """

    name: str
    query: Window | Join
    stream: EventStream | OrderStream
    goal: float | None = None
    floor: float | None = None
    seconds: float | None = None

    @property
    def rows(self) -> int:
        """Return the rows of all sources per epoch."""
        return self.stream.rows * (2 if isinstance(self.stream, OrderStream) else 1)


WARM_UP = 5
MANY, FEW = 200_000, 10_000
CASES = (
    BenchmarkCase("sessions-200k", Window("session", 30), EventStream(MANY, 200_000), goal=3.0, floor=1.6),
    BenchmarkCase("sessions-1m", Window("session", 30), EventStream(MANY, 1_000_000, step_s=50), goal=3.0, floor=1.5),
    BenchmarkCase("hopping-1m", Window("hopping", 60, hop=10), EventStream(MANY, 1_000_000), goal=3.5, floor=1.5),
    BenchmarkCase("tumbling-1m", Window("tumbling", 60), EventStream(MANY, 1_000_000), goal=1.6, floor=1.4),
    BenchmarkCase("tumbling-1m-10k-keys", Window("tumbling", 60), EventStream(FEW, 1_000_000), goal=1.4, floor=1.25),
    BenchmarkCase("join-2m", Join(300), OrderStream(200_000, step_s=60, within_s=300), goal=4.0, floor=1.5),
    BenchmarkCase(
        "join-2m-left", Join(300, kind="left"), OrderStream(200_000, step_s=60, within_s=300, epochs=FEW_EPOCHS)
    ),
    # ten times as many keys as in sessions-1m, each with the same traffic
    BenchmarkCase(
        "sessions-1m-2m-keys", Window("session", 30), EventStream(10 * MANY, 1_000_000, step_s=5, epochs=FEW_EPOCHS)
    ),
    BenchmarkCase("tiny-2k", Window("session", 10), EventStream(FEW, 2_000, step_s=1, epochs=4 * EPOCHS), seconds=0.4),
)

# Slackwater alone, twice: the cost of keys that are only in the state. No session closes within the hour.
IDLE = "idle-keys"
IDLE_GOAL = 1.3
IDLE_WINDOW = Window("session", 3600)
IDLE_STREAMS = {
    "few": EventStream(100_000, 200_000, idle_keys=100_000, load_epochs=10),
    "many": EventStream(100_000, 200_000, idle_keys=10_000_000, load_epochs=10),
}

# Slackwater alone, twice: the cost of a key with a hundredth of the rows. Rows stay in the state for five minutes, as in the join
# above, but match only within three seconds: a hot key forms (hot rows) x (hot rows in the window) pairs, here 100 of each.
SKEWED = "join-skewed"
SKEWED_GOAL = 3.0
SKEWED_JOIN = Join(3, lateness_s=300)
SKEWED_STREAMS = {
    "uniform": OrderStream(200_000, step_s=60, within_s=3),
    "skewed": OrderStream(200_000, step_s=60, within_s=3, hot=0.01),
}

# From the start of the process to the first row in the output directory, on a small input.
FIRST_ROW = "first-row"
FIRST_ROW_GOAL = 12.0
FIRST_ROW_WINDOW = Window("tumbling", 10)
FIRST_ROW_STREAM = EventStream(100, 1_000, step_s=30, epochs=2)

# State in Postgres compared with Spark's native operator on RocksDB, and the updated keys per second, end to end.
IN_POSTGRES = "state-in-postgres"
IN_POSTGRES_CASE = CASES[0]
IN_POSTGRES_GOAL, TOUCHED_GOAL = 3.0, 100_000

# Slackwater alone, twice over the same rows: late rows are dropped, or correct results.
REOPEN = "reopen"
REOPEN_WINDOWS = {"drop": Window("session", 30), "reopen": Window("session", 30, reopen=60)}
REOPEN_STREAM = EventStream(MANY, 200_000, late=0.03)

# Kafka to Postgres, live: from the append of the record that ends a window to the row in the table.
LATENCY = "kafka-to-postgres"
LATENCY_ROWS_PER_S, LATENCY_SECONDS = 5_000, 60
LATENCY_GOALS = {"p50_s": 0.2, "p99_s": 0.35}

# JSON in a topic of twelve partitions, with a local broker, compared with the native operator on RocksDB
FROM_KAFKA = "from-kafka"
FROM_KAFKA_SYSTEMS = (ROCKSDB, SLACKWATER, FLOOR)
FROM_KAFKA_WINDOW = Window("session", 30)
FROM_KAFKA_STREAM = EventStream(MANY, 240_000, step_s=12)

NAMES = (*(case.name for case in CASES), IDLE, SKEWED, FIRST_ROW, IN_POSTGRES, REOPEN, FROM_KAFKA, LATENCY)
_LEFT_OUT_OF_QUICK = ("sessions-1m", "tumbling-1m", "tumbling-1m-10k-keys", "sessions-1m-2m-keys")


def shrink_stream(stream: S) -> S:
    """Return the stream with a twentieth of the rows and keys and fewer epochs, for a smoke test."""
    if isinstance(stream, OrderStream):
        return replace(stream, rows=stream.rows // 20, epochs=min(stream.epochs, WARM_UP + 3))
    return replace(
        stream,
        keys=stream.keys // 20,
        rows=stream.rows // 20,
        idle_keys=stream.idle_keys // 20,
        epochs=min(stream.epochs, WARM_UP + 3),
        load_epochs=min(stream.load_epochs, 1),
    )


def select_cases(only: list[str], small: bool) -> list[BenchmarkCase]:
    """Return the cases to run, in order."""
    cases = [c for c in CASES if c.name in only] if only else list(CASES)
    if not small:
        return cases
    return [replace(c, stream=shrink_stream(c.stream)) for c in cases if only or c.name not in _LEFT_OUT_OF_QUICK]
