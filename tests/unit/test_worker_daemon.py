"""Workers import the installed PySpark: Spark's zip files of the same packages are removed from their search path."""

from __future__ import annotations

from pathlib import Path

import pytest

from slackwater.spark.worker_daemon import remove_archives


def make_installation(home: Path, *packages: str) -> tuple[str, str, str]:
    """Return the folder of installed packages and Spark's two zip files in it."""
    archives = home / "pyspark" / "python" / "lib"
    archives.mkdir(parents=True)
    for package in packages:
        (home / package).mkdir(exist_ok=True)
        (home / package / "__init__.py").touch()
    return str(home), str(archives / "pyspark.zip"), str(archives / "py4j-0.10.9.9-src.zip")


def test_archives_of_installed_packages_are_removed(tmp_path: Path) -> None:
    home, pyspark, py4j = make_installation(tmp_path, "pyspark", "py4j")
    assert remove_archives(["", pyspark, py4j, "/other", home]) == ["", "/other", home]


@pytest.mark.parametrize("missing", ["pyspark", "py4j"])
def test_archive_stays_if_its_package_is_not_installed(tmp_path: Path, missing: str) -> None:
    home, pyspark, py4j = make_installation(tmp_path, *({"pyspark", "py4j"} - {missing}))
    assert remove_archives([pyspark, py4j, home]) == [{"pyspark": pyspark, "py4j": py4j}[missing], home]


def test_archives_of_another_installation_stay(tmp_path: Path) -> None:
    """The zip files are those of a Spark whose Python packages are not on the search path."""
    home, pyspark, py4j = make_installation(tmp_path, "pyspark", "py4j")
    for others in (["/other"], [home + "/pyspark"]):
        assert remove_archives([pyspark, py4j, *others]) == [pyspark, py4j, *others]
    for entry in ("", "/a.zip", "pyspark.zip", "python/lib/pyspark.zip", str(tmp_path / "pyspark.zip")):
        assert remove_archives([entry, home]) == [entry, home]
