"""Check, before Spark starts, whether Spark will have the connector for files in an object store.

s3a://bucket/…   org.apache.hadoop:hadoop-aws        of the same version as Spark's Hadoop
abfss://…        org.apache.hadoop:hadoop-azure      of the same version as Spark's Hadoop
gs://bucket/…    com.google.cloud.bigdataoss:gcs-connector
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from slackwater.config.config_paths import SPARK_CONNECTORS, spark_scheme
from slackwater.config.connection import Connection, DeltaConnection, IcebergConnection
from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.config.source import Source

_JAR_SETTINGS = {"spark.jars", "spark.jars.packages", "spark.driver.extraClassPath", "spark.remote"}
# environment variables that select another Spark, or settings that cannot be checked here
_ELSEWHERE = ("SPARK_HOME", "SPARK_REMOTE", "SPARK_CONF_DIR")


def find_unreadable_sources(pipeline: Pipeline) -> Iterator[str]:
    """Yield a message for each source whose files Spark could not read with this config."""
    if _JAR_SETTINGS & set(pipeline.spark) or any(map(os.environ.get, _ELSEWHERE)):
        return
    jars = _jars()
    for source in pipeline.sources:
        connection = resolve_connection(source.connection, pipeline.connections)
        scheme = None if connection is None else _scheme(connection, source)
        if scheme in ("s3", "s3n"):
            yield f'source "{source.name}": Spark does not know {scheme}:// addresses; write s3a://'
        package = SPARK_CONNECTORS.get(scheme or "")
        if (
            package is None
            or jars is None
            or any(j.startswith(f"{package.rpartition(':')[2]}-") for j in jars.values())
        ):
            continue
        yield (
            f'source "{source.name}": Spark needs a connector to read {scheme}://, and none is configured; add '
            f'{package}{_version(package, jars)} to "spark.jars.packages" ([spark])'
        )


def _scheme(connection: Connection, source: Source) -> str | None:
    """Return the URI scheme with which Spark reads a source, in Spark's spelling; None if there is no scheme."""
    place = source.query or ""
    if isinstance(connection, IcebergConnection):
        place = connection.options.get("warehouse", "")
    scheme, colon, _ = place.partition("://")
    if not colon:
        return None
    return spark_scheme(scheme) if isinstance(connection, DeltaConnection | IcebergConnection) else scheme


def _jars() -> Mapping[str, str] | None:
    """Return the jars that come with PySpark: their names without ".jar", by file name. None if they are not found."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "jars"
    return {p.name: p.stem for p in folder.glob("*.jar")} or None


def _version(package: str, jars: Mapping[str, str]) -> str:
    if not package.startswith("org.apache.hadoop:"):
        return ""
    api = next((j for j in jars.values() if j.startswith("hadoop-client-api-")), "")
    return f":{api.rpartition('-')[2]}" if api else ""
