"""Compare one stage of a state (a window, a join or another step) with the config, key by key.

The column types that the SQL returns are known only when the pipeline starts. Without them, the comparison uses the
types in the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slackwater.config.aggregation import Aggregation
from slackwater.config.custom_aggregator import AggregatorError, forbid_imports
from slackwater.config.error_text import format_config_duration
from slackwater.config.join import Join
from slackwater.config.state_comparison import COMPATIBLE, MIGRATED, REBUILD, KeyChange
from slackwater.config.step_base import ROWS, effective_allowed_lateness_ms
from slackwater.config.step_base import StepBase as Spec
from slackwater.config.window import Window
from slackwater.core.humanize import format_iso, plural
from slackwater.core.schema import Field
from slackwater.evolution import added_columns
from slackwater.evolution.pipeline_from_state import (
    check_description,
    described_window,
    stored_columns,
    stored_emission,
)
from slackwater.operators.base import Operator
from slackwater.operators.interval_join import IntervalJoinOperator
from slackwater.operators.registry import find_type_by_kind, find_type_by_step
from slackwater.operators.window_operator_base import WindowOperator
from slackwater.state.commit import Commit, StageState
from slackwater.windows.aggregations import bind_aggregation
from slackwater.windows.aggregations.custom import custom_kind
from slackwater.windows.compiled_window import allowed_lateness_us


@dataclass(frozen=True)
class StageComparison:
    """Compares one step of a config with the state of its stage.

    Args:
        step: The step in the config.
        commit: The commit that contains the state.
        state: The stage of the commit that the step continues.
        operator: The operator of the step; None if column types are unknown.
        prefix: The text before each key in messages.
    """

    step: Spec
    commit: Commit
    state: StageState
    operator: Operator | None
    prefix: str

    @property
    def state_row_count(self) -> int:
        return sum(m.rows for m in self.state.metas)

    @property
    def open_window_count(self) -> int:
        return sum(self.state.windows) or sum(sum(groups) for groups in self.state.panes.values())

    def key_change(self, key: str, before: Any, after: Any, verdict: str, how: str) -> KeyChange:
        return KeyChange(self.prefix + key, before, after, verdict, how)

    def find_changes(self) -> Iterator[KeyChange]:
        wrote = self.state.fingerprint
        was, now = step_type_name(wrote.get("kind")), find_type_by_step(self.step).name
        if was != now:
            how = f"{self.state_row_count:,} state rows belong to a {was}"
            if was == find_type_by_step(ROWS).name:
                how = "the rows that were read so far are no longer available"
            yield self.key_change("kind", was, now, REBUILD, how)
        elif isinstance(self.step, Join):
            yield from self._join(self.step)
        elif isinstance(self.step, Window):
            yield from self._window(self.step)
        else:
            yield from self._other(self.step)

    # -- windows -------------------------------------------------------------------------------------------------

    def _window(self, new: Window) -> Iterator[KeyChange]:
        wrote, old = self.state.fingerprint, described_window(self.state)
        if old is not None:
            check_description(self.commit, self.state, old)
        lost = False
        for key in ("kind", "duration_ms", "hop_ms", "offset_ms"):
            if wrote.get(key) != getattr(new, key):
                lost = True
                how = f"{self.state_row_count:,} state rows are aggregated by the previous windows and cannot be split"
                yield self.key_change(key, wrote.get(key), getattr(new, key), REBUILD, how)
        yield from self._keys(new)
        if not lost:
            yield from self._session(new)
        yield from self._aggregations(new, old)
        yield from self._settings(new, old)

    def _columns(self) -> Mapping[str, Field]:
        """Return the columns of known type that the window reads, by name."""
        if self.operator is not None:
            assert isinstance(self.operator, WindowOperator)
            return {f.name: f for f in (*self.operator.keys, *(i.source for i in self.operator.inputs))}
        assert isinstance(self.step, Window)
        return stored_columns(self.state, self.step)

    def _keys(self, new: Window) -> Iterator[KeyChange]:
        was, columns = list(self.state.fingerprint.get("keys", [])), self._columns()
        now = [f"{k} {columns[k].type}" if k in columns else k for k in new.group_by]
        if was != now:
            how = f"{self.state_row_count:,} state rows are stored by the old keys and cannot be re-keyed"
            yield self.key_change("keys", was, now, REBUILD, how)

    def _session(self, new: Window) -> Iterator[KeyChange]:
        wrote = self.state.fingerprint
        gap, cap = wrote.get("gap_ms"), wrote.get("max_session_duration_ms")
        after, above = new.gap_ms, new.max_session_duration_ms
        is_described = bool(self.state.described)
        if gap != after and isinstance(gap, str) and isinstance(after, str):
            how = "it applies to rows read after the next start; earlier rows keep their gaps"
            yield self.key_change("gap_ms", gap, after, COMPATIBLE, how)
        elif gap != after and (isinstance(gap, str) or isinstance(after, str)):
            how = f"{self.state_row_count:,} state rows were stored for {'a gap per row' if isinstance(gap, str) else 'a fixed gap'}"
            yield self.key_change("gap_ms", gap, after, REBUILD, how)
        elif gap != after:
            how = _describe_gap_change(int(gap or 0), int(after or 0), self.open_window_count)
            yield self._if_described("gap_ms", gap, after, is_described, how)
        if cap == above:
            return
        if int(above or 0) < int(cap or 0):
            how = f"{self.open_window_count:,} open sessions may already be longer, and aggregated rows cannot be split"
            yield self.key_change("max_session_duration_ms", cap, above, REBUILD, how)
        else:
            how = f"{self.open_window_count:,} open sessions may grow to the new limit; sessions that were cut stay cut"
            yield self._if_described("max_session_duration_ms", cap, above, is_described, how)

    def _if_described(self, key: str, before: Any, after: Any, is_described: bool, how: str) -> KeyChange:
        """Return a migration, or a rebuild if the state does not describe the window that it was written for."""
        if is_described:
            return self.key_change(key, before, after, MIGRATED, how)
        why = "the state does not describe its window, because an earlier version wrote it or an aggregation is custom"
        return self.key_change(key, before, after, REBUILD, why)

    def _aggregations(self, new: Window, old: Window | None) -> Iterator[KeyChange]:
        was = dict(self.state.fingerprint.get("aggregations", {}))
        columns, is_described = self._columns(), bool(self.state.described)
        described = self.state.described.get("window", {}).get("aggregations", ())
        policies = {a.get("as"): a.get("on_overflow", "fail") for a in described}
        for spec in new.aggregations:
            label, now = f'aggregation "{spec.as_}"', _fingerprint(spec, columns)
            if spec.as_ not in was:
                yield self._added_aggregation(label, spec, now, is_described)
            elif was[spec.as_] == (former := _fingerprint(spec, columns, is_former=True)) and former != now:
                how = (
                    f"{self.state_row_count:,} state rows hold rounded sums; new values are added to them without loss"
                )
                yield self.key_change(label, was[spec.as_], now, MIGRATED, how)
            elif now != was[spec.as_] and (now is not None or is_described):
                how = f"{self.state_row_count:,} state rows hold the previous aggregation; to keep them, give the new aggregation another name"
                yield self.key_change(label, was[spec.as_], now or spec.call, REBUILD, how)
            elif (before := policies.get(spec.as_, spec.on_overflow)) != spec.on_overflow:
                how = "it applies to results that overflow after the next start"
                yield self.key_change(f"{label} on_overflow", before, spec.on_overflow, COMPATIBLE, how)
        for name in was.keys() - {a.as_ for a in new.aggregations}:
            how = f"it is removed from {self.state_row_count:,} state rows; a table keeps the column, and new rows leave it empty"
            yield self._if_described(f'aggregation "{name}"', was[name], None, is_described, how)

    def _added_aggregation(self, label: str, spec: Aggregation, now: str | None, is_described: bool) -> KeyChange:
        problem = _neutral_problem(spec)
        if problem is not None:
            how = f"{problem}, so the {self.open_window_count:,} open windows cannot add it"
            return self.key_change(label, None, now or spec.call, REBUILD, how)
        kind = "" if now is not None else " (the start determines the types of its columns)"
        how = (
            f"{self.open_window_count:,} open windows compute it only from rows read after the next start; without new rows, it is NULL, 0 for a count, "
            f"or an empty list{kind}; the target table needs the column"
        )
        return self._if_described(label, None, now or spec.call, is_described, how)

    def _settings(self, new: Spec, old: Spec | None) -> Iterator[KeyChange]:
        """Yield the changes to settings outside the fingerprint. Only a change to the emission rewrites the state."""
        was, now = stored_emission(self.state), _emission(new)
        rewrites, is_explained = was != now, False
        # keys whose stored values an earlier version did not read from a config
        assumed = self.state.described.get("assumed", ())
        for key in type(new).KEYS if old is not None else ():
            if key not in BY_KEY or key in assumed:
                continue
            before, after = getattr(old, key, None), getattr(new, key)
            if before == after:
                continue
            verdict = COMPATIBLE
            if rewrites and key in ("emit", "late_data", "allowed_lateness_ms", "lateness_ms"):
                verdict, is_explained = MIGRATED, True
            yield self.key_change(key, before, after, verdict, BY_KEY[key](before, after, self.state))
        if rewrites and not is_explained:
            how = f"{self.state_row_count:,} state rows are rewritten; windows that left the state are not restored"
            yield self.key_change("emission", was, now, MIGRATED, how)

    # -- joins ---------------------------------------------------------------------------------------------------

    def _join(self, new: Join) -> Iterator[KeyChange]:
        wrote = self.state.fingerprint
        now = _join_fingerprint(new, wrote) if self.operator is None else self.operator.fingerprint
        why = {
            "outer": "the state does not record whether rows of the other side found a partner",
            "bounds_us": "rows outside the previous bounds left the state, and pairs within the new bounds were not searched",
            "keys": "rows were joined by the previous keys",
            "columns": "rows in the state have the previous columns",
        }
        for key, how in why.items():
            if key == "columns" and (came := added_columns.added_side_columns(wrote.get(key), now[key])) is not None:
                yield from self._added_columns(came)
            elif wrote.get(key) != now[key]:
                yield self.key_change(
                    key, wrote.get(key), now[key], REBUILD, f"{how} ({plural(self.state_row_count, 'row')})"
                )
        described = self.state.described.get("join")
        old = None if described is None else Join.parse_partial(dict(described), "state", "", [])
        yield from self._settings(new, old)

    def _added_columns(self, new: Sequence[Sequence[str]]) -> Iterator[KeyChange]:
        """Yield the change for `new` columns, by side of a join. Yields nothing if column types are unknown."""
        if self.operator is not None and any(new):
            assert isinstance(self.operator, IntervalJoinOperator)
            sides = zip(self.operator.sides, new, strict=True)
            columns = {n: f.type for side, added in sides for n, f in side.output if f"{f.name} {f.type}" in added}
            yield added_columns.join_change(self.prefix, self.state, columns)

    # -- others --------------------------------------------------------------------------------------------------

    def _other(self, new: Spec) -> Iterator[KeyChange]:
        """Yield the changes of a step that is neither a window nor a join.

        A change in `STATE_KEYS` or in the fingerprint needs a rebuild, except for new state columns. Every other
        change is compatible.
        """
        data = self.state.described.get("step")
        unreadable = f"the new step cannot read {plural(self.state_row_count, 'state row')} of the previous step"
        with forbid_imports():
            old = None if data is None else type(new).parse_partial(dict(data), "state", "", [])
        changed_keys = set[str]()
        for key in type(new).KEYS if old is not None else ():
            attribute = type(new).attribute_of(key)
            before, after = getattr(old, attribute, None), getattr(new, attribute)
            if before == after:
                continue
            changed_keys.add(key)
            if key in new.STATE_KEYS:
                yield self.key_change(key, before, after, REBUILD, unreadable)
            else:
                how = BY_KEY[key](before, after, self.state) if key in BY_KEY else "it applies from the next start on"
                yield self.key_change(key, before, after, COMPATIBLE, how)
        now = {} if self.operator is None else self.operator.fingerprint
        for key in now if not changed_keys & {*new.STATE_KEYS} else ():
            was = self.state.fingerprint.get(key)
            if key == "state" and was is not None and not {*was} - {*now[key]}:
                if new_columns := [column for column in now[key] if column not in was]:
                    how = f"{plural(self.state_row_count, 'state row')} get NULL in new columns"
                    yield self.key_change("state", was, new_columns, MIGRATED, how)
            elif now[key] != was:
                yield self.key_change(key, was, now[key], REBUILD, unreadable)


def step_type_name(kind: object) -> str:
    """Return the name of a step for messages. `kind`: the kind in its fingerprint; None or unknown for a window."""
    operator_type = find_type_by_kind(kind)
    return "window" if operator_type is None else operator_type.name


def _join_fingerprint(new: Join, wrote: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fingerprint of a join with unknown column types. Unknown parts come from the state (`wrote`)."""
    names = [list(new.left_keys), list(new.right_keys)]
    former = [[k.rpartition(" ")[0] for k in side] for side in wrote.get("keys", ())]
    return {
        "outer": [side for side, outer in zip(("left", "right"), new.outer, strict=True) if outer],
        "bounds_us": [1000 * ms for ms in new.bounds_ms],
        "keys": wrote.get("keys") if former == names else names,
        "columns": wrote.get("columns"),
    }


def _emission(step: Spec) -> dict[str, Any]:
    """Return the value that `Operator.emission` would have for a step."""
    if isinstance(step, Window):
        retain_us = 0 if step.emit == "final" else allowed_lateness_us(step)
        return {"updates": step.emit == "updates", "retain_us": retain_us}
    return {"updates": False, "retain_us": 1000 * effective_allowed_lateness_ms(step)}


def _fingerprint(spec: Aggregation, columns: Mapping[str, Field], is_former: bool = False) -> str | None:
    """Return the fingerprint of an aggregation; None if a column type is unknown.

    Args:
        spec: The aggregation.
        columns: The columns of known type, by name.
        is_former: Whether to return the fingerprint of the earlier form of the aggregation, if it has one.
    """
    names = [*([spec.column] if spec.column else []), *spec.further_columns()]
    if any(n not in columns for n in names):
        return None
    first = columns[spec.column] if spec.column else None
    more = tuple(columns[n] for n in spec.further_columns())
    aggregation = bind_aggregation(spec, first, more)
    return ((aggregation.legacy_form() if is_former else None) or aggregation).fingerprint()


def _neutral_problem(spec: Aggregation) -> str | None:
    """Return why an aggregation has no accumulator for zero rows; None if it has one."""
    if spec.builtin:
        return None
    aggregator = spec.aggregator()
    try:
        custom_kind(spec, tuple(Field(n, t) for n, t in aggregator.inputs.items())).neutral()
    except AggregatorError as unfit:
        return str(unfit)
    return None


# -- messages: what a changed setting means for a state -----------------------------------------------------------------

Text = Callable[[Any, Any, StageState], str]


def _describe_gap_change(before: int, after: int, open_: int) -> str:
    """Return a message about a changed gap. `before`, `after`: the gaps (ms). `open_`: the number of open sessions."""
    sessions, end = f"{open_:,} open and retained sessions", f"their last event + {format_config_duration(after)}"
    if after > before:
        return f"{sessions} now last until {end}; sessions that now touch are merged, and closed sessions stay closed"
    return f"{sessions} keep their rows and now last until {end}; the next epoch closes sessions behind the watermark"


def _lateness(before: Any, after: Any, state: StageState) -> str:
    watermark = format_iso(state.watermark_us)
    if after > before:
        return f"the watermark stays at {watermark} until events are {format_config_duration(after)} ahead of it"
    return f"the watermark continues from {watermark} with the next rows"


def _same(text: str) -> Text:
    return lambda before, after, state: text


_NEXT = "it applies from the next start on"
_NEW_ROWS = _same("it applies to rows read after the next start; existing windows do not change")
_SILENCES = _same("it also applies to idle periods that have already begun")
_COLUMNS = "results have other columns from the next start on; the target table must have these columns"
BY_KEY: Mapping[str, Text] = {
    "event_time_column": _NEW_ROWS,
    "event_time_unit": _NEW_ROWS,
    "event_time_zone": _NEW_ROWS,
    "max_jump_ms": _same("it applies to rows read after the next start; the watermark does not move"),
    "time_mode": _NEW_ROWS,
    "lateness_ms": _lateness,
    "source_idleness_ms": _SILENCES,
    "idle_close_ms": _SILENCES,
    "max_future_ms": _same("it applies to rows read after the next start"),
    "late_data": _same(
        "it applies to rows that are late after the next start; windows that left the state are not restored"
    ),
    "allowed_lateness_ms": _same(
        "it applies to open and retained windows; windows that left the state are not restored"
    ),
    "on_state_cap": _same(_NEXT),
    "crash_recovery": _same(_NEXT),
    "emit": _same(
        'it applies to open windows; a change to or from "updates" emits the tumbling or hopping windows in the state again'
    ),
    "emit_interval_ms": _same(_NEXT),
    "emit_metadata": _same(_COLUMNS),
    "max_groups_per_window": _same("it limits groups from the next epoch on; existing groups are not dropped"),
    "window_start_column": _same(_COLUMNS),
    "window_end_column": _same(_COLUMNS),
    "left_source": _same(_NEXT),
    "right_source": _same(_NEXT),
    "left_prefix": _same(_COLUMNS),
    "right_prefix": _same(_COLUMNS),
    "event_time": _same("it applies to pairs that are emitted after the next start"),
    "max_rows_per_key": _same("it limits waiting rows from the next epoch on"),
}
