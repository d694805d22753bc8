"""Block of the stages: what each stage reads, what its watermark waits for, and how large its state is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from slackwater.core.humanize import format_brief, format_exact_time, format_number, plural
from slackwater.query.why_report import StageReport, WhyReport, describe_watermark_wait
from slackwater.state.commit import Commit, StageState
from slackwater.ui.svg import WIDTH, element, picture, rect, shorten, text, title


@dataclass(frozen=True)
class StageSummary:
    """The summary of one stage. `rows_in`, `late` and `emitted` count rows since the stage was created.

    Args:
        at: The path component that identifies the stage in URLs.
        reads: The sources and stages that the stage reads.
        waits_for: A description of what the watermark of the stage waits for.
        open: The number of open windows, or of rows buffered in a join.
        rows: The number of rows in the state.
        bytes: The size of the rows in the state.
        targets: The targets that receive the output.
        kept: For a keyed or stateless stage, a description of its state; None for windows and joins.
    """

    name: str
    at: str
    reads: tuple[str, ...]
    kind: str
    watermark_us: int | None
    waits_for: str
    open: int
    rows: int
    bytes: int
    rows_in: int
    late: int
    emitted: int
    targets: tuple[str, ...]
    kept: str | None = None


def build_stages(commit: Commit, report: WhyReport) -> tuple[StageSummary, ...]:
    """Build the summaries of all stages, in the order of the config."""
    by_name = {s.name: (n, s) for n, s in enumerate(commit.stages)}
    return tuple(_stage(commit, *by_name[s.stage], s) for s in report.reported_stages)


def _stage_address(name: str, number: int) -> str:
    """Return a stage's path component in URLs: its name, or `~` and its number if the name is not valid in a path."""
    return name if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name) else f"~{number}"


def _stage(commit: Commit, number: int, state: StageState, report: StageReport) -> StageSummary:
    rows = sum(meta.rows for meta in state.metas if not meta.kind.endswith(("+", "-")))
    open_count = (
        rows if report.kind == "join" else sum(state.windows) or sum(sum(groups) for groups in state.panes.values())
    )
    return StageSummary(
        name=state.name,
        at=_stage_address(state.name, number),
        reads=report.reads,
        kind=report.kind,
        watermark_us=report.watermark_us,
        waits_for=describe_watermark_wait(report),
        open=open_count,
        rows=rows,
        bytes=sum(meta.bytes for meta in state.metas),
        rows_in=state.counters.get("rows_in", 0),
        late=sum(state.counters.get("late", {}).values()),
        emitted=sum(state.counters.get("emitted", {}).values()),
        targets=tuple(n for n, t in commit.targets.items() if t.stage == state.name),
        kept=report.kept,
    )


BOX, HIGH, GAP, ROW = 150, 64, 56, 84
SOURCE = 110  # the width of a source's name


def draw_stages(summaries: Sequence[StageSummary], base: str | None, chosen: str | None = None) -> Markup:
    """Draw the stages as boxes, with arrows from the sources and stages that they read.

    Args:
        summaries: The stages, in order.
        base: The prefix of the URLs that boxes link to; None in a saved file, where boxes link to anchors.
        chosen: The name of the highlighted stage; None for no stage.
    """
    columns = _columns(summaries)
    sources = list(dict.fromkeys(n for s in summaries for n in s.reads if n not in columns))
    high = max(len(sources), *(sum(c == n for c in columns.values()) for n in set(columns.values())))
    count, inner_width = max(columns.values()), WIDTH - 4
    # few stages share the available width; many stages keep their size and can be scrolled
    wide = SOURCE + count * (BOX + GAP) > inner_width
    width = BOX if wide else (inner_width - SOURCE - GAP * count) / count
    below = high * ROW + 6.0  # y coordinate of arrows that skip a column
    ends = {n: (SOURCE - 6.0, _row(k, len(sources), high)) for k, n in enumerate(sources)}
    names = [text(0, y + 4, shorten(n, 14), "lane") for n, (_, y) in ends.items()]
    lines, drawn, passing = list[Markup](), list[Markup](), False
    for column in range(1, count + 1):
        in_column = [s for s in summaries if columns[s.name] == column]
        x = SOURCE + GAP + (column - 1) * (width + GAP)
        for k, stage in enumerate(in_column):
            y = _row(k, len(in_column), high)
            for m, name in enumerate(stage.reads):
                passes = columns.get(name, 0) < column - 1
                passing = passing or passes
                end = y + 10 * (m - (len(stage.reads) - 1) / 2)
                lines.append(_flow(*ends[name], x, end, below if passes else None))
            drawn.append(_box(stage, x, y - HIGH / 2, width, base, stage.name == chosen))
            ends[stage.name] = x + width, y
    across = SOURCE + count * (width + GAP) + 4 if wide else WIDTH
    return picture(
        "The stages of the pipeline", below + 6 if passing else high * ROW, *names, *lines, *drawn, across=across
    )


def _columns(summaries: Sequence[StageSummary]) -> Mapping[str, int]:
    """Return the column of each stage: one to the right of the stage's rightmost input. Sources are in column 0."""
    columns: dict[str, int] = {}
    for stage in summaries:
        columns[stage.name] = 1 + max((columns.get(n, 0) for n in stage.reads), default=0)
    return columns


def _row(index: int, count: int, high: int) -> float:
    """Return the y coordinate of the middle of a box in a column of `count` boxes.

    `high`: the number of boxes in the largest column.
    """
    return ROW * ((high - count) / 2 + index + 0.5)


def _flow(x1: float, y1: float, x2: float, y2: float, below: float | None) -> Markup:
    """Draw an arrow from (x1, y1) to (x2, y2).

    `below`: the y coordinate at which the arrow passes below other columns; None for a direct arrow.
    """
    if below is None:
        middle = (x1 + x2) / 2
        curve = f"M{x1 + 4:g} {y1:g} C{middle:g} {y1:g} {middle:g} {y2:g} {x2 - 8:g} {y2:g}"
    else:
        down, up, half = x1 + GAP * 0.75, x2 - GAP * 0.75, GAP * 0.4
        curve = (
            f"M{x1 + 4:g} {y1:g} C{x1 + half:g} {y1:g} {x1 + half:g} {below:g} {down:g} {below:g} L{up:g} {below:g} "
            f"C{x2 - half:g} {below:g} {x2 - half:g} {y2:g} {x2 - 8:g} {y2:g}"
        )
    head = f"M{x2 - 10:g} {y2 - 4:g} l8 4 l-8 4"
    return element("g", element("path", d=curve, class_="flow"), element("path", d=head, class_="flow"))


def _box(stage: StageSummary, x: float, y: float, width: float, base: str | None, chosen: bool) -> Markup:
    if stage.kept is not None:
        full_text = short_text = stage.kept
    elif stage.kind == "join":
        full_text, short_text = f"{plural(stage.open, 'row')} waiting", f"{format_brief(stage.open)} waiting"
    else:
        full_text, short_text = f"{format_number(stage.open)} open", f"{format_brief(stage.open)} open"
    about = (
        f"{stage.name} ({stage.kind}): {full_text}, {format_number(stage.emitted)} emitted, watermark "
        f"{format_exact_time(stage.watermark_us)}, waits for {stage.waits_for}"
    )
    return element(
        "a",
        title(about),
        rect(x, y, width, HIGH, "box chosen" if chosen else "box"),
        text(x + 12, y + 22, shorten(stage.name, int((width - 24) / 7.6)), "lane holds"),
        text(x + 12, y + 39, f"{stage.kind} · {short_text}", "tick"),
        text(x + 12, y + 54, f"{format_brief(stage.emitted)} emitted", "tick"),
        href=f"#stage-{stage.at}" if base is None else f"{base}/stage/{stage.at}/",
        aria_label=about,
        aria_current="page" if chosen else None,
    )
