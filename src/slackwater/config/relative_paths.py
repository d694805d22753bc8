"""Resolve the relative paths of a config file against its directory, and list the directories that a run writes to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, Self, TypeVar

from slackwater.config.connector_description import CONNECTORS
from slackwater.config.error_text import EnvString
from slackwater.config.pipeline import Pipeline
from slackwater.config.pipeline_checks import resolve_connection
from slackwater.config.source import SCHEMA_FILES, Lookup, Source
from slackwater.config.target import StateStore, Target
from slackwater.core.paths import is_local

_S = TypeVar("_S", Source, Lookup, Target, StateStore)


class ResolvedPath(str):
    """Absolute path that was resolved from `written`, the relative path in the config."""

    written: str

    def __new__(cls, value: str, written: str) -> Self:
        self = super().__new__(cls, value)
        self.written = written
        return self

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]  # two arguments, for copy and pickle
        return str(self), self.written


class InterpolatedPath(EnvString):
    """Absolute path that was resolved from `written`, the relative path in an environment variable."""

    written: str


def restore_written_path(path: str) -> str:
    """Return the relative path from which a path was resolved. Return any other path unchanged."""
    return path.written if isinstance(path, ResolvedPath | InterpolatedPath) else path


SPARK_CONNECTORS = {  # URI scheme of an object store -> the Maven artifact that Spark needs
    "s3a": "org.apache.hadoop:hadoop-aws",
    "abfss": "org.apache.hadoop:hadoop-azure",
    "gs": "com.google.cloud.bigdataoss:gcs-connector",
}
_AS_SPARK = {"s3": "s3a", "s3n": "s3a", "az": "abfss", "adl": "abfss", "gcs": "gs"}


def spark_scheme(scheme: str) -> str:
    """Return Spark's name for a URI scheme: `s3` -> `s3a`."""
    return _AS_SPARK.get(scheme, scheme)


def spark_address(address: str) -> str:
    """Return an address with the URI scheme that Spark uses: `s3://…` -> `s3a://…`. A local path is unchanged."""
    scheme, colon, rest = address.partition("://")
    return f"{spark_scheme(scheme)}{colon}{rest}" if colon else address


def resolve_paths(pipeline: Pipeline, folder: PurePath) -> Pipeline:
    """Return a copy of a pipeline in which all paths are absolute. `folder`: the base directory."""

    def resolve(spec: _S, *keys: str) -> _S:
        absolute = {key: _absolute(folder, value) for key in keys if (value := getattr(spec, key)) is not None}
        return spec.model_copy(update=absolute) if absolute else spec

    def source(spec: Source) -> Source:
        connection = None if spec.dataframe is not None else resolve_connection(spec.connection, pipeline.connections)
        path = connection is not None and CONNECTORS[connection.kind].query_is_path
        return resolve(spec, *(("query",) if path else ()), *SCHEMA_FILES.values())

    def lookup(spec: Lookup) -> Lookup:
        return resolve(spec, "query")

    stages = tuple(s.map_lookups(lookup) for s in pipeline.stages)
    first = next((s for s in stages if s.name == getattr(pipeline.transform, "name", None)), None)
    store, letters = pipeline.state_store, pipeline.dead_letter
    return pipeline.model_copy(
        update={
            "sources": tuple(map(source, pipeline.sources)),
            "transform": first or pipeline.transform.map_lookups(lookup),
            "stages": stages,
            "target": resolve(pipeline.target, "path"),
            "targets": tuple(resolve(t, "path") for t in pipeline.targets),
            "dead_letter": None if letters is None else resolve(letters, "path"),
            "state_store": None if store is None else resolve(store, "path"),
        }
    )


def _absolute(folder: PurePath, path: str) -> str:
    if "://" in path or path.startswith("file:") or PurePath(path).is_absolute():
        return path
    absolute = str(folder / path)
    if not isinstance(path, EnvString):
        return ResolvedPath(absolute, path)
    interpolated = InterpolatedPath(absolute, path.raw)
    interpolated.written = str(path)
    return interpolated


def list_written_directories(pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    """Yield the local directories to which a run writes, as (config key, path)."""
    paths: list[tuple[str, Any]] = [("state_store.path", pipeline.state_store and pipeline.state_store.path)]
    paths += [(f"targets[{i}].path", t.path) for i, t in enumerate(pipeline.targets)]
    if not pipeline.targets:
        paths.append(("target.path", pipeline.target.path))
    paths.append(("dead_letter.path", pipeline.dead_letter and pipeline.dead_letter.path))
    yield from ((key, path) for key, path in paths if path and is_local(path))


__all__ = ["ResolvedPath", "list_written_directories", "resolve_paths", "restore_written_path"]
