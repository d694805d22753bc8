"""Draw the pictures of docs/learn: the engine runs ten events, and the drawing code of `slackwater ui` draws them.

docs/learn/clicks.jsonl ──▶ the first n of them, one epoch each ──▶ a state ──▶ blocks of the page ──▶ SVG
"""

from __future__ import annotations

import datetime as dt
import json
import re
import tempfile
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from markupsafe import Markup
from tests.support.local_pipeline_script import MicroBatch, build_pipeline, run_local_script

from docgen.error_and_warning_sources import ROOT
from slackwater.cli.why import format_report
from slackwater.config.aggregation import Aggregation
from slackwater.config.window import Window
from slackwater.state.files.store import FilesStore
from slackwater.ui.blocks import key, row_accounting, upcoming_closes, watermark
from slackwater.ui.blocks.key import KeyView
from slackwater.ui.notebook import drawing_styles
from slackwater.ui.page_model import PageModel, PageSource, load_key, load_model
from slackwater.ui.svg import WIDTH, Axis, element, picture, rect, text, time_axis, title

EVENTS = ROOT / "docs" / "learn" / "clicks.jsonl"
CLOCK = 1_709_299_800_000_000  # 2024-03-01T13:30:00Z
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def load_click_events() -> list[dict[str, Any]]:
    """Return the events in order of arrival, with `ts` in microseconds."""
    records = [json.loads(line) for line in EVENTS.read_text().splitlines()]
    return [{**e, "ts": (dt.datetime.fromisoformat(e["ts"]) - _EPOCH) // dt.timedelta(microseconds=1)} for e in records]


def build_session_window(**more: Any) -> Window:
    """Return the session window of the page."""
    settings: dict[str, Any] = {
        "kind": "session",
        "gap_ms": "30m",
        "max_session_duration_ms": "3h",
        "lateness_ms": "5m",
        "event_time_column": "ts",
        "group_by": ["user"],
        "aggregations": [Aggregation(agg="count", as_="clicks")],
    }
    return Window(**(settings | more))


def build_reopening_window() -> Window:
    return build_session_window(late_data="reopen", allowed_lateness_ms="6h")


@cache
def load_pages_after_events(
    after: int, corrected: bool = False, user: str = "u1"
) -> tuple[PageModel, KeyView, list[dict[str, Any]]]:
    """Return the page of the pipeline, the page of a user, and the emitted rows, after `after` events."""
    step = build_reopening_window() if corrected else build_session_window()
    with tempfile.TemporaryDirectory() as home:
        script = [MicroBatch({"clicks": [event]}) for event in load_click_events()[:after]]
        schema = {"user": "string", "page": "string"}
        run_result = run_local_script(step, script, schema, ("clicks",), flush=False, state_dir=home, clock_us=CLOCK)
        watched = PageSource(
            build_pipeline(step, ("clicks",)), "clicks.toml", FilesStore(Path(home), "law"), format_report
        )
        return load_model(watched, CLOCK), load_key(watched, {"user": user}, CLOCK), run_result.rows


def draw_arrivals() -> Markup:
    """Draw the events on the event-time axis, numbered in order of arrival."""
    input_events = load_click_events()
    users = sorted({e["user"] for e in input_events})
    times = [e["ts"] for e in input_events]
    left_edge, right_edge, top, lane = 60, WIDTH - 20, 20, 46
    across, bottom = (
        Axis(min(times) - 600_000_000, max(times) + 600_000_000, left_edge, right_edge),
        top + lane * len(users),
    )
    parts = time_axis(across, top, bottom)
    for n, user in enumerate(users):
        parts.append(text(20, top + lane * n + lane / 2 + 4, user, "lane"))
    taken: dict[str, list[float]] = {}
    for n, e in enumerate(input_events, 1):
        x, y = across.position(e["ts"]), top + lane * users.index(e["user"]) + lane / 2
        near = any(abs(x - other) < 12 for other in taken.setdefault(e["user"], []))
        taken[e["user"]].append(x)
        about = title(f"{n}: {e['user']} {e['page']}")
        parts.append(element("circle", about, cx=x, cy=y, r=4.5, class_="newest busy"))
        parts.append(text(x, y + (20 if near else -9), str(n), "tick", "middle"))
    return picture(
        "Ten clicks of three users in event time, numbered in the order in which they arrive", bottom + 26, *parts
    )


def draw_event_time_over_arrival() -> Markup:
    """Draw event time over arrival. Events below the stair of the watermark are behind it."""
    input_events, lateness = load_click_events(), 300_000_000
    left_edge, right_edge, top, bottom = 90, WIDTH - 20, 16, 250
    times = [e["ts"] for e in input_events]
    up = Axis(min(times) - 600_000_000, max(times) + 600_000_000, bottom, top)
    step = (right_edge - left_edge) / len(input_events)
    parts: list[Markup] = []
    for y, name, _ in up.times(5):
        parts += [
            element("line", x1=left_edge, y1=y, x2=right_edge, y2=y, class_="grid"),
            text(left_edge - 8, y + 4, name, "tick", "end"),
        ]
    newest: int | None = None
    for n, e in enumerate(input_events):
        x = left_edge + step * (n + 0.5)
        if newest is not None:  # compared with the previous watermark
            y = up.position(newest - lateness)
            parts.append(rect(x - step / 2, y - 1, step, 2, "tickmark busy"))
        is_late = newest is not None and e["ts"] + 1_800_000_000 < newest - lateness
        about = title(f"{n + 1}: {e['user']} {e['page']}" + (", late" if is_late else ""))
        parts.append(
            element(
                "circle", about, cx=x, cy=up.position(e["ts"]), r=5, class_="part late" if is_late else "newest busy"
            )
        )
        parts.append(text(x, bottom + 16, str(n + 1), "tick", "middle"))
        newest = e["ts"] if newest is None else max(newest, e["ts"])
    return picture("Event time over arrival, with the watermark that each event is judged against", bottom + 26, *parts)


def _to_svg_file(drawn: Markup) -> str:
    """Return a drawing as a standalone SVG file, with the styles of the page that it needs."""
    style = drawing_styles()
    style += (
        "svg { background: var(--card); font-family: system-ui, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', sans-serif; }"
    )
    style += ".part.late { fill: var(--late); }"
    box = re.search(r'viewBox="0 0 (\S+) (\S+)"', drawn)
    assert box is not None
    width, height = float(box[1]), float(box[2])
    shown = str(drawn).replace(
        f'viewBox="{box[0][9:-1]}"',
        f'xmlns="http://www.w3.org/2000/svg" viewBox="-16 -12 {width + 32:g} {height + 24:g}"',
        1,
    )
    return shown.replace(">", f"><style>{style}</style>", 1).replace("><", ">\n<") + "\n"


def _draw_key_timeline(after: int, corrected: bool, user: str) -> Markup:
    return key.draw_key_timeline(load_pages_after_events(after, corrected, user)[1])


_DRAWN: Mapping[str, Callable[[], Markup]] = {
    "events.svg": draw_arrivals,
    "order.svg": draw_event_time_over_arrival,
    "watermark.svg": lambda: watermark.draw_lanes(load_pages_after_events(5)[0].watermark),
    "session.svg": partial(_draw_key_timeline, 5, False, "u1"),
    "closing.svg": lambda: upcoming_closes.draw_closes(_require_value(load_pages_after_events(5)[0].closing), None),
    "rows.svg": lambda: row_accounting.draw_total(load_pages_after_events(10)[0].rows.total),
    "corrected.svg": partial(_draw_key_timeline, 8, True, "u1"),
}


def _require_value(optional: Any) -> Any:
    assert optional is not None
    return optional


PICTURES: Mapping[str, Callable[[], str]] = {
    name: (lambda draw=draw: _to_svg_file(draw())) for name, draw in _DRAWN.items()
}
