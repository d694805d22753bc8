"""The plan of a pipeline as text, built from the config alone: neither Spark nor data is needed.

`explain`, `check` and notebooks show the plan. `run` and log lines use its warnings and its descriptions of the state
and the results.

May import: config, core.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slackwater.config import config_warnings
from slackwater.config.config_warnings import describe_replay_limits, find_durations_without_unit
from slackwater.config.connection import Connection, PostgresConnection
from slackwater.config.connector_description import CONNECTORS, absolute_path
from slackwater.config.join import SIDES, Join
from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.config.source import Lookup, Source
from slackwater.config.stage import InputPath
from slackwater.config.step_base import StatelessStep
from slackwater.config.target import Target
from slackwater.config.window import Window, effective_allowed_lateness_ms
from slackwater.core.humanize import format_ms, plural
from slackwater.core.notebook_repr import NotebookRepr, TerminalRepr
from slackwater.core.paths import is_local


@dataclass(frozen=True)
class ExplainedStage:
    """One line of the plan: what happens to a row, where it happens, and details."""

    name: str
    where: str  # "Spark", "shards" or "driver"
    title: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan(TerminalRepr, NotebookRepr):
    """The plan of a pipeline: its steps, delivery guarantee and state size. It prints as `slackwater explain` shows it.

    Args:
        stages: The steps in the path of a row, each with a `name`, a `title`, and `where` it runs (such as "shards").
        state_bytes: The maximum size of the last stage's state, in bytes. It is 0 for a stage without state, and None
            if the size depends on the input, as for a join or a keyed function.
        notes: Warnings about the config, such as limits of a replay or a state that may become large.
        kept: For each stage, a description of its state or, for a window, the maximum number of bytes and groups.
    """

    stages: tuple[ExplainedStage, ...]
    guarantee: str
    state_bytes: int | None
    notes: tuple[str, ...]
    pipeline: str = ""
    kept: tuple[str | tuple[int, int], ...] = ()


def build_plan(pipeline: Pipeline) -> Plan:
    """Build the plan of a pipeline, without Spark and without data."""
    last = list(pipeline.stage_pipelines.values())[-1].transform.step
    bound: int | None = 0 if isinstance(last, StatelessStep) else None
    if isinstance(last, Window):
        bound = config_warnings.estimate_bytes(last)
    stages: list[ExplainedStage] = [_read(pipeline)]
    for name, stage_pipeline in pipeline.stage_pipelines.items():
        read = [s.name for s in stage_pipeline.sources if s.is_stage_output]
        stages += [_hand_over(n, pipeline.stage_pipelines[n], name) for n in read]
        if len(read) < len(stage_pipeline.sources):
            stages.append(_event_time(stage_pipeline))
        stages += [_sql(stage_pipeline), *_step_stages(stage_pipeline)]
    return Plan(
        (*stages, _commit(pipeline), _publish(pipeline)),
        _delivery_guarantee(pipeline),
        bound,
        (*find_plan_warnings(pipeline), *describe_replay_limits(pipeline), *config_warnings.size_warnings(last)),
        pipeline.name,
        tuple(text for stage_pipeline in pipeline.stage_pipelines.values() for text in _state_texts(stage_pipeline)),
    )


describe = build_plan  # the name that `slackwater` exports


def _state_texts(pipeline: Pipeline) -> Sequence[str | tuple[int, int]]:
    step = pipeline.transform.step
    if isinstance(step, Join):
        return _retention_text(step, pipeline)
    if isinstance(step, Window):
        return [(config_warnings.estimate_bytes(step), step.max_groups_per_window or 0)]
    return [step.summary().state]


def _step_stages(pipeline: Pipeline) -> tuple[ExplainedStage, ...]:
    step = pipeline.transform.step
    if isinstance(step, StatelessStep):
        return (ExplainedStage("emit", "Spark", step.summary().behaviour, ("no state except offsets",)),)
    if isinstance(step, Join):
        return (_shuffle_sides(step), _join(step, pipeline), _emit_pairs(step))
    if not isinstance(step, Window):
        return (ExplainedStage("step", "shards", step.summary().behaviour, (f"kept: {step.summary().state}",)),)
    return (_lift(step), _shuffle(step), _step(step), _emit(step))


def _hand_over(upstream: str, upstream_pipeline: Pipeline, name: str) -> ExplainedStage:
    """Describe how the output of a stage becomes the input of the next one within an epoch."""
    watermark_text = f"its watermark is {format_ms(upstream_pipeline.watermark_delay_ms)} behind, because the {upstream_pipeline.transform.step.table} may emit rows that far back"
    if upstream_pipeline.transform.join is None and not upstream_pipeline.watermark_delay_ms:
        watermark_text = "_event_ts is the event time of each row; the watermark is that of the previous stage"
    if upstream_pipeline.transform.window is not None:
        watermark_text = "_event_ts = the last instant of each window; the watermark is that of the previous stage"
    return ExplainedStage(
        "next stage",
        "driver",
        f'"{name}" reads what "{upstream}" emits, in the same epoch and the same commit',
        (watermark_text,),
    )


def _read(pipeline: Pipeline) -> ExplainedStage:
    lines = [_source(s, resolve_connection(s.connection, pipeline.connections)) for s in pipeline.sources]
    return ExplainedStage("read", "Spark", f"read {plural(len(pipeline.sources), 'source')}", tuple(lines))


def _source(s: Source, connection: Connection | None) -> str:
    if s.dataframe is not None or connection is None:
        return f'"{s.name}": a streaming DataFrame'
    connector = CONNECTORS[connection.kind]
    limit = f"at most {most} per epoch" if (most := connector.batch_limit(s)) else "no limit per epoch"
    return f'"{s.name}": {connector.plan_text(s)}, {limit}'


def _event_time(pipeline: Pipeline) -> ExplainedStage:
    w = pipeline.transform.step
    if w.time_mode == "processing":
        time = "the epoch's clock"
    elif isinstance(w, StatelessStep):
        return _record_time(pipeline)
    elif w.event_time_column == "_event_ts":
        time = "the time of each record"
    else:
        time = f"{w.event_time_column}{f' in {w.event_time_unit}' if w.event_time_unit else ''}"
    advance = f"; after {format_ms(w.idle_close_ms)} the watermark follows the clock" if w.idle_close_ms else ""
    lateness = ", ".join(
        f"{s.name}: {format_ms(w.lateness_ms if s.lateness_ms is None else s.lateness_ms)}"
        for s in pipeline.sources
        if not s.is_stage_output
    )
    return ExplainedStage(
        "event time",
        "Spark",
        f"_event_ts = {time}",
        (
            f"watermark per source = newest event - lateness ({lateness}); the global one is the minimum",
            f"a source counts as idle after {format_ms(w.source_idleness_ms)} without rows{advance}",
            f"bad rows: {pipeline.transform.on_error}; no event time, undecodable, or more than {format_ms(w.max_future_ms)} ahead",
        ),
    )


def _record_time(pipeline: Pipeline) -> ExplainedStage:
    """Describe the event time in a stateless stage, which does not wait for a watermark."""
    title = "_event_ts if the source provides it, else the epoch's clock"
    lines = ("no row waits, and no row is late", f"bad rows: {pipeline.transform.on_error}; undecodable")
    return ExplainedStage("event time", "Spark", title, lines)


def _sql(pipeline: Pipeline) -> ExplainedStage:
    lookups = tuple(
        f'lookup "{n}": {x.format} {x.query}, re-read every {format_ms(x.refresh_interval_ms)}'
        for n, x in _lookups(pipeline).items()
    )
    join = pipeline.transform.join
    lines = [_path_sql(pipeline, w) for w in pipeline.input_paths]
    if join is not None:
        inputs = list(zip(SIDES, join.sources, strict=True))
        sides = [f"{s}: {_path_sql(pipeline, w)}" for s, name in inputs for w in pipeline.input_paths if w.name == name]
        return ExplainedStage("sql", "Spark", sides[0], (*sides[1:], *lookups))
    if len(set(lines)) == 1:
        return ExplainedStage("sql", "Spark", lines[0], lookups)
    texts = [f"{w.key}: {line}" for w, line in zip(pipeline.input_paths, lines, strict=True)]
    return ExplainedStage("sql", "Spark", texts[0], (*texts[1:], *lookups))


def _lookups(pipeline: Pipeline) -> dict[str, Lookup]:
    """Return the lookups of a stage and of the SQL stages before it."""
    through = [s for w in pipeline.input_paths for s in w.through]
    return {n: x for t in (*through, pipeline.transform) for n, x in t.lookups.items()}


def _path_sql(pipeline: Pipeline, path: InputPath) -> str:
    """Return the SQL of all stages along an input path, in the order of execution."""
    return ", then ".join(_sql_text(sql) for _, sql in pipeline.sql_chain(path)) or _sql_text(None)


def _sql_text(sql: str | None) -> str:
    return " ".join((sql or "").split()) or "no SQL: rows pass unchanged"


def _lift(window: Window) -> ExplainedStage:
    aggregates = tuple(f"{a.as_} = {a.call}" for a in window.aggregations)
    if window.kind == "session":
        return ExplainedStage("lift", "Spark", "one interval per row", aggregates)
    row_wise = [a.as_ for a in window.aggregations if not a.in_sql]
    if row_wise:
        title = f"rows go to the shards one by one: {', '.join(row_wise)} cannot be aggregated in Spark"
        return ExplainedStage("lift", "shards", title, aggregates)
    pane = math.gcd(window.duration_ms or 0, window.hop_ms or window.duration_ms or 0)
    return ExplainedStage("lift", "Spark", f"partial aggregates per key and pane of {format_ms(pane)}", aggregates)


def _shuffle(window: Window) -> ExplainedStage:
    keys = ", ".join(window.group_by) or "(no key: one shard)"
    in_sql = all(a.in_sql for a in window.aggregations)
    extra = (
        ()
        if window.kind == "session" or not in_sql
        else ("partial aggregates are combined per key and pane before the shuffle",)
    )
    return ExplainedStage("shuffle", "Spark", f"by hash of {keys}", extra)


def _step(window: Window) -> ExplainedStage:
    if window.kind == "session":
        title = f"merge sessions by gap {window.gap_ms if isinstance(window.gap_ms, str) else format_ms(window.gap_ms or 0)}, cut at {format_ms(window.max_session_duration_ms or 0)}"
    else:
        title = "merge panes"
    bound = f"at most {window.max_groups_per_window:,} groups, then {window.on_state_cap}"
    return ExplainedStage("step", "shards", title, (f"late rows: {_late(window)}", bound))


def _late(window: Window) -> str:
    if window.late_data != "dlq":
        return window.late_data
    cost = "carried through the SQL" if window.kind == "session" else "found by reading the batch a second time"
    return f"dlq, one dead letter per row; their bytes are {cost}"


def _emit(window: Window) -> ExplainedStage:
    length = "" if window.kind == "session" else f"{format_ms(window.duration_ms or 0)} "
    hop = f" every {format_ms(window.hop_ms)}" if window.hop_ms else ""
    at_most = f", at most every {format_ms(window.emit_interval_ms)}" if window.emit_interval_ms else ""
    when = {
        "final": "once nothing can change them",
        "updates": f"in every epoch that changes them{at_most}",
    }.get(window.emit, "when the watermark closes them")
    retention = f"closed windows are retained and corrected for {format_ms(effective_allowed_lateness_ms(window))}"
    return ExplainedStage(
        "emit",
        "shards",
        f"{window.kind} windows {length}{hop}".replace("  ", " ").rstrip() + f", {when}",
        (retention,) if window.late_data == "reopen" and window.emit != "final" else (),
    )


def _shuffle_sides(join: Join) -> ExplainedStage:
    keys = (", ".join(names) for names in (join.left_keys, join.right_keys))
    return ExplainedStage("shuffle", "Spark", "both sides by hash of their keys: {} and {}".format(*keys))


def describe_join(join: Join) -> str:
    """Describe the join: its kind and its two inputs."""
    outer = "" if join.join_type == "inner" else " outer"
    return f'{join.join_type}{outer} join of "{join.left_source}" and "{join.right_source}"'


def _retention_text(join: Join, pipeline: Pipeline) -> tuple[str, ...]:
    """Describe, for each side, how long the join keeps its rows."""
    lateness = max(join.lateness_ms if s.lateness_ms is None else s.lateness_ms for s in pipeline.sources)
    return tuple(
        f"{side} rows are kept until the watermark is {format_ms(ms)} past them"
        + (f"; the watermark trails the newest events by {format_ms(lateness)}" if lateness else "")
        for side, ms in zip(SIDES, join.retention_ms, strict=True)
    )


def _join(join: Join, pipeline: Pipeline) -> ExplainedStage:
    lower, upper = map(format_ms, join.bounds_ms)
    keys = " and ".join(f"left.{a} = right.{b}" for a, b in zip(join.left_keys, join.right_keys, strict=True))
    late = "dlq, one dead letter per row" if pipeline.keeps_late_rows else "drop"
    if join.late_data == "reopen":
        late = f"joined up to {format_ms(effective_allowed_lateness_ms(join))} behind the watermark, then {late}"
    bound = f"at most {join.max_rows_per_key:,} rows per key and side, then {join.on_state_cap}"
    title = f"{describe_join(join)}: {keys} and {lower} <= right.ts - left.ts <= {upper}"
    return ExplainedStage("step", "shards", title, (f"late rows: {late}", bound))


def _emit_pairs(join: Join) -> ExplainedStage:
    alone = " and ".join(side for side, outer in zip(SIDES, join.outer, strict=True) if outer)
    when = "each pair once, in the epoch that reads its second row"
    time = "the later of the two" if join.event_time == "later" else f"that of the {join.event_time} row"
    lines = [f"{alone} rows without a partner are emitted when they leave the state"] if alone else []
    return ExplainedStage("emit", "shards", when, (*lines, f"_event_ts = {time}"))


def _commit(pipeline: Pipeline) -> ExplainedStage:
    title = "one record per epoch: state, staged output, offsets, watermarks, counters"
    return ExplainedStage("commit", "driver", f"{title} ({describe_state_location(pipeline)})")


def describe_state_location(pipeline: Pipeline) -> str:
    """Describe the location of the state."""
    store = pipeline.state_store
    if store is None or store.kind == "in_memory":
        return "state in memory, lost when the process ends"
    if store.kind == "files":
        return f'state in {"files" if is_local(store.path or "") else "objects"} at "{absolute_path(store.path)}"'
    return f'state in Postgres, schema "{store.schema_}"'


def _publish(pipeline: Pipeline) -> ExplainedStage:
    letters = pipeline.dead_letter
    lines = () if letters is None else (f"dead letters: {_target(letters, pipeline)}",)
    several = pipeline.per_target
    if len(several) < 2:
        return ExplainedStage("publish", "driver", _target(pipeline.target, pipeline), lines)
    staged = len(pipeline.stage_pipelines) > 1
    each = [
        f"{name}{f', of {target_pipeline.target.from_}' if staged and name != target_pipeline.target.from_ else ''}: {_target(target_pipeline.target, target_pipeline)}"
        for name, target_pipeline in several.items()
    ]
    return ExplainedStage("publish", "driver", f"to {len(several)} targets, each separately", (*each, *lines))


def describe_result_location(pipeline: Pipeline) -> str:
    """Describe the location of the results. Several targets are listed with their names."""
    if len(pipeline.targets) > 1:
        return "; ".join(
            f"{name}: {describe_result_location(target_pipeline)}"
            for name, target_pipeline in pipeline.per_target.items()
        )
    return CONNECTORS[connection_kind(pipeline.target, pipeline)].location_text(pipeline.target)


def _target(t: Target, pipeline: Pipeline) -> str:
    # joined pairs, stateless rows and dead letters have no identity to upsert by
    adds = pipeline.target_stage.transform.window is None or t is not pipeline.target
    in_transaction = t is pipeline.target and _shares_transaction(pipeline)
    return CONNECTORS[connection_kind(t, pipeline)].write_text(t, adds, in_transaction)


def connection_kind(t: Target, pipeline: Pipeline) -> str:
    connection = resolve_connection(t.connection, pipeline.connections)
    return connection.kind if connection is not None else "console"


def _shares_transaction(pipeline: Pipeline) -> bool:
    """Return whether the config uses the same Postgres URL for the state and the target."""
    store = pipeline.state_store
    connection = resolve_connection(pipeline.target.connection, pipeline.connections)
    return (
        store is not None
        and store.kind == "postgres"
        and isinstance(connection, PostgresConnection)
        and str(connection.url) == str(store.url)
    )


def _delivery_guarantee(pipeline: Pipeline) -> str:
    """Describe the joint delivery guarantee of the store and the target, by target if the guarantees differ."""
    if len(pipeline.targets) > 1:
        each = {name: _delivery_guarantee(target_pipeline) for name, target_pipeline in pipeline.per_target.items()}
        if len(set(each.values())) > 1:
            return "; ".join(f"{name}: {guarantee}" for name, guarantee in each.items())
        return next(iter(each.values()))
    connector = CONNECTORS[connection_kind(pipeline.target, pipeline)]
    if (weaker := connector.at_least_once_reason(pipeline.target)) is not None:
        return weaker
    if pipeline.state_store is None or not pipeline.state_store.durable:
        return "exactly once while the process lives; a restart reads everything again"
    if _shares_transaction(pipeline):
        return "exactly once: state, offsets and output are one transaction"
    return connector.exactly_once_text


def find_plan_warnings(pipeline: Pipeline) -> tuple[str, ...]:
    """Return warnings about the config: in-memory state, durations without a unit, and hops with too many panes."""
    store = pipeline.state_store
    warnings = []
    if store is None or store.kind == "in_memory":
        warnings.append(
            'STATE IS IN MEMORY: it is lost when the process ends; for durable state set [state_store] kind = "files" and path = "state"'
        )
    warnings += [
        f'{location}: {ms} is {ms} ms: did you mean {name} = "{ms}m"? If you meant milliseconds, write {name} = '
        f'"{ms}ms"'
        for location, name, ms in find_durations_without_unit(pipeline)
    ]
    for stage_pipeline in pipeline.stage_pipelines.values():
        w = stage_pipeline.transform.window
        if w and w.kind == "hopping" and w.duration_ms and w.hop_ms:
            panes = w.duration_ms // math.gcd(w.duration_ms, w.hop_ms)
            if panes > 1000:
                warnings.append(
                    f"a window of {format_ms(w.duration_ms)} every {format_ms(w.hop_ms)} is merged from more than "
                    "1000 panes; choose a hop that divides duration"
                )
    return tuple(warnings)
