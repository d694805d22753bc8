"""Download jars that PySpark lacks from Maven into a cache, and check before startup whether a jar is missing.

    ~/.cache/slackwater/jars/<organisation>.<module>-<version>/*.jar      (SLACKWATER_CACHE sets another directory)

Ivy, which is part of PySpark, downloads the jars. `slackwater prepare` downloads them ahead of time, for example when a
container image is built. Without a network, set `spark.jars` or `spark.jars.packages` in the Spark settings instead.

Jars with which Spark reads files in an object store are not downloaded. The config must name them:

    s3a://bucket/…   org.apache.hadoop:hadoop-aws        of the same version as Spark's Hadoop
    abfss://…        org.apache.hadoop:hadoop-azure      of the same version as Spark's Hadoop
    gs://bucket/…    com.google.cloud.bigdataoss:gcs-connector
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from slackwater.config.connection import Connection, DeltaConnection, IcebergConnection
from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.config.relative_paths import SPARK_CONNECTORS, spark_scheme
from slackwater.config.source import Source
from slackwater.core.humanize import mismatch
from slackwater.errors import StartError, Topic

KAFKA = "kafka"  # stands for the jars of Spark's Kafka connector, which depend on the version of Spark
_SCALA = "2.13"
# dependencies of Spark's Kafka connector that PySpark lacks
_CLIENTS = (("org.apache.kafka", "kafka-clients", "3.9.2"), ("org.apache.commons", "commons-pool2", "2.13.1"))
# published releases that work with later Spark releases of the same line, newest first
_CONNECTORS = ("4.2.0", "4.1.3", "4.1.1", "4.0.2", "4.0.0")
_AVRO = ("4.2.0", "4.1.1", "4.0.2", "4.0.0")
_JAR_SETTINGS = {"spark.jars", "spark.jars.packages", "spark.driver.extraClassPath", "spark.remote"}
# environment variables that select another Spark, or settings that cannot be checked here
_ELSEWHERE = ("SPARK_HOME", "SPARK_REMOTE", "SPARK_CONF_DIR")


def cache_directory() -> Path:
    return Path(os.environ.get("SLACKWATER_CACHE") or Path.home() / ".cache" / "slackwater")


def kafka_connector(spark_version: str) -> tuple[list[Path], str]:
    """Return the jars of Spark's Kafka connector, and its version. The version may be earlier than Spark's.

    Raises StartError if the jars are not in the cache and cannot be downloaded.
    """
    connector, version = _newest(f"spark-sql-kafka-0-10_{_SCALA}", spark_version, _CONNECTORS)
    # All releases of the token provider contain the same class.
    tokens, _ = _newest(f"spark-token-provider-kafka-0-10_{_SCALA}", spark_version, _CONNECTORS, any_line=True)
    clients = [jar for coordinates in _CLIENTS for jar in fetch_jars(*coordinates)]
    return [*connector, *tokens, *clients], version


def avro_connector(spark_version: str) -> list[Path]:
    """Return the jar of Spark's Avro functions. Raises StartError if it is not cached and cannot be downloaded."""
    return _newest(f"spark-avro_{_SCALA}", spark_version, _AVRO)[0]


def connector_jars(name: str) -> list[Path]:
    """Return the jars needed for "kafka" or "avro" with the installed PySpark. Raises StartError for any other name."""
    spark_version = metadata.version("pyspark")
    if name == "kafka":
        return kafka_connector(spark_version)[0]
    if name == "avro":
        return avro_connector(spark_version)
    raise StartError(mismatch(f"{name!a}", "one or both of: kafka, avro"), Topic.VALUE)


def package_jars(package: str) -> list[Path]:
    """Return the jars of one entry in a connector's `spark_packages`.

    The entry is the path of a jar, or a Maven module (group:module:version), whose dependencies are included. Raises
    StartError if the entry is neither, or if a jar does not exist or cannot be downloaded.
    """
    if package.endswith(".jar"):
        if not Path(package).is_file():
            raise StartError(
                f'jar "{package}" of a connector does not exist; install the connector again', Topic.NOT_INSTALLED
            )
        return [Path(package)]
    parts = package.split(":")
    if len(parts) != 3:
        raise StartError(
            "spark_packages of a connector: "
            + mismatch(f"{package!a}", "a jar, or a Maven module such as org.example:journal-spark:1.2.0"),
            Topic.VALUE,
        )
    return fetch_jars(parts[0], parts[1], parts[2], transitive=True)


def _newest(
    module: str, spark_version: str, published: Sequence[str], any_line: bool = False
) -> tuple[list[Path], str]:
    """Return the jars and version of the module release that best suits this Spark.

    A cached release is preferred to a download if it belongs to Spark's release line or to the newest earlier line.

    Args:
        module: The name of the module.
        spark_version: The version of Spark.
        published: The published releases, newest first.
        any_line: Whether to prefer any cached release, regardless of its line.

    Raises:
        StartError: No release is cached or can be downloaded.
    """
    candidates = list_candidate_versions(spark_version, published)
    lines = {version_numbers(v)[:2] for v in candidates[:2]}
    cached = [v for v in candidates if _is_cached(_cache_folder("org.apache.spark", module, v))]
    fitting = [v for v in cached if any_line or version_numbers(v)[:2] in lines]
    if fitting:
        return sorted(_cache_folder("org.apache.spark", module, fitting[0]).glob("*.jar")), fitting[0]
    failures: list[str] = []
    for version in candidates:
        try:
            return fetch_jars("org.apache.spark", module, version), version
        except StartError as error:
            failures.append(str(error))
    raise StartError(failures[0], Topic.NOT_INSTALLED)


def list_candidate_versions(spark_version: str, published: Sequence[str]) -> list[str]:
    """Return Spark's own version, followed by the older versions in `published`, in the same order."""
    return [spark_version, *(v for v in published if version_numbers(v) < version_numbers(spark_version))]


def version_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version)[:3])


def _cache_folder(organisation: str, module: str, version: str) -> Path:
    return cache_directory() / "jars" / f"{organisation}.{module}-{version}"


def _is_cached(home: Path) -> bool:
    return any(home.glob("*.jar"))


def fetch_jars(organisation: str, module: str, version: str, *, transitive: bool = False) -> list[Path]:
    """Return the jar of a Maven module from the cache, or download it.

    Args:
        organisation: The organisation of the module.
        module: The name of the module.
        version: The version of the module.
        transitive: Whether to include the jars of all dependencies.

    Raises:
        StartError: The download failed.
    """

    def fetch(folder: Path) -> None:
        arguments = ["-dependency", organisation, module, version]
        arguments += ["-retrieve", f"{folder}/[artifact]-[revision].[ext]"]
        run_ivy(f"{organisation}:{module}:{version}", folder, [*arguments, *([] if transitive else ["-notransitive"])])

    return fetch_once(_cache_folder(organisation, module, version), fetch)


def fetch_once(home: Path, fetch: Callable[[Path], None]) -> list[Path]:
    """Return the jars in a folder of the cache. If it has none, one process downloads them, and other processes wait.

    Parallel downloads would damage each other's files in Ivy's cache. `fetch`: a function that downloads to a folder.
    """
    if not _is_cached(home):
        home.parent.mkdir(parents=True, exist_ok=True)
        with (home.parent / ".fetching").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_cached(home):
                _fetch_whole(home, fetch)
    return sorted(home.glob("*.jar"))


def _fetch_whole(home: Path, fetch: Callable[[Path], None]) -> None:
    """Download to a temporary folder and rename it, so that the folder is either complete or missing."""
    partial = Path(tempfile.mkdtemp(dir=home.parent, prefix=".fetch-"))
    try:
        fetch(partial)
        partial.chmod(0o755)
        partial.rename(home)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def run_ivy(label: str, folder: Path, arguments: Sequence[str]) -> None:
    """Run Ivy, which downloads files to a folder.

    Args:
        label: The name of the module, for the error message.
        folder: The folder.
        arguments: The arguments of Ivy, which must name the folder.

    Raises:
        StartError: The folder contains neither a jar nor an archive afterward.
    """
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    command = ["java", "-jar", str(next(jars.glob("ivy-*.jar"))), "-m2compatible", "-warn"]
    command += ["-cache", str(cache_directory() / "ivy"), "-confs", "default", *arguments]
    if settings := os.environ.get("SLACKWATER_IVY_SETTINGS"):
        command += ["-settings", settings]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode or not (any(folder.glob("*.jar")) or any(folder.glob("*.tar.gz"))):
        raise StartError(
            f"{label} cannot be fetched from Maven; go online once to fill the cache, or copy the jar to this machine "
            "and add it to the Spark setting spark.jars",
            Topic.NOT_INSTALLED,
        )


# -- jars for files in an object store ----------------------------------------------------------------------------------


def find_unreadable_sources(pipeline: Pipeline) -> Iterator[str]:
    """Yield a message for each source whose files Spark cannot read, because the config lacks a jar."""
    if _JAR_SETTINGS & set(pipeline.spark) or any(map(os.environ.get, _ELSEWHERE)):
        return
    jars = _list_spark_jars()
    for source in pipeline.sources:
        connection = resolve_connection(source.connection, pipeline.connections)
        scheme = None if connection is None else _scheme(connection, source)
        if scheme in ("s3", "s3n"):
            yield f'source "{source.name}": Spark does not know {scheme}:// addresses; write s3a://'
        package = SPARK_CONNECTORS.get(scheme or "")
        if package is None or not jars or any(j.startswith(f"{package.rpartition(':')[2]}-") for j in jars):
            continue
        yield (
            f'source "{source.name}": Spark needs a connector to read {scheme}://, and none is configured; add '
            f'{package}{_version(package, jars)} to "spark.jars.packages" ([spark])'
        )


def _scheme(connection: Connection, source: Source) -> str | None:
    """Return the URI scheme with which Spark reads a source, in Spark's spelling. None if there is no scheme."""
    place = source.query or ""
    if isinstance(connection, IcebergConnection):
        place = connection.options.get("warehouse", "")
    scheme, colon, _ = place.partition("://")
    if not colon:
        return None
    return spark_scheme(scheme) if isinstance(connection, DeltaConnection | IcebergConnection) else scheme


def _list_spark_jars() -> list[str]:
    """Return the names of the jars that are part of PySpark, without ".jar". Empty if PySpark is not installed."""
    spec = find_spec("pyspark")
    folders = [] if spec is None else spec.submodule_search_locations or []
    return [jar.stem for folder in folders[:1] for jar in (Path(folder) / "jars").glob("*.jar")]


def _version(package: str, jars: Sequence[str]) -> str:
    if not package.startswith("org.apache.hadoop:"):
        return ""
    api = next((j for j in jars if j.startswith("hadoop-client-api-")), "")
    return f":{api.rpartition('-')[2]}" if api else ""
