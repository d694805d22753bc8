"""Windows and their aggregations, as the user describes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pydantic import Field

from slackwater.config.spec import (
    Interpolated,
    Kind,
    Problem,
    Spec,
    Values,
    choice,
    duration,
    flag,
    many,
    show,
    show_duration,
    text,
    texts,
    whole,
)
from slackwater.core.time import duration_ms

_NO_COMPLETE = "complete mode is not supported: a result that never closes needs all rows for ever"
AGGREGATES = ("count", "sum", "min", "max", "avg", "first", "last", "count_distinct")
KINDS_OF_WINDOW = ("tumbling", "hopping", "session")
_aggregate = choice(*AGGREGATES)
_KEYS_OF = {
    "duration_ms": ("tumbling", "hopping"),
    "hop_ms": ("hopping",),
    "offset_ms": ("tumbling", "hopping"),
    "gap_ms": ("session",),
    "max_session_duration_ms": ("session",),
}


class Aggregation(Spec):
    """One aggregation: `Aggregation(agg="sum", column="amount", as_="total")`.

    agg: count | sum | min | max | avg | first | last | count_distinct; `count` without a column counts rows.
    mode (count_distinct): "approximate" (HLL, `hll_precision` 4 to 18) or "exact" (needs max_distinct_values_per_group).
    """

    agg: str
    column: str | None = None
    as_: str = Field(default="", alias="as")
    mode: str | None = None
    max_distinct_values_per_group: int | None = None
    hll_precision: int = 14

    KINDS: ClassVar[Mapping[str, Kind]] = {
        "agg": lambda value: value if value == "count_col" else _aggregate(value),
        "column": text,
        "as": text,
        "mode": choice("approximate", "exact"),
        "max_distinct_values_per_group": whole(1),
        "hll_precision": whole(4, 18),
    }
    FIELDS: ClassVar[Mapping[str, str]] = {"as": "as_"}
    OLD: ClassVar[Mapping[str, str]] = {"kind": "agg", "input_column": "column", "output_name": "as"}
    REQUIRED: ClassVar[tuple[str, ...]] = ("agg", "as")

    @classmethod
    def read(cls, data: Values, file: str, at: str, problems: list[str]) -> tuple[Values, set[str]]:
        values, wrong = super().read(data, file, at, problems)
        if values.get("agg") == "count_col":  # the older spelling of count with a column
            values["agg"] = "count"
        if values.get("agg") == "count_distinct":
            values.setdefault("mode", "approximate")
        return values, wrong

    def implied(self) -> Values:
        return {"mode": "approximate"} if self.agg == "count_distinct" else {}

    @classmethod
    def wanted(cls, key: str) -> str:
        return "name the output column" if key == "as" else f"expected {' or '.join(show(a) for a in AGGREGATES)}"

    @classmethod
    def check(cls, values: Values, wrong: set[str]) -> Iterator[Problem]:
        agg = values.get("agg")
        if agg is None:
            return
        if agg != "count" and "column" not in values and "column" not in wrong:
            what = "count" if agg == "count_col" else "aggregate"
            yield "column", f"missing; {show(agg)} needs the column to {what}"
        if agg != "count_distinct":
            for key in ("mode", "max_distinct_values_per_group", "hll_precision"):
                if key in values:
                    yield key, f'belongs to "count_distinct", not to {show(agg)}; remove it'
        elif values.get("mode") == "exact":
            if "max_distinct_values_per_group" not in values and "max_distinct_values_per_group" not in wrong:
                yield (
                    "max_distinct_values_per_group",
                    'missing; mode = "exact" needs a bound, or use mode = "approximate"',
                )
        elif "max_distinct_values_per_group" in values:
            yield "max_distinct_values_per_group", 'belongs to mode = "exact"; set it, or remove the bound'
        if values.get("as_", "").casefold() == "_event_ts":
            yield "as", '"_event_ts" is the event time; choose another name'


class Window(Spec):
    """A window: `Window(kind="session", gap_ms="30m", max_session_duration_ms="1d", group_by=["user"], …)`.

    Durations are milliseconds or strings ("30s", "5m", "2h", "30d"). Which keys belong to which kind, and what they
    mean, is in docs/semantics.md. Raises ConfigError with one line per mistake.
    """

    kind: str
    duration_ms: int | None = None
    hop_ms: int | None = None
    offset_ms: int = 0
    gap_ms: int | None = None
    max_session_duration_ms: int | None = None
    event_time_column: str = "_event_ts"
    event_time_unit: str | None = None
    time_mode: str = "event"
    lateness_ms: int = 0
    source_idleness_ms: int = 60_000
    max_future_ms: int = 86_400_000
    group_by: tuple[str, ...] = ()
    late_data: str = "drop"
    emit: str = "on_close"
    emit_metadata: bool = False
    max_groups_per_window: int | None = None
    on_state_cap: str = "fail"
    window_start_column: str = "window_start"
    window_end_column: str = "window_end"
    crash_recovery: str | None = None
    aggregations: tuple[Aggregation, ...] = ()

    KINDS: ClassVar[Mapping[str, Kind]] = {
        "kind": choice(*KINDS_OF_WINDOW),
        "duration_ms": duration(1),
        "hop_ms": duration(1),
        "offset_ms": duration(),
        "gap_ms": duration(1),
        "max_session_duration_ms": duration(1),
        "event_time_column": text,
        "event_time_unit": choice("s", "ms", "us", "ns"),
        "time_mode": choice("event", "processing"),
        "lateness_ms": duration(0),
        "source_idleness_ms": duration(1),
        "max_future_ms": duration(0),
        "group_by": texts,
        "late_data": choice("drop", "dlq"),
        "emit": choice("on_close"),
        "emit_metadata": flag,
        "max_groups_per_window": whole(1),
        "on_state_cap": choice("fail", "drop_new_groups"),
        "window_start_column": text,
        "window_end_column": text,
        "crash_recovery": choice("at_least_once", "persisted", "kafka_eos"),
        "aggregations": many(Aggregation, "a list of aggregations ([[transform.window.aggregations]])"),
    }
    OLD: ClassVar[Mapping[str, str]] = {"width_ms": "duration_ms"}
    LATER: ClassVar[Mapping[str, str]] = {
        "idle_close_ms": "",
        "emit_interval_ms": 'windows are emitted when they close (emit = "on_close")',
    }
    REQUIRED: ClassVar[tuple[str, ...]] = ("kind",)

    @classmethod
    def read(cls, data: Values, file: str, at: str, problems: list[str]) -> tuple[Values, set[str]]:
        data = dict(data)
        where = f"{file}: {at}." if at else f"{file}: "
        if data.pop("allowed_lateness_ms", None) is not None:
            problems.append(
                f'{where}allowed_lateness_ms: not available yet, as is late_data = "reopen"; raise lateness_ms'
                if data.get("late_data") == "reopen"
                else f'{where}allowed_lateness_ms: needs late_data = "reopen"; to wait longer for late rows raise lateness_ms'
            )
        for key in ("mode", "output_mode"):
            if data.get(key) == "complete":
                del data[key]
                problems.append(f'{where}{key}: {_NO_COMPLETE}; remove it (emit = "on_close" is the default)')
        values, wrong = super().read(data, file, at, problems)
        if values.get("kind") == "session":
            values.setdefault("max_groups_per_window", 1_000_000)
        return values, wrong

    def implied(self) -> Values:
        return {"max_groups_per_window": 1_000_000} if self.kind == "session" else {}

    @classmethod
    def wanted(cls, key: str) -> str:
        return f"expected {' or '.join(show(k) for k in KINDS_OF_WINDOW)}"

    @classmethod
    def later_value(cls, key: str, value: Any) -> str | None:
        if isinstance(value, Interpolated):
            return None
        if key == "kind" and value in ("sliding", "sliding_per_row", "complete"):
            if value == "complete":
                return f'{_NO_COMPLETE}; use kind = "tumbling"'
            return 'sliding (per-row) windows are not supported; use kind = "hopping" with a small hop_ms'
        if key == "late_data" and value in ("reopen", "standalone"):
            return f'"{value}" is not available yet; use "drop" or "dlq" and raise lateness_ms'
        if key == "emit" and value == "complete":
            return f'{_NO_COMPLETE}; use emit = "on_close"'
        if key == "emit" and value in ("final", "updates"):
            return f'"{value}" is not available yet; use "on_close"'
        if key == "on_state_cap" and value == "backpressure":
            return '"backpressure" is not available yet; use "fail" or "drop_new_groups"'
        if key == "gap_ms" and isinstance(value, str) and any(c in value for c in "( +*<>="):
            return f"a gap by SQL expression ({show(value)}) is not available yet; give a fixed duration"
        return None

    @classmethod
    def check(cls, values: Values, wrong: set[str]) -> Iterator[Problem]:
        kind = values.get("kind")
        if kind is not None:
            yield from cls._check_kind(kind, values, wrong)
        if values.get("emit_metadata"):
            yield "emit_metadata", "not available yet; remove it"
        yield from cls._check_names(values, wrong, kind)

    @classmethod
    def _check_kind(cls, kind: str, values: Values, wrong: set[str]) -> Iterator[Problem]:
        def missing(key: str) -> bool:
            return key not in values and key not in wrong

        for key, kinds in _KEYS_OF.items():
            if key in values and kind not in kinds:
                yield key, f'belongs to {" and ".join(kinds)} windows, this one is "{kind}"; remove it'
        if kind == "session":
            for key, what in (
                ("gap_ms", "how long a silence ends a session"),
                ("max_session_duration_ms", "how long one session may grow"),
            ):
                if missing(key):
                    yield key, f"missing; a session window needs it: {what}"
            gap, cap = values.get("gap_ms"), values.get("max_session_duration_ms")
            if gap is not None and cap is not None and cap <= gap:
                yield (
                    "max_session_duration_ms",
                    f"found {show_duration(cap)}, expected more than gap_ms ({show_duration(gap)})",
                )
            if not values.get("group_by") and "group_by" not in wrong:
                yield (
                    "group_by",
                    'missing or empty; a session window needs at least one key, as in ["user_id"]',
                )
            return
        if missing("duration_ms"):
            yield "duration_ms", f'missing; a {kind} window needs its length, as in "1m"'
        if kind == "hopping" and missing("hop_ms"):
            yield "hop_ms", 'missing; a hopping window needs the distance between window starts, as in "10s"'
        if missing("max_groups_per_window"):
            yield (
                "max_groups_per_window",
                f"missing; a {kind} window needs a bound on its groups, as in 1000000",
            )
        length, hop = values.get("duration_ms"), values.get("hop_ms")
        if kind == "hopping" and length is not None and hop is not None and hop > length:
            yield (
                "hop_ms",
                f"found {show_duration(hop)}, expected at most duration_ms ({show_duration(length)}); rows between windows would be lost",
            )
        step, offset = (hop if kind == "hopping" else length), values.get("offset_ms", 0)
        if step is not None and abs(offset) >= step:
            name = "hop_ms" if kind == "hopping" else "duration_ms"
            yield (
                "offset_ms",
                f"found {show_duration(offset)}, expected less than {name} ({show_duration(step)}) either way",
            )

    @classmethod
    def _check_names(cls, values: Values, wrong: set[str], kind: str | None) -> Iterator[Problem]:
        start, end = (values.get(f"window_{side}_column", f"window_{side}") for side in ("start", "end"))
        if start.casefold() == end.casefold():
            yield "window_end_column", f"found {show(end)}, expected another name than window_start_column"
        for key, name in (("window_start_column", start), ("window_end_column", end)):
            if name.casefold() == "_event_ts":
                yield key, '"_event_ts" is the event time; choose another name'
        taken = {start.casefold(): "window_start_column", end.casefold(): "window_end_column"}
        if kind == "session":
            taken.setdefault("session_id", "the session's id")
            for key, name in (("window_start_column", start), ("window_end_column", end)):
                if name.casefold() == "session_id":
                    yield key, '"session_id" is the name of the session\'s id; choose another name'
        group_by = values.get("group_by", ()) if "group_by" not in wrong else ()
        names = {name.casefold(): name for name in reversed(group_by)}
        for folded, times in Counter(name.casefold() for name in group_by).items():
            name = show(names[folded])
            if folded == "_event_ts":
                yield "group_by", '"_event_ts" is the event time; it cannot be a key'
            if times > 1:
                yield "group_by", f"{name} is listed {times} times; list it once"
            if folded in taken:
                yield "group_by", f"{name} is already the name of {taken[folded]}; rename the column in the SQL"
        aggregations = values.get("aggregations", ())
        if not aggregations and "aggregations" not in wrong:
            yield "aggregations", "missing; a window needs at least one aggregation ([[transform.window.aggregations]])"
        taken = {**dict.fromkeys(names, "a key"), **taken}
        for i, aggregation in enumerate(aggregations):
            if not aggregation.as_:
                continue
            other = taken.setdefault(aggregation.as_.casefold(), f"aggregations[{i}]")
            if other != f"aggregations[{i}]":
                key = f"aggregations[{i}].as"
                yield key, f"{show(aggregation.as_)} is already the name of {other}; choose another name"


__all__ = ["AGGREGATES", "Aggregation", "Window", "duration_ms"]
