"""Limits on how much memory an Avro record may make Java allocate.

A record of ten bytes can announce a string of 2 GB or an array of two billion items. Avro's decoder allocates that much
memory before it reads the content. This kills Spark's process, so one record would stop the pipeline on every start.
With these limits, such a record is a bad row. Avro reads the limits from Java system properties when its decoder is
loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from slackwater.connectors import spark_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PREFIX = "org.apache.avro.limits"
MAX_BYTES = 256 * 1024 * 1024
MAX_ITEMS = 10_000_000
LIMITS: Mapping[str, int] = {
    f"{_PREFIX}.string.maxLength": MAX_BYTES,
    f"{_PREFIX}.bytes.maxLength": MAX_BYTES,
    f"{_PREFIX}.collectionItems.maxLength": MAX_ITEMS,
}
JAVA_OPTIONS = " ".join(f"-D{name}={limit}" for name, limit in LIMITS.items())


def set_memory_limits(session: SparkSession) -> None:
    """Set the limits in the process of the Spark driver, unless they are set already.

    They have no effect if that process has already decoded Avro. A Spark Connect server keeps its own limits.
    """
    if spark_connect.is_connect(session):
        return
    system = session.sparkContext._jvm.java.lang.System  # type: ignore[union-attr]
    for name, limit in LIMITS.items():
        if system.getProperty(name) is None:
            system.setProperty(name, str(limit))
