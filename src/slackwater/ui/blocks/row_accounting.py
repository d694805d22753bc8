"""Block "Where did every row go?": how many rows were read and what happened to them, in total and by epoch.

in  =  used + late + replayed + refused + bad + lost + without a key + by the SQL

replayed        late rows that `dlq replay` has applied
refused         rows that a stage refused because of `max_groups_per_window`
lost            removed from the source before they were read
without a key   rows of a join that have a NULL key and cannot match
by the SQL      removed by the SQL; negative if it added rows
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from slackwater.core.humanize import format_brief, format_number, format_span, plural
from slackwater.core.lateness_histogram import NOTHING, LatenessStats
from slackwater.engine import next_commit
from slackwater.state.commit import Commit
from slackwater.ui.svg import Axis, draw_columns, drawing_id, element, picture, rect, title, width

PARTS = ("used", "late", "replayed", "refused", "bad", "lost", "keyless", "by_sql")


@dataclass(frozen=True)
class RowCounts:
    """Row counts by outcome.

    Args:
        rows_in: Rows that were read, plus rows that were lost before they could be read.
        by_sql: Rows that the SQL removed; negative if it added rows.
        unaccounted: Rows in `rows_in` that no other count includes.
        replayed: Late rows that `dlq replay` has applied; counted only in the total, and 0 in each epoch.
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
    """The row counts of one epoch, which are the differences between its commit and the previous commit.

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
        unaccounted: The largest number of unaccounted rows, whether in total or in one epoch.
        lateness: Statistics of late rows since the lateness of the sources last changed.
        advice: A sentence about a lateness that would have kept more rows; None if no advice applies.
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
    """Build the "Where did every row go?" block.

    Args:
        commits: The kept commits, oldest first.
        lateness: Statistics of late rows.
        advice: A sentence about a better lateness; None if no advice applies.
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
    texts = [item for m in (commit, before or commit) for stage in m.stages for item in stage.texts.items()]
    written = any(text for name, text in texts if name.endswith("sql"))
    return EpochRows(commit.epoch, commit.committed_us, _account(since, written), since["emitted"])


def _parts(commit: Commit) -> dict[str, int]:
    c = next_commit.sum_counters(commit)
    names = ("in", "sql", "used", "late", "refused", "bad", "lost", "emitted")
    counts = {name: int(getattr(c, f"rows_{name}")) for name in names}
    return counts | {"keyless": sum(side.get("keyless", 0) for side in c.sides.values())}


def _account(p: Mapping[str, int], sql: bool) -> RowCounts:
    """Compute row counts from the counters `p`. `sql`: whether the pipeline has SQL, which may remove or add rows."""
    by_sql = p["in"] - p["bad"] - p["sql"]
    missing = p["sql"] - p["used"] - p["late"] - p["refused"] - p["keyless"]
    if not sql:
        by_sql, missing = 0, missing + by_sql
    counts = {name: p[name] for name in ("used", "late", "refused", "bad", "lost", "keyless")}
    return RowCounts(rows_in=p["in"] + p["lost"], by_sql=by_sql, unaccounted=missing, **counts)


# -- drawings ----------------------------------------------------------------------------------------------------------

LEFT, TOP = 70, 12
NAMES = {"replayed": "late, applied by dlq replay", "keyless": "without a key", "by_sql": "removed by the SQL"}


def draw_total(account: RowCounts) -> Markup:
    """Draw all rows as one bar that is divided by outcome. Return empty markup if there are no rows."""
    parts = _drawn_parts(account)
    across, bars, offset = Axis(0, sum(count for _, count, _ in parts), 0, width()), list[Markup](), 0
    if not parts:
        return Markup("")
    for class_, count, about in parts:
        low, high = across.position(offset), across.position(offset + count)
        offset += count
        # at least 2 units wide, so that even one late row in millions is visible
        bars.append(rect(min(low, width() - 2), 0, max(high - low, 2), 18, class_, title(about)))
    clip = element("clipPath", element("rect", width=width(), height=18, rx=4), id=drawing_id("round"))
    return picture("All rows by outcome", 18, clip, element("g", *bars, clip_path=f"url(#{drawing_id('round')})"))


def draw_epochs(block: RowAccounting) -> Markup:
    """Draw the rows of each epoch as a column by outcome. Return empty markup if no row counts are known."""
    columns = [
        (str(e.epoch), None if e.account is None else _drawn_parts(e.account, f"epoch {e.epoch}: "))
        for e in block.epochs
    ]
    known_columns = [parts for _, parts in columns if parts is not None]
    if not known_columns:
        return Markup("")
    up = Axis(0, max(1, *(sum(count for _, count, _ in parts) for parts in known_columns)), 190, TOP)
    label = "Rows of each kept epoch by outcome"
    return draw_columns(label, columns, up, LEFT, format_brief, labeled=up.counts(), thinnest=1.5)


def _drawn_parts(account: RowCounts, before: str = "") -> list[tuple[str, int, str]]:
    """Return the CSS class, row count and tooltip of each outcome with rows. `before`: the start of each tooltip."""
    counts = [(name, int(getattr(account, name))) for name in (*PARTS, "unaccounted")]
    return [
        (f"part {name}", count, f"{before}{format_number(count)} {NAMES.get(name, name)}")
        for name, count in counts
        if count > 0
    ]


def draw_lateness(block: LatenessStats) -> Markup:
    """Draw the late rows by the extra lateness that would have kept them. Return empty markup if there are none."""
    columns, remaining = list[tuple[str, list[tuple[str, int, str]]]](), block.late
    for chance in block.chances:
        count, remaining = remaining - chance.late, chance.late
        class_ = "part late" if block.advice is None or chance.more_us > block.advice.more_us else "part used"
        more = format_span(chance.more_us)
        about = f"{plural(count, 'late row')} that {more} more lateness would have kept"
        columns.append((more, [(class_, count, about)] if count else []))
    if not columns:
        return Markup("")
    up = Axis(0, max(1, *(count for _, parts in columns for _, count, _ in parts)), 120, TOP)
    label, ticks = "Late rows by the additional lateness that would have kept them", up.counts()
    return draw_columns(label, columns, up, LEFT, format_brief, labeled=ticks, thinnest=1, share=0.8, widest=80)
