"""The spec of a window. Its aggregations are in `aggregation`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from slackwater.config.aggregation import AGGREGATES, Aggregation
from slackwater.config.message_format import EnvString, format_config_duration, format_value, value_mismatch
from slackwater.config.spec_base import Problem, Values, table_list_parser
from slackwater.config.step_base import RECOVERY, TIMES, StepBase, effective_allowed_lateness_ms
from slackwater.config.value_parsers import (
    Duration,
    ValueParser,
    attach_json_schema,
    choice_parser,
    duration_parser,
    find_name_problem,
    integer_parser,
    parse_flag,
    parse_text,
    parse_texts,
)
from slackwater.core.humanize import mismatch
from slackwater.core.time import parse_duration_ms

_NO_COMPLETE = "complete mode is not supported: a result that never closes needs all rows forever"
METADATA = ("_revision", "_final_at", "_emit_reason")
MOST_GROUPS = 1_000_000  # default of max_groups_per_window
KINDS_OF_WINDOW = ("tumbling", "hopping", "session")
_KEYS_OF = {
    "duration_ms": ("tumbling", "hopping"),
    "hop_ms": ("hopping",),
    "offset_ms": ("tumbling", "hopping"),
    "gap_ms": ("session",),
    "max_session_duration_ms": ("session",),
}


_fixed_gap = duration_parser(1)


@attach_json_schema(duration=1, otherwise={"type": "string", "pattern": "^[^0-9+. -]"})
def _gap(value: Any) -> int | str:
    """Parse the gap of a session: a duration, or a SQL expression over the row.

    Any text that does not begin like a number is a SQL expression.
    """
    if isinstance(value, str) and not isinstance(value, EnvString) and value[:1] not in (*"0123456789-+. ", ""):
        return value
    gap_ms: int = _fixed_gap(value)
    return gap_ms


MOST_WINDOWS = 100_000  # per row; emitting the windows of one such row takes about a second


class Window(StepBase):
    """A window: `Window(kind="session", gap="30m", max_session_duration="1d", group_by=["user"], …)`.

    Durations are strings with a unit ("30s", "5m", "2h", "30d"): `gap="30m"`. `gap_ms` also takes milliseconds. The
    keys of each kind and their meaning are in docs/semantics.md. Raises ConfigError with one line per mistake.
    """

    duration_ms: int | None = None
    hop_ms: int | None = None
    offset_ms: int = 0
    gap_ms: int | str | None = None
    max_session_duration_ms: int | None = None
    group_by: tuple[str, ...] = ()
    emit: str = "on_close"
    emit_interval_ms: int = 0
    emit_metadata: bool = False
    max_groups_per_window: int | None = None
    window_start_column: str = "window_start"
    window_end_column: str = "window_end"
    aggregations: tuple[Aggregation, ...] = ()

    if TYPE_CHECKING:  # accepted types of arguments; the attributes hold the parsed values

        def __init__(
            self,
            *,
            kind: str,
            duration_ms: Duration | None = None,
            duration: str | None = None,
            hop_ms: Duration | None = None,
            hop: str | None = None,
            offset_ms: Duration = 0,
            offset: str | None = None,
            gap_ms: Duration | None = None,
            gap: str | None = None,
            max_session_duration_ms: Duration | None = None,
            max_session_duration: str | None = None,
            group_by: Sequence[str] = (),
            emit: str = "on_close",
            emit_interval_ms: Duration = 0,
            emit_interval: str | None = None,
            emit_metadata: bool = False,
            max_groups_per_window: int | None = None,
            window_start_column: str = "window_start",
            window_end_column: str = "window_end",
            aggregations: Sequence[Aggregation] = (),
            event_time_column: str = "_event_ts",
            event_time_unit: str | None = None,
            event_time_zone: str | None = None,
            time_mode: str = "event",
            lateness_ms: Duration = 0,
            lateness: str | None = None,
            source_idleness_ms: Duration = 60_000,
            source_idleness: str | None = None,
            idle_close_ms: Duration | None = None,
            idle_close: str | None = None,
            max_future_ms: Duration = 3_600_000,
            max_future: str | None = None,
            max_jump_ms: Duration | None = None,
            max_jump: str | None = None,
            late_data: str = "drop",
            allowed_lateness_ms: Duration | None = None,
            allowed_lateness: str | None = None,
            on_state_cap: str = "fail",
            crash_recovery: str | None = None,
        ) -> None: ...

    CONFIG_PATH: ClassVar[str] = "transform.window"
    PARSERS: ClassVar[Mapping[str, ValueParser]] = {
        "kind": choice_parser(*KINDS_OF_WINDOW),
        "duration_ms": duration_parser(1),
        "hop_ms": duration_parser(1),
        "offset_ms": duration_parser(),
        "gap_ms": _gap,
        "max_session_duration_ms": duration_parser(1),
        **TIMES,
        "group_by": parse_texts,
        "late_data": choice_parser("drop", "dlq", "reopen", "standalone"),
        "allowed_lateness_ms": duration_parser(0),
        "emit": choice_parser("on_close", "final", "updates"),
        "emit_interval_ms": duration_parser(0),
        "emit_metadata": parse_flag,
        "max_groups_per_window": integer_parser(1),
        "on_state_cap": choice_parser("fail", "drop_new_groups"),
        "window_start_column": parse_text,
        "window_end_column": parse_text,
        "crash_recovery": RECOVERY,
        "aggregations": table_list_parser(Aggregation, "a list of aggregations ([[transform.window.aggregations]])"),
    }
    ALIASES: ClassVar[Mapping[str, str]] = {"width_ms": "duration_ms"}
    SUGGESTIONS: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("output_mode", "outputMode"), "emit"),
        **dict.fromkeys(("size_ms", "length_ms", "window_ms", "window_size_ms", "width"), "duration_ms"),
        **dict.fromkeys(("slide_ms", "slide_duration_ms", "slide", "every_ms", "every"), "hop_ms"),
        **dict.fromkeys(("timeout_ms", "inactivity_ms", "gap_duration_ms", "timeout", "inactivity"), "gap_ms"),
        **dict.fromkeys(("keys", "key", "key_by", "partition_by"), "group_by"),
        **dict.fromkeys(("watermark", "watermark_ms", "watermark_delay_ms", "watermark_delay"), "lateness_ms"),
        **dict.fromkeys(("timestamp_column", "time_column", "event_time", "timestamp"), "event_time_column"),
    }
    REQUIRED: ClassVar[tuple[str, ...]] = ("kind",)

    @classmethod
    def read(cls, data: Values, file: str, path: str, problems: list[str]) -> tuple[Values, set[str]]:
        data = dict(data)
        prefix = f"{file}: {path}." if path else f"{file}: "
        for key in ("mode", "output_mode"):
            if data.get(key) == "complete":
                del data[key]
                problems.append(f'{prefix}{key}: {_NO_COMPLETE}; remove it (emit = "on_close" is the default)')
        for key in ("output_mode", "outputMode", "mode"):
            emit = {"update": "updates", "append": "on_close"}.get(str(data.get(key)).casefold())
            if emit is not None:
                del data[key]
                problems.append(f'{prefix}{key}: unknown key; did you mean emit = "{emit}"?')
        values, wrong = super().read(data, file, path, problems)
        values.setdefault("max_groups_per_window", MOST_GROUPS)
        return values, wrong

    def derived(self) -> Values:
        return {"max_groups_per_window": MOST_GROUPS}

    @classmethod
    def missing_hint(cls, key: str) -> str:
        return f"expected {' or '.join(format_value(k) for k in KINDS_OF_WINDOW)}"

    @classmethod
    def unsupported_value(cls, key: str, value: Any) -> str | None:
        if isinstance(value, EnvString):
            return None
        if key == "kind" and value in ("sliding", "sliding_per_row", "complete"):
            if value == "complete":
                return f'{_NO_COMPLETE}; use kind = "tumbling"'
            return 'sliding (per-row) windows are not supported; use kind = "hopping" with a small hop'
        if key == "emit" and value == "complete":
            return f'{_NO_COMPLETE}; use emit = "on_close"'
        if key == "on_state_cap" and value == "backpressure":
            return '"backpressure" is not available yet; use "fail" or "drop_new_groups"'
        return None

    @classmethod
    def check(cls, values: Values, wrong: set[str]) -> Iterator[Problem]:
        kind = values.get("kind")
        if kind is not None:
            yield from cls._check_kind(kind, values, wrong)
        yield from super().check(values, wrong)
        if values.get("late_data") == "standalone" and not values.get("emit_metadata") and "emit_metadata" not in wrong:
            yield (
                "late_data",
                '"standalone" emits late rows next to the window that they missed; set emit_metadata = true, so that '
                "_emit_reason distinguishes them",
            )
        if values.get("emit_interval_ms") and values.get("emit", "on_close") != "updates" and "emit" not in wrong:
            yield "emit_interval_ms", 'needs emit = "updates"; other windows are emitted when they close'
        yield from cls._check_names(values, wrong, kind)

    @classmethod
    def _check_kind(cls, kind: str, values: Values, wrong: set[str]) -> Iterator[Problem]:
        def missing(key: str) -> bool:
            return key not in values and key not in wrong

        for key, kinds in _KEYS_OF.items():
            if key in values and kind not in kinds:
                yield key, f'applies only to {" and ".join(kinds)} windows, but this one is "{kind}"; remove it'
        if kind == "session":
            for key, meaning in (
                ("gap_ms", 'the silence after which a session ends, as in "30m"'),
                ("max_session_duration_ms", 'a limit on its length, as in "12h"'),
            ):
                if missing(key):
                    yield key, f"missing; a session window needs {meaning}"
            gap, cap = values.get("gap_ms"), values.get("max_session_duration_ms")
            if isinstance(gap, int) and cap is not None and cap <= gap:
                yield (
                    "max_session_duration_ms",
                    mismatch(format_config_duration(cap), f"more than gap_ms ({format_config_duration(gap)})"),
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
        length, hop = values.get("duration_ms"), values.get("hop_ms")
        if kind == "hopping" and length is not None and hop is not None and hop > length:
            yield (
                "hop_ms",
                mismatch(
                    format_config_duration(hop),
                    f"at most duration_ms ({format_config_duration(length)}); rows between windows would be lost",
                ),
            )
        elif kind == "hopping" and length is not None and hop is not None and hop * MOST_WINDOWS < length:
            yield (
                "hop_ms",
                mismatch(
                    format_config_duration(hop),
                    f"at least {format_config_duration(-(-length // MOST_WINDOWS))}: each row would be in {length // hop:,} "
                    f"windows (duration_ms / hop_ms), but at most {MOST_WINDOWS:,} are supported",
                ),
            )
        step, offset = (hop if kind == "hopping" else length), values.get("offset_ms", 0)
        if step is not None and abs(offset) >= step:
            name = "hop_ms" if kind == "hopping" else "duration_ms"
            yield (
                "offset_ms",
                mismatch(
                    format_config_duration(offset),
                    f"less than {name} ({format_config_duration(step)}) in either direction",
                ),
            )

    @classmethod
    def _check_names(cls, values: Values, wrong: set[str], kind: str | None) -> Iterator[Problem]:
        start, end = (values.get(f"window_{side}_column", f"window_{side}") for side in ("start", "end"))
        if start.casefold() == end.casefold():
            yield "window_end_column", value_mismatch(end, "a name other than that of window_start_column")
        for key, name in (("window_start_column", start), ("window_end_column", end)):
            if name.casefold() == "_event_ts":
                yield key, '"_event_ts" is the event time; choose another name'
        taken = {start.casefold(): "window_start_column", end.casefold(): "window_end_column"}
        if kind == "session":
            taken.setdefault("session_id", "the session's id")
            for key, name in (("window_start_column", start), ("window_end_column", end)):
                if name.casefold() == "session_id":
                    yield key, '"session_id" is the name of the session\'s id; choose another name'
        if values.get("emit_metadata"):
            for key, name in (("window_start_column", start), ("window_end_column", end)):
                if name.casefold() in METADATA:
                    yield key, f"{format_value(name)} is a column that emit_metadata adds; choose another name"
            taken |= dict.fromkeys(METADATA, "a column of emit_metadata")
        group_by = values.get("group_by", ()) if "group_by" not in wrong else ()
        names = {name.casefold(): name for name in reversed(group_by)}
        for folded, times in Counter(name.casefold() for name in group_by).items():
            name = format_value(names[folded])
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
        named = [("window_start_column", start), ("window_end_column", end), *(("group_by", name) for name in group_by)]
        named += [(f"aggregations[{i}].as", a.as_) for i, a in enumerate(aggregations) if a.as_]
        named += [(f"aggregations[{i}].column", a.column) for i, a in enumerate(aggregations) if a.column]
        for key, name in named:
            if problem := find_name_problem(name):
                yield key, problem
        for i, aggregation in enumerate(aggregations):
            if not aggregation.as_:
                continue
            other = taken.setdefault(aggregation.as_.casefold(), f"aggregations[{i}]")
            if other != f"aggregations[{i}]":
                key = f"aggregations[{i}].as"
                yield key, f"{format_value(aggregation.as_)} is already the name of {other}; choose another name"


__all__ = ["AGGREGATES", "Aggregation", "Window", "effective_allowed_lateness_ms", "parse_duration_ms"]
