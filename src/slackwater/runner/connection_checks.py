"""The checks of `check --connect`: every system of a pipeline is reachable and fits the config. Nothing is changed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial

from slackwater.config.connection import PostgresConnection
from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.config.target import Target as TargetSpec
from slackwater.connectors.connector import connector_for
from slackwater.connectors.files import source as files_source
from slackwater.core.offset_base import ChangedFiles
from slackwater.core.offsets import FileOffsets
from slackwater.core.paths import file_uri_to_path, is_local
from slackwater.errors import SlackwaterError, StartError, Topic


def find_connection_problems(pipeline: Pipeline) -> list[SlackwaterError]:
    """Return an error for each system that is unreachable or does not fit the config.

    Spark starts only for a Postgres target, to find out which columns its table must have.
    """
    from slackwater.state.store_access import create_store

    problems: list[SlackwaterError] = []

    def attempt(check: Callable[[], object]) -> None:
        try:
            check()
        except SlackwaterError as error:
            problems.append(error)

    for spec in pipeline.sources:
        connection = resolve_connection(spec.connection, pipeline.connections)
        if connection is not None:
            attempt(partial(connector_for(connection).check_source, spec))
    store = pipeline.state_store
    if store is not None and store.kind == "postgres":
        from slackwater.state.postgres import client

        attempt(lambda: client.open_connection(str(store.url), "state store").close())
    elif store is not None and store.kind == "files" and not is_local(store.path or ""):
        attempt(lambda: create_store(pipeline).runner())
    for key, target in _target_specs(pipeline).items():
        if (connection := resolve_connection(target.connection, pipeline.connections)) is not None:
            attempt(partial(connector_for(connection).check_target, target, key))
    connections = [
        resolve_connection(target_pipeline.target.connection, pipeline.connections)
        for target_pipeline in pipeline.per_target.values()
    ]
    if not problems and any(isinstance(c, PostgresConnection) for c in connections):
        attempt(lambda: _check_tables(pipeline))
    return problems


def find_connection_notes(pipeline: Pipeline) -> list[str]:
    """Return notes about what would be created at startup, and about files that changed after they were read."""
    from slackwater.connectors.files import planner as file_planner
    from slackwater.state.store_access import create_store

    notes = []
    for key, target in _target_specs(pipeline).items():
        connection = resolve_connection(target.connection, pipeline.connections)
        if connection is not None and (note := connector_for(connection).will_create(target, key)) is not None:
            notes.append(note)
    if pipeline.state_store is None or not pipeline.state_store.durable:
        return notes
    store = create_store(pipeline)
    try:
        with store.peek() as snapshot:
            for spec in pipeline.sources if snapshot is not None else ():
                record = snapshot.commit.sources.get(spec.name) if snapshot else None
                read = FileOffsets.coerce(record.offsets if record else None)
                changes = read.changed or ChangedFiles()
                names, count = list(changes.last), changes.count
                if pipeline.state_store.kind == "files" and read.lists:
                    tracker = file_planner.FileChangeTracker()
                    tracker.add(files_source.load_file_list(store, read))
                    changed = tracker.find_changed(None)
                    names += [file_uri_to_path(e.path) for e in changed]
                    count += len(changed)
                if count:
                    notes.append(
                        file_planner.changed_files_text(spec.name, names[-file_planner.CHANGES_SHOWN :], count)
                    )
    finally:
        store.close()
    return notes


def _target_specs(pipeline: Pipeline) -> dict[str, TargetSpec]:
    """Return all targets, including the target of dead letters, by config key."""
    specs = {
        f'target "{n}"' if pipeline.targets else "target": target_pipeline.target
        for n, target_pipeline in pipeline.per_target.items()
    }
    return specs if pipeline.dead_letter is None else {**specs, "dead_letter": pipeline.dead_letter}


def _check_tables(pipeline: Pipeline) -> None:
    """Raise StartError, with one line per difference, if a Postgres table does not fit the pipeline's output."""
    from slackwater.connectors.lookup_views import LookupViews
    from slackwater.connectors.postgres.target import PostgresTarget
    from slackwater.runner.component_factory import bind_stages, create_source, create_target_writers, spark_settings
    from slackwater.spark.sessions import spark_session
    from slackwater.state.store_access import create_store

    private_session = spark_session.private_session(
        spark_session.start_session(spark_settings(pipeline, lambda level, line: None)), 1
    )
    LookupViews(private_session, pipeline.lookups, lambda line: None).load()
    sources = [create_source(private_session, pipeline, i, None) for i in range(len(pipeline.sources))]
    operators = {name: step.operator for name, step in bind_stages(pipeline, private_session, sources).items()}
    latest = None
    if pipeline.state_store is not None and pipeline.state_store.durable:
        with closing(create_store(pipeline)) as store, store.peek() as snapshot:
            latest = None if snapshot is None else snapshot.commit
    targets = create_target_writers(pipeline, operators, latest=latest)
    if lines := [line for t in targets.values() if isinstance(t, PostgresTarget) for line in t.problems()]:
        raise StartError("\n".join(lines), Topic.TARGET_UNSUITABLE)
