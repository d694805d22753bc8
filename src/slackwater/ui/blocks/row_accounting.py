"""Block "Where did every row go?": the rows read and what happened to them, in total and by epoch.

in  =  used + late + refused + bad + lost          "lost": removed from the source before they were read
       + by the SQL (removed; negative: added)  + without a key (joins)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from slackwater.core.lateness_histogram import NOTHING, LatenessStats
from slackwater.engine import next_commit
from slackwater.state.commit import Commit

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
