"""Windows of the fault matrix: user events, out of order by less than the lateness, and the expected results in SQL.

events ─▶ sessions | tumbling | sessions ─▶ tumbling (chained) | sessions that reach their cap ─▶ tumbling (next-stage)
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

GAP_S, TUMBLE_S, LATENESS_S = 5, 60, 3
CAP_S, NEXT_S = 12, 4  # next-stage: a cut session falls into another window than an uncut one
START_MS = 1_700_000_000_000
BROKEN = '{"user": "u1", "amount":'  # the value of a record that is not JSON

SESSIONS = f"""
    SELECT "user", min(ts) AS window_start, max(ts) + interval '{GAP_S} s' AS window_end, count(*) AS events, sum(amount)::bigint AS total
    FROM (SELECT *, count(*) FILTER (WHERE fresh) OVER (PARTITION BY "user" ORDER BY ts, seq) AS nth FROM (
            SELECT *, coalesce(ts - lag(ts) OVER (PARTITION BY "user" ORDER BY ts, seq) > interval '{GAP_S} s', true) AS fresh
            FROM truth) a) b
    GROUP BY "user", nth"""


# the starts of the sessions of a run: each starts at the first event at or beyond the cap of the previous one
CUT_SESSIONS = f"""
    WITH RECURSIVE runs AS (
        SELECT "user", window_start AS start, window_end - interval '{GAP_S} s' AS upto FROM ({SESSIONS}) s
      UNION ALL
        SELECT "user", next, upto FROM (
            SELECT r."user", r.upto, (SELECT min(t.ts) FROM truth t WHERE t."user" = r."user" AND t.ts <= r.upto
                AND t.ts >= r.start + interval '{CAP_S} s') AS next FROM runs r) n
        WHERE next IS NOT NULL),
    parts AS (SELECT *, lead(start) OVER (PARTITION BY "user", upto ORDER BY start) AS next FROM runs)
    SELECT p."user", p.start AS window_start, CASE WHEN p.next IS NULL THEN max(t.ts) + interval '{GAP_S} s'
        ELSE least(max(t.ts) + interval '{GAP_S} s', p.start + interval '{CAP_S} s') END AS window_end,
        count(*) AS events, sum(t.amount)::bigint AS total
    FROM parts p JOIN truth t ON t."user" = p."user" AND t.ts >= p.start AND t.ts <= p.upto AND (p.next IS NULL OR t.ts < p.next)
    GROUP BY p."user", p.start, p.next, p.upto"""


def _window_totals_sql(rows: str, time_column: str, events: str, total: str, seconds: int = TUMBLE_S) -> str:
    begins = f"date_bin('{seconds} s', {time_column}, 'epoch'::timestamptz)"
    return f"""
    SELECT "user", {begins} AS window_start, {begins} + interval '{seconds} s' AS window_end, {events} AS events, {total} AS total
    FROM {rows} GROUP BY 1, 2, 3"""


TUMBLING = _window_totals_sql("truth", "ts", "count(*)", "sum(amount)::bigint")
CHAINED = _window_totals_sql(f"({SESSIONS}) s", "window_end", "sum(events)::bigint", "sum(total)::bigint")
NEXT_STAGE = _window_totals_sql(
    f"({CUT_SESSIONS}) s", "window_end", "sum(events)::bigint", "sum(total)::bigint", NEXT_S
)
TRUTH = {"session": SESSIONS, "tumbling": TUMBLING, "chained": CHAINED, "next-stage": NEXT_STAGE}
COLUMNS = {
    "user": "text",
    "window_start": "timestamptz",
    "window_end": "timestamptz",
    "events": "bigint",
    "total": "bigint",
}
_SHAPE = {
    "session": f'kind = "session"\ngap_ms = "{GAP_S}s"\nmax_session_duration_ms = "1h"',
    "session-cut": f'kind = "session"\ngap_ms = "{GAP_S}s"\nmax_session_duration_ms = "{CAP_S}s"',
    "tumbling-next": f'kind = "tumbling"\nduration_ms = "{NEXT_S}s"\nmax_groups_per_window = 100000',
    "tumbling": f'kind = "tumbling"\nduration_ms = "{TUMBLE_S}s"\nmax_groups_per_window = 100000',
}


def format_window_steps_toml(kind: str) -> str:
    """Return the [transform.window] table or the [[stages]] for a kind of `TRUTH`."""
    if kind not in ("chained", "next-stage"):
        return _window_table_toml("transform", kind, ("count", None, "events"), ("sum", "amount", "total"))
    shapes = ("session", "tumbling") if kind == "chained" else ("session-cut", "tumbling-next")
    first = _window_table_toml("stages", shapes[0], ("count", None, "events"), ("sum", "amount", "total"))
    second = _window_table_toml("stages", shapes[1], ("sum", "events", "events"), ("sum", "total", "total"))
    return f'[[stages]]\nname = "sessions"\n\n{first}\n[[stages]]\nname = "per_minute"\n\n{second}'


def _window_table_toml(table: str, kind: str, *aggregations: tuple[str, str | None, str]) -> str:
    lines = [f'[{table}.window]\n{_SHAPE[kind]}\nlateness_ms = "{LATENESS_S}s"\ngroup_by = ["user"]\n']
    for agg, column, name in aggregations:
        column_line = f'column = "{column}"\n' if column else ""
        lines.append(f'[[{table}.window.aggregations]]\nagg = "{agg}"\n{column_line}as = "{name}"\n')
    return "\n".join(lines)


def generate_user_events(events: int, broken: float = 0) -> Iterator[tuple[str, str, int]]:
    """Yield events in sending order: (user, value, time in ms). `broken` is the share of values that are not JSON."""
    chance, now = random.Random(7), START_MS
    for n in range(events):
        now += chance.randrange(20)
        user = f"u{chance.randrange(300) + n // 4000 % 7}"
        value = json.dumps({"user": user, "amount": chance.randrange(100)})
        time_ms = now - chance.randrange(2000)
        yield user, BROKEN if broken and chance.random() < broken else value, time_ms
