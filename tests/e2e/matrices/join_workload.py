"""Joins of the fault matrix: two topics of related rows, and the expected results in SQL.

orders       ──●──────────────▶ event time     an order has up to three payments, most of them within the bounds; some
payments    ├─────────┤                        have none, some payments have no order, some rows have no key
          -2 s       5 s

A row is sent up to two seconds after its event time. Some rows are fully equal, so pairs are compared by count.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

START_MS = 1_700_000_000_000
LOWER_MS, UPPER_MS, DISORDER_MS = -2000, 5000, 2000
SIDES = ("orders", "payments")
SIDE = 'id bigint, amount bigint, "at" timestamptz'
COLUMNS = {
    "left_id": "bigint",
    "left_amount": "bigint",
    "left_at": "timestamptz",
    "right_id": "bigint",
    "right_amount": "bigint",
    "right_at": "timestamptz",
    "_event_ts": "timestamptz",
}

_MATCH = f"l.id = r.id AND r.at - l.at BETWEEN interval '{LOWER_MS} ms' AND interval '{UPPER_MS} ms'"
INNER = f"""
    SELECT l.id, l.amount, l.at, r.id, r.amount, r.at, greatest(l.at, r.at) FROM orders l JOIN payments r ON {_MATCH}"""
FULL = f"""{INNER} UNION ALL
    SELECT l.id, l.amount, l.at, NULL, NULL, NULL, l.at FROM orders l WHERE NOT EXISTS (SELECT FROM payments r WHERE {_MATCH})
    UNION ALL
    SELECT NULL, NULL, NULL, r.id, r.amount, r.at, r.at FROM payments r WHERE NOT EXISTS (SELECT FROM orders l WHERE {_MATCH})"""
TRUTH = {"join": INNER, "full-join": FULL}


def join_toml(kind: str, lateness_s: int) -> str:
    """Return the [transform.join] table for a kind in `TRUTH`."""
    sql = "SELECT id, amount, _event_ts AS at, _event_ts FROM source"
    return f"""[transform.join]
kind = "{"full" if kind == "full-join" else "inner"}"
left_source = "{SIDES[0]}"
right_source = "{SIDES[1]}"
left_keys = ["id"]
right_keys = ["id"]
lower_ms = {LOWER_MS}
upper_ms = {UPPER_MS}
lateness_ms = "{lateness_s}s"
left_sql = "{sql}"
right_sql = "{sql}"
"""


def generate_join_records(events: int) -> list[tuple[str, int, str]]:
    """Return this many rows in total, from both sides, in sending order: (side, time in ms, JSON)."""
    chance = random.Random(11)
    sent = [
        (time_ms + chance.randrange(DISORDER_MS), side, time_ms, json.dumps({"id": id_, "amount": chance.randrange(3)}))
        for side, time_ms, id_ in _orders_and_payments(chance, events)
    ]
    again = [
        (time_ms + chance.randrange(DISORDER_MS), side, time_ms, v)
        for _, side, time_ms, v in sent
        if chance.random() < 0.02
    ]
    return [(side, time_ms, value) for _, side, time_ms, value in sorted(sent + again)[:events]]


def _orders_and_payments(chance: random.Random, orders: int) -> Iterator[tuple[str, int, int | None]]:
    """Yield (side, time in ms, id) of this many orders and their payments. Two successive orders share an id."""
    now = START_MS
    for n in range(orders):
        now += chance.randrange(20)
        yield SIDES[0], now, n // 2 if chance.random() < 0.98 else chance.choice((None, -n))
        for _ in range(chance.choice((0, 1, 1, 1, 1, 2, 3))):
            apart = chance.choice((LOWER_MS, UPPER_MS)) if chance.random() < 0.05 else chance.randrange(-3000, 7000)
            yield SIDES[1], now + apart, n // 2 if chance.random() < 0.98 else None


def parse_record(message: Any) -> tuple[int | None, int, int]:
    """Return a record as a row of the expected table: (id, amount, time in ms)."""
    row = json.loads(message.value())
    return row["id"], row["amount"], message.timestamp()[1]
