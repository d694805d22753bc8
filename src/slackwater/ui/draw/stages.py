"""The stages of a pipeline as boxes; each leads to the block that tells most about it."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from slackwater.ui.blocks.stages import StageSeen
from slackwater.ui.svg import WIDTH, el, line, picture, rect, text, title
from slackwater.ui.words import brief, moment, number

HEIGHT, GAP = 64, 46


def boxes(found: Sequence[StageSeen]) -> Markup:
    width = (WIDTH - GAP * len(found)) / (len(found) + 1)
    parts = [text(0, HEIGHT / 2 + 4, ", ".join(found[0].reads)[:30], "lane")]
    for n, stage in enumerate(found):
        x, last = GAP + width * (n + 1) + GAP * n, n == len(found) - 1
        waits = "rows wait" if stage.kind == "join" else "open"
        about = f"{stage.kind}: {number(stage.open)} {waits}, {number(stage.emitted)} came out, watermark {moment(stage.watermark_us)}"
        box = el(
            "a",
            title(about),
            rect(x, 2, width, HEIGHT - 4, "box"),
            text(x + 14, 27, stage.kind, "lane holds"),
            text(x + 14, 46, f"{brief(stage.open)} {waits}", "tick"),
            href="#joins-title" if stage.kind == "join" else "#closing-title" if last else "#watermark-title",
            aria_label=about,
        )
        parts += [line(x - GAP + 8, HEIGHT / 2, x - 6, HEIGHT / 2, "flow"), box]
        if not last:
            parts.append(text(x + width + GAP / 2, HEIGHT / 2 - 8, brief(stage.emitted), "tick", "middle"))
    return picture("The stages of the pipeline", HEIGHT, *parts)
