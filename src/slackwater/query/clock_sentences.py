"""Sentences about stages and clocks: what the watermark of a stage waits for."""

from __future__ import annotations

import json
from collections.abc import Sequence

from slackwater.core.humanize import format_duration
from slackwater.query.why_report import ClockReport, StageReport


def quote_stage(name: str) -> str:
    """Quote the name of a stage for a sentence."""
    return json.dumps(name, ensure_ascii=False)


def describe_watermark_wait(w: StageReport) -> str:
    """Describe what the watermark of a stage waits for: a source, or a stage that is itself waiting."""
    if w.holder is None:
        return _blocked_text("all sources are idle", w.through)
    hold_text = ""
    if w.held_back_us:
        length = format_duration(max(w.held_back_us // 1000, 1))
        hold_text = f"; it holds its results back by {length}, since sessions may still be cut at their cap"
    return _blocked_text(name_clock(w.holder), w.through) + hold_text


def _blocked_text(end: str, through: Sequence[str]) -> str:
    """Describe what a watermark waits for: the stages `through`, nearest first, and finally the cause `end`."""
    if not through:
        return end
    first, *more = through
    steps = "".join(f", which waits for stage {quote_stage(name)}" for name in more)
    idle = end.startswith("all sources")
    return f"stage {quote_stage(first)}{steps}, " + (
        "whose sources are all idle" if idle else f"whose watermark is held by {end}"
    )


def name_clock(c: ClockReport) -> str:
    """Return the name of a source, a partition or a stage, for use in a sentence."""
    return f'{"stage" if c.of_stage else "source"} "{c.source}"' + (
        f", partition {c.partition}" if c.partition is not None else ""
    )
