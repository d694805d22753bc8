"""Checks that involve several tables of a config. They also work on drafts: the valid parts of an invalid config.

Each check yields problems as (config key, text). It ignores keys whose problems were already reported; a draft lists
them in `_wrong`. The argument `values` contains the attributes of the pipeline, by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slackwater.config.connection import Connection, KafkaConnection
from slackwater.config.connector_description import CONNECTORS
from slackwater.config.error_text import format_value, suggest_or_list_words
from slackwater.config.source import FRAMED, SCHEMA_FILES, Lookup, Source, parse_declared_columns
from slackwater.config.spec_base import Problem, Values
from slackwater.config.step_base import ROWS, KeyedStep
from slackwater.core.column_names import find_reserved_collisions
from slackwater.core.humanize import mismatch

if TYPE_CHECKING:
    from slackwater.config.join import Join
    from slackwater.config.step_base import StatelessStep
    from slackwater.config.target import StateStore, Target
    from slackwater.config.window import Window


def _draft_step(values: Values) -> Window | Join | StatelessStep | None:
    """Return the step of a draft; None if the step is missing or invalid."""
    transform = values.get("transform")
    if transform is None:
        return None
    return transform.stateful or (ROWS if transform.is_stateless else None)


def resolve_connection(reference: object, connections: Mapping[str, Connection]) -> Connection | None:
    """Return the connection with this name, or None if there is none. A connection object is returned unchanged."""
    if isinstance(reference, Connection):
        return reference
    return connections.get(str(reference))


def check_source_names(sources: tuple[Source, ...]) -> Iterator[Problem]:
    """Yield a problem for each name that several sources share. The state and metrics identify sources by name."""
    names = [s.name for s in sources if s.name and "name" not in s._wrong]
    for name, times in Counter(names).items():
        if times > 1:
            yield "sources", f"{times} sources are called {format_value(name)}; give each source a unique name"


def list_targets_with_keys(values: Values) -> list[tuple[str, Target]]:
    """Return the targets of a draft as (config key, target)."""
    several: Sequence[Target] = values.get("targets") or ()
    if several:
        return [(f"targets[{i}]", t) for i, t in enumerate(several)]
    return [("target", values["target"])] if values.get("target") is not None else []


def check_connections(values: Values) -> Iterator[Problem]:
    """Yield a problem for each reference to a connection that does not exist or has the wrong kind."""
    connections: Mapping[str, Any] = values.get("connections", {})  # None for an invalid connection
    readers = [(f"sources[{i}]", s) for i, s in enumerate(values.get("sources", ())) if s.dataframe is None]
    stages = values.get("stages") or ()
    transforms = [(f"stages[{i}]", s) for i, s in enumerate(stages)] or [("transform", values.get("transform"))]
    for path, transform in transforms:
        lookups = {} if transform is None else transform.lookups or {}
        readers += [(f"{path}.lookups.{name}", lookup) for name, lookup in lookups.items() if not lookup._wrong]
    for path, spec in readers:
        if spec.connection is None or "connection" in spec._wrong:
            continue
        connection = resolve_connection(spec.connection, connections)
        if connection is None:
            yield from _unknown_connection(f"{path}.connection", spec.connection, connections)
        elif not connection.READS or (isinstance(spec, Lookup) and connection.kind != "files"):
            purpose = "lookups" if isinstance(spec, Lookup) else "sources"
            kinds = ["files"] if isinstance(spec, Lookup) else [k for k, c in CONNECTORS.items() if c.connection.READS]
            yield f"{path}.connection", _wrong_kind(spec.connection, connection, purpose, kinds)
        elif isinstance(spec, Source):
            yield from _with_path(path, spec.check_kind(connection.kind, vars(spec), spec._wrong))
            if not isinstance(connection, KafkaConnection) or connection.schema_registry:
                continue
            payload = format_value(spec.payload_format)
            if (key := SCHEMA_FILES.get(spec.payload_format or "")) is not None:
                if getattr(spec, key) is None and key not in spec._wrong:
                    line = f"missing; payload_format = {payload} needs this file, or schema_registry in the connection"
                    yield f"{path}.{key}", line
            elif spec.payload_format in FRAMED:
                line = (
                    f"{payload} needs a schema registry, but the connection has none; set schema_registry in the "
                    "connection"
                )
                yield f"{path}.payload_format", line
    letters: Target | None = values.get("dead_letter")
    for path, target in (*list_targets_with_keys(values), *([] if letters is None else [("dead_letter", letters)])):
        if target.connection is None or "connection" in target._wrong:
            continue
        connection = resolve_connection(target.connection, connections)
        if connection is None:
            yield from _unknown_connection(f"{path}.connection", target.connection, connections)
        elif not connection.WRITES:
            purpose = "dead letters" if path == "dead_letter" else "results"
            kinds = [k for k, c in CONNECTORS.items() if c.connection.WRITES]
            yield f"{path}.connection", _wrong_kind(target.connection, connection, purpose, kinds)
        else:
            yield from _with_path(path, target.check_kind(connection.kind, vars(target), target._wrong))


def _wrong_kind(reference: object, connection: Connection, purpose: str, kinds: Sequence[str]) -> str:
    subject = format_value(reference) if isinstance(reference, str) else "this connection"
    named = " or ".join(format_value(k) for k in kinds)
    return (
        f"{subject} is of kind {format_value(connection.kind)}, but {purpose} need a connection of kind {named}; "
        "choose another connection"
    )


def _with_path(path: str, problems: Iterator[Problem]) -> Iterator[Problem]:
    for key, line in problems:
        yield f"{path}.{key}", line


def _unknown_connection(key: str, reference: object, connections: Mapping[str, Any]) -> Iterator[Problem]:
    if reference not in connections:
        advice = (
            suggest_or_list_words(str(reference), connections) if connections else "; define it in [connections.<name>]"
        )
        yield key, f"found {format_value(reference)}, which is not a connection{advice}"


def check_event_time(values: Values) -> Iterator[Problem]:
    """Yield a problem for each source without an event time, and for each column with a reserved name."""
    step = _draft_step(values)
    if step is None:
        return
    processing = step.time_mode == "processing"
    named = step.event_time_column != "_event_ts"
    undecided = bool({"event_time_column", "time_mode"} & step._wrong)
    connections: Mapping[str, Any] = values.get("connections", {})
    stage_inputs = values.get("read")  # names of the sources of this stage; None for [transform]
    for i, source in enumerate(values.get("sources", ())):
        if undecided or "schema" in source._wrong or (stage_inputs is not None and source.name not in stage_inputs):
            continue
        declared = parse_declared_columns(source.schema_) if source.schema_ else []
        for name in find_reserved_collisions(declared, declared=True):
            yield (
                f"sources[{i}].schema",
                f"declares {format_value(name)}, which is a reserved column name; rename the column",
            )
        columns = [c.casefold() for c in declared]
        connection = resolve_connection(source.connection, connections) if source.connection is not None else None
        own_time = connection is not None and CONNECTORS[connection.kind].has_timestamp
        if (processing or named or own_time) and "_event_ts" in columns:
            use = "" if own_time else ', or use it with event_time_column = "_event_ts"'
            yield f"sources[{i}].schema", f'declares "_event_ts", a column that Slackwater adds itself; rename it{use}'
        has_format = source.format is not None or "format" in source._wrong  # used if the connection is unknown
        of_files = has_format if connection is None else CONNECTORS[connection.kind].exposes_files
        table = connection is not None and CONNECTORS[connection.kind].is_table
        needed = step is not ROWS and not (processing or named)
        if needed and source.dataframe is None and of_files and "_event_ts" not in columns:
            which = f"source {format_value(source.name)}" if source.name else f"sources[{i}]"
            yield (
                f"{step.CONFIG_PATH}.event_time_column",
                f"missing; {which} reads {'a table' if table else 'files'}, whose rows have no default event time; "
                "name the column that contains the event time, or give a SQL expression",
            )
    if processing and not undecided:
        for key, is_set in (
            ("event_time_column", named),
            ("event_time_unit", step.event_time_unit is not None),
            ("event_time_zone", step.event_time_zone is not None),
        ):
            if is_set:
                yield (
                    f"{step.CONFIG_PATH}.{key}",
                    'cannot be combined with time_mode = "processing", which uses the clock as the event time; remove one of them',
                )


def check_corrections(values: Values) -> Iterator[Problem]:
    """Yield a problem if a window emits late or updated results that its target cannot accept.

    Updates on an append-only target need emit_metadata. late_data = "standalone" needs an append-only target, because
    other targets would replace the result of the window.
    """
    window = values["transform"].window if "transform" in values else None
    target: Target | None = values.get("target")
    if window is None or target is None:
        return
    connection = resolve_connection(target.connection, values.get("connections", {}))
    if connection is None or not connection.WRITES or {"connection", "mode", "key_columns"} & target._wrong:
        return
    kind = connection.kind
    if window.late_data == "standalone" and target.upserts(kind, window):
        yield (
            "transform.window.late_data",
            f'"standalone" needs an append-only target, but this {kind} target would replace the result of a window '
            'with that of its late rows; use "reopen" to correct the result, "dlq" to keep the late rows, or an '
            'append-only target (files, console, or delta or iceberg with mode = "append")',
        )
    if window.emit_metadata or {"emit", "emit_metadata", "late_data", "kind", "group_by"} & window._wrong:
        return
    reopens = window.late_data == "reopen" and window.emit != "final"  # "final" emits a window only once
    if (reopens or window.emit == "updates") and not target.upserts(kind, window):
        key = "emit" if window.emit == "updates" else "late_data"
        target_text = CONNECTORS[kind].append_only_text or f"a {kind} target"
        yield (
            f"transform.window.{key}",
            f"{format_value(getattr(window, key))} emits a window more than once, but {target_text} is append-only, "
            'so readers could not recognize outdated rows; set emit_metadata = true, use emit = "final", or write to '
            'a target that replaces rows (postgres, delta or iceberg with mode = "merge", or kafka with the default '
            "key_columns)",
        )


def check_state_store(values: Values, wrong: set[str]) -> Iterator[Problem]:
    """Yield a problem if the step, or its delivery guarantee, needs a state store that the config does not define."""
    step = _draft_step(values)
    if step is None or "state_store" in wrong:
        return
    store: StateStore | None = values.get("state_store")
    step_text = "a join" if step is values["transform"].join else "a session window" if step.kind == "session" else None
    if isinstance(step, KeyedStep):
        step_text = f"a {step.kind} stage"
    if store is None and step_text is not None:
        yield (
            "state_store",
            f'missing; {step_text} needs a state store, for example [state_store] with kind = "files" and path = '
            '"state"',
        )
    durable = store is not None and store.kind != "in_memory"
    if step.crash_recovery in ("persisted", "kafka_eos") and not durable:
        yield (
            f"{step.CONFIG_PATH}.crash_recovery",
            f'{format_value(step.crash_recovery)} needs a durable [state_store]; use kind = "files" or "postgres"',
        )
    targets = [t for _, t in list_targets_with_keys(values)]
    if not targets or any("delivery" in t._wrong for t in targets):
        return
    topics = [t for t in targets if t.topic is not None] or targets
    if step.crash_recovery == "kafka_eos" and any(t.delivery != "exactly_once" for t in topics):
        yield (
            f"{step.CONFIG_PATH}.crash_recovery",
            '"kafka_eos" needs a kafka target with delivery = "exactly_once"; define such a target, or use "persisted"',
        )


def check_dead_letters(values: Values, wrong: set[str]) -> Iterator[Problem]:
    """Yield a problem if [dead_letter] is needed but missing, or if it is defined but unused."""
    transforms = values.get("stages") or [values.get("transform")]
    if any(t is None for t in transforms) or "dead_letter" in wrong:
        return
    steps = [t.stateful for t in transforms]
    undecided = any("on_error" in t._wrong for t in transforms) or any(s and "late_data" in s._wrong for s in steps)
    undecided = undecided or (steps == [None] and transforms[0].sql is None)
    on_errors, policies = [t.on_error for t in transforms], [s.late_data for s in steps if s is not None]
    on_error = "dlq" if "dlq" in on_errors else on_errors[0]
    late_data = next((p for p in ("dlq", "reopen") if p in policies), policies[0] if policies else None)
    policy_by_key = (("on_error", on_error), ("late_data", late_data))
    dlq_keys = [key for key, value in policy_by_key if value == "dlq"]
    has_target = values.get("dead_letter") is not None
    # with "reopen", rows that are too late for a correction are written to [dead_letter] if it is defined
    if has_target and not dlq_keys and late_data != "reopen" and not undecided:
        if late_data is None:
            line = f'unused, because on_error is {format_value(on_error)}; set it to "dlq", or remove [dead_letter]'
        else:
            line = (
                f"unused, because on_error is {format_value(on_error)} and late_data is {format_value(late_data)}; "
                'set one of them to "dlq", or remove [dead_letter]'
            )
        yield "dead_letter", line
    if dlq_keys and not has_target:
        keys = " and ".join(f'{key} = "dlq"' for key in dlq_keys)
        line = f"missing, but required by {keys}; define [dead_letter] with a connection and a path, table or topic"
        yield "dead_letter", line


def _join(values: Values) -> Join | None:
    transform = values.get("transform")
    return None if transform is None or transform.window is not None else transform.join


def check_join(values: Values) -> Iterator[Problem]:
    """Yield a problem for each side of the join that is not a source, and for each source that is not a side."""
    join, sources = _join(values), values.get("sources", ())
    if join is None or not sources:
        return
    if len(sources) == 1:
        yield "sources", mismatch("1 source", "2 sources: one for left_source and one for right_source")
        return
    names = [s.name for s in sources if s.name]
    named_sources = {
        key: getattr(join, key) for key in ("left_source", "right_source") if getattr(join, key) is not None
    }
    unknown = {key: name for key, name in named_sources.items() if name not in names}
    undecided = bool(unknown) or len(set(named_sources.values())) < 2 or len(names) < len(sources)
    for key, name in unknown.items():
        if len(names) == len(sources):
            yield (
                f"{join.CONFIG_PATH}.{key}",
                f"found {format_value(name)}, which is not a source{suggest_or_list_words(name, names)}",
            )
    for i, source in enumerate(sources):
        if not undecided and source.name not in named_sources.values():
            yield (
                f"sources[{i}]",
                f"{format_value(source.name)} is neither left_source nor right_source of the join; remove this "
                "source, or read it in another pipeline",
            )


def check_append_only(values: Values, path: str = "target") -> Iterator[Problem]:
    """Yield a problem if the target has mode = "merge" but the stage is not a window.

    Only window results have an identity, by which they can replace earlier results. `path`: the key of the target.
    """
    target: Target | None = values.get("target")
    transform = values.get("transform")
    if transform is None or transform.window is not None or target is None or target.mode != "merge":
        return
    step = transform.stateful
    if step is None and not transform.is_stateless:
        return
    row_text = "joined rows" if _join(values) is not None else "rows of a stage with only SQL"
    if step is not None and step.table != "join":
        row_text = f"rows of a {step.table} stage"
    connection = resolve_connection(target.connection, values.get("connections", {}))
    if connection is not None and "mode" in CONNECTORS[connection.kind].target_keys:
        yield (
            f"{path}.mode",
            f'"merge" replaces rows with the same identity, but {row_text} have no identity; use "append", which is '
            "the default for such rows",
        )
