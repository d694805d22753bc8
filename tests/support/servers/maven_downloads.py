"""Programs and modules of test servers, downloaded from Maven into the cache of `spark_jars`."""

from __future__ import annotations

import tarfile
from pathlib import Path

from slackwater.spark.sessions import spark_jars


def fetch_jars(name: str, modules: str) -> list[Path]:
    """Return the jars of the modules that an `ivy.xml` lists, and of their dependencies.

    `name`: the folder of the jars in the cache. `modules`: the content of the `ivy.xml`, which can also list other
    artifacts.
    """
    return spark_jars.fetch_once(
        spark_jars.cache_directory() / "jars" / name, lambda folder: _fetch_modules(name, modules, folder)
    )


def fetch_program(name: str, modules: str) -> Path:
    """Return the folder of a program that is published as an archive. `name`, `modules`: see `fetch_jars`."""
    spark_jars.fetch_once(
        spark_jars.cache_directory() / "jars" / name, lambda folder: _fetch_program(name, modules, folder)
    )
    return spark_jars.cache_directory() / "jars" / name


def _fetch_modules(name: str, modules: str, folder: Path) -> None:
    file = folder / "ivy.xml"
    file.write_text(modules)
    spark_jars.run_ivy(
        name, folder, ["-ivy", str(file), "-retrieve", f"{folder}/[artifact](-[classifier])-[revision].[ext]"]
    )


def _fetch_program(name: str, modules: str, folder: Path) -> None:
    _fetch_modules(name, modules, folder)
    for archive in folder.glob("*.tar.gz"):
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
        archive.unlink()
