"""Replays of dead letters by seed: after a replay, the target contains the batch result of all rows."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.laws.oracles import window_oracle
from tests.support.local_pipeline_script import (
    KILL_POINTS,
    DeadLetterReplay,
    DriverCrash,
    LocalResult,
    MicroBatch,
    QuietInterval,
    run_local_script,
)

from slackwater.config.window import Aggregation, Window
from slackwater.state.protocol import StateStore

MS = 1000
GAP, DURATION = 5, 12  # milliseconds
SCHEMA = {"u": "string", "id": "bigint", "f": "double"}
AGGREGATIONS = [
    Aggregation(agg="count", as_="n"),
    Aggregation(agg="sum", column="id", as_="ids"),
    Aggregation(agg="count", column="f", as_="fs"),
    Aggregation(agg="sum", column="f", as_="total"),
    Aggregation(agg="avg", column="f", as_="mean"),
    Aggregation(agg="min", column="f", as_="low"),
    Aggregation(agg="max", column="f", as_="top"),
    Aggregation(agg="collect_set", column="f", as_="set", max_values_per_group=100),
]
Item = MicroBatch | QuietInterval | DriverCrash | DeadLetterReplay
Row = Mapping[str, Any]


def draw_window(rng: random.Random, **more: Any) -> Window:
    kind = rng.choice(["session", "session", "tumbling", "hopping"])
    shape: dict[str, Any] = {
        "session": {"gap_ms": GAP, "max_session_duration_ms": 100_000},
        "tumbling": {"duration_ms": DURATION, "offset_ms": rng.choice([0, 5])},
        "hopping": {"duration_ms": DURATION, "hop_ms": rng.choice([5, 4]), "offset_ms": rng.choice([0, -2])},
    }[kind]
    late = rng.choice(["dlq", "dlq", "reopen"])
    settings: dict[str, Any] = {"late_data": late, "lateness_ms": rng.choice([0, 0, 4, 15])}
    if late == "reopen":
        settings["allowed_lateness_ms"] = rng.choice([0, 3, 10, 40])
        settings["emit"] = rng.choice(["on_close", "updates", "final"])
    if kind == "session" or rng.random() < 0.9:
        settings["group_by"] = ["u"]
    settings |= {"emit_metadata": rng.random() < 0.5, "max_groups_per_window": 1000}
    return Window(kind=kind, aggregations=AGGREGATIONS, **shape, **settings, **more)


def draw_rows(rng: random.Random) -> list[dict[str, Any]]:
    """Draw rows in arrival order with jumps back in time. `id` is a power of two, so a sum identifies the rows."""
    now_ms, drawn_rows = rng.randint(-50, 20), list[dict[str, Any]]()
    for n in range(rng.randint(2, 28)):
        now_ms += rng.choice([0, 1, 2, GAP - 1, GAP, GAP + 1, DURATION, 25])
        back = rng.choice([0, 0, 0, 1, GAP, 2 * GAP, DURATION, 40, 80])
        value = rng.choice([None, 0.0, 2.5, -1.0, 7.0])
        drawn_rows.append(
            {"ts": (now_ms - back) * MS, "u": rng.choice(["a", "a", "b", None]), "id": 1 << n, "f": value}
        )
        if rng.random() < 0.1:
            drawn_rows.append(dict(drawn_rows[-1], id=0))  # rows that are equal except for the id
            drawn_rows.append(dict(drawn_rows[-1]))
    return drawn_rows


def draw_replay_script(rng: random.Random, input_rows: Sequence[Row], crashes: bool) -> list[Item]:
    edges = sorted(rng.sample(range(len(input_rows) + 1), min(len(input_rows), rng.randint(1, 7))))
    items: list[Item] = []
    for a, b in itertools.pairwise([0, *edges, len(input_rows)]):
        if b > a:
            items.append(MicroBatch({"a": input_rows[a:b]}))
        for item, chance in ((QuietInterval(500), 0.1), (DeadLetterReplay(rng.choice([None, 1, 3])), 0.2)):
            if rng.random() < chance:
                if crashes and rng.random() < 0.5:
                    items.append(DriverCrash(rng.choice(KILL_POINTS)))
                items.append(item)
    return items


def comparable_rows(rows_: Sequence[Row]) -> list[str]:
    plain_rows = [{k: v for k, v in sorted(r.items()) if not k.startswith("_") and k != "session_id"} for r in rows_]
    return sorted(repr({k: sorted(v) if isinstance(v, list) else v for k, v in r.items()}) for r in plain_rows)


def final_table_rows(result: LocalResult, upto: int | None = None) -> list[Row]:
    """Return the content of an upserting target."""
    rows_by_identity: dict[Any, Row] = {}
    for row in sorted([*result.rows, *({**g, "n": None} for g in result.gone)], key=lambda r: r["_epoch"]):
        if upto is not None and row["_epoch"] > upto:
            break
        name = (row["window_start"], row.get("u"))
        if row["n"] is None:
            assert rows_by_identity.pop(name, None) is not None, f"takes back what is not there: {row}"
        else:
            rows_by_identity[name] = row
    return list(rows_by_identity.values())


def check_dead_letter_replay(seed: int, store: Callable[[], StateStore] | None = None) -> LocalResult:
    rng = random.Random(seed)
    spec = draw_window(rng)
    input_rows = draw_rows(rng)
    shards = rng.choice([1, 2, 3])
    items = [
        *draw_replay_script(rng, input_rows, crashes=True),
        QuietInterval(1),
        MicroBatch({"a": [{"ts": 10**9, "u": "end", "id": 0, "f": None}]}),
    ]
    if rng.random() < 0.5:
        items.append(DriverCrash(rng.choice(KILL_POINTS)))
    result = run_local_script(
        spec, [*items, DeadLetterReplay(), DeadLetterReplay()], SCHEMA, shards=shards, store=store
    )
    everything = [*input_rows, {"ts": 10**9, "u": "end", "id": 0, "f": None}]
    assert comparable_rows(final_table_rows(result)) == comparable_rows(
        window_oracle.compute_windows_over_all_rows(spec, everything)
    )
    last = result.replays[-1]
    assert (last.applied, dict(last.remaining), last.before) == (0, {}, len(result.letters))
    assert result.counters.replayed == len(result.letters)
    if spec.kind == "session" and not spec.allowed_lateness_ms and spec.lateness_ms == 0:
        assert (result.open_sessions, result.open_keys) == (0, 0)
    return result
