"""Static checks of SQL, keys and columns in a config against its schemas, without Spark or data.

    declared schema ──▶ event time ──▶ SQL (`sql.query`) ──▶ gap, keys, aggregations, sides of a join ──▶ next stage

The check is conservative: every problem that it reports would also make startup fail. Whatever it cannot decide is
listed as not checked, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from slackwater.config.column_checks import CheckResult, WindowColumns, check_same_columns, check_scalar_column
from slackwater.config.connector_description import CONNECTORS, metadata_columns
from slackwater.config.error_text import EnvString, format_value, suggest_or_list_words
from slackwater.config.join import EVENT_TIME, SIDES, Join, joined_column_names
from slackwater.config.pipeline import Pipeline
from slackwater.config.pipeline_checks import resolve_connection
from slackwater.config.source import FRAMED, Lookup, Source
from slackwater.config.sql import schema_ddl
from slackwater.config.sql.query_columns import resolve_expression, resolve_query
from slackwater.config.sql.schema_ddl import INTEGERS, NO_KEYS, find_event_time_type_problems, strip_type_parameters
from slackwater.config.sql.select_scope import UNKNOWN, ColumnTypes, GroupableColumns, SqlFindings
from slackwater.config.stage import Stage
from slackwater.config.step_base import KeyedStep, StatelessStep
from slackwater.config.window import Window
from slackwater.errors import StartError

ORIGIN = "_origin"
_OTHER_SQL = (
    "caseSensitive",
    "timestampType",
    "ansi.",
    "legacy.",
    "extensions",
    "catalog",
    "defaultCatalog",
    "parser.",
)


def check_sql(pipeline: Pipeline) -> CheckResult:
    """Check the SQL and the columns of a pipeline whose config is otherwise valid.

    Checks that are possible only when the pipeline starts are skipped.
    """
    checked = CheckResult()
    changed = [k for k in pipeline.spark if k.startswith(tuple(f"spark.sql.{other}" for other in _OTHER_SQL))]
    if changed:
        checked.skip("transform", f'SQL and columns, because [spark] sets "{changed[0]}", which changes SQL itself')
        return checked
    _check(pipeline, {}, checked)
    return checked


def infer_stage_columns(pipeline: Pipeline, source_types: Mapping[str, Mapping[str, str]]) -> dict[str, ColumnTypes]:
    """Return the columns that each stage emits. `source_types`: the column types of sources without a schema."""
    return _check(pipeline, {name: ColumnTypes(types, True) for name, types in source_types.items()}, CheckResult())


def _check(pipeline: Pipeline, sources: Mapping[str, ColumnTypes], checked: CheckResult) -> dict[str, ColumnTypes]:
    """Return the columns that each stage emits, by name, and add problems to `checked`."""
    columns = {s.name: sources.get(s.name) or _columns(pipeline, i, s, checked) for i, s in enumerate(pipeline.sources)}
    stage_keys = {s.name: f"{Stage.CONFIG_PATH}[{n}]" for n, s in enumerate(pipeline.stages)}
    for name, stage_pipeline in pipeline.stage_pipelines.items():
        key = stage_keys.get(name, "transform")
        columns[name] = _StepCheck(stage_pipeline, key, checked, stage_keys, pipeline.lookups).check(columns)
    return {name: columns[name] for name in pipeline.stage_pipelines}


def check_draft_sql(pipeline: Pipeline) -> CheckResult:
    """Check the SQL and the columns of a draft (an invalid config), except the parts with reported problems."""
    transform = pipeline.transform
    usable = pipeline.sources and transform is not None and not transform._wrong & {"sql", "lookups"}
    if not usable or pipeline.stages or {"connections", "spark"} & pipeline._wrong or transform.join is not None:
        return CheckResult()  # joins and several stages are checked only if all their parts are valid
    window = transform.window
    if window is None:
        sound = transform.is_stateless and not any(s._wrong for s in pipeline.sources)
        return check_sql(pipeline) if sound else CheckResult()
    wrong = set(window._wrong)
    if {"event_time_column", "time_mode", "event_time_unit"} & wrong:
        wrong |= {"event_time_column"}
    fields = Window.model_fields
    aggregations = tuple(a for a in window.aggregations or () if not a._wrong)
    defaults = {k: fields[k].get_default() for k in wrong if k in fields and not fields[k].is_required()}
    usable_window = window.model_copy(update={**defaults, "aggregations": aggregations})
    if "event_time_column" in wrong:
        usable_window = usable_window.model_copy(update={"time_mode": "processing"})
    sources = tuple(s if not s._wrong else s.model_copy(update={"schema_": None}) for s in pipeline.sources)
    if not all(isinstance(s.name, str) for s in sources) or window.kind is None:
        return CheckResult()
    step = transform.model_copy(update={"window": usable_window, "on_error": transform.on_error or "fail"})
    return check_sql(pipeline.model_copy(update={"transform": step, "sources": sources}))


# -- columns of a source ----------------------------------------------------------------------------------------------


def _columns(pipeline: Pipeline, index: int, source: Source, checked: CheckResult) -> ColumnTypes:
    """Return the columns of a source's rows, as far as the config declares them, plus those of the connector."""
    connection = resolve_connection(source.connection, pipeline.connections) if source.connection is not None else None
    kind = connection.kind if connection is not None else None
    key = f"sources[{index}]"
    if kind is None:
        checked.skip(f"{key}.dataframe", "its columns are known only when the pipeline starts")
        return UNKNOWN
    if CONNECTORS[kind].is_table:
        checked.skip(f"{key}.query", "the columns of a table are known only when the pipeline starts")
        return UNKNOWN
    more = dict.fromkeys(metadata_columns(kind))
    if CONNECTORS[kind].has_timestamp:
        more[EVENT_TIME] = "timestamp"
        if source.payload_format in (*FRAMED, "raw"):
            if source.payload_format == "raw" and kind == "kafka":
                return ColumnTypes({"value": None, **more}, True)
            checked.skip(
                f"{key}.payload_format",
                f"the columns of {format_value(source.payload_format)} payloads are known only when the pipeline "
                "starts",
            )
            return UNKNOWN
    for name, type_ in schema_ddl.parse_ddl_columns(source.schema_).items() if source.schema_ is not None else ():
        if re.search(r"\b(var)?char\(", type_):
            checked.add(
                f"{key}.schema", f'column "{name}" is {type_.upper()}, which Spark supports only in tables; use STRING'
            )
    declared = _declared(source)
    if declared is None:
        checked.skip(f"{key}.schema", "none is declared, so the columns are known only when the first rows are read")
        return UNKNOWN
    return ColumnTypes({**declared, **more}, True)


def _declared(spec: Source | Lookup) -> dict[str, str | None] | None:
    if spec.schema_ is None:
        return {"value": "string"} if spec.format == "text" else None
    columns = schema_ddl.parse_ddl_columns(spec.schema_)
    return {name: _dataframe_type(type_) for name, type_ in columns.items() if name != "_corrupt_record"}


def _dataframe_type(type_: str) -> str | None:
    """Return a declared type; None if the schema of the DataFrame may show a different type."""
    return None if type_.startswith(("char", "varchar", "string collated", "time(", "interval", "geo")) else type_


# -- one stage -------------------------------------------------------------------------------------------------------


@dataclass
class _StepCheck:
    """Checks one step together with the SQL before it. `path`: the config key of the stage."""

    pipeline: Pipeline
    path: str
    result: CheckResult
    stages: Mapping[str, str]  # where each stage is described
    lookups: Mapping[str, Lookup]

    def check(self, inputs: Mapping[str, ColumnTypes]) -> ColumnTypes:
        """Check the step against the columns of sources and stages, by name. Return the columns that it emits."""
        step = self.pipeline.transform.step
        tables = {}
        for name, lookup in self.lookups.items():
            declared = _declared(lookup)
            tables[name] = UNKNOWN if declared is None else ColumnTypes(declared, True)
        for name in self.pipeline.transform.lookups:
            if not tables[name].is_complete and any(self.pipeline.sql_chain(w) for w in self.pipeline.input_paths):
                key = f"{self.path}.lookups.{name}.schema"
                self.result.skip(key, "none is declared, so its columns are known only when the pipeline starts")
        for source in self.pipeline.sources:
            if not source.is_stage_output or all(s.is_stage_output for s in self.pipeline.sources):
                self._event_time(source.name, inputs[source.name])
        outputs, sides = dict[str, ColumnTypes](), dict[str, ColumnTypes]()
        for way in self.pipeline.input_paths:
            groupable_names = next(s for s in self.pipeline.sources if s.name == way.origin).groupable_columns.names
            columns = replace(inputs[way.origin], groupable=frozenset(map(str.casefold, groupable_names)))
            for stage in way.through:
                bounds, key = self.pipeline.groupable_columns(way, stage), f"{self.stages[stage.name]}.sql"
                columns = self._sql(way.origin, columns, tables, stage.sql, key, bounds)
            sql, bounds = self.pipeline.transform.sql_of(way.name), self.pipeline.groupable_columns(way)
            outputs[way.key] = self._sql(way.origin, columns, tables, sql, self._sql_key(way.name), bounds)
            sides[way.name] = outputs[way.key]
        if isinstance(step, Join):
            return self._join(step, sides)
        if isinstance(step, StatelessStep):
            check_same_columns(self.result, f"{self.path}.sql", outputs)
            return next(iter(outputs.values()))
        if isinstance(step, KeyedStep):
            return self._keyed(step, outputs)
        assert isinstance(step, Window)
        window = WindowColumns(step, self.path, self.result)
        for out in outputs.values():
            window.check_gap(out)
        first = next(iter(outputs.values()))
        window.check_columns(first)
        check_same_columns(self.result, f"{self.path}.window", outputs, window.used_columns())
        return window.result_columns(first)

    @property
    def _kind(self) -> str:
        return self.pipeline.transform.step.table

    def _source_prefix(self, source: str) -> str:
        """Return a message prefix that names a source; "" if the pipeline has only one source."""
        return f'source "{source}": ' if len(self.pipeline.sources) > 1 else ""

    # -- event time ----------------------------------------------------------------------------------------------

    def _event_time(self, source: str, columns: ColumnTypes) -> None:
        step = self.pipeline.transform.step
        text = step.event_time_column
        if isinstance(step, StatelessStep):
            type_ = columns.types.get(EVENT_TIME)
            if type_ is not None and any(find_event_time_type_problems(type_, None)):
                line = f'{self._source_prefix(source)}column "{EVENT_TIME}" is {type_}, which is not a time type; cast it in the SQL, or rename the column'
                self.result.add(f"{self.path}.sql", line)
            return
        key, prefix = f"{self.path}.{self._kind}.event_time_column", self._source_prefix(source)
        if step.time_mode == "processing" or text == EVENT_TIME:
            type_ = columns.types.get(EVENT_TIME)
        elif text in columns.types:
            type_ = columns.types[text]
        else:
            findings = SqlFindings()
            type_ = resolve_expression(text, columns, findings)
            shown = format_value(text)
            for line in findings.problems:
                self.result.add(key, f"{prefix}{line}" if line.startswith("column") else f"{prefix}{shown} {line}")
            for line in findings.undecided:
                self.result.skip(key, f"{shown}: {line}")
            if beyond := ", ".join(sorted(findings.non_row_wise)):
                self.result.add(key, f"{prefix}{shown} must be row-wise, but it uses {beyond}")
            if findings.problems or findings.undecided or beyond:
                return
            if type_ is None and columns.is_complete:
                self.result.skip(
                    key, f"{shown}: whether it is a time, because its type is known only when the pipeline starts"
                )
        if type_ is not None and step.time_mode != "processing":
            for wrong, fact in find_event_time_type_problems(type_, step.event_time_unit):
                self.result.add(f"{self.path}.{self._kind}.{wrong}", f"{prefix}{format_value(text)} {fact}")

    def _sql(
        self,
        source: str,
        columns: ColumnTypes,
        tables: Mapping[str, ColumnTypes],
        sql: str | None,
        key: str,
        bounds: GroupableColumns,
    ) -> ColumnTypes:
        """Return the columns that the SQL emits for rows with these columns. `source`: the origin of the rows."""
        carried = self.pipeline.tracks_origin and sql is not None and re.search(rf"\b{ORIGIN}\b", sql, re.IGNORECASE)
        transform = self.pipeline.transform
        untimed = transform.is_stateless and EVENT_TIME not in columns.types
        added = {**({} if untimed else {EVENT_TIME: "timestamp"}), **({ORIGIN: None} if carried else {})}
        timed = ColumnTypes(
            {**columns.types, **added}, columns.is_complete, columns.groupable if bounds.names else frozenset()
        )
        if sql is None:
            return timed
        findings = SqlFindings()
        names = [s.name for s in self.pipeline.sources]
        out = resolve_query(sql, {**tables, "source": timed}, findings, names)
        prefix = self._source_prefix(source)
        secret = isinstance(sql, EnvString)
        for line in findings.problems:
            self.result.add(key, f"{prefix}{line}" if not secret else f"{prefix}{re.sub(r' near .*', '', line)}")
        for table in findings.catalog_tables:
            self.result.skip(
                key,
                f'"{table}" is neither "source" nor a lookup; Spark will look for it in its catalog when the pipeline '
                "starts",
            )
        for line in findings.undecided:
            self.result.skip(key, f"{line}; Spark will check the SQL when the pipeline starts")
        if findings.non_row_wise:
            advice = "" if self._kind == "join" else f", and describe aggregation in [{self.path}.window]"
            self.result.add(
                key,
                f"must be row-wise, but it uses {', '.join(sorted(findings.non_row_wise))}; use only filters, "
                f"projections and lookup joins{advice}" + bounds.advice_for(findings.non_row_wise),
            )
        out = ColumnTypes(
            {name: type_ for name, type_ in out.types.items() if not (carried and name == ORIGIN)},
            out.is_complete,
            out.groupable,
        )
        if transform.is_stateless:
            return out
        if EVENT_TIME not in out.types:
            if out.is_complete:
                self.result.add(
                    key,
                    f'{prefix}does not select "{EVENT_TIME}", the event time, but only {", ".join(out.types)}; add '
                    f'"{EVENT_TIME}" to the SELECT list',
                )
        elif out.types[EVENT_TIME] not in (None, "timestamp"):
            self.result.add(
                key,
                f'{prefix}selects "{EVENT_TIME}" as {out.types[EVENT_TIME]}, expected timestamp; select it unchanged',
            )
        return out

    def _sql_key(self, source: str) -> str:
        join = self.pipeline.transform.join
        if join is None:
            return f"{self.path}.sql"
        return f"{self.path}.join.{'left' if source == join.left_source else 'right'}_sql"

    def _keyed(self, step: KeyedStep, outputs: Mapping[str, ColumnTypes]) -> ColumnTypes:
        """Check that the key columns exist, and return the columns of the results."""
        for source, out in outputs.items():
            prefix = f"source {format_value(source)}: " if len(outputs) > 1 else ""
            for name in step.keys:
                check_scalar_column(self.result, f"{self.path}.{self._kind}.keys", name, out, prefix)
            for name in step.added_columns:
                if name in out.types:
                    line = f"the SQL selects a column {format_value(name)}, which this step adds itself; rename the column in the SQL"
                    self.result.add(f"{self.path}.{self._kind}", prefix + line)
        check_same_columns(self.result, f"{self.path}.sql", outputs)
        rows = next(iter(outputs.values()))
        return ColumnTypes(step.result_types(rows.types), rows.is_complete)

    # -- a join --------------------------------------------------------------------------------------------------

    def _join(self, join: Join, outputs: Mapping[str, ColumnTypes]) -> ColumnTypes:
        join_key = f"{self.path}.join"
        sides = [outputs[source] for source in join.sources]
        keys: list[list[str | None]] = [[], []]
        for i, (side, names) in enumerate(zip(SIDES, (join.left_keys, join.right_keys), strict=True)):
            for name in names:
                if name not in sides[i].types and sides[i].is_complete:
                    self.result.add(
                        f"{join_key}.{side}_keys",
                        f"column {format_value(name)} does not come out of the {side} side{suggest_or_list_words(name, sides[i].types)}",
                    )
                keys[i].append(sides[i].types.get(name))
        for i, (a, b) in enumerate(zip(*keys, strict=True)):
            if a is None or b is None:
                continue
            pair = f"{format_value(join.left_keys[i])} of the left side is {a} and {format_value(join.right_keys[i])} of the right side is {b}"
            if strip_type_parameters(a) in NO_KEYS or strip_type_parameters(b) in NO_KEYS:
                self.result.add(join_key, f"keys: {pair}; expected scalar types; cast them in left_sql and right_sql")
            elif a != b and not (a in INTEGERS and b in INTEGERS):
                self.result.add(
                    join_key,
                    f"keys: {pair}; cast one of them in left_sql or right_sql, so that both have the same type",
                )
        if not all(side.is_complete for side in sides):
            return UNKNOWN
        hidden = [self._injected(source) for source in join.sources]
        try:
            chosen = joined_column_names(join, list(sides[0].types), list(sides[1].types), (hidden[0], hidden[1]))
        except StartError as error:
            for line in str(error).splitlines():
                key, _, fact = line.removeprefix(Join.CONFIG_PATH).partition(": ")
                self.result.add(f"{join_key}{key}", fact)
            return UNKNOWN
        types = {
            out: side.types[name] for side, names in zip(sides, chosen, strict=True) for name, out in names.items()
        }
        return ColumnTypes({**types, EVENT_TIME: "timestamp"}, True)

    def _injected(self, name: str) -> Sequence[str]:
        origin = next((w.origin for w in self.pipeline.input_paths if w.name == name and not w.through), None)
        spec = next((s for s in self.pipeline.sources if s.name == origin), None)
        if spec is None:
            return ()
        reference = spec.connection
        connection = None if reference is None else resolve_connection(reference, self.pipeline.connections)
        return metadata_columns(None if connection is None else connection.kind)


__all__ = ["CheckResult", "check_draft_sql", "check_sql"]
