"""Block of the stages: what each stage reads, what its watermark waits for, and what its state contains."""

from __future__ import annotations

import re
from dataclasses import dataclass

from slackwater.query.clock_sentences import describe_watermark_wait
from slackwater.query.why_report import StageReport, WhyReport
from slackwater.state.commit import Commit, StageState


@dataclass(frozen=True)
class StageSummary:
    """The summary of one stage. `rows_in`, `late` and `emitted` count over the life of the stage.

    Args:
        at: The component of the stage in URLs.
        reads: The sources and stages that the stage reads.
        waits_for: A description of what the watermark of the stage waits for.
        open: The number of open windows, or of rows buffered in a join.
        rows: The number of rows in the state.
        bytes: The size of the rows in the state.
        targets: The targets that receive the output.
        kept: A description of the state, for a stage without open windows or buffered rows.
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
    """Build the summaries of all stages, in order."""
    by_name = {s.name: (n, s) for n, s in enumerate(commit.stages)}
    return tuple(_stage(commit, *by_name[s.stage], s) for s in report.reported_stages)


def _stage_address(name: str, number: int) -> str:
    """Return a stage's component in URLs: its name, or `~` and its number if the name is not valid in a path."""
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
