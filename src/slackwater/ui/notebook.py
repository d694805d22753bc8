"""Renders pipelines, plans, `why` reports, states and runs as HTML for notebooks, with the drawings of the web page.

If a state cannot be read, its HTML shows the error, so that displaying the value does not fail.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from functools import cache, singledispatch
from typing import Any

from markupsafe import Markup

from slackwater import explain
from slackwater.config.pipeline import Pipeline
from slackwater.core import humanize
from slackwater.errors import SlackwaterError, StartError
from slackwater.evolution.pipeline_from_state import restore_window
from slackwater.explain import Plan
from slackwater.query.open_windows import state_column_names
from slackwater.query.state_view import StateView
from slackwater.query.why_report import StageReport, WatermarkReport, WhyReport, describe_watermark_wait, quote_stage
from slackwater.runner.background_run import Handle
from slackwater.secret_masking import mask_secrets
from slackwater.ui.blocks.key import SessionBar, draw_sessions
from slackwater.ui.blocks.watermark import build_watermark, draw_lanes
from slackwater.ui.pages import read_static_file
from slackwater.ui.svg import element
from slackwater.watermark import NO_WATERMARK

MOST = 20  # maximum number of windows to draw and list
SCAN_S = 3.0  # time limit of the scan for windows, in seconds
_EPOCH = dt.datetime(1970, 1, 1)


def to_html(value: object) -> str:
    """Render a value as self-contained HTML: it includes its styles, and has neither scripts nor links."""
    return str(element("div", element("style", Markup(_styles())), _render(value), class_="slackwater"))


@cache
def drawing_styles() -> str:
    """Return the rules of the web page's stylesheet that drawings need."""
    css = read_static_file("ui.css").decode()
    return css[: css.index("* {")] + css[css.index(".plot {") : css.index(".marks {")]


@cache
def _styles() -> str:
    rules = drawing_styles().replace(":root", ".slackwater")
    notebook_rules = (
        ".slackwater { color: var(--ink); background: var(--card); padding: 12px 16px; border: 1px solid var(--rule); "
        "border-radius: 8px; max-width: 1000px; font: 14px/1.5 system-ui, sans-serif; }\n"
        ".slackwater table { border-collapse: collapse; font-size: 13px; margin: 8px 0 0; }\n"
        ".slackwater th, .slackwater td { text-align: left; padding: 3px 16px 3px 0; vertical-align: top; background: none; }\n"
        ".slackwater p { margin: 2px 0; } .slackwater .bad { color: var(--bad); }\n"
    )
    return rules + notebook_rules


@singledispatch
def _render(value: object) -> Markup:
    raise TypeError(f"a {type(value).__name__} cannot be rendered as HTML")


@_render.register
def _pipeline(pipeline: Pipeline) -> Markup:
    return _join(_heading(pipeline.name), _plan(explain.build_plan(pipeline)))


@_render.register
def _plan(plan: Plan) -> Markup:
    rows = [
        [
            element("strong", mask_secrets(s.name)),
            s.where,
            _join(*(element("div", mask_secrets(t)) for t in (s.title, *s.lines))),
        ]
        for s in plan.stages
    ]
    state = [] if plan.state_bytes is None else [f"State: at most about {humanize.format_size(plan.state_bytes)}"]
    notes = [f"Note: {n}" for n in plan.notes]
    return _join(_table(["stage", "where", ""], rows), *_lines(f"Delivery: {plan.guarantee}", *state, *notes))


@_render.register
def _why(report: WhyReport) -> Markup:
    running = report.runner or "none is running, so nothing changes"
    lines = _lines(
        f"Epoch {humanize.format_number(report.epoch)}, committed {humanize.format_exact_time(report.committed_us)}"
        + ("" if report.is_published else ", not yet published"),
        f"Runner: {running}",
    )
    return _join(
        _heading(report.pipeline),
        *lines,
        *(
            _stage_watermark(s, f"Stage {quote_stage(s.stage)}: watermark" if report.stages else "Watermark")
            for s in report.reported_stages
        ),
        draw_lanes(build_watermark(report, ())),
        *(_open_rows(s, s.stage if report.stages else None) for s in report.reported_stages),
    )


def _stage_watermark(s: StageReport, head: str) -> Markup:
    waits = f"waits for {describe_watermark_wait(s)}" if s.through else f"held by {_holder_text(s.holder)}"
    return _join(*_lines(f"{head} {humanize.format_exact_time(s.watermark_us)}, {waits}"))


def _open_rows(s: StageReport, stage: str | None) -> Markup:
    """Render the open windows of a stage, or the number of rows on each side of a join, as a table.

    `stage`: the name of the stage for the heading; None if there is only one stage.
    """
    if s.kept is not None:
        return Markup("")
    if s.sides:
        sides = [[x.side, x.source, humanize.format_number(x.rows), humanize.format_span(x.keep_us)] for x in s.sides]
        return _table(["side", "source", "rows kept", "kept for"], sides)
    opened = [
        [
            humanize.format_exact_time(o.closes_us),
            humanize.format_exact_time(o.start_us),
            "" if o.key is None else humanize.format_key_values(dict(o.key)),
            humanize.format_number(o.rows),
        ]
        for o in (s.next if s.key is None else s.key.open)
    ]
    kind = s.kind if stage is None else f"{s.kind} of stage {quote_stage(stage)}"
    subject = kind if s.key is None else f"{kind} of {humanize.format_key_values(dict(s.key.key))}"
    heading = f"Open ({subject}), the next to close first" if opened else f"Nothing is open ({subject})"
    return _join(*_lines(heading), _table(["closes at watermark", "start", "key", "rows"], opened))


def _holder_text(holder: WatermarkReport | None) -> str:
    if holder is None:
        return "no source: all are idle"
    name = holder.source if holder.partition is None else f"{holder.source}, partition {holder.partition}"
    quiet = f"quiet for {humanize.format_span(holder.quiet_us)}" if holder.quiet_us else "which had rows in this epoch"
    return f"{name}, {quiet}"


@_render.register
def _state(view: StateView) -> Markup:
    try:
        commit = view.manifest()
        last = commit.stages[view.stage]
        logic = restore_window(commit, view.stage)
        mark = None if last.watermark_us <= NO_WATERMARK else last.watermark_us
        summary = f"Epoch {humanize.format_number(commit.epoch)}, committed {humanize.format_exact_time(commit.committed_us)}, watermark {humanize.format_exact_time(mark)}"
        try:
            windows = view.scan(limit=MOST, timeout_s=SCAN_S)
        except StartError as error:
            return _join(_heading(commit.pipeline), *_lines(summary, str(error)))
    except SlackwaterError as error:
        return _problem(error)
    names, window = state_column_names(logic), logic.window
    start, end, status = window.window_start_column, window.window_end_column, names["_status"]
    rows = list(windows.iter_rows(named=True))
    bars = []
    for r in rows:
        key, last_event = {k: r[k] for k in logic.key_names}, r.get(names["_last_event"])
        times = _us(r[start]), None if last_event is None else _us(last_event), _us(r[end])
        bars.append(SessionBar(humanize.format_key_values(key), *times, r[status]))
    shown = [c for c in windows.columns if c not in names.values()]
    listing = [[_text(r[c]) for c in (*shown, status, names["_closes_at"])] for r in rows]
    more = (
        f"By start, the first {humanize.plural(MOST, 'window')}"
        if len(rows) == MOST
        else humanize.plural(len(rows), "window")
    )
    return _join(
        _heading(commit.pipeline),
        *_lines(summary, more),
        draw_sessions(bars, mark),
        _table([*shown, "status", "closes at watermark"], listing),
    )


@_render.register
def _handle(handle: Handle) -> Markup:
    latest, error = handle.latest, handle.error
    state = "running" if handle.is_running else "ended"
    summary = ["Nothing is committed yet"]
    if latest is not None:
        c = latest.counters
        summary = [
            f"Epoch {humanize.format_number(latest.epoch)}, watermark {humanize.format_exact_time(latest.watermark_us)}",
            f"{humanize.plural(c.rows_in, 'row')} in: {humanize.format_number(c.rows_used)} used, {humanize.format_number(c.rows_late)} late, {humanize.format_number(c.rows_refused)} refused, "
            f"{humanize.format_number(c.rows_bad)} bad; {humanize.format_number(c.rows_emitted)} emitted, {humanize.format_number(latest.windows_active)} open",
        ]
    parts = [_heading(handle.pipeline.name), *_lines(state.capitalize(), *summary)]
    if error is not None:
        parts.append(_problem(error))
    return _join(*parts)


# -- pieces ----------------------------------------------------------------------------------------------------------


def _join(*parts: Markup) -> Markup:
    return Markup("").join(parts)


def _heading(name: str) -> Markup:
    return element("p", element("strong", name))


def _lines(*texts: str) -> list[Markup]:
    return [element("p", mask_secrets(t)) for t in texts]


def _problem(error: BaseException) -> Markup:
    page = getattr(error, "documented", None)
    return element("p", f"{error}" + (f" (what it means: {page})" if page else ""), class_="bad")


def _table(names: Sequence[str], rows: Sequence[Sequence[str | Markup]]) -> Markup:
    if not rows:
        return Markup("")
    head = element("thead", element("tr", *(element("th", n) for n in names)))
    body = element("tbody", *(element("tr", *(element("td", c) for c in row)) for row in rows))
    return element("table", head, body)


def _us(value: dt.datetime) -> int:
    return (value.replace(tzinfo=None) - _EPOCH) // dt.timedelta(microseconds=1)


def _text(value: Any) -> str:
    if isinstance(value, dt.datetime):
        return humanize.format_datetime(value) + "Z"
    return "NULL" if value is None else str(value)
