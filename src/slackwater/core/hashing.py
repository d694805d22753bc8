"""Key hashes and session ids.

`key_hash` is Spark's `xxhash64(keys…)`: seed 42, chained over the columns, and NULL leaves the seed unchanged.
Therefore, a key has the same shard and state with and without Spark. `session_id` is xxhash64 (seed 0) of the canonical
text below, read as a signed 64-bit integer. Its definition must never change.

Canonical text of a session: for each key column `<name>=<value>` followed by U+001F, then the window start in
microseconds. `<value>` is `N` for NULL, otherwise `V` followed by the value as Polars casts it to a string (timestamps
and dates in ISO form, doubles in their shortest form, NaN as `NaN`). Binary values are hexadecimal.
"""

from __future__ import annotations

import datetime as dt
import decimal
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import xxhash
from numpy.typing import NDArray

from slackwater.core.schema import INTEGERS, Field

SEED = 42  # the seed of Spark's `xxhash64`
COMPILED_TYPES = ("string", *INTEGERS, "boolean")  # the types that `core.numba_hashing` hashes
_EPOCH_DAY = dt.date(1970, 1, 1)
_MIX_1 = np.uint64(0x9E3779B97F4A7C15)
_MIX_2 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_3 = np.uint64(0x94D049BB133111EB)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _bytes_of(value: Any, field: Field) -> bytes:
    """Return the bytes that Spark passes to xxhash64 for a non-NULL value of a column."""
    match field.base:
        case "string":
            return str(value).encode()
        case "binary":
            return bytes(value)
        case "boolean" | "tinyint" | "smallint" | "int":
            return struct.pack("<i", int(value))
        case "date":
            return struct.pack("<i", (value - _EPOCH_DAY).days)
        case "float":
            return struct.pack("<f", float("nan") if value != value else value + 0.0)
        case "double":
            return struct.pack("<d", float("nan") if value != value else value + 0.0)
        case "decimal":
            precision, scale = field.decimal
            unscaled = int(decimal.Decimal(value).scaleb(scale, decimal.Context(prec=60)))
            if precision <= 18:
                return struct.pack("<q", unscaled)
            return unscaled.to_bytes(
                (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1, "big", signed=True
            )
        case _:
            return struct.pack("<q", int(value))


def spark_xxhash64(values: Sequence[Any], fields: Sequence[Field]) -> int:
    """Return Spark's `xxhash64` of one row. Timestamps are microseconds."""
    seed = SEED
    for value, field in zip(values, fields, strict=True):
        if value is not None:
            seed = xxhash.xxh64_intdigest(_bytes_of(value, field), seed)
    return _signed(seed)


def key_hash(frame: pl.DataFrame, keys: Sequence[Field]) -> pl.Series:
    """Return `xxhash64(keys…)` of each row as int64. The frame must contain the key columns."""
    if not keys:
        return pl.Series("__kh", np.full(frame.height, SEED), dtype=pl.Int64)
    columns = [frame[k.name].cast(pl.Int64) if k.base.startswith("timestamp") else frame[k.name] for k in keys]
    rows = zip(*(c.to_list() for c in columns), strict=True)
    return pl.Series("__kh", [spark_xxhash64(r, keys) for r in rows], dtype=pl.Int64)


def mix_bits(hashes: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Combine the hash of a key and the start of a pane into one int64 hash (splitmix64 finalizer)."""
    x = hashes.view(np.uint64) ^ (starts.view(np.uint64) * _MIX_1)
    x = (x ^ (x >> np.uint64(30))) * _MIX_2
    x = (x ^ (x >> np.uint64(27))) * _MIX_3
    return (x ^ (x >> np.uint64(31))).view(np.int64)


def shard_of(hashes: NDArray[np.int64], shards: int) -> NDArray[np.int64]:
    """Return the shard of each hash: `pmod(key hash, shards)`."""
    return np.mod(hashes, np.int64(shards))


def _text(field: Field) -> pl.Expr:
    column = pl.col(field.name)
    if field.base == "binary":
        value = column.bin.encode("hex")
    elif field.base == "boolean":
        value = pl.when(column).then(pl.lit("true")).otherwise(pl.lit("false"))
    else:
        value = column.cast(pl.String)
    return (
        pl.when(column.is_null())
        .then(pl.lit(f"{field.name}=N\x1f"))
        .otherwise(pl.concat_str(pl.lit(f"{field.name}=V"), value, pl.lit("\x1f")))
    )


def session_ids(frame: pl.DataFrame, keys: Sequence[Field], start: str) -> pl.Series:
    """Return the `session_id` of each row as int64.

    The id depends on the columns `keys` and `start`. `start` holds the start of the session in int64 microseconds.
    """
    text = frame.select(pl.concat_str(*[_text(k) for k in keys], pl.col(start).cast(pl.String))).to_series()
    digests = np.fromiter(map(xxhash.xxh64_intdigest, text.cast(pl.Binary).to_list()), dtype=np.uint64, count=len(text))
    return pl.Series("session_id", digests.view(np.int64))
