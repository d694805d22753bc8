"""Download jars that PySpark lacks from Maven into a cache, using the Ivy that comes with PySpark.

    ~/.cache/slackwater/jars/<organisation>.<module>-<version>/*.jar      (SLACKWATER_CACHE sets another directory)

If there is no network, set `spark.jars` or `spark.jars.packages` in the Spark settings instead. `slackwater prepare`
downloads the jars ahead of time, for example when a container image is built.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

from slackwater.core.humanize import mismatch
from slackwater.errors import StartError, Topic

KAFKA = "kafka"  # represents the jars of Spark's Kafka connector, which depend on the version of Spark
_SCALA = "2.13"
# Dependencies of Spark's Kafka connector that are not among Spark's own jars
_CLIENTS = (("org.apache.kafka", "kafka-clients", "3.9.2"), ("org.apache.commons", "commons-pool2", "2.13.1"))
# Published releases that work with later Spark releases of the same line, newest first
_CONNECTORS = ("4.2.0", "4.1.3", "4.1.1", "4.0.2", "4.0.0")
_TOKEN_PROVIDERS = _CONNECTORS  # all releases contain the same class
_AVRO = ("4.2.0", "4.1.1", "4.0.2", "4.0.0")


def cache_directory() -> Path:
    return Path(os.environ.get("SLACKWATER_CACHE") or Path.home() / ".cache" / "slackwater")


def kafka_connector(spark_version: str) -> tuple[list[Path], str]:
    """Return the jars of Spark's Kafka connector, and its version: that of Spark, or an earlier one (see `_newest`).

    Raises StartError if they are not in the cache and cannot be downloaded.
    """
    connector, version = _newest(f"spark-sql-kafka-0-10_{_SCALA}", spark_version, _CONNECTORS)
    tokens, _ = _newest(f"spark-token-provider-kafka-0-10_{_SCALA}", spark_version, _TOKEN_PROVIDERS, any_line=True)
    clients = [jar for coordinates in _CLIENTS for jar in _fetch(*coordinates, transitive=False)]
    return [*connector, *tokens, *clients], version


def avro_connector(spark_version: str) -> list[Path]:
    """Return the jar of Spark's Avro functions. Raises StartError if it is not cached and cannot be downloaded."""
    return _newest(f"spark-avro_{_SCALA}", spark_version, _AVRO)[0]


def connector_jars(name: str) -> list[Path]:
    """Return the jars of "kafka" or "avro" for the installed PySpark. Raises StartError for any other name."""
    spark_version = metadata.version("pyspark")
    if name == "kafka":
        return kafka_connector(spark_version)[0]
    if name == "avro":
        return avro_connector(spark_version)
    raise StartError(mismatch(f"{name!a}", "one or both of: kafka, avro"), Topic.VALUE)


def package_jars(package: str) -> list[Path]:
    """Return the jars of one entry of a connector's `spark_packages`.

    The entry is the path of a jar, or a Maven module (group:module:version), which is returned with its dependencies.
    Raises StartError if the entry is neither, or if its jars do not exist or cannot be downloaded.
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
            mismatch(f"{package!a}", "a jar, or a Maven module as in org.example:journal-spark:1.2.0"), Topic.VALUE
        )
    return fetch_with_dependencies(parts[0], parts[1], parts[2])


def fetch_with_dependencies(organisation: str, module: str, version: str) -> list[Path]:
    """Return the jars of a module and all its dependencies."""
    return _fetch(organisation, module, version, transitive=True)


def fetch_jar(organisation: str, name: str, version: str) -> list[Path]:
    """Return the jar of a module without dependencies."""
    return _fetch(organisation, name, version, transitive=False)


def modules_from_ivy(name: str, modules: str) -> list[Path]:
    """Return the jars of the modules that an `ivy.xml` lists, and of their dependencies.

    `name`: the name of their folder in the cache. `modules`: the content of the `ivy.xml`, which can also list other
    artifacts.
    """
    return _fetch_once(cache_directory() / "jars" / name, lambda folder: _fetch_modules(name, modules, folder))


def fetch_program(name: str, modules: str) -> Path:
    """Return the folder of a program that is published as an archive. `name`, `modules`: see `modules_from_ivy`."""
    _fetch_once(cache_directory() / "jars" / name, lambda folder: _fetch_program(name, modules, folder))
    return cache_directory() / "jars" / name


def _newest(
    module: str, spark_version: str, published: Sequence[str], any_line: bool = False
) -> tuple[list[Path], str]:
    """Return the jars and the version of the release of a module that fits this Spark best.

    A cached release is preferred to a download if it belongs to Spark's release line or the newest line before it; with
    `any_line`, regardless of its line. `published`: the known releases. Raises StartError if no release can be
    downloaded.
    """
    candidates = list_candidate_versions(spark_version, published)
    lines = {_version_numbers(v)[:2] for v in candidates[:2]}
    cached = [v for v in candidates if _is_cached(_cache_folder("org.apache.spark", module, v))]
    fitting = [v for v in cached if any_line or _version_numbers(v)[:2] in lines]
    if fitting:
        return sorted(_cache_folder("org.apache.spark", module, fitting[0]).glob("*.jar")), fitting[0]
    failures: list[str] = []
    for version in candidates:
        try:
            return _fetch("org.apache.spark", module, version, transitive=False), version
        except StartError as error:
            failures.append(str(error))
    raise StartError(failures[0], Topic.NOT_INSTALLED)


def list_candidate_versions(spark_version: str, published: Sequence[str]) -> list[str]:
    """Return Spark's own version, followed by the versions in `published` that are older than it, in the same order."""
    return [spark_version, *(v for v in published if _version_numbers(v) < _version_numbers(spark_version))]


def _version_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version)[:3])


def _cache_folder(organisation: str, module: str, version: str) -> Path:
    return cache_directory() / "jars" / f"{organisation}.{module}-{version}"


def _is_cached(home: Path) -> bool:
    return any(home.glob("*.jar"))


def _fetch(organisation: str, module: str, version: str, *, transitive: bool) -> list[Path]:
    return _fetch_once(
        _cache_folder(organisation, module, version),
        lambda folder: _fetch_module(organisation, module, version, transitive, folder),
    )


def _fetch_once(home: Path, fetch: Callable[[Path], None]) -> list[Path]:
    """Return the jars in a folder of the cache. If there are none, one process downloads them while others wait.

    Two processes that download at the same time would break each other's downloads in Ivy's own cache.
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


def _fetch_module(organisation: str, module: str, version: str, transitive: bool, folder: Path) -> None:
    arguments = ["-dependency", organisation, module, version]
    arguments += ["-retrieve", f"{folder}/[artifact]-[revision].[ext]"]
    _ivy(f"{organisation}:{module}:{version}", folder, [*arguments, *([] if transitive else ["-notransitive"])])


def _fetch_modules(name: str, modules: str, folder: Path) -> None:
    file = folder / "ivy.xml"
    file.write_text(modules)
    _ivy(name, folder, ["-ivy", str(file), "-retrieve", f"{folder}/[artifact](-[classifier])-[revision].[ext]"])


def _fetch_program(name: str, modules: str, folder: Path) -> None:
    _fetch_modules(name, modules, folder)
    for archive in folder.glob("*.tar.gz"):
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
        archive.unlink()


def _ivy(label: str, folder: Path, arguments: Sequence[str]) -> None:
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
