"""Stories of a join for the tests of its block: orders and payments by user, some late, some without a key."""

from __future__ import annotations

import random
from typing import Any

from slackwater.config.join import Join
from slackwater.testing.kit import Rows, run_local

S = 1_000_000
SOURCES = ("orders", "payments")
LATENESS, AROUND = 30 * S, 120 * S


def story(seed: int) -> list[Rows]:
    dice, at, found = random.Random(seed), 0, []
    for _ in range(dice.randrange(4, 14)):
        at += dice.choice([S, 20 * S, 90 * S])
        rows: dict[str, list[dict[str, Any]]] = {}
        for source in SOURCES:
            rows[source] = [
                {
                    "ts": at - dice.choice([0, 5 * S, 40 * S, 300 * S]) - dice.randrange(S),
                    "user": dice.choice(["a", "a", "b", "c", "d", None]),
                }
                for _ in range(dice.randrange(12))
            ]
        found.append(Rows(rows))
    return found


def described(kind: str, **more: Any) -> Join:
    return Join(
        kind=kind,
        left_source="orders",
        right_source="payments",
        left_keys=["user"],
        right_keys=["user"],
        time_window_ms=AROUND // 1000,
        event_time_column="ts",
        lateness_ms=LATENESS // 1000,
        source_idleness_ms="1h",
        **more,
    )


def run(kind: str, script: list[Rows], **more: Any) -> Any:
    return run_local(described(kind), script, {"user": "string"}, SOURCES, flush=False, **more)
