"""Random join scenarios for the status page, and the waiting rows and pairs expected from their input rows."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tests.support.local_pipeline_script import MicroBatch, build_pipeline, run_local_script

from slackwater.cli.why import format_report
from slackwater.config.join import Join
from slackwater.state.files.store import FilesStore
from slackwater.ui.page_model import PageModel, PageSource, load_model

S = 1_000_000
SOURCES = ("orders", "payments")
LATENESS, AROUND = 30 * S, 120 * S
KINDS = ("inner", "left", "right", "full")


def draw_join_script(seed: int) -> list[MicroBatch]:
    dice, now_us, epochs = random.Random(seed), 0, []
    for _ in range(dice.randrange(4, 14)):
        now_us += dice.choice([S, 20 * S, 90 * S])
        rows: dict[str, list[dict[str, Any]]] = {}
        for source in SOURCES:
            rows[source] = [
                {
                    "ts": now_us - dice.choice([0, 5 * S, 40 * S, 300 * S]) - dice.randrange(S),
                    "user": dice.choice(["a", "a", "b", "c", "d", None]),
                }
                for _ in range(dice.randrange(12))
            ]
        epochs.append(MicroBatch(rows))
    return epochs


def join_spec(kind: str, **more: Any) -> Join:
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


def run_join(kind: str, script: list[MicroBatch], **more: Any) -> Any:
    return run_local_script(join_spec(kind), script, {"user": "string"}, SOURCES, flush=False, **more)


def load_join_page(kind: str, script: list[MicroBatch], home: Path, **more: Any) -> tuple[PageModel, Any]:
    join = join_spec(kind, **more)
    result = run_local_script(join, script, {"user": "string"}, SOURCES, flush=False, state_dir=str(home))
    watched = PageSource(build_pipeline(join, SOURCES), "p.toml", FilesStore(home, "law"), format_report)
    return load_model(watched, 0), result


def expected_join_state(script: list[MicroBatch]) -> tuple[list[list[dict[str, Any]]], int | None, int]:
    """Return the accepted rows of each side, marked if they have a partner, the watermark, and the number of pairs."""
    newest: dict[str, int] = {}
    watermark: int | None = None
    held: list[list[dict[str, Any]]] = [[], []]
    pairs = 0
    for item in script:
        for which, source in enumerate(SOURCES):
            for r in item.rows[source]:
                newest[source] = max(newest.get(source, r["ts"]), r["ts"])
                if r["user"] is None or (watermark is not None and r["ts"] < watermark):
                    continue
                row = {**r, "found": False}
                for other in held[1 - which]:
                    alive = watermark is None or other["ts"] + AROUND >= watermark
                    if alive and other["user"] == r["user"] and abs(other["ts"] - r["ts"]) <= AROUND:
                        row["found"] = other["found"] = True
                        pairs += 1
                held[which].append(row)
        if len(newest) == 2:
            least = min(newest.values()) - LATENESS
            watermark = least if watermark is None else max(watermark, least)
    return held, watermark, pairs
