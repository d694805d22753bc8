"""Checks of stages against each other: each reads what the one before it emits, and only the last one's results may change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from slackwater.config.spec import Problem, Values
from slackwater.config.spelling import show
from slackwater.config.step import MOST_STAGES


def check_stages(values: Values, wrong: set[str]) -> Iterator[Problem]:
    """Stages run in a row: a join or a window, and windows behind it, each over what the one before it emits."""
    stages: tuple[Any, ...] = values["stages"]  # of `config.pipeline.Stage`, which is not known here
    if "transform" in values:
        yield "stages", "given beside [transform]; a pipeline is one transform or several stages: remove one of them"
    if len(stages) < 2:
        yield "stages", "found 1; a single one is written as [transform]"
        return
    if len(stages) > MOST_STAGES:
        yield "stages", f"found {len(stages)}, expected at most {MOST_STAGES}"
        return
    if "stages" in wrong:
        return
    for name, times in Counter(s.name for s in stages).items():
        if times > 1:
            yield "stages", f"{times} stages are called {show(name)}; give each its own name"
    if any(s.join is not None for s in stages[1:]) or any(s.is_rows for s in stages[:-1]):
        found = ", ".join("a join" if s.join is not None else "SQL alone" if s.is_rows else "a window" for s in stages)
        yield (
            "stages",
            f"found {found}; available are a join or a window, windows behind it, and SQL alone as the last one",
        )
        return
    for number, (stage, _) in enumerate(pairwise(stages)):
        yield from _settled(stage, number)
    for number, stage in enumerate(stages[1:], 1):
        if stage.window is not None and stage.window.late_data == "dlq":
            yield (
                f"stages[{number}].window.late_data",
                'what a stage emits is never late; "dlq" belongs to the stage that reads the sources',
            )
        if stage.lookups:
            where = "sql" if stages[0].join is None else "left_sql or right_sql"
            yield f"stages[{number}].lookups", f"lookups are for the first stage only; join them in its {where}"


def _settled(stage: Any, number: int) -> Iterator[Problem]:
    """What another stage reads is said once: it has no way to take a result back."""
    window, kind = stage.window, "join" if stage.window is None else "window"
    late = stage.step.late_data
    if late == "reopen" and not (window is not None and window.emit == "final"):
        yield (
            f"stages[{number}].{kind}.late_data",
            '"reopen" is for the last stage only; raise lateness_ms to wait longer for late rows',
        )
    if window is None:
        return
    if late == "standalone":
        yield (
            f"stages[{number}].window.late_data",
            '"standalone" is for the last stage only: its results lie behind the watermark; use "drop" or "dlq"',
        )
    if window.emit == "updates":
        yield (
            f"stages[{number}].window.emit",
            '"updates" is for the last stage only: the next one reads each result once; use "on_close" or "final"',
        )
    if "_event_ts" in (c.casefold() for c in (*window.group_by, window.window_start_column, window.window_end_column)):
        yield (
            f"stages[{number}].window",
            'a column of its results is called "_event_ts", which is their event time in the next stage; rename it',
        )
