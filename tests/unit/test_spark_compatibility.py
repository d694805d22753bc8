"""Code that depends on the version of Spark: the partition of a shard, and the jars of the connectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slackwater.errors import StartError
from slackwater.spark import operator_input
from slackwater.spark.sessions import spark_jars


def test_murmur3_hash_equals_the_hash_of_spark() -> None:
    """Compare with `SELECT hash(0), hash(1), hash(-1), hash(2147483647)` in Spark 4.3."""
    numbers = np.array([0, 1, -1, 2147483647], dtype=np.int32)
    assert operator_input.hash_murmur3(numbers).tolist() == [933211791, -559580957, -1604776387, 133916647]


@pytest.mark.parametrize("shards", [1, 2, 3, 64, 1000])
def test_shard_keys_hash_to_the_partition_of_the_shard(shards: int) -> None:
    hashes = operator_input.hash_murmur3(np.array(operator_input.compute_shard_keys(shards), dtype=np.int32))
    assert np.mod(hashes, shards).tolist() == list(range(shards))


@pytest.mark.parametrize(
    ("spark", "cached", "taken"),
    [
        ("4.3.0", ["4.0.2", "4.2.0"], "4.2.0"),  # a cache shared with an older Spark
        ("4.3.0", ["4.0.2"], None),
        ("4.2.1", ["4.2.0", "4.2.1"], "4.2.1"),
        ("4.0.5", ["4.2.0", "4.0.2"], "4.0.2"),  # never the connector of a later Spark
        ("4.0.5", ["4.2.0", "4.1.1"], None),
    ],
)
def test_cached_kafka_connector_matches_the_spark_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, spark: str, cached: list[str], taken: str | None
) -> None:
    monkeypatch.setenv("SLACKWATER_CACHE", str(tmp_path))
    module = "spark-sql-kafka-0-10_2.13"
    for version in cached:
        home = tmp_path / "jars" / f"org.apache.spark.{module}-{version}"
        home.mkdir(parents=True)
        (home / f"{module}-{version}.jar").touch()
    fetched: list[str] = []

    def fetch(organisation: str, name: str, version: str) -> list[Path]:
        fetched.append(version)
        raise StartError(version)

    monkeypatch.setattr(spark_jars, "fetch_jars", fetch)
    if taken is not None:
        assert spark_jars._newest(module, spark, spark_jars._CONNECTORS)[1] == taken
        assert not fetched
        return
    with pytest.raises(StartError, match=spark):
        spark_jars._newest(module, spark, spark_jars._CONNECTORS)
    assert fetched == spark_jars.list_candidate_versions(spark, spark_jars._CONNECTORS)
