"""The spec of a window. `config.aggregation` has the spec of its aggregations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

from slackwater.config.aggregation import AGGREGATES, Aggregation
from slackwater.config.config_key import Milliseconds, Tables, Texts, WithUnit, declare_key, declare_with_unit
from slackwater.config.error_text import EnvString, describe_value_mismatch, format_config_duration, format_value
from slackwater.config.spec_base import Problem, Values, table_list_parser
from slackwater.config.step_base import StepBase, effective_allowed_lateness_ms
from slackwater.config.value_parsers import (
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

_NEVER_CLOSES = "because a result that never closes would need all rows forever"
METADATA = ("_revision", "_final_at", "_emit_reason")
MOST_GROUPS = 1_000_000  # default of max_groups_per_window
KINDS_OF_WINDOW = ("tumbling", "hopping", "session")


_fixed_gap = duration_parser(1)


@attach_json_schema(duration=1, otherwise={"type": "string", "pattern": "^[^0-9+. -]"})
def _gap(value: Any) -> int | str:
    """Parse the gap of a session: a duration (returned in ms), or a SQL expression over the row.

    Any string that does not begin like a number is a SQL expression.
    """
    if isinstance(value, str) and not isinstance(value, EnvString) and value[:1] not in (*"0123456789-+. ", ""):
        return value
    gap_ms: int = _fixed_gap(value)
    return gap_ms


MOST_WINDOWS = 100_000  # per row; emitting this many windows takes about a second


class Window(StepBase):
    """A window: `Window(kind="session", gap="30m", max_session_duration="1d", group_by=["user"], …)`.

    A duration is a string with a unit, as in `gap="30m"`, or a number of milliseconds, as in `gap_ms=1_800_000`.
    See docs/semantics.md for the kinds of window. Raises ConfigError, with one line per mistake.
    """

    kind: str = declare_key(
        choice_parser(*KINDS_OF_WINDOW),
        "The kind of window. Tumbling windows are adjacent, hopping windows overlap, and a session ends after a gap without rows of its key.",
        required=f"expected {' or '.join(map(format_value, KINDS_OF_WINDOW))}",
    )
    duration_ms: Milliseconds[int | None] = declare_key(
        duration_parser(1),
        "The length of a tumbling or hopping window.",
        default=None,
        aliases=("width_ms",),
        elsewhere=("size_ms", "length_ms", "window_ms", "window_size_ms", "width"),
        kinds=dict.fromkeys(("tumbling", "hopping"), 'needs a length, for example "1m"'),
    )
    duration: WithUnit = declare_with_unit(default=None)
    hop_ms: Milliseconds[int | None] = declare_key(
        duration_parser(1),
        "The distance between the starts of hopping windows. A row may belong to at most 100,000 windows.",
        default=None,
        elsewhere=("slide_ms", "slide_duration_ms", "slide", "every_ms", "every"),
        kinds={"hopping": 'needs the interval between window starts, for example "10s"'},
    )
    hop: WithUnit = declare_with_unit(default=None)
    offset_ms: Milliseconds[int] = declare_key(
        duration_parser(),
        "The time by which the starts of tumbling and hopping windows are shifted.",
        default=0,
        kinds={"tumbling": "", "hopping": ""},
    )
    offset: WithUnit = declare_with_unit(default=None)
    gap_ms: Milliseconds[int | str | None] = declare_key(
        _gap,
        "The time without rows of a key after which its session ends: a duration, or a SQL expression over the row.",
        default=None,
        elsewhere=("timeout_ms", "inactivity_ms", "gap_duration_ms", "timeout", "inactivity"),
        kinds={"session": 'needs a gap, the time without rows after which a session ends, for example "30m"'},
    )
    gap: WithUnit = declare_with_unit(default=None)
    max_session_duration_ms: Milliseconds[int | None] = declare_key(
        duration_parser(1),
        "The maximum length of a session. A session that would last this long or longer is cut.",
        default=None,
        kinds={"session": 'needs a limit on its length, for example "12h"'},
    )
    max_session_duration: WithUnit = declare_with_unit(default=None)
    group_by: Texts = declare_key(
        parse_texts,
        "The key columns, which the SQL must select. A session window needs at least one.",
        default=(),
        elsewhere=("keys", "key", "key_by", "partition_by"),
    )
    late_data: str = declare_key(
        choice_parser("drop", "dlq", "reopen", "standalone"),
        "What to do with late rows: drop and count them, write dead letters, correct retained windows, or emit separate results.",
        default="drop",
    )
    allowed_lateness_ms: Milliseconds[int | None] = declare_key(
        duration_parser(0),
        'With `late_data = "reopen"`: how long a closed window can still be corrected.',
        default=None,
    )
    allowed_lateness: WithUnit = declare_with_unit(default=None)
    emit: str = declare_key(
        choice_parser("on_close", "final", "updates"),
        "When a window is emitted: when it closes, once it can no longer change (final), or in every epoch that changes it (updates).",
        default="on_close",
        elsewhere=("output_mode", "outputMode"),
    )
    emit_interval_ms: Milliseconds[int] = declare_key(
        duration_parser(0), 'With `emit = "updates"`: the minimum time between two updates of a window.', default=0
    )
    emit_interval: WithUnit = declare_with_unit(default=None)
    emit_metadata: bool = declare_key(
        parse_flag,
        "Whether to add the columns `_revision`, `_final_at` and `_emit_reason` to the results.",
        default=False,
    )
    max_groups_per_window: int | None = declare_key(
        integer_parser(1),
        "The maximum number of keys in a window or, for sessions, of keys with open sessions. By default, 1,000,000.",
        default=None,
    )
    on_state_cap: str = declare_key(
        choice_parser("fail", "drop_new_groups"),
        "What to do when `max_groups_per_window` is reached: stop the pipeline, or drop and count rows of new keys.",
        default="fail",
    )
    window_start_column: str = declare_key(
        parse_text, "The name of the result column with the start of the window.", default="window_start"
    )
    window_end_column: str = declare_key(
        parse_text, "The name of the result column with the end of the window.", default="window_end"
    )
    aggregations: Tables[Aggregation] = declare_key(
        table_list_parser(Aggregation, "a list of aggregations ([[transform.window.aggregations]])"),
        "The values to compute per window and key: one [[transform.window.aggregations]] table per value.",
        default=(),
    )

    DOC_LINK: ClassVar[str] = "docs/configuration.md#windows"

    CONFIG_PATH: ClassVar[str] = "transform.window"

    @classmethod
    def read(cls, data: Values, file: str, path: str, problems: list[str]) -> tuple[Values, set[str]]:
        data = dict(data)
        prefix = f"{file}: {path}." if path else f"{file}: "
        for key in ("mode", "output_mode"):
            if data.get(key) == "complete":
                del data[key]
                problems.append(
                    f"{prefix}{key}: complete mode is not supported, {_NEVER_CLOSES}; remove this key (emit = "
                    '"on_close" is the default)'
                )
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
    def unsupported_value(cls, key: str, value: Any) -> str | None:
        if isinstance(value, EnvString):
            return None
        if key == "kind" and value in ("sliding", "sliding_per_row", "complete"):
            if value == "complete":
                return f'complete mode is not supported, {_NEVER_CLOSES}; use kind = "tumbling"'
            return 'sliding (per-row) windows are not supported; use kind = "hopping" with a small hop'
        if key == "emit" and value == "complete":
            return f'complete mode is not supported, {_NEVER_CLOSES}; use emit = "on_close"'
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
                '"standalone" emits separate results for late rows; set emit_metadata = true, so that the column '
                "_emit_reason distinguishes them from the other results",
            )
        if values.get("emit_interval_ms") and values.get("emit", "on_close") != "updates" and "emit" not in wrong:
            yield (
                "emit_interval_ms",
                'applies only to emit = "updates", because other windows are emitted when they close; set it, or '
                "remove this key",
            )
        yield from cls._check_names(values, wrong, kind)

    @classmethod
    def _check_kind(cls, kind: str, values: Values, wrong: set[str]) -> Iterator[Problem]:
        def missing(key: str) -> bool:
            return key not in values and key not in wrong

        for key, declared in cls.KEYS.items():
            if key in values and declared.kinds and kind not in declared.kinds:
                kinds = " and ".join(declared.kinds)
                yield key, f'applies only to {kinds} windows, but this one is "{kind}"; remove it'
        for key, declared in cls.KEYS.items():
            if missing(key) and declared.kinds.get(kind):
                yield key, f"missing; a {kind} window {declared.kinds[kind]}"
        if kind == "session":
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
        length, hop = values.get("duration_ms"), values.get("hop_ms")
        if kind == "hopping" and length is not None and hop is not None and hop > length:
            yield (
                "hop_ms",
                mismatch(
                    format_config_duration(hop),
                    f"at most duration_ms ({format_config_duration(length)}), because rows between windows would "
                    "otherwise be lost",
                ),
            )
        elif kind == "hopping" and length is not None and hop is not None and hop * MOST_WINDOWS < length:
            yield (
                "hop_ms",
                mismatch(
                    format_config_duration(hop),
                    f"at least {format_config_duration(-(-length // MOST_WINDOWS))}, because each row would otherwise "
                    f"be in {length // hop:,} "
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
            yield "window_end_column", describe_value_mismatch(end, "a name other than that of window_start_column")
        for key, name in (("window_start_column", start), ("window_end_column", end)):
            if name.casefold() == "_event_ts":
                yield key, '"_event_ts" is reserved for the event time; choose another name'
        taken = {start.casefold(): "the column with the window start", end.casefold(): "the column with the window end"}
        if kind == "session":
            taken.setdefault("session_id", "the column with the session ID")
            for key, name in (("window_start_column", start), ("window_end_column", end)):
                if name.casefold() == "session_id":
                    yield key, '"session_id" is the name of the column with the session ID; choose another name'
        if values.get("emit_metadata"):
            for key, name in (("window_start_column", start), ("window_end_column", end)):
                if name.casefold() in METADATA:
                    yield key, f"{format_value(name)} is a column that emit_metadata adds; choose another name"
            taken |= dict.fromkeys(METADATA, "a column that emit_metadata adds")
        group_by = values.get("group_by", ()) if "group_by" not in wrong else ()
        names = {name.casefold(): name for name in reversed(group_by)}
        for folded, times in Counter(name.casefold() for name in group_by).items():
            name = format_value(names[folded])
            if folded == "_event_ts":
                yield "group_by", '"_event_ts" is the event time, which cannot be a key; remove it'
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
            result = f"the result of aggregations[{i}]"
            other = taken.setdefault(aggregation.as_.casefold(), result)
            if other != result:
                key = f"aggregations[{i}].as"
                yield key, f"{format_value(aggregation.as_)} is already the name of {other}; choose another name"


__all__ = ["AGGREGATES", "Aggregation", "Window", "effective_allowed_lateness_ms", "parse_duration_ms"]
