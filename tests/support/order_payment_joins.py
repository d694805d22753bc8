"""Create orders, payments, and joins of both for tests on Spark."""

from __future__ import annotations

import random
from typing import Any

from tests.support.spark_pipeline_runner import SparkPipelineRunner

import slackwater as sw

ORDERS = "order_id INT, region STRING, amount DOUBLE, ts TIMESTAMP"
PAYMENTS = "paid_order BIGINT, region STRING, method STRING, ts TIMESTAMP"


def format_event_time(second: float) -> str:
    minutes, rest = divmod(second, 60)
    return f"2024-03-01T10:{int(minutes):02d}:{rest:06.3f}Z"


def write_order_and_payment_files(
    runner: SparkPipelineRunner, seed: int, late: bool = False
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Write two directories of five files each, with duplicates, NULL keys and disorder, and return their rows.

    Times are out of order by up to a minute. With `late`, some rows are up to 200 seconds older.
    """
    chance = random.Random(seed)
    orders: list[dict[str, Any]] = []
    payments: list[dict[str, Any]] = []
    for epoch in range(5):
        for rows, key, more in ((orders, "order_id", "amount"), (payments, "paid_order", "method")):
            some = []
            for _ in range(40):
                second = 60 * epoch + chance.randrange(600) / 10 - (chance.choice([0, 5, 200]) if late else 0)
                value = chance.choice([1.5, 0.0, None]) if more == "amount" else chance.choice(["card", "cash"])
                region = chance.choice(["eu", "us", None])
                some.append(
                    {key: chance.randrange(12), "region": region, more: value, "ts": format_event_time(max(second, 0))}
                )
                if chance.random() < 0.1:
                    some.append(dict(some[-1]))
            runner.write_input_file(f"{epoch}.jsonl", some, folder=key)
            rows += some
    return orders, payments


def build_order_and_payment_sources(runner: SparkPipelineRunner, files: tuple[int, int] = (1, 1)) -> list[Any]:
    return [
        runner.files_source(ORDERS, "orders", "order_id", max_files_per_trigger=files[0]),
        runner.files_source(PAYMENTS, "payments", "paid_order", max_files_per_trigger=files[1]),
    ]


def build_order_payment_join(kind: str = "inner", **settings: Any) -> Any:
    defaults: dict[str, Any] = {
        "left_keys": ["order_id", "region"],
        "right_keys": ["paid_order", "region"],
        "lower_ms": "-20s",
        "upper_ms": "30s",
        "event_time_column": "ts",
        "lateness_ms": "2m",
    }
    return sw.Join(kind=kind, left_source="orders", right_source="payments", **(defaults | settings))
