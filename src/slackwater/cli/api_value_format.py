"""Text that `print` shows for values of the Python API. It has the same form as the output of the commands."""

from __future__ import annotations

from collections.abc import Iterator
from functools import singledispatch

from slackwater.cli import why
from slackwater.cli.results import table_lines
from slackwater.core.humanize import format_size, plural
from slackwater.explain import Plan
from slackwater.query.why_report import WhyReport
from slackwater.secret_masking import mask_secrets
from slackwater.testing.memory_target import LocalResult

ROWS = 20  # maximum number of rows of a result to show


@singledispatch
def format_api_value(value: object) -> str:
    """Return the text that `print` shows for a value."""
    return repr(value)


@format_api_value.register
def _(value: WhyReport) -> str:
    return "\n".join(why.format_report(value, value.file))


@format_api_value.register
def _(value: Plan) -> str:
    return mask_secrets("\n".join(_plan_lines(value)))


def _plan_lines(plan: Plan) -> Iterator[str]:
    yield f"{plan.pipeline}\n"
    for stage in plan.stages:
        yield f"  {stage.name:<11}{stage.where:<8}{stage.title}"
        for line in stage.lines:
            yield f"  {'':<19}{line}"
    yield f"\n  delivery   {plan.guarantee}"
    for i, entry in enumerate(plan.kept):
        line = entry if isinstance(entry, str) else f"at most about {format_size(entry[0])} at {entry[1]:,} groups"
        yield f"  {'' if i else 'state':<11}{line}"
    for line in plan.notes:
        yield f"  note       {line}"


@format_api_value.register
def _(value: LocalResult) -> str:
    """Return the last rows of each table, and the total row counts."""
    tables = value.tables if len(value.tables) > 1 else {"": value.table}
    parts = []
    for name, frame in tables.items():
        lines = list(table_lines(frame.tail(ROWS))) if frame.width else []
        truncation_note = [f"(the last {ROWS} of {plural(frame.height, 'row')})"] if frame.height > ROWS else []
        parts.append("\n".join([*([f"{name}:"] if name else []), *lines, *truncation_note]))
    c = value.counters
    counts_text = f"{c.rows_used:,} used, {c.rows_late:,} late, {c.rows_bad:,} bad"
    parts.append(
        f"{plural(sum(f.height for f in tables.values()), 'row')} in the target; of the rows read: {counts_text}"
    )
    return "\n".join(p for p in parts if p)
