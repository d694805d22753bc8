"""Block "Where did every row go?": the rows read and what happened to them, in total and by epoch.

in  =  used + late + refused + bad + lost          "lost": removed from the source before they were read
       + by the SQL (removed; negative: added)  + without a key (joins)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from slackwater.core.humanize import format_brief, format_number, format_span, plural
from slackwater.core.lateness_histogram import NOTHING, LatenessStats
from slackwater.engine import next_commit
from slackwater.state.commit import Commit
from slackwater.ui.axis import Axis
from slackwater.ui.svg import count_axis, drawing_id, element, picture, rect, right, space_labels, text, title, width

PARTS = ("used", "late", "replayed", "refused", "bad", "lost", "keyless", "by_sql")


@dataclass(frozen=True)
class RowCounts:
    """Row counts.

    Args:
        rows_in: Rows that were read, and rows that were lost before they were read.
        by_sql: Rows that the SQL removed; negative if it added rows.
        unaccounted: Rows of `rows_in` that are not in any other count.
        replayed: Late rows that `dlq replay` has applied; only known in total.
    """

    rows_in: int
    used: int
    late: int
    refused: int
    bad: int
    lost: int
    keyless: int
    by_sql: int
    unaccounted: int
    replayed: int = 0


@dataclass(frozen=True)
class EpochRows:
    """The rows that a commit added to the counts of the previous commit.

    `account` and `emitted` are None if the previous commit is not kept.
    """

    epoch: int
    committed_us: int
    account: RowCounts | None
    emitted: int | None


@dataclass(frozen=True)
class RowAccounting:
    """The block "Where did every row go?".

    `total`, `letters`, `late` and `emitted` cover the life of the pipeline. The last three are counts by reason.

    Args:
        unaccounted: The largest unaccounted count, whether in total or in an epoch.
        lateness: Statistics of late rows since the current lateness of the sources was set.
        advice: A sentence about the lateness that would have kept more rows.
    """

    total: RowCounts
    unaccounted: int
    epochs: tuple[EpochRows, ...]
    letters: Mapping[str, int]
    late: Mapping[str, int]
    emitted: Mapping[str, int]
    lateness: LatenessStats
    advice: str | None


def build_accounting(
    commits: Sequence[Commit], lateness: LatenessStats = NOTHING, advice: str | None = None
) -> RowAccounting:
    """Build the row-accounting block from the commits that are kept, oldest first.

    `lateness` and `advice` come from `why`.
    """
    latest = next_commit.sum_counters(commits[-1])
    total = _account(_parts(commits[-1]), sql=True)
    applied = min(latest.replayed_late, total.late)
    total = replace(total, late=total.late - applied, replayed=applied)
    epochs = tuple(_epoch(m, commits[n - 1] if n else None) for n, m in enumerate(commits))
    missing = max([abs(total.unaccounted), *(abs(e.account.unaccounted) for e in epochs if e.account)])
    by_reason = dict(latest.letters), dict(latest.late), dict(latest.emitted)
    return RowAccounting(total, missing, epochs, *by_reason, lateness, advice)


def _epoch(commit: Commit, before: Commit | None) -> EpochRows:
    if commit.epoch > 0 and (before is None or before.epoch != commit.epoch - 1):
        return EpochRows(commit.epoch, commit.committed_us, None, None)
    now, former = _parts(commit), dict.fromkeys(_parts(commit), 0) if before is None else _parts(before)
    since = {n: now[n] - former[n] for n in now}
    written = any(
        text
        for m in (commit, before or commit)
        for stage in m.stages
        for name, text in stage.texts.items()
        if name.endswith("sql")
    )
    return EpochRows(commit.epoch, commit.committed_us, _account(since, written), since["emitted"])


def _parts(commit: Commit) -> dict[str, int]:
    c = next_commit.sum_counters(commit)
    keyless = sum(side.get("keyless", 0) for side in c.sides.values())
    return {
        "in": c.rows_in,
        "sql": c.rows_sql,
        "used": c.rows_used,
        "late": c.rows_late,
        "refused": c.rows_refused,
        "bad": c.rows_bad,
        "lost": c.rows_lost,
        "keyless": keyless,
        "emitted": c.rows_emitted,
    }


def _account(p: Mapping[str, int], sql: bool) -> RowCounts:
    """Compute row counts from the counters `p`. `sql`: whether there is a SELECT, which may remove or add rows."""
    by_sql = p["in"] - p["bad"] - p["sql"]
    missing = p["sql"] - p["used"] - p["late"] - p["refused"] - p["keyless"]
    if not sql:
        by_sql, missing = 0, missing + by_sql
    return RowCounts(
        rows_in=p["in"] + p["lost"],
        used=p["used"],
        late=p["late"],
        refused=p["refused"],
        bad=p["bad"],
        lost=p["lost"],
        keyless=p["keyless"],
        by_sql=by_sql,
        unaccounted=missing,
    )


# -- drawing of the rows -----------------------------------------------------------------------------------------------


LEFT, TOP, BOTTOM = 70, 12, 190
NAMES = {"replayed": "late, applied by dlq replay", "keyless": "without a key", "by_sql": "left out by the SQL"}


def draw_total(account: RowCounts) -> Markup:
    """Draw all rows as one bar."""
    parts = _draw_parts(account)
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
    max_rows = max(max(sum(n for _, n in _draw_parts(e.account)) for e in accounted if e.account), 1)
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
        for name, count in _draw_parts(epoch.account):
            low, high = up.position(offset), up.position(offset + count)
            offset += count
            drawn.append(
                rect(x - broad / 2, high, broad, max(low - high, 1.5), f"part {name}", _about(name, count, epoch.epoch))
            )
    return picture("Rows of each kept epoch by outcome", BOTTOM + 28, *drawn)


def _draw_parts(account: RowCounts) -> list[tuple[str, int]]:
    counts = [(name, int(getattr(account, name))) for name in PARTS]
    missing = [("unaccounted", account.unaccounted)] if account.unaccounted > 0 else []
    return [(name, count) for name, count in [*counts, *missing] if count > 0]


def _about(name: str, count: int, epoch: int | None = None) -> Markup:
    return title(f"{'' if epoch is None else f'epoch {epoch}: '}{format_number(count)} {NAMES.get(name, name)}")


# -- drawing of late rows ----------------------------------------------------------------------------------------------


LATENESS_BOTTOM = 120


def draw_lateness(block: LatenessStats) -> Markup:
    """Draw one bar per step of lateness; return empty markup if no rows were late."""
    if not block.chances:
        return Markup("")
    counts, remaining = list[int](), block.late
    for chance in block.chances:
        counts.append(remaining - chance.late)
        remaining = chance.late
    up = Axis(0, max(*counts, 1), LATENESS_BOTTOM, TOP)
    slot = (right() - LEFT) / max(len(counts), 8)
    width, drawn = min(slot * 0.8, 80), count_axis(up, LEFT, right(), [(v, format_brief(v)) for v in up.counts()])
    names = space_labels([format_span(chance.more_us) for chance in block.chances], slot)
    for n, (chance, count) in enumerate(zip(block.chances, counts, strict=True)):
        x, top = LEFT + slot * (n + 0.5), up.position(count)
        kind = "part late" if block.advice is None or chance.more_us > block.advice.more_us else "part used"
        about = title(f"{plural(count, 'late row')} that {format_span(chance.more_us)} more would have kept")
        drawn.append(rect(x - width / 2, top, width, max(LATENESS_BOTTOM - top, 1 if count else 0), kind, about))
        drawn.append(text(x, LATENESS_BOTTOM + 18, names[n], "tick", "middle"))
    return picture("Late rows by how much more lateness would have kept them", LATENESS_BOTTOM + 28, *drawn)
