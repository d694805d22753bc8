"""Histogram of late rows by the additional lateness that they would have needed to be on time, in powers of two.

more lateness   0    125 ms   250 ms   500 ms    1 s      2 s   …
step                 0        1        2         3        4         1 s more would have kept a row in step 3
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from slackwater.core.humanize import format_ms, format_percent, plural
from slackwater.core.sorted_arrays import Int64s

FIRST_US = 125_000
STEPS = 46
EDGES: Int64s = FIRST_US << np.arange(STEPS, dtype=np.int64)
ENOUGH = 0.9  # share of the late rows that the recommended lateness would have kept
NEVER = "never"  # key for the rows that no lateness would have kept


def build_lateness_histogram(missed_us: Int64s, rows: Int64s | None = None) -> dict[str, int]:
    """Count late rows by histogram step, that is, by the additional lateness that they would have needed.

    `missed_us`: for each entry, the additional lateness (µs) that its rows needed. `rows`: the number of rows of each
    entry; None for one each.
    """
    weights = np.ones(len(missed_us), dtype=np.int64) if rows is None else rows
    totals = np.zeros(STEPS + 1, dtype=np.int64)
    np.add.at(totals, np.searchsorted(EDGES, missed_us, "left"), weights)
    return {NEVER if step == STEPS else str(step): int(n) for step, n in enumerate(totals) if n}


def update_histogram(
    before: Mapping[str, Any], judged: int, late: Iterable[Mapping[str, int]], of_us: Mapping[str, int]
) -> dict[str, Any]:
    """Return the lateness counts to commit after an epoch. They restart at zero if the lateness of any source changed.

    Args:
        before: The counts of the previous commit.
        judged: The number of rows that the epoch compared with the watermark.
        late: Histograms of the late rows in the epoch.
        of_us: The lateness of each source (µs).
    """
    same = before.get("of_us") == of_us
    totals: Counter[str] = Counter(before.get("late", {}) if same else {})
    for histogram in late:
        totals.update(histogram)
    return {"rows": judged + (before.get("rows", 0) if same else 0), "late": dict(totals), "of_us": dict(of_us)}


@dataclass(frozen=True)
class LatenessOption:
    """The effect of adding `more_us` (µs) to the lateness of every source: at most `late` rows would still be late.

    `share`: the share of all rows that would not have been late. `lateness_us`: the resulting lateness; None if it
    differs between sources.
    """

    more_us: int
    lateness_us: int | None
    late: int
    share: float


@dataclass(frozen=True)
class LatenessStats:
    """The number of late rows, and the effect of a larger lateness.

    Args:
        rows: The number of rows that were compared with the watermark at the current lateness.
        late: The number of late rows.
        share: The share of rows that were not late.
        chances: One option per histogram step, up to the option with the fewest late rows.
        advice: The first option that avoids at least the share `ENOUGH` of the avoidable late rows; None if there is
            none.
    """

    rows: int
    late: int
    share: float
    chances: tuple[LatenessOption, ...]
    advice: LatenessOption | None


NOTHING = LatenessStats(0, 0, 1.0, (), None)


def compute_lateness_stats(counters: Mapping[str, Any], waits_us: int = 0) -> LatenessStats:
    """Compute lateness statistics from the counts that `update_histogram` returned. Without counts, return `NOTHING`.

    `waits_us`: how much of each recorded lateness does not come from `lateness_ms` (see `next_commit.final_wait_us`).
    """
    by_step = counters.get("late", {})
    counts = {int(step): n for step, n in by_step.items() if step != NEVER}
    late = sum(by_step.values())
    rows = max(int(counters.get("rows", 0)), late)
    chances = tuple(_options(counts, late, rows, {us - waits_us for us in counters.get("of_us", {}).values()}))
    enough = ENOUGH * sum(counts.values())
    advice = next((c for c in chances if late - c.late >= enough), None)
    return LatenessStats(rows, late, 1 - late / rows if rows else 1.0, chances, advice)


def _options(counts: Mapping[int, int], late: int, rows: int, of_us: set[int]) -> Iterator[LatenessOption]:
    for step in range(min(counts, default=0), max(counts, default=-1) + 1):
        late -= counts.get(step, 0)
        more = int(EDGES[step])
        yield LatenessOption(more, next(iter(of_us)) + more if len(of_us) == 1 else None, late, 1 - late / rows)


def format_lateness_advice(stats: LatenessStats) -> str | None:
    """Return the advice as a sentence, or None if no row was late or no lateness would have been enough."""
    option = stats.advice
    if option is None:
        return None
    if option.lateness_us is None:
        advice = f"with {format_ms(option.more_us // 1000)} more lateness on each source"
    else:
        advice = f'with lateness = "{format_ms(option.lateness_us // 1000)}"'
    return (
        f"{advice} you would have kept at least {format_percent(option.share)} of the rows, not {format_percent(stats.share)} "
        f"({plural(stats.late, 'late row')} of {stats.rows:,}); results are emitted that much later"
    )
