"""Generates the click stream of the demo. It is seeded, so that every run has the same data."""

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
DISORDER = 20.0  # seconds by which a later click may overtake an earlier one
OFFLINE = 8  # clicks per file that arrive two files later
PAGES = ("/", "/search", "/cart", "/checkout", "/help", "/offers", "/item/17", "/item/23", "/item/42")
Click = tuple[float, int, str]  # second of the day, user, page


def generate_clicks(home: Path, rows: int) -> int:
    """Write `web/*.jsonl` and `app/*.jsonl` with `rows` clicks in total. Return their number.

    Each file is a slice of the day in order of arrival. Clicks follow a daily rhythm, in visits of a few minutes, and
    are out of order by up to 20 s. A few clicks arrive hours too late. The app falls silent after a third of the day.
    """
    rng = random.Random(17)
    clicks = sorted(_clicks(rng, rows), key=lambda c: c[0] + rng.uniform(0, DISORDER))
    slices: dict[str, list[list[Click]]] = {s: [[] for _ in range(FILES)] for s in ("web", "app")}
    for click in clicks:
        slices[_source(click)][min(int(click[0] / _slice_seconds()), FILES - 1)].append(click)
    web = slices["web"]
    for n in range(FILES - 2):
        for _ in range(min(OFFLINE, len(web[n]))):
            web[n + 2].append(web[n].pop(rng.randrange(len(web[n]))))
    for source, parts in slices.items():
        (home / source).mkdir()
        for n, part in enumerate(p for p in parts if p):
            path = home / source / f"{n}.jsonl"
            path.write_text("".join(_json_line(c) for c in part))
            os.utime(path, (1_700_000_000 + n, 1_700_000_000 + n))  # the order in which the files are read
    return len(clicks)


def _slice_seconds() -> float:
    return HOURS * 3600 / FILES


def _source(click: Click) -> str:
    return "web" if click[1] % 4 else "app"


def _clicks(rng: random.Random, rows: int) -> Iterator[Click]:
    """Yield the clicks of random visits: most around noon, some in the evening. A few users visit often, most rarely."""
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


def _json_line(click: Click) -> str:
    second, user, page = click
    time = (MORNING + dt.timedelta(seconds=second)).isoformat(timespec="milliseconds") + "Z"
    return json.dumps({"user_id": f"u{user:04}", "page": page, "ts": time}) + "\n"
