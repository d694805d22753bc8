"""Repartition rows by shard.

Spark 4.1 and later provide `repartitionById`. In earlier versions, rows are partitioned by a key with a matching hash:

    shard 2 of 3 ─▶ key 5: pmod(murmur3(5, seed 42), 3) = 2 ─▶ repartition(3, key) ─▶ partition 2
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from slackwater.connectors import spark_connect

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

_BY_ID_SINCE = (4, 1)
_SEED = 42  # the seed of Spark's hash partitioning


def partition_by_shard(rows: DataFrame, shards: int, owner: str) -> DataFrame:
    """Repartition rows into one partition per shard, and add the column `__shard`.

    Args:
        rows: The rows.
        shards: The number of shards.
        owner: SQL for the number of a row's shard.
    """
    if hasattr(rows, "repartitionById") and spark_connect.spark_version(rows.sparkSession) >= _BY_ID_SINCE:
        by_id = rows.selectExpr("*", f"{owner} AS __shard")
        return by_id.repartitionById(shards, by_id["__shard"])
    listed = ", ".join(map(str, shard_keys(shards)))
    return rows.selectExpr("*", f"element_at(array({listed}), {owner} + 1) AS __shard").repartition(shards, "__shard")


@cache
def shard_keys(shards: int) -> tuple[int, ...]:
    """Return one INT key per shard. Spark's hash partitioning sends rows with this key to the shard's partition."""
    key_of: dict[int, int] = {}
    start, block = 0, 8 * shards + 64
    while len(key_of) < shards:
        numbers = np.arange(start, start + block, dtype=np.int32)
        partitions, first = np.unique(np.mod(murmur3(numbers), np.int32(shards)), return_index=True)
        for partition, index in zip(partitions.tolist(), first.tolist(), strict=True):
            key_of.setdefault(partition, int(numbers[index]))
        start += block
    return tuple(key_of[partition] for partition in range(shards))


def murmur3(numbers: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return Spark's `hash` of INT values: MurmurHash3 (x86, 32 bits) of their four bytes."""
    with np.errstate(over="ignore"):
        mixed = numbers.view(np.uint32) * np.uint32(0xCC9E2D51)
        mixed = _rotate_left(mixed, 15) * np.uint32(0x1B873593)
        mixed_hash = _rotate_left(np.uint32(_SEED) ^ mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
        mixed_hash ^= np.uint32(4)  # bytes
        mixed_hash = (mixed_hash ^ (mixed_hash >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        mixed_hash = (mixed_hash ^ (mixed_hash >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        return (mixed_hash ^ (mixed_hash >> np.uint32(16))).view(np.int32)


def _rotate_left(numbers: NDArray[np.uint32], bits: int) -> NDArray[np.uint32]:
    return (numbers << np.uint32(bits)) | (numbers >> np.uint32(32 - bits))
