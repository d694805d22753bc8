"""The spec of a stream-stream join.

left    ──●─────────────────────────▶ event time      lower_ms <= right.ts - left.ts <= upper_ms
right      ├──────────────┤  its partners             both inclusive; either may be negative
         lower          upper
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from slackwater.config.config_key import Milliseconds, OptionalTexts, Texts, WithUnit, declare_key, declare_with_unit
from slackwater.config.error_text import (
    describe_value_mismatch,
    format_config_duration,
    format_value,
    suggest_or_list_words,
)
from slackwater.config.spec_base import Problem, Values
from slackwater.config.step_base import StepBase, effective_allowed_lateness_ms
from slackwater.config.value_parsers import (
    InvalidValueError,
    attach_json_schema,
    choice_parser,
    duration_parser,
    find_name_problem,
    integer_parser,
    parse_text,
    parse_texts,
)
from slackwater.core.humanize import mismatch
from slackwater.errors import StartError

EVENT_TIME = "_event_ts"
SIDES = ("left", "right")
JOIN_TYPES = {  # spelling -> join type
    "stream_stream_join": "inner",
    "inner": "inner",
    "left": "left",
    "right": "right",
    "full": "full",
    "left_outer": "left",
    "right_outer": "right",
    "full_outer": "full",
}


@attach_json_schema(type="string")
def _prefix(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidValueError("a string, which may be empty")
    return value


class Join(StepBase):
    """A join of two inputs: `Join(kind="inner", left_source="orders", …, left_keys=["id"], …, time_window="5m")`.

    An input is a source or an earlier stage. Two rows match if their keys are equal and
    `lower <= right.ts - left.ts <= upper`. Here, `ts` is the event time. `time_window="5m"` sets `lower` to minus five
    minutes and `upper` to five minutes.

    See docs/joins.md. Raises ConfigError, with one line per mistake.
    """

    kind: str = declare_key(
        choice_parser(*JOIN_TYPES),
        "The type of join. Rows without a partner are emitted for neither side (inner), one side (left, right), or both (full). "
        "`stream_stream_join` is an alias of `inner`; the suffix `_outer` changes nothing.",
        required=f"expected {' or '.join(map(format_value, dict.fromkeys(JOIN_TYPES.values())))}",
        elsewhere=("how", "type", "join_type"),
    )
    left_source: str = declare_key(
        parse_text,
        "The name of the source or stage on the left side.",
        required="name the source of the left side",
    )
    right_source: str = declare_key(
        parse_text,
        "The name of the source or stage on the right side.",
        required="name the source of the right side",
    )
    left_keys: Texts = declare_key(
        parse_texts,
        "The key columns of the left side, in order.",
        required='name the left columns to compare, as in ["order_id"]',
    )
    right_keys: Texts = declare_key(
        parse_texts,
        "The key columns of the right side, in the same order as left_keys.",
        required='name the right columns to compare, as in ["order_id"]',
    )
    time_window_ms: Milliseconds[int | None] = declare_key(
        duration_parser(0), "The maximum time between two partners, in either direction (inclusive).", default=None
    )
    time_window: WithUnit = declare_with_unit(default=None)
    lower_ms: Milliseconds[int | None] = declare_key(
        duration_parser(),
        "The minimum of right.ts - left.ts, instead of time_window. It may be negative.",
        default=None,
    )
    lower: WithUnit = declare_with_unit(default=None)
    upper_ms: Milliseconds[int | None] = declare_key(
        duration_parser(),
        "The maximum of right.ts - left.ts, instead of time_window. It may be negative.",
        default=None,
    )
    upper: WithUnit = declare_with_unit(default=None)
    late_data: str = declare_key(
        choice_parser("drop", "dlq", "reopen"),
        "What to do with late rows: drop and count them, write dead letters, or join them within allowed_lateness (reopen).",
        default="drop",
    )
    allowed_lateness_ms: Milliseconds[int | None] = declare_key(
        duration_parser(0),
        'With `late_data = "reopen"`: how far a row may be behind the watermark and still be joined.',
        default=None,
    )
    allowed_lateness: WithUnit = declare_with_unit(default=None)
    left_sql: str | None = declare_key(parse_text, "Row-wise SQL over `source` for the left side.", default=None)
    right_sql: str | None = declare_key(parse_text, "Row-wise SQL over `source` for the right side.", default=None)
    output_left_columns: OptionalTexts = declare_key(
        parse_texts, "The columns of the left side to emit, in order. By default, all columns.", default=None
    )
    output_right_columns: OptionalTexts = declare_key(
        parse_texts, "The columns of the right side to emit, in order. By default, all columns.", default=None
    )
    left_prefix: str = declare_key(
        _prefix, "The prefix of the left columns in the output. It may be empty.", default="left_"
    )
    right_prefix: str = declare_key(
        _prefix, "The prefix of the right columns in the output. It may be empty.", default="right_"
    )
    event_time: str = declare_key(
        choice_parser("later", *SIDES),
        "The event time of a joined row: the later event time of the two rows, or that of one side.",
        default="later",
    )
    max_rows_per_key: int = declare_key(
        integer_parser(1), "The maximum number of rows in the state per key and side.", default=100_000
    )
    on_state_cap: str = declare_key(
        choice_parser("fail", "drop_oldest"),
        "What to do when `max_rows_per_key` is reached: stop the pipeline, or drop and count the oldest row.",
        default="fail",
    )

    DOC_LINK: ClassVar[str] = "docs/configuration.md#joins"

    CONFIG_PATH: ClassVar[str] = "transform.join"

    @property
    def join_type(self) -> str:
        """The type of the join: "inner", "left", "right" or "full". `kind` may be another spelling of it."""
        return JOIN_TYPES[self.kind]

    @property
    def bounds_ms(self) -> tuple[int, int]:
        """The bounds (lower, upper) of `right.ts - left.ts`, both inclusive."""
        if self.time_window_ms is not None:
            return -int(self.time_window_ms), int(self.time_window_ms)
        return int(self.lower_ms or 0), int(self.upper_ms or 0)

    @property
    def sources(self) -> tuple[str, str]:
        return self.left_source, self.right_source

    @property
    def outer(self) -> tuple[bool, bool]:
        """The sides whose rows are emitted even without a partner, as flags (left, right)."""
        return self.join_type in ("left", "full"), self.join_type in ("right", "full")

    @property
    def retention_ms(self) -> tuple[int, int]:
        """How far (ms) past a row the watermark must be before the row leaves the state, as (left, right)."""
        (lower, upper), allowed = self.bounds_ms, int(effective_allowed_lateness_ms(self))
        return max(upper, 0) + allowed, max(-lower, 0) + allowed

    @property
    def watermark_delay_ms(self) -> int:
        """The maximum time (ms) by which the event time of a joined row may be behind the watermark."""
        (lower, upper), (left_outer, right_outer) = self.bounds_ms, self.outer
        by_left = max(0, upper) if left_outer or self.event_time == "left" else 0
        by_right = max(0, -lower) if right_outer or self.event_time == "right" else 0
        return int(effective_allowed_lateness_ms(self)) + max(by_left, by_right)

    @classmethod
    def check(cls, values: Values, wrong: set[str]) -> Iterator[Problem]:
        yield from super().check(values, wrong)
        left_source, right_source = values.get("left_source"), values.get("right_source")
        if left_source is not None and left_source == right_source:
            yield (
                "right_source",
                f"found {format_value(right_source)}, which is also left_source; for a self-join, define two [[sources]] with the same query and different names",
            )
        yield from cls._check_keys(values)
        yield from cls._check_bounds(values, wrong)
        yield from cls._check_output(values, wrong)

    @classmethod
    def _check_keys(cls, values: Values) -> Iterator[Problem]:
        keys_by_side = {key: values[key] for key in ("left_keys", "right_keys") if key in values}
        for key, names in keys_by_side.items():
            if not names:
                yield key, 'empty; a join needs at least one key, as in ["order_id"]'
            if EVENT_TIME in (name.casefold() for name in names):
                yield (
                    key,
                    f"{format_value(EVENT_TIME)} is the event time, which cannot be a key, because the time bounds "
                    "compare it; remove it from the keys",
                )
        left_keys, right_keys = keys_by_side.get("left_keys"), keys_by_side.get("right_keys")
        if left_keys and right_keys and len(left_keys) != len(right_keys):
            yield (
                "right_keys",
                describe_value_mismatch(
                    right_keys,
                    f"one key for each of left_keys ({format_value(left_keys)}), because keys are compared in order",
                ),
            )

    @classmethod
    def _check_bounds(cls, values: Values, wrong: set[str]) -> Iterator[Problem]:
        both = ("lower_ms", "upper_ms")
        present = [key for key in both if key in values or key in wrong]
        whole_window = "time_window_ms" in values or "time_window_ms" in wrong
        if whole_window and present:
            yield (
                "time_window_ms",
                f"cannot be combined with {' and '.join(present)}, because this key sets both bounds; remove either "
                f"this key or {' and '.join(present)}",
            )
        elif not whole_window and not present:
            yield (
                "time_window_ms",
                'missing; set the maximum time between matching rows, for example "5m", or set lower_ms and upper_ms, '
                "the bounds of right.ts - left.ts, where ts is the event time",
            )
        elif not whole_window and len(present) == 1:
            absent = next(key for key in both if key not in present)
            yield (
                absent,
                f"missing; {present[0]} is set, but a join needs both bounds: lower_ms <= right.ts - left.ts <= "
                "upper_ms",
            )
        lower, upper = (values.get(key) for key in both)
        if lower is not None and upper is not None and lower > upper:
            yield (
                "lower_ms",
                mismatch(
                    format_config_duration(lower),
                    f"at most upper_ms ({format_config_duration(upper)}), because otherwise no rows can match",
                ),
            )

    @classmethod
    def _check_output(cls, values: Values, wrong: set[str]) -> Iterator[Problem]:
        lists = [values.get(f"output_{side}_columns", ()) for side in SIDES]
        for side, names in zip(SIDES, lists, strict=True):
            for name, times in Counter(names).items():
                if times > 1:
                    yield f"output_{side}_columns", f"{format_value(name)} is listed {times} times; list it once"
        if not {"left_prefix", "right_prefix"} & wrong:
            prefixes = (values.get("left_prefix", "left_"), values.get("right_prefix", "right_"))
            yield from _collisions(prefixes, lists)


def joined_column_names(
    join: Join,
    left_columns: Sequence[str],
    right_columns: Sequence[str],
    injected: tuple[Sequence[str], Sequence[str]] = ((), ()),
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the columns that each side of a join emits, as (left, right): ordered maps of column -> output name.

    In the output, `_event_ts` follows these columns.

    Args:
        join: The join.
        left_columns: The columns of the left side's SQL, or of its source.
        right_columns: The columns of the right side's SQL, or of its source.
        injected: The columns that the connectors add to the left and the right side. They are emitted only if the SQL
            or a list of columns selects them.

    Raises StartError with one line for each column that does not exist, and each name that occurs twice.
    """
    problems: list[str] = []
    chosen: list[list[str]] = []
    for i, (side, columns) in enumerate(zip(SIDES, (left_columns, right_columns), strict=True)):
        listed = (join.output_left_columns, join.output_right_columns)[i]
        hidden = {EVENT_TIME, *(injected[i] if (join.left_sql, join.right_sql)[i] is None else ())}
        chosen.append([c for c in columns if c not in hidden] if listed is None else list(listed))
        problems += [
            f"{Join.CONFIG_PATH}.output_{side}_columns: column {format_value(name)} does not come out of the {side} side"
            f"{suggest_or_list_words(name, columns)}"
            for name in listed or ()
            if name not in columns
        ]
    prefixes = (join.left_prefix, join.right_prefix)
    problems += [f"{Join.CONFIG_PATH}.{key}: {line}" for key, line in _collisions(prefixes, chosen)]
    if problems:
        raise StartError("\n".join(problems))
    left_names, right_names = (
        {c: f"{prefix}{c}" for c in names} for prefix, names in zip(prefixes, chosen, strict=True)
    )
    return left_names, right_names


def _collisions(prefixes: Sequence[str], columns: Sequence[Sequence[str]]) -> Iterator[Problem]:
    """Yield a problem for each output name that is invalid or occurs twice, ignoring case.

    `prefixes`, `columns`: the prefix and the columns of each side, as (left, right).
    """
    taken = {EVENT_TIME: "the event time"}
    for side, prefix, names in zip(SIDES, prefixes, columns, strict=True):
        for name in dict.fromkeys(names):
            column = f"column {format_value(name)} of the {side} side"
            if problem := find_name_problem(f"{prefix}{name}"):
                yield f"{side}_prefix", f"{column}: {problem}"
            other = taken.setdefault(f"{prefix}{name}".casefold(), column)
            if other != column:
                yield (
                    f"{side}_prefix",
                    f"{column} is emitted as {format_value(prefix + name)}, which is already the output name of "
                    f"{other}; choose another prefix, or list the columns to emit",
                )
