"""The stages of a pipeline as boxes, from the sources at the left to what goes out at the right; each box leads to its page.

sources ─▶ stages that read them ─▶ stages that read these ─▶ …          a column each; lines are what is read
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from slackwater.ui.blocks.stages import StageSeen
from slackwater.ui.svg import WIDTH, el, picture, rect, text, title
from slackwater.ui.words import brief, moment, number

BOX, HIGH, GAP, ROW = 150, 64, 56, 84
SOURCE = 110  # the width of a source's name


def boxes(found: Sequence[StageSeen], base: str | None, chosen: str | None = None) -> Markup:
    """`base`: before the addresses that boxes lead to; None in a file, where they lead to a place on the page."""
    columns = _columns(found)
    sources = list(dict.fromkeys(n for s in found for n in s.reads if n not in columns))
    high = max(len(sources), *(sum(c == n for c in columns.values()) for n in set(columns.values())))
    count = max(columns.values())
    # few stages share the width, many are drawn as they are and can be scrolled
    width = max(BOX, (WIDTH - SOURCE - GAP * count) / count) if SOURCE + count * (BOX + GAP) <= WIDTH else BOX
    ends = {n: (SOURCE - 6.0, _row(k, len(sources), high)) for k, n in enumerate(sources)}
    parts = [text(0, y + 4, n if len(n) <= 14 else n[:13] + "…", "lane") for n, (_, y) in ends.items()]
    for column in range(1, count + 1):
        here = [s for s in found if columns[s.name] == column]
        x = SOURCE + GAP + (column - 1) * (width + GAP)
        for k, stage in enumerate(here):
            y = _row(k, len(here), high)
            parts += [
                _flow(*ends[n], x, y, y + 6 * (m - (len(stage.reads) - 1) / 2)) for m, n in enumerate(stage.reads)
            ]
            parts.append(_box(stage, x, y - HIGH / 2, width, base, stage.name == chosen))
            ends[stage.name] = x + width, y
    across = max(WIDTH, SOURCE + count * (width + GAP))
    return picture("The stages of the pipeline", high * ROW, *parts, across=across)


def _columns(found: Sequence[StageSeen]) -> Mapping[str, int]:
    """How far behind the sources each stage is."""
    at: dict[str, int] = {}
    for stage in found:
        at[stage.name] = 1 + max((at.get(n, 0) for n in stage.reads), default=0)
    return at


def _row(place: int, count: int, high: int) -> float:
    """The middle of a box among others of its column."""
    return ROW * ((high - count) / 2 + place + 0.5)


def _flow(x1: float, y1: float, x2: float, y2: float, end: float) -> Markup:
    middle = (x1 + x2) / 2
    curve = f"M{x1 + 4:g} {y1:g} C{middle:g} {y1:g} {middle:g} {end:g} {x2 - 8:g} {end:g}"
    head = f"M{x2 - 10:g} {end - 4:g} l8 4 l-8 4"
    return el("g", el("path", d=curve, class_="flow"), el("path", d=head, class_="flow"))


def _box(stage: StageSeen, x: float, y: float, width: float, base: str | None, chosen: bool) -> Markup:
    waits = {"join": f"{brief(stage.open)} rows wait", "rows": "no state"}.get(stage.kind, f"{brief(stage.open)} open")
    said = (
        "no state"
        if stage.kind == "rows"
        else f"{number(stage.open)} {'rows wait' if stage.kind == 'join' else 'open'}"
    )
    about = (
        f"{stage.name} ({stage.kind}): {said}, {number(stage.emitted)} came out, "
        f"watermark {moment(stage.watermark_us)}, waits for {stage.waits_for}"
    )
    most = int((width - 24) / 7.6)
    name = stage.name if len(stage.name) <= most else stage.name[: most - 1] + "…"
    return el(
        "a",
        title(about),
        rect(x, y, width, HIGH, "box chosen" if chosen else "box"),
        text(x + 12, y + 22, name, "lane holds"),
        text(x + 12, y + 39, f"{stage.kind} · {waits}", "tick"),
        text(x + 12, y + 54, f"{brief(stage.emitted)} came out", "tick"),
        href=f"#stage-{stage.at}" if base is None else f"{base}/stage/{stage.at}/",
        aria_label=about,
        aria_current="page" if chosen else None,
    )
