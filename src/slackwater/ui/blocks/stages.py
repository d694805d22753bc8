"""What a pipeline of several stages is made of, as its latest commit has it."""

from __future__ import annotations

from dataclasses import dataclass

from slackwater.state.commit import Commit, StageState
from slackwater.watermark import NO_WATERMARK


@dataclass(frozen=True)
class StageSeen:
    """One stage: what it reads, which window or join it is, and where it stands. `open`: windows, or rows that wait."""

    reads: tuple[str, ...]
    kind: str
    watermark_us: int | None
    open: int
    rows: int
    emitted: int


def stages(commit: Commit) -> tuple[StageSeen, ...]:
    """Every stage, in order."""
    return tuple(_stage(m) for m in commit.stages)


def _stage(m: StageState) -> StageSeen:
    watermark = None if m.watermark_us <= NO_WATERMARK else m.watermark_us
    kind = str(m.fingerprint.get("kind", ""))
    rows = sum(meta.rows for meta in m.metas if not meta.kind.endswith(("+", "-")))
    waiting = rows if kind == "join" else sum(m.windows) or sum(sum(groups) for groups in m.panes.values())
    emitted = sum(m.counters.get("emitted", {}).values())
    return StageSeen(tuple(m.clocks), kind, watermark, waiting, rows, emitted)
