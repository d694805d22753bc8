"""The click stream of the demo: seeded, so that every run shows the same day."""

from __future__ import annotations

import datetime as dt
import json
import math
import os
import random
from collections.abc import Iterator
from pathlib import Path

MORNING = dt.datetime(2024, 3, 1, 6)
HOURS = 12
FILES = 4
USERS = 2000
DISORDER = 20.0  # seconds that a click may be overtaken by
OFFLINE = 8  # phones per file that deliver their clicks a file too late
PAGES = ("/", "/search", "/cart", "/checkout", "/help", "/offers", "/item/17", "/item/23", "/item/42")
Click = tuple[float, int, str]  # second of the day, user, page


def generate(home: Path, rows: int) -> int:
    """Write `web/*.jsonl` and `app/*.jsonl`, `rows` clicks in all; returns how many.

    A file is a slice of the day, in order of arrival: daily rhythm, visits of a few minutes, disorder within 20 s and a
    few clicks that come hours too late. The app falls silent after a third of the day.
    """
    rng = random.Random(17)
    clicks = sorted(_clicks(rng, rows), key=lambda c: c[0] + rng.uniform(0, DISORDER))
    slices: dict[str, list[list[Click]]] = {s: [[] for _ in range(FILES)] for s in ("web", "app")}
    for click in clicks:
        slices[_source(click)][min(int(click[0] / _slice()), FILES - 1)].append(click)
    web = slices["web"]
    for n in range(FILES - 2):
        for _ in range(min(OFFLINE, len(web[n]))):
            web[n + 2].append(web[n].pop(rng.randrange(len(web[n]))))
    for source, parts in slices.items():
        (home / source).mkdir()
        for n, part in enumerate(p for p in parts if p):
            path = home / source / f"{n}.jsonl"
            path.write_text("".join(_line(c) for c in part))
            os.utime(path, (1_700_000_000 + n, 1_700_000_000 + n))  # files are read in the order of these
    return len(clicks)


def _slice() -> float:
    return HOURS * 3600 / FILES


def _source(click: Click) -> str:
    return "web" if click[1] % 4 else "app"


def _clicks(rng: random.Random, rows: int) -> Iterator[Click]:
    """Visits at random: most around noon, more again in the evening; some users come often, most seldom."""
    count, end = 0, HOURS * 3600
    while count < rows:
        second = rng.uniform(0, end)
        hour = second / 3600
        if rng.random() > 0.25 + 0.5 * math.exp(-((hour - 6) ** 2) / 4) + 0.25 * math.exp(-((hour - 11) ** 2) / 2):
            continue
        user = int(USERS * rng.random() ** 1.5)
        for _ in range(1 + int(rng.expovariate(0.15))):
            if second >= end or count == rows or (user % 4 == 0 and second >= end / 3):
                break
            yield second, user, rng.choice(PAGES)
            count += 1
            second += rng.expovariate(1 / 45)


def _line(click: Click) -> str:
    second, user, page = click
    time = (MORNING + dt.timedelta(seconds=second)).isoformat(timespec="milliseconds") + "Z"
    return json.dumps({"user_id": f"u{user:04}", "page": page, "ts": time}) + "\n"
