"""How a pipeline, its plan, `why`, a state and a run look in a notebook: the drawings of the page, as one piece of HTML each.

An error that a look meets is shown in its place: a cell that only names a value never fails.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from functools import cache, singledispatch
from typing import Any

from markupsafe import Markup

from slackwater import explain
from slackwater.config.pipeline import Pipeline
from slackwater.core.words import plural
from slackwater.errors import SlackwaterError, StartError
from slackwater.evolution.description import logic_in
from slackwater.explain import Plan
from slackwater.query.text import quoted, through
from slackwater.query.view import StateView
from slackwater.query.why_values import Clock, OfStage, Why
from slackwater.query.windows import own_names
from slackwater.runner.background import Handle
from slackwater.secrets import masked
from slackwater.ui.blocks.watermark import watermark
from slackwater.ui.draw import sessions
from slackwater.ui.draw.watermark import lanes
from slackwater.ui.pages import static
from slackwater.ui.svg import el
from slackwater.ui.words import listed, moment, number, size, span
from slackwater.watermark import NO_WATERMARK

MOST = 20  # windows that are drawn and listed
SCAN_S = 3.0  # for finding them in a large state
_EPOCH = dt.datetime(1970, 1, 1)


def html(what: object) -> str:
    """The value as HTML that brings its styles along, and nothing else: no scripts, no addresses."""
    return str(el("div", el("style", Markup(_styles())), _shown(what), class_="slackwater"))


@cache
def styles() -> str:
    """The part of the page's stylesheet that drawings need."""
    css = static("ui.css").decode()
    return css[: css.index("* {")] + css[css.index(".plot {") : css.index(".marks {")]


@cache
def _styles() -> str:
    rules = styles().replace(":root", ".slackwater")
    own = (
        ".slackwater { color: var(--ink); background: var(--card); padding: 12px 16px; border: 1px solid var(--rule); "
        "border-radius: 8px; max-width: 1000px; font: 14px/1.5 system-ui, sans-serif; }\n"
        ".slackwater table { border-collapse: collapse; font-size: 13px; margin: 8px 0 0; }\n"
        ".slackwater th, .slackwater td { text-align: left; padding: 3px 16px 3px 0; vertical-align: top; background: none; }\n"
        ".slackwater p { margin: 2px 0; } .slackwater .bad { color: var(--bad); }\n"
    )
    return rules + own


@singledispatch
def _shown(what: object) -> Markup:
    raise TypeError(f"no picture of a {type(what).__name__}")


@_shown.register
def _pipeline(what: Pipeline) -> Markup:
    return _together(_head(what.name), _plan(explain.build(what)))


@_shown.register
def _plan(what: Plan) -> Markup:
    rows = [
        [el("strong", masked(s.name)), s.where, _together(*(el("div", masked(t)) for t in (s.title, *s.lines)))]
        for s in what.stages
    ]
    state = [] if what.state_bytes is None else [f"State: at most about {size(what.state_bytes)}"]
    notes = [f"Note: {n}" for n in what.notes]
    return _together(_table(["stage", "where", ""], rows), *_lines(f"Delivery: {what.guarantee}", *state, *notes))


@_shown.register
def _why(what: Why) -> Markup:
    running = what.runner or "none is up, so nothing moves"
    told = _lines(
        f"Epoch {number(what.epoch)}, committed {moment(what.committed_us)}"
        + ("" if what.is_published else ", not yet published"),
        f"Runner: {running}",
    )
    return _together(
        _head(what.pipeline),
        *told,
        *(_of_stage(s, f"Stage {quoted(s.stage)}: watermark" if what.stages else "Watermark") for s in what.told),
        lanes(watermark(what, ())),
        *(_waits(s, s.stage if what.stages else None) for s in what.told),
    )


def _of_stage(s: OfStage, head: str) -> Markup:
    held = f"{head} {moment(s.watermark_us)}, "
    if s.through:
        return _together(*_lines(f"{held}waits for {through(s)}"))
    return _together(*_lines(f"{held}held by {_held(s.holder)}"))


def _waits(s: OfStage, stage: str | None) -> Markup:
    """What is open in a stage, or waits for partners."""
    if s.kept is not None:
        return Markup("")
    named = ["closes at watermark", "start", "key", "rows"]
    opened = [
        [moment(o.closes_us), moment(o.start_us), "" if o.key is None else listed(dict(o.key)), number(o.rows)]
        for o in (s.next if s.key is None else s.key.open)
    ]
    what = s.kind if stage is None else f"{s.kind} of stage {quoted(stage)}"
    of = what if s.key is None else f"{what} of {listed(dict(s.key.key))}"
    heading = f"Open ({of}), the next to close first" if opened else f"Nothing is open ({of})"
    if s.sides:
        sides = [[x.side, x.source, number(x.rows), span(x.keep_us)] for x in s.sides]
        return _table(["side", "source", "rows kept", "each so long"], sides)
    return _together(*_lines(heading), _table(named, opened))


def _held(holder: Clock | None) -> str:
    if holder is None:
        return "nobody: all sources are idle"
    name = holder.source if holder.partition is None else f"{holder.source}, partition {holder.partition}"
    return f"{name}, " + (f"quiet for {span(holder.quiet_us)}" if holder.quiet_us else "which had rows in this epoch")


@_shown.register
def _state(what: StateView) -> Markup:
    try:
        commit = what.manifest()
        last = commit.stages[what.stage]
        logic = logic_in(commit, what.stage)
        mark = None if last.watermark_us <= NO_WATERMARK else last.watermark_us
        told = f"Epoch {number(commit.epoch)}, committed {moment(commit.committed_us)}, watermark {moment(mark)}"
        try:
            found = what.scan(limit=MOST, timeout_s=SCAN_S)
        except StartError as error:
            return _together(_head(commit.pipeline), *_lines(told, str(error)))
    except SlackwaterError as error:
        return _problem(error)
    own, window = own_names(logic), logic.window
    start, end, status = window.window_start_column, window.window_end_column, own["_status"]
    events = found[own["_last_event"]].to_list() if own["_last_event"] in found.columns else [None] * found.height
    rows = list(found.iter_rows(named=True))
    spans = [
        sessions.Span(
            listed({k: r[k] for k in logic.key_names}), _us(r[start]), event and _us(event), _us(r[end]), r[status]
        )
        for r, event in zip(rows, events, strict=True)
    ]
    shown = [c for c in found.columns if c not in own.values()]
    listing = [[_text(r[c]) for c in (*shown, status, own["_closes_at"])] for r in rows]
    more = f"By start, the first {plural(MOST, 'window')}" if len(rows) == MOST else plural(len(rows), "window")
    return _together(
        _head(commit.pipeline),
        *_lines(told, more),
        sessions.timeline(spans, mark),
        _table([*shown, "is", "closes at watermark"], listing),
    )


@_shown.register
def _handle(what: Handle) -> Markup:
    latest, error = what.latest, what.error
    how = "running" if what.is_running else "ended"
    told = ["Nothing is committed yet"]
    if latest is not None:
        c = latest.counters
        told = [
            f"Epoch {number(latest.epoch)}, watermark {moment(latest.watermark_us)}",
            f"{plural(c.rows_in, 'row')} in: {number(c.rows_used)} used, {number(c.rows_late)} late, {number(c.rows_refused)} refused, "
            f"{number(c.rows_bad)} bad; {number(c.rows_emitted)} emitted, {number(latest.windows_active)} open",
        ]
    parts = [_head(what.pipeline.name), *_lines(how.capitalize(), *told)]
    if error is not None:
        parts.append(_problem(error))
    return _together(*parts)


# -- pieces ----------------------------------------------------------------------------------------------------------


def _together(*parts: Markup) -> Markup:
    return Markup("").join(parts)


def _head(name: str) -> Markup:
    return el("p", el("strong", name))


def _lines(*texts: str) -> list[Markup]:
    return [el("p", masked(t)) for t in texts]


def _problem(error: BaseException) -> Markup:
    place = getattr(error, "documented", None)
    return el("p", f"{error}" + (f" (what it means: {place})" if place else ""), class_="bad")


def _table(names: Sequence[str], rows: Sequence[Sequence[str | Markup]]) -> Markup:
    if not rows:
        return Markup("")
    head = el("thead", el("tr", *(el("th", n) for n in names)))
    body = el("tbody", *(el("tr", *(el("td", c) for c in row)) for row in rows))
    return el("table", head, body)


def _us(value: dt.datetime) -> int:
    return (value.replace(tzinfo=None) - _EPOCH) // dt.timedelta(microseconds=1)


def _text(value: Any) -> str:
    if isinstance(value, dt.datetime):
        return moment(_us(value))
    return "NULL" if value is None else str(value)
