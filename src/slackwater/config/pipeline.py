"""The spec of a pipeline: sources, a transform or stages, targets and a state store."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from slackwater.config.config_key import (
    Converted,
    Milliseconds,
    Settings,
    Tables,
    WithUnit,
    declare_attribute,
    declare_key,
    declare_with_unit,
)
from slackwater.config.connection import Connection, parse_connections
from slackwater.config.error_text import describe_value_mismatch, format_value, suggest_or_list_words
from slackwater.config.identifier_checks import check_state_identifiers, check_target_identifiers
from slackwater.config.pipeline_checks import (
    check_append_only,
    check_connections,
    check_corrections,
    check_dead_letters,
    check_event_time,
    check_join,
    check_source_names,
    check_state_store,
)
from slackwater.config.pipeline_checks import resolve_connection as resolve_connection
from slackwater.config.source import Lookup, Source, StageOutputReference
from slackwater.config.spec_base import Problem, Spec, Values, table_list_parser, table_parser
from slackwater.config.sql.select_scope import SEVERAL, GroupableColumns
from slackwater.config.stage import (
    STEP,
    InputPath,
    Stage,
    Transform,
    executed_stages,
    find_groupable_columns,
    input_paths,
    stage_inputs,
)
from slackwater.config.stage_and_target_checks import (
    TARGET_NAME,
    check_stages,
    check_targets,
    iterate_all_steps,
    iterate_targets,
    list_published_stages,
)
from slackwater.config.target import StateStore, Target
from slackwater.config.value_parsers import duration_parser, parse_text, settings_parser
from slackwater.core.humanize import mismatch
from slackwater.core.notebook_repr import NotebookRepr
from slackwater.errors import ConfigError, StartError, Topic

_Connected = TypeVar("_Connected", Source, Lookup, Target)
TRANSFORM = "transform"  # name of the stage that [transform] defines
LONGEST_NAME = 200  # file names can have 255 bytes, and a reset appends a time to the name of the state
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"


class Pipeline(Spec, NotebookRepr):
    """An immutable, validated description of a pipeline. `slackwater.run` runs it."""

    name: str = declare_key(
        parse_text,
        "The name of the pipeline and of its state. It may contain letters, digits, `.`, `_` and `-`.",
        required="give the pipeline a name",
    )
    formerly: str | None = declare_key(
        parse_text, "The previous name of the pipeline. The next start takes over its state.", default=None
    )
    connections: Mapping[str, Connection] = declare_key(
        parse_connections,
        "The systems to read from and write to: one table [connections.<name>] per system.",
        default_factory=dict,
    )
    sources: Tables[Source] = declare_key(
        table_list_parser(Source, "a list of sources ([[sources]])"),
        "The inputs of the pipeline: one [[sources]] table per input.",
        required="define at least one source in [[sources]]",
    )
    transform: Converted[Transform | None, Transform] = declare_key(
        table_parser(Transform),
        "The SQL and the window, join or other step of a pipeline with one stage.",
        default=None,
    )
    stages: Tables[Stage] = declare_key(
        table_list_parser(Stage, "a list of stages ([[stages]])"),
        "Several stages instead of [transform]. A stage reads sources, or the results of stages above it.",
        default=(),
    )
    target: Converted[Target | None, Target] = declare_key(
        table_parser(Target), "The destination of the results.", default=None
    )
    targets: Tables[Target] = declare_key(
        table_list_parser(Target, "a list of targets ([[targets]])"),
        "Several targets instead of [target]. Each receives the results of one stage.",
        default=(),
    )
    state_store: StateStore | None = declare_key(
        table_parser(StateStore), "The store for open windows, offsets and watermarks.", default=None
    )
    dead_letter: Target | None = declare_key(
        table_parser(Target),
        'The destination of bad rows (`on_error = "dlq"`) and late rows (`late_data = "dlq"`).',
        default=None,
    )
    spark: Settings = declare_key(
        settings_parser('a table of Spark settings ({ "spark.driver.memory" = "4g" })'),
        'Settings of the Spark session. Write the names in quotes: "spark.driver.memory" = "4g".',
        default_factory=dict,
    )
    trigger_interval_ms: Milliseconds[int] = declare_key(
        duration_parser(0), "How often sources are polled. `0ms`: without a pause, less often while idle.", default=0
    )
    trigger_interval: WithUnit = declare_with_unit(default=None)
    idle_pause_ms: Milliseconds[int] = declare_key(
        duration_parser(1), "The interval at which an idle pipeline checks the clock.", default=500
    )
    idle_pause: WithUnit = declare_with_unit(default=None)
    preset_input_paths: Any = declare_attribute(default=(), repr=False)  # of `InputPath`; see `stage_pipelines`

    DOC_LINK: ClassVar[str] = "docs/configuration.md#the-pipeline"
    SUGGESTIONS: ClassVar[Mapping[str, str]] = {"window": "transform.window", "join": "transform.join"}

    @property
    def running_stages(self) -> list[Stage]:
        """The stages with state, and the stages whose results go to a target. Empty for a pipeline with [transform]."""
        return executed_stages(self.stages, self.published_stages)

    @property
    def published_stages(self) -> tuple[str, ...]:
        """The names of the stages whose results go to a target."""
        if not self.stages:
            return (TRANSFORM,)
        last = self.stages[-1].name
        return tuple(dict.fromkeys(t.from_ or last for t in self.targets or (self.target,)))

    @property
    def stage_pipelines(self) -> dict[str, Pipeline]:
        """One single-stage pipeline per running stage, by stage name, in config order.

        The sources of each pipeline are the sources and stages that its rows come from.
        """
        if not self.stages:
            return {TRANSFORM: self}
        sources, steps = {s.name: s for s in self.sources}, {s.name: s.step for s in self.stages}
        read = stage_inputs(self.stages, list(sources))
        pipelines = {}
        for stage in self.running_stages:
            paths = input_paths(stage, self.stages, read)
            sources_of_stage = tuple(
                sources.get(n) or Source(name=n, dataframe=StageOutputReference(find_groupable_columns(steps[n])))
                for n in dict.fromkeys(path.origin for path in paths)
            )
            changed = {"transform": stage, "stages": (), "sources": sources_of_stage, "preset_input_paths": paths}
            pipelines[stage.name] = self.model_copy(update=changed)
        return pipelines

    @property
    def former_names(self) -> dict[str, str | None]:
        """The former name (`formerly`) of each running stage, or None, by current name, in config order."""
        return {name: stage_pipeline.transform.formerly for name, stage_pipeline in self.stage_pipelines.items()}

    @property
    def input_paths(self) -> tuple[InputPath, ...]:
        """The paths on which rows reach the step of a pipeline with a single stage (see `stage_pipelines`)."""
        return self.preset_input_paths or tuple(InputPath(s.name, s.name) for s in self.sources)

    def input_paths_from(self, origin: str) -> tuple[InputPath, ...]:
        """Return the input paths that begin at the source or stage with this name."""
        return tuple(w for w in self.input_paths if w.origin == origin)

    def sql_chain(self, path: InputPath) -> list[tuple[str, str]]:
        """Return the SQL of all stages on a path, in dataflow order, as (config key, SQL)."""
        return [(key, sql) for key, sql, _ in self.sql_chain_with_groupable(path)]

    def sql_chain_with_groupable(self, path: InputPath) -> list[tuple[str, str, GroupableColumns]]:
        """Return the SQL of all stages on a path, in dataflow order, as (config key, SQL, groupable columns)."""
        upstream = [(f'stage "{s.name}": sql', s.sql, self.groupable_columns(path, s)) for s in path.through]
        transform = self.transform
        every = (*upstream, (transform.sql_key(path.name), transform.sql_of(path.name), self.groupable_columns(path)))
        return [(key, sql, bounds) for key, sql, bounds in every if sql is not None]

    def groupable_columns(self, path: InputPath, reader: Stage | None = None) -> GroupableColumns:
        """Return the columns by which the SQL of a stage on a path may group rows.

        The SQL of a stage with several inputs cannot group rows. It runs over each input separately, but a group may
        have rows from several inputs.

        `reader`: the stage on the path; None for the step at the end of the path.
        """
        name = None if reader is None else reader.name
        paths = self.input_paths
        if reader is None and self.transform.join:
            paths = tuple(p for p in paths if p.name == path.name)
        if len({p.upstream_of(name) for p in paths if p.passes(name)}) > 1:
            return SEVERAL
        return next(s for s in self.sources if s.name == path.origin).groupable_columns

    @property
    def lookups(self) -> dict[str, Lookup]:
        """The lookups of all stages by name. Lookups with the same name in several stages are equal."""
        return {n: x for t in (*self.stages, self.transform) for n, x in t.lookups.items()}

    @property
    def target_stage(self) -> Pipeline:
        """The single-stage pipeline of the stage whose results go to the first target."""
        return self.stage_pipelines[self.published_stages[0]]

    @property
    def per_target(self) -> dict[str, Pipeline]:
        """One copy of the pipeline per target, with only that target, by target name, in config order."""
        pipelines: dict[str, Pipeline] = {}
        taken, last = {t.name for t in self.targets}, self.stages[-1].name if self.stages else TRANSFORM
        for target in self.targets or (self.target,):
            stage = target.from_ or last
            name = target.name or _unused_name(stage, {*pipelines, *taken})
            named_target = target.model_copy(update={"name": name, "from_": stage})
            pipelines[name] = self.model_copy(
                update={"target": named_target, "targets": (named_target,) if self.targets else ()}
            )
        return pipelines

    def one_target(self, name: str | None = None) -> Pipeline:
        """Return a copy of the pipeline with only the target of this name. None selects the only target.

        Raises StartError if the target does not exist, or if `name` is None and the pipeline has several targets.
        """
        pipelines = self.per_target
        if name is None:
            if len(pipelines) == 1:
                return next(iter(pipelines.values()))
            raise StartError(
                f"{self.name} has {len(pipelines)} targets ({', '.join(pipelines)}); choose one of them with --target NAME",
                Topic.VALUE,
            )
        if name not in pipelines:
            suggestion = suggest_or_list_words(name, pipelines)
            raise StartError(
                f"{self.name}: --target: found {format_value(name)}, which is not a target{suggestion}", Topic.VALUE
            )
        return pipelines[name]

    def writer_of(self, target: str) -> str:
        """Return the name under which a target stores this pipeline's marker of the last epoch.

        For [target], this is the name of the pipeline.
        """
        if not self.targets:
            return self.name
        name = target if re.fullmatch(TARGET_NAME, target) else _hash(target)
        marker_name = f"{self.name}~{name}"  # "~" is not valid in the name of a pipeline
        return marker_name if len(marker_name) <= LONGEST_NAME else f"{self.name[:80]}~{_hash(marker_name)}"

    @property
    def writer(self) -> str:
        """The name under which the first target stores this pipeline's marker (see `writer_of`)."""
        return self.writer_of(next(iter(self.per_target)))

    @property
    def writers(self) -> tuple[str, ...]:
        """The possible names of this pipeline in a marker: `writer`, and `writer` under the pipeline's former name."""
        former = () if self.formerly is None else (self.model_copy(update={"name": self.formerly}).writer,)
        return (self.writer, *former)

    @property
    def watermark_delay_ms(self) -> int:
        """The maximum time (ms) by which the event time of a result may be behind the watermark.

        Stages that read the results are delayed by this time.
        """
        return self.transform.step.watermark_delay_ms

    def derived(self) -> Values:
        transform = {"transform": self.running_stages[0]} if self.stages else {}
        return {**transform, "target": self.targets[0]} if self.targets else transform

    @property
    def keeps_late_rows(self) -> bool:
        """Return whether rows that are too late to change a result are written as dead letters."""
        policy = self.transform.step.late_data
        return policy == "dlq" or (policy == "reopen" and self.dead_letter is not None)

    @property
    def tracks_origin(self) -> bool:
        """Return whether rows can become dead letters after the SQL. If so, the SQL must preserve their origin."""
        brings_gap = self.transform.window is not None and isinstance(self.transform.window.gap_ms, str)
        return self.keeps_late_rows or (brings_gap and self.transform.on_error == "dlq")

    @classmethod
    def label(cls, data: Values) -> str:
        name = data.get("name")
        return name if isinstance(name, str) and re.fullmatch(NAME, name) else "pipeline"

    @classmethod
    def read(cls, data: Values, file: str, path: str, problems: list[str]) -> tuple[Values, set[str]]:
        values, wrong = super().read(data, file, path, problems)
        if not problems:
            _name_connections(values)
        return values, wrong

    @classmethod
    def check(cls, values: Values, wrong: set[str]) -> Iterator[Problem]:
        if values.get("stages"):
            yield from check_stages(values, wrong)
            values.setdefault("transform", executed_stages(values["stages"], list_published_stages(values))[0])
        elif "transform" not in values and not {"transform", "stages"} & wrong:
            yield "transform", f"missing; {STEP}"
        name = values.get("name")
        if name is not None and not re.fullmatch(NAME, name):
            expected = 'only letters, digits, ".", "_" and "-", because it names a directory'
            yield "name", describe_value_mismatch(name, expected)
        elif name is not None and len(name) > LONGEST_NAME:
            yield "name", mismatch(f"{len(name)} characters", f"at most {LONGEST_NAME}, because it names a directory")
        formerly = values.get("formerly")
        if formerly is not None and (not re.fullmatch(NAME, formerly) or formerly == name):
            yield "formerly", describe_value_mismatch(formerly, "the previous name of the pipeline")
        if "sources" in values and not values["sources"]:
            yield "sources", "empty; define at least one source in [[sources]]"
        yield from check_source_names(values.get("sources", ()))
        yield from check_connections(values)
        if not values.get("stages"):
            yield from check_join(values)
        for stage_values in iterate_all_steps(values):
            yield from check_event_time(stage_values)
            yield from check_state_store(stage_values, wrong)
        yield from check_dead_letters(values, wrong)
        yield from check_targets(values, wrong)
        problems: list[Problem] = []
        for path, stage_values in iterate_targets(values):
            problems += [*check_corrections(stage_values), *check_append_only(stage_values, path)]
            problems += check_target_identifiers(stage_values, values.get("connections", {}), path)
        yield from dict.fromkeys(problems)  # several targets of one stage have the same problems
        letters = {**values, "target": values.get("dead_letter"), "transform": None}
        yield from check_target_identifiers(letters, values.get("connections", {}), "dead_letter")
        yield from check_state_identifiers(values)
        if values.get("targets"):
            values.setdefault("target", values["targets"][0])


def check_run_flags(available_now: bool, flush: bool) -> None:
    """Raise ConfigError if `flush` is set without `available_now`."""
    if flush and not available_now:
        raise ConfigError(["--flush: needs --available-now, because only bounded input ends; add --available-now"])


def _name_connections(values: Values) -> None:
    """Replace connection objects with names, so that pipelines from Python and TOML are equal.

    A connection that is not in [connections] is added under a new name.
    """
    connections: dict[str, Connection] = dict(values.get("connections", {}))

    def named(spec: _Connected) -> _Connected:
        connection = spec.connection
        if not isinstance(connection, Connection):
            return spec
        name = next((n for n, c in connections.items() if c == connection), None)
        if name is None:
            name = _unused_name(connection.kind, connections, "_")
            connections[name] = connection
        return spec.model_copy(update={"connection": name})

    values["sources"] = tuple(named(s) for s in values["sources"])
    if stages := values.get("stages"):
        values["stages"] = tuple(s.map_lookups(named) for s in stages)
        first = values["transform"].name
        values["transform"] = next(s for s in values["stages"] if s.name == first)
    else:
        values["transform"] = values["transform"].map_lookups(named)
    values["targets"] = tuple(_with_format(named(t), connections) for t in values.get("targets", ()))
    if values["targets"]:
        values["target"] = values["targets"][0]
    for key in ("target", "dead_letter"):
        if values.get(key) is not None:
            values[key] = _with_format(named(values[key]), connections)
    values["connections"] = connections


def _with_format(target: Target, connections: Mapping[str, Connection]) -> Target:
    """Set `format = "parquet"`, the default, for a target on a files connection."""
    connection = resolve_connection(target.connection, connections)
    uses_default = connection is not None and connection.kind == "files" and target.format is None
    return target.model_copy(update={"format": "parquet"}) if uses_default else target


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def _unused_name(name: str, taken: Collection[str | None], separator: str = "-") -> str:
    numbered = (f"{name}{separator}{i}" for i in range(2, len(taken) + 3))
    return next(n for n in (name, *numbered) if n not in taken)
