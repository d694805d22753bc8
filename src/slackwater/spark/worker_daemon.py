"""Spark's daemon of Python workers, with the installed PySpark instead of the copy of it in a zip file.

Spark puts `pyspark.zip` first on the search path of its workers. Python keeps no compiled code of modules in zip files, so
each start would compile PySpark again. Spark runs this module because `spark.python.daemon.module` names it.

    site-packages/pyspark/python/lib/pyspark.zip     removed from the search path
    site-packages/pyspark/__init__.py                imported instead: both are parts of the same installation
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

NAME = "slackwater.spark.worker_daemon"


def remove_archives(search_path: Sequence[str]) -> list[str]:
    """Return a search path without the zip files of Spark whose packages are also installed."""
    return [entry for entry in search_path if not _is_installed(Path(entry), search_path)]


def _is_installed(archive: Path, search_path: Sequence[str]) -> bool:
    """Return whether a file is `pyspark/python/lib/<package>*.zip`, and the package is in the same site-packages folder."""
    if archive.suffix != ".zip" or len(archive.parents) < 4 or archive.parts[-4:-1] != ("pyspark", "python", "lib"):
        return False
    site_packages, package = archive.parents[3], archive.name.removesuffix(".zip").partition("-")[0]
    return str(site_packages) in search_path and (site_packages / package / "__init__.py").exists()


if __name__ == "__main__":
    sys.path[:] = remove_archives(sys.path)
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
