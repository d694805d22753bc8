"""State in an unreliable bucket: crashes at any step and faults of requests do not change the results."""

from __future__ import annotations

import random
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.laws.generators import seed_runner
from tests.laws.generators.row_strategies import SHAPES
from tests.support.case_selection import select_cases
from tests.support.external_dependencies import skip_or_fail_without_dependency
from tests.support.local_pipeline_script import (
    KILL_POINTS,
    DriverCrash,
    LocalResult,
    MicroBatch,
    QuietInterval,
    run_local_script,
)
from tests.support.servers.object_store import Azurite, Fault, FaultyProxy, S3Server

from slackwater.config.window import Aggregation, Window
from slackwater.maintenance import verify_state
from slackwater.state.files.store import FilesStore

SCHEMA = {"k": "double", "u": "string", "id": "bigint", "x": "bigint", "f": "double"}
FAULTS: tuple[Fault, ...] = ("503", "dropped", "lost", "slow")


def window_of_kind(kind: str) -> Window:
    aggregations = [Aggregation(agg="count", as_="n"), Aggregation(agg="sum", column="id", as_="ids")]
    return Window(group_by=["k", "u"], aggregations=aggregations, **SHAPES[kind])


def comparable_rows(result: LocalResult) -> list[str]:
    """Return the rows without session ids and epochs, which differ after a crash."""
    return sorted(repr({k: v for k, v in r.items() if k not in ("session_id", "_epoch")}) for r in result.rows)


def draw_rows_input(rng: random.Random, epoch: int) -> MicroBatch:
    epoch_rows = []
    for n in range(rng.randrange(1, 6)):
        time_us = 1000 * (epoch * 9 + rng.randrange(14))
        epoch_rows.append(
            {
                "ts": time_us,
                "k": rng.choice([None, 0.0, 1.5]),
                "u": rng.choice(["a", None]),
                "id": 1 << (epoch * 6 + n) % 60,
                "x": 3,
                "f": 2.5,
            }
        )
    return MicroBatch({"a": epoch_rows})


def build_random_fault_selector(rng: random.Random, share: float) -> Callable[[str, str], Fault]:
    return lambda method, path: rng.choice(FAULTS) if rng.random() < share else ""


@pytest.fixture(scope="module")
def azure() -> Iterator[Azurite]:
    skip_or_fail_without_dependency("npm", shutil.which("npm") is not None, "apt-get install npm")
    with Azurite.started() as server:
        yield server


@pytest.fixture
def object_store_server(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> S3Server | Azurite:
    monkeypatch.setenv("SLACKWATER_CACHE_DIR", str(tmp_path / "cache"))
    object_store: S3Server | Azurite = request.getfixturevalue(request.param)
    return object_store


@pytest.mark.parametrize(
    ("kind", "object_store_server"),
    select_cases([*((kind, "s3") for kind in SHAPES), (next(iter(SHAPES)), "azure")]),
    indirect=["object_store_server"],
)
def test_crash_at_every_step_in_unreliable_bucket_does_not_change_results(
    kind: str, object_store_server: S3Server | Azurite
) -> None:
    """Crash once at every step of an epoch, and restart. One request in ten has a fault."""
    seed_runner.hide_warnings()
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    epochs = [draw_rows_input(rng, epoch) for epoch in range(len(KILL_POINTS) + 2)]
    torn: list[Any] = []
    for epoch, step in zip(epochs, [*rng.sample(KILL_POINTS, len(KILL_POINTS)), None, None], strict=True):
        torn += [*([DriverCrash(step, rng.choice([None, None, 1, 3]))] if step else []), epoch]
    torn.append(QuietInterval(10_000))
    whole = run_local_script(window_of_kind(kind), [*epochs, QuietInterval(10_000)], SCHEMA)
    bucket = object_store_server.create_bucket(f"b{uuid.uuid4().hex}")
    with FaultyProxy.start_proxy(object_store_server.port) as door:
        door.pause_s = 0.01
        door.judge = build_random_fault_selector(rng, 0.1)
        options = object_store_server.connection_options(door.port)
        interrupted = run_local_script(
            window_of_kind(kind), torn, SCHEMA, store=lambda: FilesStore(bucket, "law", options)
        )
        assert {fault for _, _, fault in door.faults} == set(FAULTS), seed
    assert comparable_rows(interrupted) == comparable_rows(whole) != [], seed
    assert interrupted.counters == whole.counters, seed
    assert verify_state(FilesStore(bucket, "law", object_store_server.connection_options())).problems == [], seed
