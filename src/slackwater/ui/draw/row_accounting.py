"""Draw the rows of each epoch, stacked by what happened to them."""

from __future__ import annotations

from markupsafe import Markup

from slackwater.core.humanize import format_brief, format_number
from slackwater.ui.axis import Axis
from slackwater.ui.blocks.row_accounting import PARTS, RowAccounting, RowCounts
from slackwater.ui.svg import count_axis, drawing_id, element, picture, rect, right, space_labels, text, title, width

LEFT, TOP, BOTTOM = 70, 12, 190
NAMES = {"replayed": "late, applied by dlq replay", "keyless": "without a key", "by_sql": "left out by the SQL"}


def draw_total(account: RowCounts) -> Markup:
    """Draw all rows as one bar."""
    parts = _parts(account)
    total = sum(n for _, n in parts)
    if not total:
        return Markup("")
    across, drawn, offset = (
        Axis(0, total, 0, width()),
        [element("clipPath", element("rect", width=width(), height=18, rx=4), id=drawing_id("round"))],
        0,
    )
    bars = []
    for name, count in parts:
        low, high = across.position(offset), across.position(offset + count)
        offset += count
        # every part is visible, even one late row in millions
        bars.append(rect(min(low, width() - 2), 0, max(high - low, 2), 18, f"part {name}", _about(name, count)))
    return picture("All rows by outcome", 18, *drawn, element("g", *bars, clip_path=f"url(#{drawing_id('round')})"))


def draw_epochs(block: RowAccounting) -> Markup:
    """Draw a stacked bar for each epoch; return empty markup if the row counts of no epoch are known."""
    accounted = [e for e in block.epochs if e.account is not None]
    if not accounted:
        return Markup("")
    max_rows = max(max(sum(n for _, n in _parts(e.account)) for e in accounted if e.account), 1)
    up = Axis(0, max_rows, BOTTOM, TOP)
    slot = (right() - LEFT) / max(len(block.epochs), 8)
    broad, drawn = min(slot * 0.62, 64), count_axis(up, LEFT, right(), [(v, format_brief(v)) for v in up.counts()])
    names = space_labels([str(e.epoch) for e in block.epochs], slot)
    for n, epoch in enumerate(block.epochs):
        x, offset = LEFT + slot * (n + 0.5), 0
        drawn.append(text(x, BOTTOM + 18, names[n], "tick", "middle"))
        if epoch.account is None:
            drawn.append(text(x, BOTTOM - 6, "not kept", "tick", "middle"))
            continue
        for name, count in _parts(epoch.account):
            low, high = up.position(offset), up.position(offset + count)
            offset += count
            drawn.append(
                rect(x - broad / 2, high, broad, max(low - high, 1.5), f"part {name}", _about(name, count, epoch.epoch))
            )
    return picture("Rows of each kept epoch by outcome", BOTTOM + 28, *drawn)


def _parts(account: RowCounts) -> list[tuple[str, int]]:
    counts = [(name, int(getattr(account, name))) for name in PARTS]
    missing = [("unaccounted", account.unaccounted)] if account.unaccounted > 0 else []
    return [(name, count) for name, count in [*counts, *missing] if count > 0]


def _about(name: str, count: int, epoch: int | None = None) -> Markup:
    return title(f"{'' if epoch is None else f'epoch {epoch}: '}{format_number(count)} {NAMES.get(name, name)}")
