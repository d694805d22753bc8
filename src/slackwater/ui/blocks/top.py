"""What is so, in one sentence; and of which commit the page tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slackwater.core.words import plural
from slackwater.query.text import name_of, quoted, through
from slackwater.query.why_values import Why
from slackwater.ui.blocks.account import PARTS, Rows
from slackwater.ui.words import moment, number, span


@dataclass(frozen=True)
class Top:
    """`stage`: of several the one that it tells of, None for the whole pipeline. `accounted`: no row is unaccounted for. `told`: what `slackwater why` says of this commit, line by line."""

    pipeline: str
    stage: str | None
    epoch: int
    committed_us: int
    runner: str | None
    published: bool
    accounted: bool
    sentence: str
    held: str
    told: tuple[str, ...]


_NAMES = {"replayed": "late and replayed", "keyless": "without a key", "by_sql": "left out by the SQL"}


def top(why: Why, rows: Rows, told: Sequence[str], stage: str | None = None) -> Top:
    return Top(
        pipeline=why.pipeline,
        stage=stage,
        epoch=why.epoch,
        committed_us=why.committed_us,
        runner=why.runner,
        published=why.is_published,
        accounted=not rows.unaccounted,
        sentence=_sum(rows),
        held=_held(why),
        told=tuple(told),
    )


def _sum(rows: Rows) -> str:
    t = rows.total
    parts = [(n, getattr(t, n)) for n in PARTS]
    shown = [
        f"{number(abs(v))} {'made by the SQL' if v < 0 else _NAMES.get(n, n)}" for n, v in parts if v or n == "used"
    ]
    became = f"{number(t.rows_in)} in = {' + '.join(shown)}".replace(" + ", " + ")
    if rows.unaccounted:
        return f"{plural(rows.unaccounted, 'row is', 'rows are')} unaccounted for: {became}"
    return f"Every row is accounted for: {became}"


def _held(w: Why) -> str:
    h = w.holder
    if h is None and w.through:
        return f"The watermark is at {moment(w.watermark_us)}; stage {quoted(w.stage)} waits for {through(w)}."
    if h is None:
        runs_on = "" if w.idle_close_us is None else f"; it runs on after {span(w.idle_close_us)} of silence"
        return f"The watermark is at {moment(w.watermark_us)}; nobody holds it: all sources are idle{runs_on}."
    name = name_of(h)
    since = (
        f"quiet for {span(h.quiet_us)}, since {moment(w.committed_us - h.quiet_us)}"
        if h.quiet_us
        else "it had rows in this epoch"
    )
    if w.through:
        name = through(w)
        at = "There is no watermark yet" if w.watermark_us is None else f"The watermark is at {moment(w.watermark_us)}"
        return f"{at}; stage {quoted(w.stage)} waits for {name} ({since})."
    if w.watermark_us is None:
        return f"There is no watermark yet; {name} holds it ({since})."
    behind = f", {span(w.committed_us - w.watermark_us)} behind the clock of the commit"
    return f"The watermark is at {moment(w.watermark_us)}{behind}; {name} holds it ({since})."
