"""Summaries of a run's results: how many there are, and why they were emitted.

18,335 sessions: 17,428 closed by the watermark, 146 cut at 12 hours, 761 by --flush; 0 open
96,250 rows: 95,000 pairs, 1,250 without a partner; 812 left and 30 right rows wait
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from slackwater.config.pipeline import Pipeline
from slackwater.config.window import KINDS_OF_WINDOW
from slackwater.core.humanize import format_duration, plural
from slackwater.engine.status import BufferCounts, StageStatus, Status

FLUSH = "by --flush"  # as it is called on the command line
_TAKEN_BACK = "supersede"
_REASON_TEXTS = {
    "close": "closed by the watermark",
    "cap": "cut at {cap}",
    "flush": "{flush}",
    "update": "updates before they closed",
    "late": "corrected by late rows",
    "standalone": "from late rows only",
    "match": "pairs",
    "unmatched": "without a partner",
}


def summarize_results(status: Status, flush: str = FLUSH) -> Iterator[str]:
    """Yield a line about the pipeline's results. If there are several stages, one line per stage, with its name."""
    if not status.stages[1:]:
        yield _result_line(
            status.window_kind, status.counters.emitted, _open_text(status), _cap_text(status.config, None), flush
        )
        return
    for stage in status.stages:
        text = _result_line(
            stage.kind, stage.counters.emitted, _open_text(stage), _cap_text(status.config, stage.name), flush
        )
        yield f'stage "{stage.name}": {text}'


def _result_line(kind: str, emitted: Mapping[str, int], open_text: str, cap: str, flush: str) -> str:
    """Return one line about results. `emitted`: counts by reason."""
    counts = {reason: n for reason, n in emitted.items() if n and reason != _TAKEN_BACK}
    total = sum(counts.values())
    noun = "session" if kind == "session" else "window" if kind in KINDS_OF_WINDOW else "row"
    text = plural(total, noun)
    if any(
        reason in _REASON_TEXTS for reason in counts
    ):  # stateless and keyed steps have one reason, which is their name
        text += ": " + ", ".join(_reason(reason, n, cap, flush) for reason, n in _ordered(counts))
    if gone := emitted.get(_TAKEN_BACK, 0):
        text += f", and {gone:,} deleted"
    return f"{text}; {open_text}"


def _ordered(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    order = [*_REASON_TEXTS]
    return sorted(counts.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order))


def _reason(reason: str, count: int, cap: str, flush: str) -> str:
    if reason == "match":
        return plural(count, "pair")
    return f"{count:,} {_REASON_TEXTS.get(reason, reason).format(cap=cap, flush=flush)}"


def _open_text(status: Status | StageStatus) -> str:
    """Describe the current content of the state."""
    kind = status.window_kind if isinstance(status, Status) else status.kind
    buffered: Mapping[str, BufferCounts] = status.buffered
    if buffered:
        return f"{' and '.join(f'{buffer.rows:,} {side}' for side, buffer in buffered.items())} rows wait for partners"
    if kind in KINDS_OF_WINDOW:
        return f"{status.windows_active if isinstance(status, Status) else status.open:,} open"
    return f"{plural(status.groups, 'key')} kept" if status.groups else "no state"


def _cap_text(pipeline: Pipeline | None, stage: str | None) -> str:
    """Format the cap of sessions. `stage`: its name; None for the last stage."""
    if pipeline is None:
        return "max_session_duration"
    stage_pipeline: Any = (
        pipeline.target_stage if stage is None else pipeline.stage_pipelines.get(stage, pipeline.target_stage)
    )
    window = stage_pipeline.transform.window
    cap = None if window is None else window.max_session_duration_ms
    return "max_session_duration" if cap is None else format_duration(cap)
