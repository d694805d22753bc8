"""Build, register and run pipelines in Python, from keyword arguments instead of a TOML config.

May import: config, engine, errors, pyspark, runner.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slackwater.config.connection import Connection
from slackwater.config.error_text import suggest_or_list_words
from slackwater.config.join import Join
from slackwater.config.pipeline import Pipeline
from slackwater.config.source import Lookup, Source
from slackwater.config.stage import Stage, Transform
from slackwater.config.target import StateStore, Target
from slackwater.config.window import Window
from slackwater.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from slackwater.engine.observer import Status

pipelines: dict[str, RegisteredPipeline] = {}
"""Pipelines registered by `streaming_pipeline`, by name."""

_OPTIONS_OF_SOURCE = {
    "source_format": "format",
    "source_schema": "schema",
    "source_options": "options",
    **{
        key: key
        for key in (
            "max_files_per_trigger",
            "payload_format",
            "avro_schema_file",
            "protobuf_schema_file",
            "protobuf_message",
            "starting_offsets",
            "max_offsets_per_trigger",
            "on_data_loss",
            "commit_group",
            "max_messages_per_trigger",
        )
    },
}


def pipeline(  # noqa: PLR0913 -- one argument per key of a config
    *,
    name: str,
    target: Target | Connection | str | None = None,
    targets: Sequence[Target] | None = None,
    window: Window | None = None,
    join: Join | None = None,
    stages: Sequence[Stage] | None = None,
    sources: Sequence[Source] | None = None,
    source: Source | Connection | str | None = None,
    source_query: str | None = None,
    target_path: str | None = None,
    target_format: str | None = None,
    target_table: str | None = None,
    target_topic: str | None = None,
    transform_sql: str | None = None,
    lookups: Mapping[str, Lookup] | None = None,
    on_error: str = "fail",
    state_store: StateStore | None = None,
    dead_letter: Target | None = None,
    connections: Mapping[str, Connection] | None = None,
    trigger_interval_ms: int | str = 0,
    trigger_interval: str | None = None,
    idle_pause_ms: int | str = 500,
    idle_pause: str | None = None,
    spark_settings: Mapping[str, str] | None = None,
    formerly: str | None = None,
    **source_settings: Any,
) -> Pipeline:
    """Build a pipeline with a `window`, a `join`, several `stages`, or only `transform_sql`.

    Each argument corresponds to a key of the TOML config; see docs/configuration.md. `transform_sql` is the key `sql`
    of `[transform]`, and `spark_settings` is the table `[spark]`. To use a dedup or a keyed function, pass it in a
    `Stage`. Durations are milliseconds, or strings such as "30s". You can specify sources and targets in several ways:

    Args:
        source: A `Source`, or a connection (or its name) together with `source_query` and other source settings, such
            as `source_format`, `source_schema`, `source_options` and `max_files_per_trigger`.
        sources: Several sources, instead of `source`.
        target: A `Target`, or a connection (or its name) together with `target_path`, `target_table` or `target_topic`.
        targets: Several targets, instead of `target`.

    Raises:
        ConfigError: The pipeline is invalid; the error has one line per mistake.
    """
    problems: list[str] = []
    for key in source_settings:
        if key not in _OPTIONS_OF_SOURCE:
            problems.append(
                f"{name}: {key}: unknown argument{suggest_or_list_words(key, [*_OPTIONS_OF_SOURCE, *_ARGUMENTS])}"
            )
    if (sources is None) == (source is None):
        problems.append(f"{name}: sources: give either sources = [...] or source = ...")
    if problems:
        raise ConfigError(problems)
    source_specs: Sequence[Source] = sources or ()
    if source is not None:
        settings = {_OPTIONS_OF_SOURCE[k]: v for k, v in source_settings.items()}
        source_specs = (
            source if isinstance(source, Source) else Source(connection=source, query=source_query, **settings),
        )
    if target is not None and not isinstance(target, Target):
        target = Target(
            connection=target, path=target_path, format=target_format, table=target_table, topic=target_topic
        )
    return Pipeline(
        name=name,
        formerly=formerly,
        connections=dict(connections or {}),
        sources=tuple(source_specs),
        transform=Transform(sql=transform_sql, on_error=on_error, window=window, join=join, lookups=dict(lookups or {}))
        if stages is None or window is not None or join is not None
        else None,
        stages=None if stages is None else tuple(stages),
        target=target,
        targets=None if targets is None else tuple(targets),
        state_store=state_store,
        dead_letter=dead_letter,
        spark=dict(spark_settings or {}),
        trigger_interval_ms=trigger_interval_ms if trigger_interval is None else trigger_interval,
        idle_pause_ms=idle_pause_ms if idle_pause is None else idle_pause,
    )


_ARGUMENTS = [a for a in pipeline.__annotations__ if a not in ("return", "source_settings")]


def run_streaming_pipeline(
    *,
    available_now: bool = False,
    flush: bool = False,
    spark: SparkSession | None = None,
    on_status: Callable[[Status], None] | None = None,
    on_notice: Callable[[str, str], None] | None = None,
    stop: threading.Event | None = None,
    rebuild: Mapping[str, Any] | None = None,
    former_output: str | None = None,
    **settings: Any,
) -> Status | None:
    """Build a pipeline from the keyword arguments of `sw.pipeline`, and run it.

    `settings` are the arguments of `sw.pipeline`. The other arguments have the same meaning as in `sw.run`. The
    pipeline runs until `stop` is set. With `available_now`, it stops once all input that exists at the start has been
    processed.
    """
    from slackwater.runner.run import run_pipeline
    from slackwater.runner.run_options import RunOptions

    options = RunOptions(
        available_now=available_now,
        flush=flush,
        spark=spark,
        on_status=on_status,
        on_notice=on_notice,
        stop=stop,
        rebuild=rebuild,
        former_output=former_output,
    )
    return run_pipeline(pipeline(**settings), options)


class RegisteredPipeline:
    """A pipeline that `sw.streaming_pipeline` has registered. Calling it runs it, with the options of `sw.run`.

    Its attribute `pipeline` contains the `Pipeline`.
    """

    def __init__(self, function: Callable[[], Any], spec: Pipeline) -> None:
        self.function, self.pipeline = function, spec
        self.__name__ = spec.name
        self.__doc__ = function.__doc__

    def __call__(self, **settings: Any) -> Status | None:
        """Run the pipeline with the options of `sw.run`."""
        from slackwater.runner.run import run

        return run(self.pipeline, **settings)


def streaming_pipeline(**settings: Any) -> Callable[[Callable[[], Any]], RegisteredPipeline]:
    """Return a decorator that registers a pipeline by name. Calling the decorated function runs the pipeline.

    The settings are the arguments of `sw.pipeline`; by default, `name` is the name of the function. The function is
    called once, when it is decorated. If it returns SQL, this SQL is used as `transform_sql`:

        @sw.streaming_pipeline(name="clicks", source=sw.Source(…), window=sw.Window(…), target=…, state_store=…)
        def clicks():
            return "SELECT user_id, _event_ts FROM source WHERE event_type = 'click'"

        clicks(available_now=True)
    """

    def register(function: Callable[[], Any]) -> RegisteredPipeline:
        sql = function()
        arguments = {**settings, "transform_sql": sql} if isinstance(sql, str) else settings
        arguments.setdefault("name", getattr(function, "__name__", "pipeline"))
        registered = RegisteredPipeline(function, pipeline(**arguments))
        if registered.pipeline.name in pipelines:
            raise ConfigError(
                [
                    f"{registered.pipeline.name}: name: a pipeline with this name is already registered; choose another name"
                ]
            )
        pipelines[registered.pipeline.name] = registered
        return registered

    return register
